"""ESS of operators of any kind: each goes to the engine that suits its form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from hf_ess.errors import NonFiniteOperator
from hf_ess.operators import ConvolutionOperator, DenseOperator, Operator, StateSpaceOperator
from hf_ess.spectra import convolution, dense, metrics, recurrent, svds

_ROOM = 2**24  # numbers of T that one block of dense operators may hold: 128 MB in float64
_COPIES = 8  # of T, while it is formed and swept (measured: 5 to 7)


class SpectraSink(Protocol):
    """Takes the singular values at chosen cuts, block by block of operators.

    Called with sigma, for each position (operator, k) float64, descending; the unit of each operator's tolerances; and
    a bound of the rounding error of its singular values, absolute.
    """

    positions: list[int]

    def __call__(self, sigma: Sequence[Tensor], unit: Tensor, error: Tensor) -> None: ...


@dataclass
class Measurement:
    """What was computed of a batch of operators, on the CPU; cuts i = 1 .. L-1 at index i - 1.

    Attributes:
        counts: (tolerance, operator, L-1) int64; number of singular values of H_i at or above each tolerance.
        resolved: the same shape, bool; False where float64 cannot tell a singular value from the tolerance.
        tolerances: (tolerance, operator) float64; the absolute tolerances used.
        entropy: (operator, L-1) entropy-ESS, or None; 0 where H_i = 0.
        entropy_error: (operator, L-1) estimate of its relative error, or None.
        frobenius: (operator, L-1) ||H_i||_F.
        sigma_1: (operator, L-1) largest singular value, or None.
    """

    counts: Tensor
    resolved: Tensor
    tolerances: Tensor
    entropy: Tensor | None
    entropy_error: Tensor | None
    frobenius: Tensor
    sigma_1: Tensor | None


def measure(
    operator: Operator | Tensor,
    tolerances: Sequence[float],
    *,
    entropy: bool = True,
    sigma_1: bool = False,
    relative: bool = False,
    memory: int | None = None,
    sink: SpectraSink | None = None,
) -> Measurement:
    """Tolerance-ESS, entropy-ESS and norms of every H_i, block by block of operators.

    Args:
        operator: operators, or T as (..., L, L).
        tolerances: absolute, > 0; with relative, in units of each operator's largest singular value over all cuts.
        entropy: whether to compute entropy-ESS.
        sigma_1: whether to compute the largest singular value (for dense operators several times the cost of counts).
        relative: see tolerances.
        memory: bytes that the work on a block of operators may take, which decides how many are taken at once; what a
            single operator needs is taken in any case.  Default some 1 GB.
        sink: takes the singular values at its positions, or None.

    Raises:
        NonFiniteOperator: an operator holds NaN or Inf.
    """
    operator = as_operator(operator)
    if not operator.is_finite():
        raise NonFiniteOperator("the operator is not finite: it holds NaN or Inf")
    engine = _engine(operator)
    if engine is None or _dense_is_cheaper(operator):
        parts = _dense(operator, list(tolerances), entropy, sigma_1, relative, memory, sink)
    else:
        parts = _by_spectra(engine, operator, list(tolerances), entropy, relative, memory, sink)
    return _joined(parts, operator.count)


def _engine(operator: Operator) -> ModuleType | None:
    """Where the spectra of all cuts are cheap for operators of this form; None: T has to be formed."""
    if isinstance(operator, StateSpaceOperator):
        return recurrent
    return convolution if isinstance(operator, ConvolutionOperator) else None


def _dense_is_cheaper(operator: Operator) -> bool:
    """Whether one sweep over T, O(L^3), costs less than the recurrence of a large state, O(L n^3)."""
    return isinstance(operator, StateSpaceOperator) and operator.state >= 64 and operator.length <= 8 * operator.state


def as_operator(operator: Operator | Tensor) -> Operator:
    """Operators as they are, and T of shape (..., L, L) as a DenseOperator."""
    if isinstance(operator, Operator):
        return operator
    T = torch.as_tensor(operator)  # numpy arrays are welcome
    if T.is_complex():
        raise ValueError("T must be real, got complex numbers")
    if 0 in T.shape:
        raise ValueError(f"there is no operator in T of shape {tuple(T.shape)}")
    if T.dim() < 2 or T.shape[-1] != T.shape[-2] or T.shape[-1] < 2:
        raise ValueError(f"T must be (..., L, L) with L >= 2 tokens, got shape {tuple(T.shape)}")
    return DenseOperator(T.reshape(-1, *T.shape[-2:]))


def _dense_block(operator: Operator, memory: int | None) -> int:
    """How many operators to form T of at once."""
    numbers = _ROOM if memory is None else memory // (8 * _COPIES)
    return max(1, numbers // (operator.length * getattr(operator, "block", 1)) ** 2)


def _dense(
    operator: Operator,
    tolerances: list[float],
    entropy: bool,
    sigma_1: bool,
    relative: bool,
    memory: int | None,
    sink: SpectraSink | None,
) -> Iterator[Measurement]:
    block = getattr(operator, "block", 1)
    for _, some in operator.blocks(_dense_block(operator, memory)):
        T = some.dense()
        top = dense.largest(T, block=block) if sigma_1 or relative else None
        tol = absolute(tolerances, top if relative else None, some.count)
        counts, resolved = dense.tolerance_counts(T, tol.to(T.device), block=block)
        ess, error = dense.entropy(T, block=block) if entropy else (None, None)
        frobenius = dense.frobenius(T, block=block)
        if sink is not None and isinstance(some, StateSpaceOperator):
            del T  # the recurrence knows its spectra at all cuts for O(L n^3), which two SVDs of H_i cost too
            parts = [s for _, s in recurrent.spectrum(some, sink.positions, memory or recurrent.MEMORY)]
            sink(list(torch.cat(parts).unbind(1)), tol[0] / tolerances[0], recurrent.resolution(some).amax(1))
        elif sink is not None:
            noise = some.length * block * torch.finfo(torch.float64).eps * frobenius.amax(1)
            sink(svds.singular_values(T, sink.positions, block), tol[0] / tolerances[0], noise)
        yield Measurement(counts, resolved, tol, ess, error, frobenius, top)


def _by_spectra(
    engine: ModuleType,
    operator: Operator,
    tolerances: list[float],
    entropy: bool,
    relative: bool,
    memory: int | None,
    sink: SpectraSink | None,
) -> Iterator[Measurement]:
    for where, sigma in engine.spectrum(operator, memory=memory or engine.MEMORY):
        top = sigma[..., 0]
        tol = absolute(tolerances, top if relative else None, sigma.shape[0])
        counts, resolved = engine.counts(operator[where], sigma, tol.to(sigma.device))
        if sink is not None:
            at = [sigma[:, i - 1] for i in sink.positions]
            sink(at, tol[0] / tolerances[0], engine.resolution(operator[where]).amax(1))
        ess = metrics.entropy_ess(sigma) if entropy else None
        error = torch.zeros_like(ess) if ess is not None else None
        yield Measurement(counts, resolved, tol, ess, error, metrics.frobenius(sigma), top)


def absolute(tolerances: list[float], sigma_1: Tensor | None, count: int) -> Tensor:
    """Tolerances as (tolerance, operator), in units of the largest sigma_1 over all cuts where that is given."""
    tol = torch.tensor(tolerances, dtype=torch.float64)[:, None].expand(-1, count)
    if sigma_1 is None:
        return tol
    top = sigma_1.cpu().amax(-1)
    return tol * torch.where(top > 0, top, 1.0)


def _joined(parts: Iterable[Measurement], count: int) -> Measurement:
    """All blocks of operators as one, on the CPU, each laid in its place as it comes: 8,192 channels exist once."""
    whole: dict[str, Tensor | None] = {}
    start = 0
    for part in parts:
        stop = start + part.frobenius.shape[0]
        for name in Measurement.__dataclass_fields__:
            value = getattr(part, name)
            dim = 1 if name in ("counts", "resolved", "tolerances") else 0
            if name not in whole:
                shape = None if value is None else (*value.shape[:dim], count, *value.shape[dim + 1 :])
                whole[name] = None if shape is None else torch.empty(shape, dtype=value.dtype)
            room = whole[name]
            if room is not None:
                room.narrow(dim, start, stop - start).copy_(value)
        start = stop
    return Measurement(**whole)  # type: ignore[arg-type]


def tolerance_ess(op_or_T: Operator | Tensor, tolerances: Sequence[float] | float) -> Tensor:
    """Tolerance-ESS of every H_i = T[i:, :i]: the number of singular values >= tol (arXiv 2504.19561, eq. 3).

    Args:
        op_or_T: operators, or T as (..., L, L).
        tolerances: absolute, > 0.

    Returns:
        (tolerance, ..., L-1) int64; position i at index i - 1.

    Raises:
        NonFiniteOperator: T holds NaN or Inf.
    """
    tolerances = [tolerances] if isinstance(tolerances, int | float) else list(tolerances)
    counts = measure(op_or_T, tolerances, entropy=False).counts
    return counts.reshape(len(tolerances), *_leading(op_or_T), counts.shape[-1])


def entropy_ess(op_or_T: Operator | Tensor) -> Tensor:
    """Entropy-ESS of every H_i: exp of the entropy of sigma / sum(sigma) (arXiv 2504.19561, eq. 4).

    Args:
        op_or_T: operators, or T as (..., L, L).

    Returns:
        (..., L-1) float64; 0 where H_i = 0.

    Raises:
        NonFiniteOperator: T holds NaN or Inf.
    """
    ess = measure(op_or_T, [1.0], entropy=True).entropy
    assert ess is not None
    return ess.reshape(*_leading(op_or_T), ess.shape[-1])


def singular_values(op_or_T: Operator | Tensor, positions: Sequence[int]) -> list[Tensor]:
    """The singular values of H_i at chosen positions, descending.

    Args:
        op_or_T: operators, or T as (..., L, L).
        positions: cuts i, 1 <= i <= L-1.

    Returns:
        One tensor per position, (..., k) float64; k = min(i, L-i) for matrices, at most n for recurrences.

    Raises:
        NonFiniteOperator: T holds NaN or Inf.
        ValueError: a position is out of range.
    """
    operator = as_operator(op_or_T)
    out_of_range = [i for i in positions if not 1 <= i < operator.length]
    if out_of_range:
        raise ValueError(f"positions must lie in 1 .. {operator.length - 1}, got {out_of_range}")
    if not operator.is_finite():
        raise NonFiniteOperator("the operator is not finite: it holds NaN or Inf")
    lead = _leading(op_or_T)
    engine = _engine(operator)
    if engine is not None:
        sigma = torch.cat([s for _, s in engine.spectrum(operator, positions)])
        per_position = [sigma[:, k, : min(i, operator.length - i, sigma.shape[-1])] for k, i in enumerate(positions)]
    else:
        block = getattr(operator, "block", 1)
        blocks = operator.blocks(_dense_block(operator, None))
        pieces = [svds.singular_values(some.dense(), positions, block) for _, some in blocks]
        per_position = [torch.cat(values) for values in zip(*pieces)]
    return [s.reshape(*lead, s.shape[-1]) for s in per_position]


def _leading(op_or_T: Operator | Tensor) -> tuple[int, ...]:
    return (op_or_T.count,) if isinstance(op_or_T, Operator) else tuple(op_or_T.shape[:-2])
