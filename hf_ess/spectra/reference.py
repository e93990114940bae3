"""The paper's listing (arXiv 2504.19561, appendix C.1.1): one SVD per cut, O(L^4).  The oracle of everything else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def memory_matrix(T: Tensor, i: int, block: int = 1) -> Tensor:
    """H_i = T[i d:, :i d], what tokens before i contribute to tokens from i on (the listing's T2H_i).

    Args:
        T: (..., L d, L d), the causal operator, flattened token-major if it has d channels.
        i: the cut, 1 .. L-1.
        block: d.
    """
    return T[..., block * i :, : block * i]


def all_spectra(T: Tensor, block: int = 1) -> list[Tensor]:
    """Singular values of H_1 .. H_{L-1}, each (..., min(i, L-i) d) and descending (the listing's T2Ss)."""
    length = T.shape[-2] // block
    return [torch.linalg.svdvals(memory_matrix(T, i, block)) for i in range(1, length)]


def tolerance_ess(singular_values: Sequence[Tensor], tolerance: float) -> Tensor:
    """#{sigma >= tolerance} at every cut, (..., L-1) (the listing's Ss2ToleranceESS; eq. 3 writes `>`)."""
    return torch.stack([(s >= tolerance).sum(-1) for s in singular_values], -1)


def entropy_ess(singular_values: Sequence[Tensor], clip: float = 1e-12) -> Tensor:
    """exp(-sum p log p) with p = max(sigma / sum sigma, clip) at every cut, (..., L-1); NaN where H_i = 0.

    (The listing's Ss2EntropyESS, eq. 4.)
    """
    ess = []
    for s in singular_values:
        p = (s / s.sum(-1, keepdim=True)).clamp_min(clip)
        ess.append(torch.exp(-(p * p.log()).sum(-1)))
    return torch.stack(ess, -1)
