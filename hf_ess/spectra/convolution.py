"""Singular values of every H_i of short convolutions: of H_i only a (K-1) x (K-1) corner is not 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ess.operators import ConvolutionOperator
from hf_ess.spectra.metrics import TIE, tolerance_ess

MEMORY = 2**28  # bytes that a block of operators may take
_BYTES = 64  # per entry of a corner: the corners, their SVD, and the counts
EPS = torch.finfo(torch.float64).eps


def spectrum(
    op: ConvolutionOperator, positions: Sequence[int] | None = None, memory: int = MEMORY
) -> Iterator[tuple[slice, Tensor]]:
    """Singular values of H_i, block by block of operators.

    Args:
        op: the operators.
        positions: cuts i in 1 .. L-1, in any order; default all.
        memory: bytes that a block may take.

    Yields:
        The range of operators and sigma (operator, position, max(1, K-1)), float64, descending.
    """
    cuts = list(range(1, op.length)) if positions is None else list(positions)
    size = max(1, memory // (_BYTES * max(1, op.length) * max(1, op.width - 1) ** 2))
    for part, some in op.blocks(size):
        yield part, torch.linalg.svdvals(corners(some)[:, torch.tensor(cuts) - 1])


def corners(op: ConvolutionOperator) -> Tensor:
    """Rows i .. i+K-2 and columns i-K+1 .. i-1 of T at every cut, (operator, L-1, n, n) with n = max(1, K-1).

    Entry (r, c) is T_{i+r, i-K+1+c}, a lag of r + K-1 - c: 0 below the diagonal, and where it lies outside T.
    """
    n = op.width - 1
    if n == 0:
        return op.before.new_zeros(op.count, op.length - 1, 1, 1)
    after = F.pad(op.after, (0, n - 1)).unfold(1, n, 1)[:, 1 : op.length]
    before = F.pad(op.before, (n, 0)).unfold(1, n, 1)[:, 1 : op.length]
    at = torch.arange(n, device=op.before.device)
    lag = (at[:, None] + n - at).clamp_max(n)
    taps = op.taps[:, lag].triu()
    return after[..., :, None] * taps[:, None] * before[..., None, :]


def counts(op: ConvolutionOperator, sigma: Tensor, tolerances: Tensor) -> tuple[Tensor, Tensor]:
    """Tolerance-ESS, and whether it is certain: the SVD of a small matrix is right to some EPS sigma_1.

    Args:
        op: the operators.
        sigma: (operator, L-1, n) from spectrum.
        tolerances: (tolerance, operator), absolute, > 0.

    Returns:
        counts: (tolerance, operator, L-1) int64.
        resolved: the same shape, bool.
    """
    number = tolerance_ess(sigma, tolerances)
    tol = tolerances[:, :, None, None] * (1 - TIE)
    return number, ~((sigma - tol).abs() <= _error(op, sigma)).any(-1)


def resolution(op: ConvolutionOperator) -> Tensor:
    """Largest rounding error that the singular values of H_i can have, (operator, L-1), absolute."""
    return torch.cat([_error(op[part], sigma)[..., 0] for part, sigma in spectrum(op)])


def _error(op: ConvolutionOperator, sigma: Tensor) -> Tensor:
    """(operator, L-1, 1)."""
    return 8 * op.width * EPS * sigma[..., :1]
