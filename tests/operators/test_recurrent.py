"""RecurrentOperator from its definition, T_ij = c_i^T A_i ... A_{j+1} b_j, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from hf_ess.operators import RecurrentOperator
from tests.spectra.recurrences import TRANSITIONS, recurrence


def transitions(op: RecurrentOperator, k: int) -> list[torch.Tensor]:
    """A_0 .. A_{L-1} of operator k."""

    def of(x, i):
        return x[min(k, x.shape[0] - 1), i]

    matrices = []
    for i in range(op.length):
        A = torch.eye(op.state, dtype=torch.float64)
        if op.a is not None:
            A = torch.diag(of(op.a, i).expand(op.state))
        if op.rank_one is not None:
            A = A - torch.outer(of(op.rank_one[0], i), of(op.rank_one[1], i))
        matrices.append(A)
    return matrices


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_dense_is_the_definition(kind):
    op = recurrence(kind, 3, 8, 4)
    T = op.dense()
    for k in range(3):
        A = transitions(op, k)
        b, c = (x[min(k, x.shape[0] - 1)] for x in (op.b, op.c))
        for j in range(8):
            state = b[j]
            for i in range(j, 8):
                state = A[i] @ state if i > j else state
                assert T[k, i, j] == pytest.approx(float(c[i] @ state), abs=1e-12)
    assert (T.triu(1) == 0).all()


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_transition_and_its_adjoint(kind):
    op = recurrence(kind, 3, 5, 4)
    eye = torch.eye(4, dtype=torch.float64).expand(3, -1, -1)
    for i in range(5):
        A = torch.stack([transitions(op, k)[i] for k in range(3)])
        assert torch.allclose(op.transition(i, eye).expand(3, -1, -1), A, atol=1e-14)
        assert torch.allclose(op.adjoint_transition(i, eye).expand(3, -1, -1), A.mT, atol=1e-14)


@pytest.mark.parametrize("kind", TRANSITIONS)
def test_slices_of_slices(kind):
    op = recurrence(kind, 6, 7, 2)
    T = op.dense()
    some = op[1:5]
    assert some.count == 4 and torch.equal(some.dense(), T[1:5])
    assert torch.equal(some[2:3].dense(), T[3:4]) and torch.equal(some[2:3][0:1].dense(), T[3:4])
    assert torch.equal(torch.cat([block.dense() for _, block in op.blocks(4)]), T)


def test_sizes():
    op = recurrence("c for all", 5, 9, 3)
    assert (op.count, op.length, op.state, op.multiplicity) == (5, 9, 3, 1)
    assert op.tss().shape == (5, 8) and (op.tss() == 3).all()
    assert op.is_finite()


def test_half_precision_is_raised():
    b, c = torch.randn(2, 5, 3).half(), torch.randn(2, 5, 3).bfloat16()
    op = RecurrentOperator(torch.rand(2, 5, 1), b, c)
    assert all(x.dtype == torch.float64 for x in (op.a, op.b, op.c, op.dense(), op.apply(torch.randn(2, 5, 1))))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"a": torch.ones(2, 5, 2)}, r"expected a of shape \(2, 5, 3\), got \(2, 5, 2\)"),
        ({"b": torch.ones(3, 5, 3)}, "expected a of shape"),
        ({"c": torch.ones(2, 4, 3)}, r"expected c of shape \(2, 5, 3\), got \(2, 4, 3\)"),
        ({"c": torch.ones(2, 5, 1)}, "expected c of shape"),
        ({"c": torch.ones(5, 3)}, r"three dimensions \(operator, L, n\), got .* c \(5, 3\)"),
        ({"rank_one": (torch.ones(2, 5, 3), torch.ones(2, 5, 1))}, "expected q of shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, message):
    parts = {"a": torch.ones(2, 5, 3), "b": torch.ones(2, 5, 3), "c": torch.ones(2, 5, 3)}
    with pytest.raises(ValueError, match=message):
        RecurrentOperator(**(parts | change))


def test_what_is_not_finite():
    for name in ("a", "b", "c"):
        parts = {key: torch.ones(2, 5, 3) for key in ("a", "b", "c")}
        parts[name][1, 2, 0] = torch.nan
        assert not RecurrentOperator(**parts).is_finite()
    keys = torch.full((2, 5, 3), torch.inf)
    assert not RecurrentOperator(None, torch.ones(2, 5, 3), torch.ones(2, 5, 3), (keys, keys)).is_finite()
