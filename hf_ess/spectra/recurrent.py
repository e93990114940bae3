"""Singular values of every H_i = T[i:, :i] of recurrent operators, T never formed: O(L n^3) per operator.

Memory is bounded by taking the operators in blocks, and every count is exact or marked unresolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hf_ess.operators import StateSpaceOperator
from hf_ess.spectra import recurrent_factors, recurrent_gramians
from hf_ess.spectra.metrics import TIE, tolerance_ess
from hf_ess.spectra.recurrent_scaling import Scaled, require_finite, scaled, size

MEMORY = 2**28  # bytes for a block of operators, everything included
EPS = torch.finfo(torch.float64).eps


def spectrum(
    op: StateSpaceOperator, positions: Sequence[int] | None = None, memory: int = MEMORY
) -> Iterator[tuple[slice, Tensor]]:
    """Singular values of H_i, block by block of operators.

    Args:
        op: the operators.
        positions: cuts i in 1 .. L-1, in any order; default all.
        memory: bytes for a block; what a single operator needs is taken in any case.

    Yields:
        The range of operators and sigma (operator, position, n), float64, descending; exactly 0 beyond
        min(i, L-i, n).  Values below resolution(op) are rounding noise.

    Raises:
        NonFiniteOperator: NaN or Inf in the operators, or states that overflow float64.
        ValueError: a position is out of range.
    """
    cuts, back = _cuts(op, positions)
    for part, some in op.blocks(_block_size(op, len(cuts), memory)):
        sigma = _singular_values(scaled(some, part.start), cuts, by_factors(op), memory, part.start)
        yield part, sigma if back is None else sigma[:, back]


def tolerance_counts(op: StateSpaceOperator, tolerances: Sequence[float] | Tensor) -> tuple[Tensor, Tensor]:
    """Tolerance-ESS at every cut (arXiv 2504.19561, eq. 3), and whether it is certain: see counts.

    Args:
        op: the operators.
        tolerances: absolute, > 0; (tolerance,) or (tolerance, operator).

    Raises:
        NonFiniteOperator: NaN or Inf in the operators, or states that overflow float64.
        ValueError: tolerances of another shape, or not positive.
    """
    tol = _tolerances(tolerances, op.count)
    parts = [counts(op[part], sigma, tol[:, part]) for part, sigma in spectrum(op)]
    return torch.cat([number for number, _ in parts], 1), torch.cat([sure for _, sure in parts], 1)


def counts(op: StateSpaceOperator, sigma: Tensor, tolerances: Sequence[float] | Tensor) -> tuple[Tensor, Tensor]:
    """Tolerance-ESS from the spectra of all cuts, and whether it is certain.

    Args:
        op: the operators.
        sigma: (operator, L-1, n) from spectrum.
        tolerances: absolute, > 0; (tolerance,) or (tolerance, operator).

    Returns:
        counts: (tolerance, operator, L-1) int64; number of singular values >= tolerance (1 - TIE).
        resolved: the same shape, bool; False where a singular value is as close to the tolerance as its rounding
            error may be.  Operators with counts in doubt that came from Gramians are done again from factors.

    Raises:
        ValueError: tolerances of another shape, or not positive.
    """
    tol = _tolerances(tolerances, op.count).to(sigma.device)
    number = tolerance_ess(sigma, tol)
    doubtful = _doubtful(op, sigma, tol, number, _sizes(op), by_factors(op))
    if not by_factors(op):
        for k in doubtful.any(2).any(0).nonzero()[:, 0].tolist():
            one = slice(k, k + 1)
            x, t = scaled(op[one]).cpu(), tol[:, one].cpu()
            exact = _singular_values(x, list(range(1, op.length)), True, MEMORY, k)
            again = tolerance_ess(exact, t)
            number[:, one] = again.to(number.device)
            doubtful[:, one] = _doubtful(x.op, exact, t, again, size(x), True).to(number.device)
    return number, ~doubtful


def resolution(op: StateSpaceOperator) -> Tensor:
    """Largest rounding error that the singular values of H_i can have, (operator, L-1), absolute.

    With factors (on the CPU) it is r s, with r = (16 + n + L) EPS and s = sum_k sqrt(P_kk Q_kk), which bounds
    ||H_i||_F before any cancellation between states: about 1e-13 sigma_1.  With Gramians (other devices) the squares
    are wrong by r s^2, so that it is sqrt(r) s, about 1e-6 sigma_1.
    """
    r = _relative_error(op)
    return _sizes(op) * (r if by_factors(op) else r**0.5)


def by_factors(op: StateSpaceOperator) -> bool:
    """Whether spectrum uses square-root factors (on the CPU) or Gramians (elsewhere, where small QRs are slow)."""
    return op.device.type == "cpu"


def _relative_error(op: StateSpaceOperator) -> float:
    """At least 10 times (Gramians: 3) the largest error found, in 22 hard families and random layers up to n = 128."""
    return (16 + op.state + op.length) * EPS


def _sizes(op: StateSpaceOperator) -> Tensor:
    block = max(1, MEMORY // (8 * 6 * op.length * op.state + 8 * 4 * op.state**2))
    return torch.cat([size(scaled(some, part.start)) for part, some in op.blocks(block)])


def _doubtful(op: StateSpaceOperator, sigma: Tensor, tol: Tensor, number: Tensor, s: Tensor, factors: bool) -> Tensor:
    """Where a singular value is within its error of the tolerance, (tolerance, operator, L-1)."""
    tol = tol[:, :, None] * (1 - TIE)
    r = _relative_error(op)
    # What is wrong by r s^2 in the square is wrong by at most r s^2 / tol at that distance of tol.
    error = r * s if factors else torch.minimum(r**0.5 * s, r * s * s / tol)
    sigma = sigma.expand(len(tol), -1, -1, -1)
    above = sigma.gather(-1, (number - 1).clamp_min(0)[..., None])[..., 0]
    below = sigma.gather(-1, number.clamp_max(op.state - 1)[..., None])[..., 0]
    # Values beyond min(i, L-i, n) are 0 by structure and not by computation: no doubt about them.
    return ((number > 0) & (above - tol <= error)) | ((number < _rank_bound(op)) & (tol - below <= error))


def _singular_values(x: Scaled, cuts: Sequence[int], factors: bool, memory: int, first: int) -> Tensor:
    if not cuts:
        return x.scale.new_zeros(x.op.count, 0, x.op.state)
    if factors:
        sigma = recurrent_factors.singular_values(x.op, cuts, memory // 4)
    else:
        sigma = recurrent_gramians.singular_values(x.op, cuts)
    sigma = sigma * x.scale[:, None, None]
    require_finite(sigma.isfinite().all(2).all(1), first, "overflow float64: their states grow without bound")
    rank = _rank_bound(x.op)[torch.tensor(cuts, device=sigma.device) - 1]
    return sigma.masked_fill_(torch.arange(x.op.state, device=sigma.device) >= rank[:, None], 0.0)


def _rank_bound(op: StateSpaceOperator) -> Tensor:
    """min(i, L-i, n) at every cut."""
    i = torch.arange(1, op.length, device=op.device)
    return torch.minimum(i, op.length - i).clamp_max(op.state)


def _tolerances(tolerances: Sequence[float] | Tensor, count: int) -> Tensor:
    """(tolerance, operator)."""
    tol = torch.as_tensor(tolerances, dtype=torch.float64)
    tol = tol[:, None].expand(-1, count) if tol.dim() == 1 else tol
    if tol.dim() != 2 or tol.shape[1] != count or not (tol > 0).all() or not tol.isfinite().all():
        raise ValueError(f"expected tolerances > 0, (K,) or (K, {count}), got shape {tuple(tol.shape)}")
    return tol


def _cuts(op: StateSpaceOperator, positions: Sequence[int] | None) -> tuple[list[int], Tensor | None]:
    """The cuts ascending and without repeats, and where each of positions is among them (None: in order)."""
    if positions is None:
        return list(range(1, op.length)), None
    wanted = [int(i) for i in positions]
    for i in wanted:
        if not 0 < i < op.length:
            raise ValueError(f"position {i} is not one of the cuts 1 .. {op.length - 1}")
    cuts = sorted(set(wanted))
    place = {i: k for k, i in enumerate(cuts)}
    return cuts, torch.tensor([place[i] for i in wanted], dtype=torch.int64)


def _block_size(op: StateSpaceOperator, cuts: int, memory: int) -> int:
    """Operators whose maps (as given, scaled, lanes last), spectra and Gramians fit in 3/4 of memory."""
    maps, spectra = 9 * op.length * op.state, 3 * cuts * op.state
    if not by_factors(op):
        spectra += 6 * min(cuts, recurrent_gramians.CUTS) * op.state**2
    return max(1, 3 * memory // 4 // (8 * (maps + spectra)))
