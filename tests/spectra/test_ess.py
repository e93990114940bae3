"""The functions that take operators of any kind, or T."""

from __future__ import annotations

import pytest
import torch

import hf_ess
from hf_ess import NonFiniteOperator
from hf_ess.operators import DenseOperator, RecurrentOperator
from hf_ess.spectra import ess
from hf_ess.spectra.reference import all_spectra, entropy_ess, tolerance_ess

TOLERANCES = [1e-1, 1e-3]


def recurrence(count, length, n):
    g = torch.Generator().manual_seed(0)
    a = 0.9 + 0.1 * torch.rand(count, length, 1, generator=g, dtype=torch.float64)
    b, c = (torch.randn(count, length, n, generator=g, dtype=torch.float64) / n**0.5 for _ in range(2))
    return RecurrentOperator(a, b, c)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_shapes_follow_those_of_T(lead):
    T = torch.rand(*lead, 20, 20, dtype=torch.float64).tril()
    counts = hf_ess.tolerance_ess(T, TOLERANCES)
    assert counts.shape == (2, *lead, 19) and counts.dtype == torch.int64
    spectra = all_spectra(T.reshape(-1, 20, 20))
    for k, tolerance in enumerate(TOLERANCES):
        assert torch.equal(counts[k].reshape(-1, 19), tolerance_ess(spectra, tolerance).reshape(-1, 19))
    assert torch.allclose(hf_ess.entropy_ess(T).reshape(-1, 19), entropy_ess(spectra).reshape(-1, 19), rtol=3e-3)
    three = hf_ess.singular_values(T, [1, 10, 19])
    assert [s.shape for s in three] == [(*lead, 1), (*lead, 10), (*lead, 1)]
    assert torch.allclose(three[1].reshape(-1, 10), spectra[9])
    assert hf_ess.tolerance_ess(T, 0.1).shape == (1, *lead, 19)


def test_a_large_state_is_measured_the_same_by_both_engines(monkeypatch):
    op = recurrence(2, 80, 64)
    assert ess._dense_is_cheaper(op) and not ess._dense_is_cheaper(recurrence(1, 80, 16))
    sweep = ess.measure(op, TOLERANCES)
    monkeypatch.setattr(ess, "_dense_is_cheaper", lambda operator: False)
    exact = ess.measure(op, TOLERANCES)
    assert torch.equal(sweep.counts, exact.counts) and sweep.resolved.all() and exact.resolved.all()
    assert torch.allclose(sweep.frobenius, exact.frobenius)
    assert torch.allclose(sweep.entropy, exact.entropy, rtol=3e-3)
    assert (sweep.entropy_error > 0).any() and (exact.entropy_error == 0).all()


def test_flattened_channels_are_cut_by_tokens():
    T = torch.rand(24, 24, dtype=torch.float64)
    op = DenseOperator(T, block=3)
    counts = hf_ess.tolerance_ess(op, TOLERANCES)
    assert counts.shape == (2, 1, 7)
    for i in range(1, 8):
        sigma = torch.linalg.svdvals(T[3 * i :, : 3 * i])
        assert counts[:, 0, i - 1].tolist() == [int((sigma >= t).sum()) for t in TOLERANCES]
    assert torch.equal(op.tss()[0], 3.0 * torch.arange(1, 8))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_finite_is_an_error_and_never_reaches_lapack(bad):
    T = torch.rand(8, 8, dtype=torch.float64)
    T[5, 2] = bad
    for function in (lambda: hf_ess.tolerance_ess(T, [0.1]), lambda: hf_ess.entropy_ess(T)):
        with pytest.raises(NonFiniteOperator):
            function()
    with pytest.raises(NonFiniteOperator):
        hf_ess.singular_values(T, [3])


@pytest.mark.parametrize("position", [0, 8, -1])
def test_positions_out_of_range(position):
    with pytest.raises(ValueError, match=r"1 \.\. 7"):
        hf_ess.singular_values(torch.rand(8, 8), [position])


def test_the_input_is_not_changed():
    T = torch.rand(10, 10, dtype=torch.float64)
    before = T.clone()
    hf_ess.tolerance_ess(T, [0.1])
    hf_ess.entropy_ess(T)
    hf_ess.singular_values(T, [5])
    assert torch.equal(T, before)


def test_numpy_arrays_are_taken():
    T = torch.rand(2, 9, 9, dtype=torch.float64).tril()
    assert torch.equal(hf_ess.tolerance_ess(T.numpy(), TOLERANCES), hf_ess.tolerance_ess(T, TOLERANCES))
    assert torch.equal(hf_ess.entropy_ess(T.numpy()), hf_ess.entropy_ess(T))


@pytest.mark.parametrize("shape", [(3,), (3, 4), (1, 1)])
def test_shapes_that_are_no_operator(shape):
    with pytest.raises(ValueError, match=r"\(\.\.\., L, L\) with L >= 2 tokens"):
        hf_ess.tolerance_ess(torch.ones(shape), TOLERANCES)
