"""Entropy-ESS at every cut without singular values: quadrature over log-determinants.

With g(w) = log det(I + H H^T / w^2), the integral of g over w > 0 is pi sum sigma, and that of g log w is
pi sum sigma log sigma - pi sum sigma.  The sweep gives g of every H_i at a shift w; a handful of fitted shifts and
weights replaces the integrals.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from hf_ess.spectra.dense_norms import strictly_lower, svdvals, zero_cuts
from hf_ess.spectra.dense_sweep import SMALL, Sweep, chunks, prepare

LOW = 1e-5  # the fit starts at singular values of LOW |H|
FLOOR = 1e-4  # errors of the fit are relative to sigma + FLOOR |H|
SINGLE = 0.04  # shifts above SINGLE |H| may be swept in single precision, whose rounding is 6e-8 / SINGLE^2
BOUND = 3e-3  # cuts with a larger estimated error are computed by SVD
EXACT = 1e-12  # the error stated for these

# log10 of the shifts for LOW and FLOOR, found by `python benchmarks/quadrature_nodes.py`: a third of the error of
# evenly spaced ones.
PLACES = {
    10: (-6.341, -4.945, -4.258, -3.678, -3.121, -2.565, -2.001, -1.430, -0.854, -0.247),
    11: (-6.155, -4.986, -4.381, -3.870, -3.367, -2.862, -2.352, -1.832, -1.309, -0.783, -0.219),
    12: (-6.081, -5.133, -4.551, -4.048, -3.575, -3.109, -2.640, -2.165, -1.683, -1.197, -0.707, -0.173),
}


class Quadrature(NamedTuple):
    """sum_k c_k log(1 + (s / w_k)^2) + c s^2 approximates s and s log s.

    Attributes:
        w: (nodes,) shifts.
        weights: (2, nodes + 1), the c, for s and for s log s.
        errors: (2,), the largest for s in [LOW, 1], relative to s + FLOOR.
        below: (2,), the largest for s < LOW, absolute.
    """

    w: Tensor
    weights: Tensor
    errors: Tensor
    below: Tensor


@functools.lru_cache(maxsize=8)
def quadrature(nodes: int, points: int = 400) -> Quadrature:
    """The fit for that many nodes, its largest error nearly as small as can be (reweighted least squares)."""
    w = 10 ** torch.tensor(PLACES[nodes], dtype=torch.float64)

    def basis(s: Tensor) -> Tensor:
        return torch.cat([torch.log1p((s[:, None] / w) ** 2) * w, (s**2)[:, None]], 1)

    s = torch.logspace(math.log10(LOW), 0, points, dtype=torch.float64)
    tiny = torch.logspace(-12, math.log10(LOW), points, dtype=torch.float64)
    weights, errors, below = [], [], []
    for function in (lambda s: s, lambda s: s * s.log()):
        weight, best, error = torch.ones_like(s), torch.zeros_like(basis(s)[0]), math.inf
        for _ in range(10):
            rows = (weight / (s + FLOOR))[:, None]
            target = function(s)[:, None] * rows
            fit = torch.linalg.lstsq(basis(s) * rows, target, rcond=1e-13, driver="gelsd").solution[:, 0]
            miss = ((basis(s) @ fit - function(s)) / (s + FLOOR)).abs()
            if miss.max() < error:
                best, error = fit, float(miss.max())
            weight = weight * (miss / miss.mean()).clamp(0.1, 10) ** 0.5
        weights.append(best * torch.cat([w, torch.ones(1, dtype=torch.float64)]))
        errors.append(error)
        below.append(float((basis(tiny) @ best - function(tiny)).abs().max()))
    return Quadrature(w, torch.stack(weights), torch.tensor(errors).double(), torch.tensor(below).double())


def entropy(T: Tensor, nodes: int, block: int = 1, compiled: bool | None = None) -> tuple[Tensor, Tensor]:
    """Entropy-ESS and a bound of its relative error, (B, L-1) each; only every block-th cut is made exact.

    Args:
        T: (B, L, L), read below the diagonal only.
        nodes: of the quadrature, a key of PLACES.
        compiled: see dense_sweep.prepare.
    """
    B, L = T.shape[:2]
    out = torch.zeros(B, L - 1, dtype=torch.float64, device=T.device)
    error = torch.full_like(out, math.inf)
    if compiled is None and L <= SMALL:
        T = strictly_lower(T)
    else:
        for here in chunks(T):
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
    """Entropy-ESS and a bound of its relative error, to first order, (B, L-1) each."""
    rule = quadrature(nodes)
    w, weights = rule.w.to(op.T.device), rule.weights.to(op.T.device)
    squares = op.squares[0]
    # An upper bound of sigma_1 of all H_i; on trained attention at most 1.2 times the largest, and free.
    top = squares.amax(1).sqrt() * (1 + 1e-12)
    top = torch.where(top > 0, top, torch.ones_like(top))
    shifts = w[:, None] * top
    coarse = w > SINGLE
    parts = [op(shifts[which], -1, single) for which, single in ((~coarse, False), (coarse, True)) if which.any()]
    f, p = torch.cat(parts, 1)
    # f / w and p / w are >= 1 exactly and all of g sums to 0 over the cuts: what is left of it is rounding.
    g = (p.nan_to_num(1.0).clamp_min(1).log() - f.nan_to_num(1.0).clamp_min(1).log()).cumsum(-1)
    rounding = torch.tensordot(weights[:, :-1].abs(), g[..., -1:].abs(), dims=1)
    g = torch.cat([g[..., :-1], squares[None] / top[:, None] ** 2])
    n, s = torch.tensordot(weights, g, dims=1)  # sum of sigma and sum of sigma log sigma
    i = torch.arange(1, op.L, device=w.device)
    rank = torch.minimum(i, op.L - i)
    # How many singular values may lie below LOW.  Between two shifts g falls by twice the logarithm of their ratio for
    # each one far above, and by at most a part c of that for each one below LOW.
    k = int((w < 3 * LOW).sum())
    c = float(LOW / w[k]) ** 2
    above = (g[k] - g[k + 1]) / (2 * torch.log(w[k + 1] / w[k]))
    below = (rank - (above - c * rank) / (1 - c)).clamp(torch.zeros_like(rank), rank)
    error_n, error_s = (
        e * (n + rank * FLOOR) + below * tiny + r
        for e, tiny, r in zip(rule.errors.tolist(), rule.below.tolist(), rounding)
    )
    ess = (n.log() - s / n).exp()  # entropy = log n - s / n
    error = (error_s + (1 + s / n).abs() * error_n) / n
    error = torch.where(n > 0, error, torch.inf).nan_to_num(math.inf)
    if (squares == 0).any():
        zero = zero_cuts(op.T)[:, : op.L - 1]
        ess, error = ess.masked_fill(zero, 0.0), error.masked_fill(zero, 0.0)
    return ess, error
