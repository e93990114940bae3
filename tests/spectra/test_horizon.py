"""A bounded future, against plain SVDs and closed forms."""

from __future__ import annotations

import pytest
import torch

from hf_ess.errors import BadInput
from hf_ess.operators import DenseOperator, RecurrentOperator
from hf_ess.spectra.ess import tolerance_ess
from hf_ess.spectra.horizon import horizon_counts

TOLERANCES = [0.5, 1e-3]


def noise(length: int = 24) -> torch.Tensor:
    return torch.randn(3, length, length, dtype=torch.float64, generator=torch.manual_seed(0)).tril()


def test_counts_are_those_of_the_first_rows():
    T, positions = noise(), [1, 5, 12, 22, 23]
    got = horizon_counts(DenseOperator(T), TOLERANCES, positions, 4)
    for k, i in enumerate(positions):
        sigma = torch.linalg.svdvals(T[:, i : i + 4, :i])
        for t, tolerance in enumerate(TOLERANCES):
            assert got[t, :, k].tolist() == (sigma >= tolerance).sum(-1).tolist()
            assert (got[t, :, k] <= min(4, i, 24 - i)).all()


def test_a_horizon_as_long_as_the_text_is_ess_itself():
    T = noise()
    assert torch.equal(horizon_counts(DenseOperator(T), TOLERANCES, range(1, 24), 24), tolerance_ess(T, TOLERANCES))


def test_it_forgets_what_is_read_later_only():
    """A shift by 6: cut i passes on the last 6 inputs, of which the next h tokens read h."""
    T = torch.zeros(1, 30, 30, dtype=torch.float64)
    T[0, range(6, 30), range(24)] = 1
    assert horizon_counts(DenseOperator(T), [0.5], [10, 15], 4).tolist() == [[[4, 4]]]
    assert horizon_counts(DenseOperator(T), [0.5], [10, 15], 9).tolist() == [[[6, 6]]]


def test_recurrences_and_refusal():
    g = torch.manual_seed(1)
    A = torch.rand(2, 20, 4, generator=g).double()
    b, c = (torch.randn(2, 20, 4, generator=g).double() for _ in range(2))
    op = RecurrentOperator(A, b, c)
    dense = horizon_counts(DenseOperator(op.dense()), TOLERANCES, [3, 9], 2)
    assert torch.equal(horizon_counts(op, TOLERANCES, [3, 9], 2), dense)

    class Huge:
        count, length = 10**9, 10**4

    with pytest.raises(BadInput, match="too much work"):
        horizon_counts(Huge(), TOLERANCES, [5000], 1000)  # type: ignore[arg-type]
