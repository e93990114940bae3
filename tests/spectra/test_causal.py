"""Causal and anti-causal ESS against the maps spelled out."""

from __future__ import annotations

import pytest
import torch

from hf_ess import NonFiniteOperator
from hf_ess.operators import RecurrentOperator
from hf_ess.spectra import causal
from hf_ess.spectra.ess import singular_values, tolerance_ess


def operator(length=14, n=4, rank_one=True, seed=0):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    a = 0.5 + 0.5 * torch.rand(2, length, n, generator=g, dtype=torch.float64)
    pair = (0.3 * draw(2, length, n), draw(2, length, n)) if rank_one else None
    return RecurrentOperator(a, draw(2, length, n), draw(1, length, n), pair)


def maps(op, k, i):
    """R_i (n, i) and O_i (L-i, n) of operator k, from products of transitions."""
    n, one = op.state, op[k : k + 1]
    A = [one.transition(t, torch.eye(n, dtype=torch.float64)[None])[0] for t in range(op.length)]

    def product(first, last):  # A_last ... A_first
        out = torch.eye(n, dtype=torch.float64)
        for t in range(first, last + 1):
            out = A[t] @ out
        return out

    R = torch.stack([product(j + 1, i - 1) @ one.b[0, j] for j in range(i)], 1)
    O_ = torch.stack([one.c[0, t] @ product(i, t) for t in range(i, op.length)])
    return R, O_


@pytest.mark.parametrize("rank_one", [False, True])
def test_both_halves_are_those_of_the_maps(rank_one):
    op = operator(rank_one=rank_one)
    written, read = causal.input_to_state(op), causal.state_to_output(op)
    for k in range(2):
        for i in (1, 2, 7, 12, 13):
            R, O_ = maps(op, k, i)
            r, o = torch.linalg.svdvals(R), torch.linalg.svdvals(O_)
            assert torch.allclose(written[k, i - 1, : len(r)], r, atol=1e-12 * float(r[0]))
            assert torch.allclose(read[k, i - 1, : len(o)], o, atol=1e-12 * float(o[0]))
            assert written[k, i - 1, len(r) :].abs().sum() < 1e-9 and read[k, i - 1, len(o) :].abs().sum() < 1e-9
            H = singular_values(op, [i])[0][k]
            assert torch.allclose(torch.linalg.svdvals(O_ @ R)[: len(H)], H, atol=1e-10)


def test_ranks_bound_that_of_the_memory():
    op = operator(length=20, n=4)
    tiny = [1e-9]
    both = torch.minimum(causal.causal_ess(op, tiny), causal.anticausal_ess(op, tiny))
    assert (tolerance_ess(op, [1e-9]) <= both).all()
    assert (causal.causal_ess(op, tiny)[0, :, :3] == torch.tensor([1, 2, 3])).all()
    assert (causal.anticausal_ess(op, tiny)[0, :, -3:] == torch.tensor([3, 2, 1])).all()


def test_a_state_that_nobody_reads_is_causal_but_not_minimal():
    op = operator(rank_one=False)
    c = op.c.clone()
    c[..., 0] = 0
    blind = RecurrentOperator(op.a, op.b, c)
    middle = op.length // 2 - 1
    assert (causal.causal_ess(blind, [1e-6])[0, :, middle] == 4).all()
    assert (causal.anticausal_ess(blind, [1e-6])[0, :, middle] == 3).all()
    assert (tolerance_ess(blind, [1e-6])[0, :, middle] == 3).all()


def test_not_finite():
    op = operator()
    op.b[0, 0, 0] = float("nan")
    with pytest.raises(NonFiniteOperator):
        causal.causal_ess(op, [1e-3])
