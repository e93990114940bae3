"""Numbers of singular values above a tolerance at every cut: the sweep, its certificate, and SVD for the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ess.spectra.dense_norms import frobenius, svdvals
from hf_ess.spectra.dense_sweep import Prepared, sweep

SHADE = 1e-9  # ties: the tolerance is lowered by this much, relatively
GUARD = 1e3  # a pivot is trusted above GUARD eps |row|^2 / tol
NOISE = 16  # float64 singular values are good to NOISE eps sigma_1
ROOM = 3 * 2**20  # elements swept at once: what stays near the caches
EPS = torch.finfo(torch.float64).eps


def counts(T: Tensor, tol: Tensor) -> tuple[Tensor, Tensor]:
    """#{sigma(H_i) >= tol} and whether float64 can tell, (K, B, L-1) each.

    Args:
        T: (B, L, L) float64, strictly lower triangular, finite.
        tol: (K, B), > 0.
    """
    B, L = T.shape[:2]
    K = tol.shape[0]
    out = torch.zeros(K, B, L - 1, dtype=torch.int64, device=T.device)
    resolved = torch.ones_like(out, dtype=torch.bool)
    rank = torch.minimum(torch.arange(1, L, device=T.device), L - torch.arange(1, L, device=T.device))
    w = tol * (1 - SHADE)
    hopeless = w[:, :, None] < EPS * frobenius(T) / rank.sqrt()  # below eps sigma_1
    room = max(1, ROOM // L**2)
    for first in range(0, B, room):
        here = slice(first, first + room)
        op = Prepared(T[here])
        for k in range(0, K, max(1, room // op.B)):
            these = slice(k, k + max(1, room // op.B))
            run, doubt = _swept(op, op.in_units(w[these, here]))
            for a in range(run.shape[0]):
                for b in range(op.B):
                    where = k + a, first + b
                    value, sure = _settled(T[first + b], w[where], run[a, b], doubt[a, b], hopeless[where])
                    out[where], resolved[where] = value, sure
    return torch.minimum(out.clamp_min(0), rank), resolved


def _swept(op: Prepared, w: Tensor) -> tuple[Tensor, Tensor]:
    """Running counts at the cuts 0 .. L, (K, B, L+1), and doubtful steps, (K, B, L)."""
    f, p = sweep(op, w, +1)
    noise = GUARD * EPS / w[:, :, None]
    trusted = (f.abs() > noise * op.square.sum(2)) & (p.abs() > noise * op.square.sum(1))
    run = torch.nn.functional.pad(((p < 0).long() - (f < 0).long()).cumsum(-1), (1, 0))
    return run, ~trusted


def _settled(
    T: Tensor, w: Tensor, run: Tensor, doubt: Tensor, hopeless: Tensor
) -> tuple[Tensor, Tensor]:
    """Counts and resolved, (L-1,) each, of one operator and tolerance.

    The cuts on both sides of a doubtful step go to SVD; a stretch of trusted steps between two cuts so computed must
    add up, and is bisected by further SVDs where it does not.
    """
    L = T.shape[0]
    if not doubt.any() and run[L] == 0:
        return run[1:L], ~hopeless & torch.ones_like(run[1:L], dtype=torch.bool)
    steps, tol = run.tolist(), float(w)
    lost = {i + 1 for i in hopeless.nonzero()[:, 0].tolist()}
    known: dict[int, int | None] = {0: 0, L: 0}  # None: not resolved

    def look(i: int) -> None:
        if i not in known:
            known[i] = None if i in lost else _count(T[i:, :i], tol)

    ends = sorted({0, L, *(j for i in doubt.nonzero()[:, 0].tolist() for j in (i, i + 1))})
    open_ = list(zip(ends, ends[1:]))
    values, sure = [0] * (L + 1), [True] * (L + 1)
    while open_:
        l, r = open_.pop()
        look(l)
        look(r)
        left, right = known[l], known[r]
        adds_up = left is not None and right is not None and right - left == steps[r] - steps[l]
        if r - l > 1 and not adds_up:
            open_ += [(l, (l + r) // 2), ((l + r) // 2, r)]
            continue
        for i in range(l + 1, r):
            values[i] = (left or 0) + steps[i] - steps[l]
        for i in (l, r):
            value = known[i]
            values[i], sure[i] = (steps[i], False) if value is None else (value, True)
    return torch.tensor(values[1:L]), torch.tensor(sure[1:L])


def _count(H: Tensor, w: float) -> int | None:
    """#{sigma(H) >= w}, or None if a singular value is too close to w to tell."""
    s = svdvals(H[None])[0]
    if ((s - w).abs() <= NOISE * EPS * s[0]).any() and s[0] > 0:
        return None
    return int((s >= w).sum())
