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

from hf_ess.spectra.dense_norms import chunks, magnitude, power_of_two, strictly_lower, svdvals, zero_cuts
from hf_ess.spectra.dense_sweep import SMALL, Sweep, prepare

FLOOR = 3e-3  # errors of the fit are relative to sigma + FLOOR |H|
SINGLE = 0.04  # shifts above SINGLE |H| may be swept in single precision, whose rounding is 6e-8 / SINGLE^2
BOUND = 3e-3  # cuts with a larger bound of the error are computed by SVD
EXACT = 1e-12  # the error stated for these
NOTHING = 1e-19  # rows and columns below NOTHING |H| are left out of these: they move exp(entropy) by less than 1e-12

# log10 of the shifts by their number, found by `python benchmarks/quadrature_nodes.py`; evenly spaced ones have four to
# six times the error.
PLACES = {
    11: (-6.434, -5.166, -4.330, -3.678, -3.138, -2.651, -2.194, -1.714, -1.226, -0.729, -0.190),
    12: (-6.539, -5.270, -4.437, -3.791, -3.286, -2.883, -2.448, -2.008, -1.568, -1.133, -0.677, -0.170),
    14: (
        -7.108,
        -6.040,
        -5.293,
        -4.549,
        -3.922,
        -3.376,
        -2.919,
        -2.694,
        -2.333,
        -1.883,
        -1.433,
        -0.986,
        -0.543,
        -0.069,
    ),
}


class Quadrature(NamedTuple):
    """sum_k c_k log(1 + (s / w_k)^2) + c s^2 approximates s and s log s for 0 <= s <= 1.

    Attributes:
        w: (nodes,) shifts.
        weights: (2, nodes + 1), the c, for s and for s log s.
        errors: the largest error of either, relative to s + FLOOR.
    """

    w: Tensor
    weights: Tensor
    errors: tuple[float, float]


@functools.lru_cache(maxsize=8)
def quadrature(nodes: int) -> Quadrature:
    """The rule with that many nodes, a key of PLACES."""
    return fitted(10 ** torch.tensor(PLACES[nodes], dtype=torch.float64))


def fitted(w: Tensor) -> Quadrature:
    """The weights for given shifts, the largest error nearly as small as can be (reweighted least squares)."""
    s = torch.cat([torch.logspace(-8, -5, 60), torch.logspace(-5, 0, 300)[1:]]).double()
    s[-1] = 1.0
    basis = torch.cat([torch.log1p((s[:, None] / w) ** 2) * w, (s**2)[:, None]], 1)
    weights, errors = [], []
    for target in (s, s * s.log()):
        weight, best, error = torch.ones_like(s), torch.zeros_like(basis[0]), math.inf
        for _ in range(10):
            rows = (weight / (s + FLOOR))[:, None]
            fit = torch.linalg.lstsq(basis * rows, target[:, None] * rows, rcond=1e-13, driver="gelsd").solution[:, 0]
            miss = ((basis @ fit - target) / (s + FLOOR)).abs()
            if miss.max() < error:
                best, error = fit, float(miss.max())
            weight = weight * (miss / miss.mean()).clamp(0.1, 10) ** 0.5
        weights.append(best * torch.cat([w, torch.ones(1, dtype=torch.float64)]))
        errors.append(error)
    return Quadrature(w, torch.stack(weights), (errors[0], errors[1]))


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
        T, _ = strictly_lower(T)
    else:
        for here in chunks(T):
            out[here], error[here] = _estimate(prepare(T[here], compiled), nodes)
    asked = torch.zeros_like(error, dtype=torch.bool)
    asked[:, block - 1 :: block] = True
    asked &= ~(error <= BOUND)
    for i in asked.any(0).nonzero()[:, 0].tolist():
        which = asked[:, i]
        out[which, i] = from_spectrum(svdvals(_trimmed(T[which, i + 1 :, : i + 1].double())))
        error[which, i] = EXACT
    return out, error


def _trimmed(H: Tensor) -> Tensor:
    """H, (B, r, c), without the rows and columns that are nothing beside the rest of it in every matrix.

    A fast decay leaves a small corner (40 of 512 rows at 0.4 per token), which makes the SVD some 500 times cheaper.
    What goes has at most NOTHING sqrt(r + c) |H|_F, so no singular value moves by more (Weyl).
    """
    square = (H / power_of_two(magnitude(H))[:, None, None]) ** 2
    least = NOTHING**2 * square.sum((1, 2))[:, None]
    rows, columns = ((square.sum(d) >= least).any(0) for d in (2, 1))
    return H if rows.all() and columns.all() else H[:, rows][:, :, columns]


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
    error_n, error_s = (e * (n + rank * FLOOR) + r for e, r in zip(rule.errors, rounding))
    ess = (n.log() - s / n).exp()  # entropy = log n - s / n
    error = (error_s + (1 + s / n).abs() * error_n) / n
    error = torch.where(n > 0, error, torch.inf).nan_to_num(math.inf)
    if (squares == 0).any():
        zero = zero_cuts(op.T)[:, : op.L - 1]
        ess, error = ess.masked_fill(zero, 0.0), error.masked_fill(zero, 0.0)
    return ess, error
