"""Metrics of spectra against the paper's listing, and where they have no value."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ess.spectra import metrics, reference

spectra = st.lists(st.floats(0, 1e3).filter(lambda x: x == 0 or x > 1e-6), min_size=1, max_size=9)


def descending(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).sort(descending=True).values


@given(spectra)
@settings(max_examples=100, deadline=None)
def test_as_in_the_listing(values):
    sigma = descending(values)
    for tol in (1e-1, 1e-3, 5.0):
        counted = metrics.tolerance_ess(sigma, [tol])
        exact = reference.tolerance_ess([sigma], tol)
        ties = ((sigma - tol).abs() < 1e-8 * tol).any()
        assert ties or torch.equal(counted, exact)
    if sigma[0] > 0:
        assert torch.allclose(metrics.entropy_ess(sigma), reference.entropy_ess([sigma])[0])


@given(spectra, st.floats(-100, 100))
@settings(max_examples=100, deadline=None)
def test_bounds_and_scale(values, exponent):
    sigma = descending(values)
    rank = int((sigma > 0).sum())
    scaled = sigma * 10**exponent
    for count in (metrics.entropy_ess(sigma), metrics.stable_rank(sigma)):
        assert (count == 0) == (rank == 0) and count <= rank + 1e-9 and (rank == 0 or count >= 1 - 1e-9)
    assert torch.allclose(metrics.entropy_ess(scaled), metrics.entropy_ess(sigma))
    assert torch.allclose(metrics.stable_rank(scaled), metrics.stable_rank(sigma))
    assert metrics.frobenius(sigma) == pytest.approx(float(sigma.square().sum().sqrt()), rel=1e-12)
    assert metrics.energy_rank(sigma, 1.0) <= rank


def test_k_equal_values_count_k():
    sigma = torch.tensor([[2.0] * 5 + [0.0] * 3] * 2, dtype=torch.float64)
    for value in (metrics.entropy_ess(sigma), metrics.stable_rank(sigma)):
        assert torch.allclose(value, torch.full((2,), 5.0, dtype=torch.float64), atol=1e-8)
    assert metrics.energy_rank(sigma, 0.6).tolist() == [3, 3]
    assert metrics.energy_rank(sigma, 0.61).tolist() == [4, 4]
    assert metrics.sigma_1(sigma).tolist() == [2.0, 2.0]


def test_nothing_is_left_of_nothing():
    sigma = torch.zeros(2, 3, 4, dtype=torch.float64)
    for f in (metrics.entropy_ess, metrics.stable_rank, metrics.frobenius, metrics.sigma_1):
        assert (f(sigma) == 0).all()
    assert (metrics.energy_rank(sigma, 0.9) == 0).all()
    assert metrics.relative_tolerances(sigma, [0.5]).tolist() == [[0.5, 0.5]]


def test_ties_count():
    sigma = torch.tensor([1.0, 1 - 1e-12, 1 - 1e-6], dtype=torch.float64)
    assert metrics.tolerance_ess(sigma, [1.0]).tolist() == [2]


def test_tolerances_of_each_operator():
    sigma = torch.tensor([[[4.0, 1.0], [2.0, 0.5]], [[0.4, 0.1], [0.2, 0.05]]], dtype=torch.float64)
    tol = metrics.relative_tolerances(sigma, [0.25, 1.0])
    assert torch.allclose(tol, torch.tensor([[1.0, 0.1], [4.0, 0.4]], dtype=torch.float64))
    assert metrics.tolerance_ess(sigma, tol).tolist() == [[[2, 1], [2, 1]], [[1, 0], [1, 0]]]
    assert metrics.tolerance_ess(sigma, [0.3]).tolist() == [[[2, 2], [1, 0]]]


def test_norms_do_not_overflow():
    sigma = torch.tensor([[3e200, 4e200], [3e-200, 4e-200]], dtype=torch.float64).flip(-1)
    assert metrics.frobenius(sigma).tolist() == pytest.approx([5e200, 5e-200], rel=1e-12)


def test_bound_utilisation_saturation():
    bound = metrics.bound(torch.full((2, 9), 3.0, dtype=torch.float64), 10)
    assert bound.tolist() == [[1, 2, 3, 3, 3, 3, 3, 2, 1]] * 2
    ess, tss = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([2.0, 0.0, 2.0])
    for ratio in (metrics.utilisation(ess, tss), metrics.saturation(ess, tss)):
        assert ratio[[0, 2]].tolist() == [0.5, 1.0] and math.isnan(ratio[1])


def test_a_gate_makes_null():
    values = metrics.gated(torch.tensor([5.0, 7.0]), torch.tensor([1e-9, 1.0]), 1e-3)
    assert math.isnan(values[0]) and values[1] == 7
