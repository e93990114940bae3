"""Singular values of every H_i = T[i:, :i] of recurrent operators, T never formed: O(L n^3) per operator.

The memory is bounded by taking the operators in blocks.  Every value comes with the size of its rounding error, so
that a count is exact or marked unresolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_ess.errors import NonFiniteOperator
from hf_ess.operators import RecurrentOperator, StateSpaceOperator
from hf_ess.spectra import recurrent_gramians
from hf_ess.spectra.metrics import TIE, tolerance_ess

MEMORY = 2**28  # bytes that a block of operators may take, everything included
EPS = torch.finfo(torch.float64).eps


def spectrum(
    op: StateSpaceOperator, positions: Sequence[int] | None = None, memory: int = MEMORY
) -> Iterator[tuple[slice, Tensor]]:
    """Singular values of H_i, block by block of operators.

    Args:
        op: the operators.
        positions: cuts i in 1 .. L-1, in any order; default all.
        memory: bytes that a block may take.

    Yields:
        The range of operators and sigma (operator, position, n), float64, descending; exactly 0 beyond
        min(i, L-i, n).  Values below resolution(op) are rounding noise.

    Raises:
        NonFiniteOperator: NaN or Inf in the operators, or states that overflow float64.
        ValueError: a position is out of range.
    """
    cuts, back = _cuts(op, positions)
    for part, some in op.blocks(_block_size(op, len(cuts), memory)):
        sigma = _singular_values(_scaled(some), cuts)
        yield part, sigma if back is None else sigma[:, back]


def counts(op: StateSpaceOperator, sigma: Tensor, tolerances: Sequence[float] | Tensor) -> tuple[Tensor, Tensor]:
    """Tolerance-ESS from the spectra of all cuts, and whether it is certain.

    Args:
        op: the operators.
        sigma: (operator, L-1, n) from spectrum.
        tolerances: absolute, > 0; (tolerance,) or (tolerance, operator).

    Returns:
        counts: (tolerance, operator, L-1) int64; number of singular values >= tolerance (1 - TIE).
        resolved: the same shape, bool; False where a singular value is as close to the tolerance as its
            rounding error.
    """
    tol = torch.as_tensor(tolerances, dtype=torch.float64, device=sigma.device)
    tol = tol[:, None] if tol.dim() == 1 else tol
    number = tolerance_ess(sigma, tol)
    tol = tol[:, :, None, None] * (1 - TIE)
    error = resolution(op)[..., None]
    # The values beyond min(i, L-i, n) are 0 by structure, not by computation: they cannot be in doubt.
    real = torch.arange(sigma.shape[-1], device=sigma.device) < _rank_bound(op)[:, None]
    doubtful = ((sigma - tol).abs() <= error) & real
    return number, ~doubtful.any(-1)


def tolerance_counts(op: StateSpaceOperator, tolerances: Sequence[float] | Tensor) -> tuple[Tensor, Tensor]:
    """Tolerance-ESS at every cut, and whether it is certain: see counts.

    Args:
        op: the operators.
        tolerances: absolute, > 0; (tolerance,) or (tolerance, operator).
    """
    tol = torch.as_tensor(tolerances, dtype=torch.float64)
    tol = tol[:, None].expand(-1, op.count) if tol.dim() == 1 else tol
    parts = [counts(op[part], sigma, tol[:, part].to(sigma.device)) for part, sigma in spectrum(op)]
    return torch.cat([x for x, _ in parts], 1), torch.cat([x for _, x in parts], 1)


def resolution(op: StateSpaceOperator) -> Tensor:
    """Largest rounding error that a singular value of H_i can have, (operator, L-1), absolute.

    sqrt(32 n EPS sum_k P_kk Q_kk): the sum bounds ||H_i||_F^2 before any cancellation between states.
    """
    parts = []
    for _, block in op.blocks(max(1, 2**24 // (op.length * op.state))):
        x = _scaled(block)
        p, q = _diagonals(x.op)
        parts.append(torch.sqrt(32 * x.op.state * EPS * (p * q).sum(-1)) * x.scale[:, None] + 1e-140 * x.scale[:, None])
    return torch.cat(parts)


@dataclass
class _Scaled:
    """An operator whose b and c are of order 1, so that no square under- or overflows, and T = scale T'."""

    op: RecurrentOperator
    scale: Tensor  # (operator,)


def _scaled(op: StateSpaceOperator) -> _Scaled:
    op = op.recurrent()
    parts = [x for x in (op.a, op.b, op.c, *(op.rank_one or ())) if x is not None]
    finite = torch.stack([x.isfinite().all((1, 2)).expand(op.count) for x in parts]).all(0)
    if not finite.all():
        bad = (~finite).nonzero()[:, 0].tolist()
        raise NonFiniteOperator(f"{len(bad)} of {op.count} operators hold NaN or Inf, the first is number {bad[0]}")
    b, up = _unit(op.b)
    c, down = _unit(op.c)
    out = RecurrentOperator(op.a, b, c, op.rank_one, op.multiplicity)
    out._count = op.count
    return _Scaled(out, (up * down).expand(op.count))


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """x divided by a power of two per operator (exact), and that power."""
    exponent = torch.frexp(x.abs().amax((1, 2))).exponent.clamp(-1000, 1000)
    one = torch.ones_like(x[:, 0, 0])
    return torch.ldexp(x, -exponent[:, None, None]), torch.ldexp(one, exponent)


def _singular_values(x: _Scaled, cuts: Sequence[int]) -> Tensor:
    sigma = recurrent_gramians.singular_values(x.op, cuts) * x.scale[:, None, None]
    rank = _rank_bound(x.op)[torch.tensor(cuts, device=sigma.device) - 1]
    return sigma.masked_fill_(torch.arange(sigma.shape[-1], device=sigma.device) >= rank[:, None], 0.0)


def _rank_bound(op: StateSpaceOperator) -> Tensor:
    """min(i, L-i, n) at every cut."""
    i = torch.arange(1, op.length, device=op.device)
    return torch.minimum(i, op.length - i).clamp_max(op.state)


def _diagonals(op: RecurrentOperator) -> tuple[Tensor, Tensor]:
    """P_kk and Q_kk at every cut, (operator, L-1, n) each."""
    cuts = range(1, op.length)
    P, Q = recurrent_gramians._forward(op, cuts), recurrent_gramians._backward(op, cuts)
    return P.diagonal(dim1=-2, dim2=-1), Q.diagonal(dim1=-2, dim2=-1)


def _cuts(op: StateSpaceOperator, positions: Sequence[int] | None) -> tuple[list[int], Tensor | None]:
    """The cuts ascending and without repeats, and where each of positions is among them (None: in order)."""
    if positions is None:
        return list(range(1, op.length)), None
    wanted = [int(i) for i in positions]
    for i in wanted:
        if not 0 < i < op.length:
            raise ValueError(f"position {i} is not one of the cuts 1 .. {op.length - 1}")
    cuts = sorted(set(wanted))
    return cuts, torch.tensor([cuts.index(i) for i in wanted])


def _block_size(op: StateSpaceOperator, cuts: int, memory: int) -> int:
    n = op.state
    return max(1, memory // (8 * (6 * cuts * n * n + 6 * op.length * n)))
