"""Numbers that summarise the singular values of H_i; pure functions of spectra (..., k), descending."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TIE = 1e-9  # tolerances are lowered by this much, relatively: the SVD of an exact tie comes out on either side


def tolerance_ess(sigma: Tensor, tolerances: Sequence[float] | Tensor) -> Tensor:
    """#{sigma >= tolerance} (arXiv 2504.19561: eq. 3 writes `>`, its listing `>=`, which is what counts here).

    Ties count: a singular value down to tolerance (1 - TIE) is taken for equal.

    Args:
        sigma: (..., k) singular values; (operator, position, k) where tolerances differ between operators.
        tolerances: absolute, > 0; (K,), or (K, operator).

    Returns:
        (K, ...) int64.
    """
    tol = torch.as_tensor(tolerances, dtype=sigma.dtype, device=sigma.device) * (1 - TIE)
    tol = tol.reshape(*tol.shape, *[1] * (sigma.dim() + 1 - tol.dim()))
    return torch.stack([(sigma >= t).sum(-1) for t in tol])  # 5 times faster than all at once


def relative_tolerances(sigma: Tensor, tolerances: Sequence[float]) -> Tensor:
    """Absolute tolerances from relative ones: times the operator's largest singular value over all cuts.

    Args:
        sigma: (operator, position, k).
        tolerances: in units of that largest singular value.

    Returns:
        (K, operator); the relative tolerance itself for an operator that is 0 at every cut.
    """
    top = sigma.flatten(1).amax(1) if sigma[0].numel() else sigma.new_zeros(sigma.shape[0])
    tol = torch.as_tensor(tolerances, dtype=sigma.dtype, device=sigma.device)
    return tol[:, None] * torch.where(top > 0, top, 1.0)


def entropy_ess(sigma: Tensor, clip: float = 1e-12) -> Tensor:
    """exp(-sum p log p) with p = max(sigma / sum sigma, clip) (arXiv 2504.19561, eq. 4 and C.1.1).

    It forgets the size of H_i: where sigma_1 is tiny it reports the shape of what is left (see gated).

    Args:
        sigma: (..., k) singular values.
        clip: as in the paper's listing.

    Returns:
        (...); 0 where H_i = 0 (the listing gives NaN).
    """
    total = sigma.sum(-1, keepdim=True)
    p = (sigma / torch.where(total > 0, total, 1.0)).clamp_min(clip)
    return torch.where(total[..., 0] > 0, torch.exp(-(p * p.log()).sum(-1)), 0.0)


def gated(values: Tensor, sigma_1: Tensor, gate: float | Tensor) -> Tensor:
    """values where sigma_1 >= gate, NaN elsewhere: what is scale-free means nothing where H_i is negligible.

    Args:
        values: (...), for instance entropy-ESS.
        sigma_1: (...) largest singular value of H_i.
        gate: absolute.
    """
    return torch.where(sigma_1 >= gate, values, torch.nan)


def sigma_1(sigma: Tensor) -> Tensor:
    """The largest singular value, ||H_i||_2, (...)."""
    return sigma[..., 0]


def frobenius(sigma: Tensor) -> Tensor:
    """||H_i||_F = sqrt(sum sigma^2), (...); no square over- or underflows."""
    return sigma[..., 0] * _relative(sigma).square().sum(-1).sqrt()


def stable_rank(sigma: Tensor) -> Tensor:
    """||H_i||_F^2 / ||H_i||_2^2, (...), between 1 and the rank; 0 where H_i = 0."""
    return _relative(sigma).square().sum(-1)


def energy_rank(sigma: Tensor, share: float) -> Tensor:
    """The smallest r whose r largest singular values hold the share of sum sigma^2, (...) int64; 0 where H_i = 0.

    Args:
        sigma: (..., k) singular values.
        share: between 0 and 1, for instance 0.99.
    """
    energy = _relative(sigma).square().cumsum(-1)
    total = energy[..., -1:]
    return torch.where(total[..., 0] > 0, 1 + (energy < share * total * (1 - TIE)).sum(-1), 0)


def bound(tss: Tensor, length: int) -> Tensor:
    """min(TSS, i, L-i): the most that the rank of H_i can be, (operator, L-1).

    Args:
        tss: (operator, L-1) theoretical state size.
        length: number of tokens L.
    """
    i = torch.arange(1, length, dtype=tss.dtype, device=tss.device)
    return torch.minimum(tss, torch.minimum(i, length - i))


def utilisation(ess: Tensor, tss: Tensor) -> Tensor:
    """ESS / TSS (arXiv 2504.19561, section 3.1); NaN where TSS is 0."""
    return torch.where(tss > 0, ess / tss, torch.nan)


def saturation(ess: Tensor, bound: Tensor) -> Tensor:
    """ESS / min(TSS, i, L-i), 1 where the memory is as full as it can be; NaN where the bound is 0."""
    return torch.where(bound > 0, ess / bound, torch.nan)


def _relative(sigma: Tensor) -> Tensor:
    """sigma / sigma_1; 0 where H_i = 0."""
    return sigma / torch.where(sigma[..., :1] > 0, sigma[..., :1], 1.0)
