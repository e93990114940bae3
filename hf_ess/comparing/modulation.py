"""Paired statistics of a delimiter: how much lower total ESS falls at it than at a neutral token in its place.

At a delimiter at position p, m is the smallest value of a curve of total ESS over the cuts i = p, p+1, p+2 (cut i lies
before token i, H_i = T[i:, :i]).  The control is the same text with a neutral token at the same places: position, text
and the ends of the sequence cancel.  Per prompt

    r = log( sum of m over its places / sum of m_control over the same places ),
    effect = exp(mean of r over prompts) - 1.

Sums come before the ratio, and the mean is one of logarithms, because a mean of ratios m / m_control is biased upward:
E[1 / m_control] > 1 / E[m_control], for log-normal noise of standard deviation s by a factor exp(s^2).  Prompts are the
independent unit; places within a prompt share its text, so they add up within it and do not count as repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: A delimiter at p is looked at over the cuts p .. p + WINDOW - 1.
WINDOW = 3

#: The level before a delimiter at p is the mean over the cuts p - BEFORE[0] .. p - BEFORE[1].
BEFORE = (12, 3)

CONFIDENCE = 0.95


@dataclass(frozen=True)
class LogRatio:
    """One prompt.

    Attributes:
        value: r = log(sum m / sum m_control); -inf where m is 0 at every place; None where no place is left.
        places: places in the sums.
        left_out: places without a value, or at which the control is 0 itself.
    """

    value: float | None
    places: int
    left_out: int


@dataclass(frozen=True)
class Effect:
    """Over prompts.

    Attributes:
        effect: exp(mean r) - 1, so -0.2 is a fall by 20 %; None without any prompt.
        low, high: t interval of the same; None for fewer than two prompts, or where a prompt was emptied.
        p_value: Wilcoxon's signed-rank test of r, two-sided; None for fewer than two prompts.
        prompts: prompts with a value.
        places: places in their sums.
        left_out: places without a value, or at which the control is 0.
        emptied: prompts in which m is 0 at every place: r = -inf, and the effect is -1 whatever the others say.
    """

    effect: float | None
    low: float | None
    high: float | None
    p_value: float | None
    prompts: int
    places: int
    left_out: int
    emptied: int


def lowest(curve: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """m: the smallest value over the cuts p, p+1, p+2 that the sequence has.

    Args:
        curve: (L-1,) total ESS, cut i = 1..L-1 at index i - 1; NaN for null.
        places: token positions p, 0 <= p < L.

    Returns:
        (place,); NaN where any of the cuts is null, or none exists.
    """
    return np.array([_smallest(curve[max(p, 1) - 1 : p - 1 + WINDOW]) for p in places])


def level_before(curve: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """The mean over the cuts p-12 .. p-3, away from what the delimiter itself does.

    Args:
        curve, places: as in lowest().

    Returns:
        (place,); NaN where the text has no 12 cuts before p, because curves rise from 0 at its start.
    """
    far, near = BEFORE
    return np.array([curve[p - far - 1 : p - near].mean() if p > far else np.nan for p in places])


def log_ratio(m: np.ndarray, control: np.ndarray) -> LogRatio:
    """r of one prompt.

    Args:
        m, control: (place,) values at the same places; NaN for null.
    """
    kept = np.isfinite(m) & np.isfinite(control) & (control > 0)
    left_out = int((~kept).sum())
    if not kept.any():
        return LogRatio(None, 0, left_out)
    top, bottom = float(m[kept].sum()), float(control[kept].sum())
    return LogRatio(float(np.log(top / bottom)) if top > 0 else -np.inf, int(kept.sum()), left_out)


def effect(ratios: Sequence[LogRatio], confidence: float = CONFIDENCE) -> Effect:
    """The effect over prompts, its t interval and its rank test.

    Args:
        ratios: one per prompt.
        confidence: of the interval.
    """
    known = [ratio for ratio in ratios if ratio.value is not None]
    r = np.array([ratio.value for ratio in known], dtype=float)
    emptied = int(np.isneginf(r).sum())
    low = high = None
    if len(r) >= 2 and not emptied:
        low, high = (float(np.expm1(end)) for end in _interval(r, confidence))
    return Effect(
        effect=float(np.expm1(r.mean())) if len(r) else None,
        low=low,
        high=high,
        p_value=_signed_rank(r) if len(r) >= 2 else None,
        prompts=len(r),
        places=sum(ratio.places for ratio in known),
        left_out=sum(ratio.left_out for ratio in ratios),
        emptied=emptied,
    )


def _smallest(values: np.ndarray) -> float:
    return float(values.min()) if len(values) else float("nan")


def _interval(r: np.ndarray, confidence: float) -> tuple[float, float]:
    from scipy import stats

    half = stats.t.ppf((1 + confidence) / 2, len(r) - 1) * r.std(ddof=1) / np.sqrt(len(r))
    return r.mean() - half, r.mean() + half


def _signed_rank(r: np.ndarray) -> float:
    """Two-sided p value; 1 where nothing differs from 0, which the test itself does not take."""
    from scipy import stats

    if not r.any():
        return 1.0
    finite = np.abs(r[np.isfinite(r)])
    ranked = np.where(np.isfinite(r), r, -1.0 - (finite.max() if len(finite) else 0.0))
    return float(stats.wilcoxon(ranked).pvalue)
