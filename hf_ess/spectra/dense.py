"""Effective state-size and singular values of every H_i = T[i:, :i] of dense causal operators, on any device.

All functions take T as (B, L d, L d), read only what lies below its (block) diagonal, never write to it, and answer
for the cuts i = 1 .. L-1 (at index i - 1) with H_i = T[i d:, :i d].  The sweep of dense_sweep.py gives every cut of
the flattened matrix; with d > 1 every d-th is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_ess.spectra import dense_counts, dense_entropy, dense_norms


def _checked(T: Tensor, block: int) -> Tensor:
    """T, whose shape fits; with its diagonal blocks emptied if they have more than one entry."""
    if T.dim() != 3 or T.shape[1] != T.shape[2]:
        raise ValueError(f"expected square matrices (B, L, L), got shape {tuple(T.shape)}")
    if block < 1 or T.shape[1] % block or T.shape[1] < 2 * block:
        raise ValueError(f"expected at least two whole blocks of {block}, got shape {tuple(T.shape)}")
    if block > 1:
        token = torch.arange(T.shape[1], device=T.device) // block
        T = T.masked_fill(token[:, None] <= token, 0.0)
    return T.detach()


def tolerance_counts(T: Tensor, tolerances: Sequence[float] | Tensor, block: int = 1) -> tuple[Tensor, Tensor]:
    """Tolerance-ESS: the number of singular values >= tolerance of every H_i (arXiv 2504.19561, C.1.1; eq. 3: `>`).

    Ties count: a singular value down to tolerance (1 - 1e-9) is taken for equal, because the computed singular values
    of an exact tie come out on either side.

    The sweep vouches for nearly all counts; the others are computed by SVD.  How many that are depends on the
    tolerance: none down to about 1e-6 |H|_F, all below about 3e-8 |H|_F, where the cost is that of an SVD per cut.

    Args:
        T: (B, L d, L d).
        tolerances: K absolute tolerances > 0, or (K, B), one for each operator.
        block: d, the channels flattened into T.

    Returns:
        counts: (K, B, L-1) int64.
        resolved: (K, B, L-1) bool, False where float64 cannot tell because a singular value lies within the rounding
            noise of H_i (about 1e-15 sigma_1) from the tolerance.

    Raises:
        NonFiniteOperator: NaN or Inf below the diagonal of T.
        ValueError: a shape or tolerance that makes no sense.
    """
    T = _checked(T, block)
    tol = torch.as_tensor(tolerances, dtype=torch.float64, device=T.device)
    tol = tol[:, None].expand(-1, T.shape[0]) if tol.dim() == 1 else tol
    if tol.dim() != 2 or tol.shape[1] != T.shape[0] or not (tol > 0).all() or not tol.isfinite().all():
        raise ValueError("expected finite tolerances > 0, (K,) or (K, B)")
    counts, resolved = dense_counts.counts(T, tol)
    return counts[..., block - 1 :: block], resolved[..., block - 1 :: block]


def entropy(T: Tensor, nodes: int | None = None, block: int = 1) -> tuple[Tensor, Tensor]:
    """Entropy-ESS, exp(-sum p log p) with p = sigma / sum sigma, of every H_i (arXiv 2504.19561, eq. 4).

    Args:
        T: (B, L d, L d).
        nodes: of the quadrature, 11, 12 or 14: on trained attention errors of at most 7e-4, 5.5e-4 and 4.5e-4.
            Default 11, and 14 above 2048 rows, where the bound of the error grows with the rank.
        block: d, the channels flattened into T.

    Returns:
        ess: (B, L-1), 0 where H_i = 0 (the paper's listing gives NaN).
        error: (B, L-1), a bound of the relative error, two or three times what it is.  Cuts where it would exceed
            3e-3 (those whose H_i is tiny beside the others) are computed by SVD.

    Raises:
        NonFiniteOperator: NaN or Inf below the diagonal of T.
        ValueError: a shape or number of nodes that makes no sense.
    """
    if nodes is None:
        nodes = 11 if T.shape[-1] <= 2048 else 14
    if nodes not in dense_entropy.PLACES:
        raise ValueError(f"nodes must be one of {', '.join(map(str, dense_entropy.PLACES))}, got {nodes}")
    ess, error = dense_entropy.entropy(_checked(T, block), nodes, block)
    return ess[..., block - 1 :: block], error[..., block - 1 :: block]


def singular_values(T: Tensor, positions: Sequence[int], block: int = 1) -> list[Tensor]:
    """Singular values of H_i at chosen cuts i in 1 .. L-1, each (B, min(i, L-i) d), descending.

    Raises:
        NonFiniteOperator: NaN or Inf below the diagonal of T.
    """
    T, _ = dense_norms.strictly_lower(_checked(T, block))
    return [dense_norms.svdvals(T[:, i * block :, : i * block]) for i in _cuts(positions, T, block)]


def frobenius(T: Tensor, block: int = 1) -> Tensor:
    """|H_i|_F at every cut, (B, L-1), in O(L^2).

    Raises:
        NonFiniteOperator: NaN or Inf below the diagonal of T.
    """
    T, _ = dense_norms.strictly_lower(_checked(T, block))
    return dense_norms.frobenius(T)[..., block - 1 :: block]


def largest(T: Tensor, positions: Sequence[int] | None = None, block: int = 1) -> Tensor:
    """sigma_1(H_i) at chosen cuts (default: all), (B, P), to a relative 1e-6.

    Raises:
        NonFiniteOperator: NaN or Inf below the diagonal of T.
    """
    T, _ = dense_norms.strictly_lower(_checked(T, block))
    cuts = range(1, T.shape[1] // block) if positions is None else _cuts(positions, T, block)
    return dense_norms.largest(T, [i * block for i in cuts])


def _cuts(positions: Sequence[int], T: Tensor, block: int) -> list[int]:
    length = T.shape[1] // block
    cuts = [int(i) for i in positions]
    for i in cuts:
        if not 0 < i < length:
            raise ValueError(f"position {i} is not one of the cuts 1 .. {length - 1}")
    return cuts
