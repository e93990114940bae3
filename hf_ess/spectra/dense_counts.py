"""Numbers of singular values above a tolerance at every cut: the sweep, its certificate, and SVD for the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from hf_ess.spectra.dense_norms import chunks, strictly_lower, svdvals
from hf_ess.spectra.dense_sweep import SMALL, Sweep, prepare

SHADE = 1e-9  # ties: the tolerance is lowered by this much, relatively
NOISE = 16  # float64 singular values are good to NOISE eps sigma_1
EPS = torch.finfo(torch.float64).eps

# The certificate.  A pivot f_i (p_i) carries the rounding error of the Gram matrix, eps |row i|^2 / w (column i), so
# its margin is |f_i| w / (eps |row i|^2).  Set on 28 families and trained heads, at tolerances down to 1e-8 |H|:
# `python benchmarks/engine_dense.py certificate` counts what goes wrong among the counts that are vouched for.
GUARD = 1e3  # below this margin a step is doubtful
SECOND = 1e4  # where a step comes below this, the counts must agree with those at a slightly smaller tolerance
NUDGE = 1e-6  # by so much, relatively: its rounding errors are others
CROWD = 0.05  # if more than this part of the steps is doubtful, none is trusted
FLOOR = 0.03  # nor where eps |row|^2 / w^2 is more than this in the mean


def counts(T: Tensor, tol: Tensor, compiled: bool | None = None) -> tuple[Tensor, Tensor]:
    """#{sigma(H_i) >= tol} and whether float64 can tell, (K, B, L-1) each.

    Args:
        T: (B, L, L), read below the diagonal only.
        tol: (K, B), > 0.
        compiled: see dense_sweep.prepare.
    """
    w = tol * (1 - SHADE)
    if compiled is None and T.shape[1] <= SMALL:
        return _by_svd(strictly_lower(T)[0], w)
    counts = torch.zeros(*w.shape, T.shape[1] - 1, dtype=torch.int64, device=T.device)
    resolved = torch.ones_like(counts, dtype=torch.bool)
    if not counts.numel():
        return counts, resolved
    for here in chunks(T):
        op = prepare(T[here], compiled)
        # Entries are below 2 in units, so that beyond 4 L every count is 0.
        in_units = (w[:, here] / op.unit).clamp(1e-300, 4.0 * T.shape[1])
        counts[:, here], resolved[:, here] = _certified(op, in_units)
    i = torch.arange(1, T.shape[1], device=T.device)
    return torch.minimum(counts.clamp_min(0), torch.minimum(i, T.shape[1] - i)), resolved


def _by_svd(T: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Counts and resolved, (K, B, L-1) each, without the sweep."""
    spectra = [svdvals(T[:, i:, :i]) for i in range(1, T.shape[1])]
    w = w[:, :, None]
    counts = torch.stack([(s >= w).sum(-1) for s in spectra], -1)
    return counts, ~torch.stack([_too_close(s, w) for s in spectra], -1)


def _certified(op: Sweep, w: Tensor) -> tuple[Tensor, Tensor]:
    """Counts and resolved, (K, B, L-1) each, for shifts w (K, B) in units."""
    L = op.L
    run, doubt = _swept(op, w)
    hopeless = _hopeless(op, w)
    counts, resolved = run[..., 1:L].clone(), ~hopeless
    spectra: dict[tuple[int, int], Tensor] = {}  # by operator and cut, for all shifts

    def count(k: int, b: int, i: int) -> int | None:
        if hopeless[k, b, i - 1]:
            return None
        if (b, i) not in spectra:
            spectra[b, i] = svdvals(op.T[b : b + 1, i:L, :i])[0]
        s = spectra[b, i]
        return None if _too_close(s, w[k, b]) else int((s >= w[k, b]).sum())

    for k, b in (doubt.any(-1) | (run[..., L] != 0)).nonzero().tolist():
        values, sure = _settled(functools.partial(count, k, b), run[k, b], doubt[k, b])
        counts[k, b], resolved[k, b] = values, sure
    return counts, resolved


def _swept(op: Sweep, w: Tensor) -> tuple[Tensor, Tensor]:
    """Running counts at the cuts 0 .. L, (K, B, L+1), and doubtful steps between them, (K, B, L)."""
    _, rows, columns = op.squares
    unit = EPS / w[:, :, None] ** 2

    def once(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        f, p = op(w, +1)
        return torch.nn.functional.pad(((p < 0).long() - (f < 0).long()).cumsum(-1), (1, 0)), f.abs(), p.abs()

    def below(margin: float) -> Tensor:
        return ~((f > margin * unit * rows) & (p > margin * unit * columns))  # NaN is doubtful too

    run, f, p = once(w)
    doubt = below(GUARD)
    again = below(SECOND).flatten(1).any(1)
    if again.any():
        differ = run[again] != once(w[again] * (1 - NUDGE))[0]
        doubt[again] |= differ[..., 1:] | differ[..., :-1]
    crowded = doubt.double().mean(-1) > CROWD
    return run, doubt | (crowded | (unit[..., 0] * rows.mean(-1) > FLOOR))[..., None]


def _hopeless(op: Sweep, w: Tensor) -> Tensor:
    """Where the shift is below eps sigma_1(H_i), so that an SVD could not tell either, (K, B, L-1)."""
    i = torch.arange(1, op.L, device=w.device)
    at_least = (op.squares[0] / torch.minimum(i, op.L - i)).sqrt()  # |H_i|_F^2 / rank <= sigma_1^2
    return w[:, :, None] < EPS * at_least


def _settled(count: Callable[[int], int | None], run: Tensor, doubt: Tensor) -> tuple[Tensor, Tensor]:
    """Counts and resolved, (L-1,) each, of one operator and shift.

    The cuts on both sides of a doubtful step go to SVD; a stretch of trusted steps between two cuts so computed must
    add up, and is bisected by further SVDs where it does not.

    Args:
        count: the number by SVD at a cut 1 .. L-1, or None where float64 cannot tell.
        run: (L+1,), running counts of the sweep.
        doubt: (L,), doubtful steps.
    """
    steps, L = run.tolist(), doubt.shape[0]
    known: dict[int, int | None] = {0: 0, L: 0}
    ends = sorted({0, L, *(j for i in doubt.nonzero()[:, 0].tolist() for j in (i, i + 1))})
    stretches = list(pairwise(ends))
    values, sure = [0] * (L + 1), [True] * (L + 1)
    while stretches:
        start, end = stretches.pop()
        for i in (start, end):
            if i not in known:
                known[i] = count(i)
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


def _too_close(s: Tensor, w: Tensor | float) -> Tensor:
    """Whether a singular value is so close to w that float64 cannot tell; s: (..., k), descending."""
    return (((s - w).abs() <= NOISE * EPS * s[..., :1]) & (s[..., :1] > 0)).any(-1)
