"""Theorem 2.1: the minimal realisation has size rank H_i and rebuilds T; less cannot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ess import NonFiniteOperator
from hf_ess.operators import RecurrentOperator
from hf_ess.spectra import realization
from hf_ess.spectra.ess import tolerance_ess


def recurrent(length, n, seed):
    g = torch.Generator().manual_seed(seed)
    a = torch.rand(1, length, n, generator=g, dtype=torch.float64) * 0.5 + 0.5
    b, c = (torch.randn(1, length, n, generator=g, dtype=torch.float64) for _ in range(2))
    return RecurrentOperator(a, b, c).dense()[0]


@given(length=st.integers(2, 40), n=st.integers(1, 8), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=30)
def test_minimal_realization_has_rank_many_states_and_rebuilds_T(length, n, seed):
    T = recurrent(length, n, seed)
    found = realization.minimal(T)
    i = torch.arange(1, length)
    ranks = torch.stack([torch.linalg.matrix_rank(T[k:, :k], rtol=1e-12) for k in i.tolist()])
    assert (torch.tensor(found.state_sizes()) >= ranks).all()
    assert (torch.tensor(found.state_sizes()) <= torch.minimum(torch.minimum(i, length - i), torch.tensor(n))).all()
    assert realization.error(found, T) < 1e-10
    u = torch.randn(length, 3, dtype=torch.float64)
    assert torch.allclose(found.apply(u), T @ u, atol=1e-9)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_flattened_channels(block):
    length = 12
    T = torch.randn(length * block, length * block, dtype=torch.float64)
    T *= torch.kron(torch.ones(length, length).tril(), torch.ones(block, block)).double()
    for found in (realization.trivial(T, block), realization.minimal(T, block)):
        assert realization.error(found, T) < 1e-10
    assert realization.trivial(T, block).state_sizes() == [i * block for i in range(1, length)]
    assert realization.minimal(T, block).state_sizes() == [min(i, length - i) * block for i in range(1, length)]


def test_closed_forms():
    length = 20
    i = torch.arange(length)
    shift = (i[:, None] - i == 3).double()
    assert realization.minimal(shift).state_sizes() == [min(k, length - k, 3) for k in range(1, length)]
    total = torch.ones(length, length, dtype=torch.float64).tril()
    assert realization.minimal(total).state_sizes() == [1] * (length - 1)
    diagonal = torch.eye(length, dtype=torch.float64)
    assert realization.minimal(diagonal).state_sizes() == [0] * (length - 1)
    assert realization.error(realization.minimal(diagonal), diagonal) == 0


def test_reduction_keeps_tolerance_ess_many_states_and_measures_its_error():
    T = torch.rand(40, 40, dtype=torch.float64).softmax(-1).tril()
    last = 0.0
    for tolerance in (1e-6, 1e-3, 1e-2, 1e-1):
        found = realization.minimal(T, tolerance=tolerance)
        assert found.state_sizes() == tolerance_ess(T, [tolerance])[0].tolist()
        gap = realization.error(found, T)
        assert gap >= last - 1e-12
        last = gap
    assert realization.error(realization.minimal(T, tolerance=1e-6), T) < 1e-4


def test_bad_input():
    with pytest.raises(ValueError, match="square matrix"):
        realization.minimal(torch.zeros(3, 4))
    with pytest.raises(NonFiniteOperator):
        realization.minimal(torch.full((4, 4), float("nan")))
