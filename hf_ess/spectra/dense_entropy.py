"""Entropy-ESS at every cut without singular values: quadrature over log-determinants.

With g(w) = log det(I + H H^T / w^2), the integral of g over w > 0 is pi sum sigma, and that of g log w is
pi sum sigma log sigma - pi sum sigma.  The sweep gives g of every H_i at a shift w; a handful of fitted shifts and
weights replaces the integrals.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from hf_ess.spectra.dense_norms import svdvals, zero_cuts
from hf_ess.spectra.dense_sweep import Sweep, chunk, prepare

LOW = 1e-5  # singular values below LOW |T| are not fitted
FLOOR = 1e-4  # errors of the fit are relative to sigma + FLOOR |T|
SINGLE = 0.01  # shifts above SINGLE |T| are swept in float32
BOUND = 3e-3  # cuts with a larger estimated error are computed by SVD
EXACT = 1e-12  # the error stated for these


@functools.lru_cache(maxsize=8)
def quadrature(nodes: int, low: float, floor: float, points: int = 400) -> tuple[Tensor, Tensor, list[float]]:
    """Shifts (nodes,), weights (2, nodes + 1) and errors of a fit on [low, 1].

    sum_k c_k log(1 + (s / w_k)^2) + c s^2 approximates s (first row) and s log s (second); the errors are the largest,
    relative to s + floor, and nearly as small as they can be (iterated reweighting of least squares).
    """
    s = torch.logspace(math.log10(low), 0, points, dtype=torch.float64)
    w = torch.logspace(math.log10(low / 10), 0, nodes, dtype=torch.float64)
    basis = torch.cat([torch.log1p((s[:, None] / w) ** 2) * w, (s**2)[:, None]], 1)
    weights, errors = [], []
    for target in (s, s * s.log()):
        weight, best, error = torch.ones_like(s), basis[0], math.inf
        for _ in range(10):
            rows = (weight / (s + floor))[:, None]
            fit = torch.linalg.lstsq(basis * rows, target[:, None] * rows, rcond=1e-13, driver="gelsd").solution[:, 0]
            miss = ((basis @ fit - target) / (s + floor)).abs()
            if miss.max() < error:
                best, error = fit, float(miss.max())
            weight = weight * (miss / miss.mean()).clamp(0.1, 10) ** 0.5
        weights.append(best * torch.cat([w, torch.ones(1, dtype=torch.float64)]))
        errors.append(error)
    return w, torch.stack(weights), errors


def entropy(T: Tensor, nodes: int, block: int = 1, compiled: bool | None = None) -> tuple[Tensor, Tensor]:
    """Entropy-ESS and its estimated relative error, (B, L-1) each; only every block-th cut is made exact.

    Args:
        T: (B, L, L), read below the diagonal only.
        compiled: see dense_sweep.prepare.
    """
    B, L = T.shape[:2]
    out = torch.zeros(B, L - 1, dtype=torch.float64, device=T.device)
    error = torch.zeros_like(out)
    some = chunk(L, T.device)
    for first in range(0, B, some):
        here = slice(first, first + some)
        out[here], error[here] = _estimate(prepare(T[here], compiled), nodes)
    asked = torch.zeros_like(error, dtype=torch.bool)
    asked[:, block - 1 :: block] = True
    asked &= ~(error <= BOUND)
    for i in asked.any(0).nonzero()[:, 0].tolist():
        which = asked[:, i]
        out[which, i] = from_spectrum(svdvals(T[which, i + 1 :, : i + 1].double()))
        error[which, i] = EXACT
    return out, error


def from_spectrum(s: Tensor) -> Tensor:
    """exp(-sum p log p) over the last dimension, 0 for a zero spectrum."""
    total = s.sum(-1, keepdim=True)
    p = s / torch.where(total > 0, total, torch.ones_like(total))
    return torch.exp(-torch.special.xlogy(p, p).sum(-1)).masked_fill(total[..., 0] == 0, 0.0)


def _estimate(op: Sweep, nodes: int) -> tuple[Tensor, Tensor]:
    L, device = op.L, op.T.device
    w, weights, (e0, e1) = quadrature(nodes, LOW, FLOOR)
    w, weights = w.to(device), weights.to(device)
    squares = op.squares[0]
    # An upper bound of sigma_1 of all H_i; on trained attention at most 1.2 times the largest, and free.
    top = squares.amax(1).sqrt() * (1 + 1e-12)
    top = torch.where(top > 0, top, torch.ones_like(top))
    shifts = w[:, None] * top
    coarse = (shifts > SINGLE).all(1)
    parts = [op(shifts[which], -1, single) for which, single in ((~coarse, False), (coarse, True)) if which.any()]
    f, p = torch.cat(parts, 1)
    # f / w and p / w are >= 1 exactly and all of g sums to 0 over the cuts: what is left of it is rounding.
    g = (p.nan_to_num(1.0).clamp_min(1).log() - f.nan_to_num(1.0).clamp_min(1).log()).cumsum(-1)
    r0, r1 = torch.tensordot(weights[:, :-1].abs(), g[..., -1:].abs(), dims=1)
    g = torch.cat([g[..., :-1], squares[None] / top[:, None] ** 2])
    n, s = torch.tensordot(weights, g, dims=1)
    i = torch.arange(1, L, device=device)
    rank = torch.minimum(i, L - i)
    spread = (1 + s / n).abs()
    error = (e1 + spread * e0) * (1 + rank * FLOOR / n) + (r1 + spread * r0) / n
    ess, error = (n.log() - s / n).exp(), error.nan_to_num(math.inf)
    if (squares == 0).any():
        zero = zero_cuts(op.T)[:, : L - 1]
        ess, error = ess.masked_fill(zero, 0.0), error.masked_fill(zero, 0.0)
    return ess, error
