"""Numbers of singular values above a tolerance at every cut: the sweep, its certificate, and SVD for the rest."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from hf_ess.spectra.dense_norms import svdvals
from hf_ess.spectra.dense_sweep import Sweep, chunk, prepare

SHADE = 1e-9  # ties: the tolerance is lowered by this much, relatively
GUARD = 1e3  # a pivot is trusted above GUARD eps |row|^2 / tol
NOISE = 16  # float64 singular values are good to NOISE eps sigma_1
EPS = torch.finfo(torch.float64).eps


def counts(T: Tensor, tol: Tensor, compiled: bool | None = None) -> tuple[Tensor, Tensor]:
    """#{sigma(H_i) >= tol} and whether float64 can tell, (K, B, L-1) each.

    Args:
        T: (B, L, L), read below the diagonal only.
        tol: (K, B), > 0.
        compiled: see dense_sweep.prepare.
    """
    B, L = T.shape[:2]
    out = torch.zeros(tol.shape[0], B, L - 1, dtype=torch.int64, device=T.device)
    resolved = torch.ones_like(out, dtype=torch.bool)
    some = chunk(L, T.device)
    for first in range(0, B, some):
        here = slice(first, first + some)
        op = prepare(T[here], compiled)
        w = tol[:, here] * (1 - SHADE) / op.unit
        run, doubt = _swept(op, w)
        out[:, here] = run[..., 1:L]
        hopeless = _hopeless(op, w)
        if hopeless is not None:
            resolved[:, here] = ~hopeless
        for k, b in (doubt.any(-1) | (run[..., L] != 0)).nonzero().tolist():
            lost = set() if hopeless is None else {i + 1 for i in hopeless[k, b].nonzero()[:, 0].tolist()}
            value, sure = _settled(op.T[b, :L, :L], float(w[k, b]), run[k, b], doubt[k, b], lost)
            out[k, first + b], resolved[k, first + b] = value, sure
    i = torch.arange(1, L, device=T.device)
    return torch.minimum(out.clamp_min_(0), torch.minimum(i, L - i)), resolved


def _swept(op: Sweep, w: Tensor) -> tuple[Tensor, Tensor]:
    """Running counts at the cuts 0 .. L, (K, B, L+1), and doubtful steps, (K, B, L)."""
    f, p = op(w, +1)
    _, rows, columns = op.squares
    noise = GUARD * EPS / w[:, :, None] ** 2
    trusted = (f.abs() > noise * rows) & (p.abs() > noise * columns)
    run = torch.nn.functional.pad(((p < 0).long() - (f < 0).long()).cumsum(-1), (1, 0))
    return run, ~trusted


def _hopeless(op: Sweep, w: Tensor) -> Tensor | None:
    """Where the shift is below eps sigma_1(H_i), (K, B, L-1); None if nowhere."""
    L = op.L
    if (w >= EPS * torch.linalg.matrix_norm(op.T)).all():
        return None
    i = torch.arange(1, L, device=w.device)
    sigma_1 = (op.squares[0] / torch.minimum(i, L - i)).sqrt()  # at least so much
    return w[:, :, None] < EPS * sigma_1


def _settled(T: Tensor, w: float, run: Tensor, doubt: Tensor, lost: set[int]) -> tuple[Tensor, Tensor]:
    """Counts and resolved, (L-1,) each, of one operator and shift.

    The cuts on both sides of a doubtful step go to SVD; a stretch of trusted steps between two cuts so computed must
    add up, and is bisected by further SVDs where it does not.  The cuts in `lost` are not worth an SVD.
    """
    L = T.shape[0]
    steps = run.tolist()
    known: dict[int, int | None] = {0: 0, L: 0}  # by SVD; None: float64 cannot tell
    ends = sorted({0, L, *(j for i in doubt.nonzero()[:, 0].tolist() for j in (i, i + 1))})
    stretches = list(pairwise(ends))
    values, sure = [0] * (L + 1), [True] * (L + 1)
    while stretches:
        start, end = stretches.pop()
        for i in (start, end):
            if i not in known:
                known[i] = None if i in lost else _count(T[i:, :i], w)
        left, right = known[start], known[end]
        adds_up = left is not None and right is not None and right - left == steps[end] - steps[start]
        if end - start > 1 and not adds_up:
            middle = (start + end) // 2
            stretches += [(start, middle), (middle, end)]
            continue
        for i in range(start + 1, end):
            values[i] = (left or 0) + steps[i] - steps[start]
        for i in (start, end):
            value = known[i]
            values[i], sure[i] = (steps[i], False) if value is None else (value, True)
    return torch.tensor(values[1:L]), torch.tensor(sure[1:L])


def _count(H: Tensor, w: float) -> int | None:
    """#{sigma(H) >= w}, or None if a singular value is too close to w to tell."""
    s = svdvals(H[None])[0]
    if s[0] > 0 and ((s - w).abs() <= NOISE * EPS * s[0]).any():
        return None
    return int((s >= w).sum())
