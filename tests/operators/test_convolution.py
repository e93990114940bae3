"""The short convolution between two gates."""

from __future__ import annotations

import pytest
import torch

from hf_ess.operators import ConvolutionOperator


def random(width: int, length: int) -> ConvolutionOperator:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, width), (4, length), (4, length))
    return ConvolutionOperator(*(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes))


@pytest.mark.parametrize("width, length", [(1, 5), (3, 2), (3, 8), (7, 5)])
def test_it_is_its_sum(width, length):
    op = random(width, length)
    T = torch.zeros(4, length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(max(0, i - width + 1), i + 1):
            T[:, i, j] = op.after[:, i] * op.taps[:, i - j] * op.before[:, j]
    u = torch.randn(4, length, 2, dtype=torch.float64)
    assert torch.allclose(op.dense(), T, atol=1e-14)
    assert torch.allclose(op.apply(u), T @ u, atol=1e-13)


def test_a_slice_is_the_same_operators():
    op = random(3, 8)
    assert torch.equal(op[1:3].dense(), op.dense()[1:3])
    assert (op[1:3].count, op[1:3].tss().shape) == (2, (2, 7))


def test_what_is_not_finite_is_seen_and_shapes_are_checked():
    op = random(3, 8)
    assert op.is_finite()
    op.after[1, 2] = torch.inf
    assert not op.is_finite()
    with pytest.raises(ValueError, match="expected taps"):
        ConvolutionOperator(torch.zeros(3, 3), torch.zeros(4, 8), torch.zeros(4, 8))
