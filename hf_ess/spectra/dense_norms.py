"""Singular values and norms of single H_i, safe at any scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def svdvals(H: Tensor) -> Tensor:
    """Singular values of (B, r, c), descending; zero matrices never reach LAPACK."""
    out = H.new_zeros(H.shape[0], min(H.shape[1:]))
    size = H.abs().amax((1, 2))
    some = size > 0
    if some.any():
        unit = size[some] / torch.frexp(size[some]).mantissa.mul(2)  # powers of two: LAPACK sees entries around 1
        out[some] = torch.linalg.svdvals(H[some] / unit[:, None, None]) * unit[:, None]
    return out


def magnitude(T: Tensor) -> Tensor:
    """The largest |entry| of every H_i, (B, L-1); 0 exactly where H_i = 0."""
    below = T.abs().flip(1).cummax(1).values.flip(1)  # of each column, from a row on
    return below.tril(-1).amax(-1)[:, 1:]


def frobenius(T: Tensor) -> Tensor:
    """|H_i|_F, (B, L-1); T: (B, L, L), strictly lower triangular."""
    size = T.abs().amax((1, 2))
    unit = torch.where(size > 0, size, torch.ones_like(size))
    below = ((T / unit[:, None, None]) ** 2).flip(1).cumsum(1).flip(1)  # of each column, from a row on
    out = below.tril(-1).sum(-1)[:, 1:].sqrt() * unit[:, None]
    here = magnitude(T)
    for b, i in ((here > 0) & (here < 1e-140 * unit[:, None])).nonzero().tolist():  # the squares underflow
        H = T[b, i + 1 :, : i + 1]
        out[b, i] = (H / here[b, i]).norm() * here[b, i]
    return out


def largest(T: Tensor, cuts: Sequence[int]) -> Tensor:
    """sigma_1(H_i) at the cuts i, (B, len(cuts))."""
    return torch.stack([svdvals(T[:, i:, :i])[:, 0] for i in cuts], -1) if cuts else T.new_zeros(T.shape[0], 0)
