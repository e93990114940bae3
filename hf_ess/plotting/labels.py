"""Words in pictures and tables: tokens made visible, numbers, ranges.  Knows no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: What a curve shows, by the reduction over the operators (heads or channels) of a layer.
REDUCTIONS = {
    "mean": "mean {} per {}",
    "sum_heads": "{} summed over heads",
    "sum_channels": "{} summed over channels",
    "sum_channels_layers": "{} summed over channels and layers",
    "sum_channels_mean_layers": "{} summed over channels, mean over layers",
    "min": "smallest {} of a {}",
    "q10": "10% quantile of {} over {}s",
    "q50": "median {} over {}s",
    "q90": "90% quantile of {} over {}s",
    "max": "largest {} of a {}",
}

METRICS = {
    "tolerance": "ESS",
    "entropy": "entropy-ESS",
    "utilisation": "utilisation (ESS / TSS)",
    "saturation": "saturation (ESS / bound)",
    "norm": "norm of H_i (largest singular value)",
    "frobenius": "Frobenius norm of H_i",
    "stable_rank": "stable rank of H_i",
    "unresolved": "unresolved counts",
    "tss": "TSS",
    "bound": "bound",
}


def quantity(metric: str, reduction: str, unit: str = "channel") -> str:
    """The name of what is drawn: "mean ESS per head".

    Args:
        metric, reduction: as in the result's table.
        unit: "head" or "channel"; a mean over heads is one over channels too, since all heads are equally wide.
    """
    name = METRICS.get(metric, metric)
    if metric in ("utilisation", "saturation") and reduction == "mean":
        return f"mean {name}"
    return REDUCTIONS.get(reduction, f"{reduction} of {{}}").format(name, unit)


def visible(text: str) -> str:
    r"""Text on one line without control characters: a newline is \n, an ESC \x1b, a lone surrogate \ud800."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def number(value: float | None) -> str:
    """Three significant digits without an exponent, thousands with commas; "-" where there is no value."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def plain(value: float) -> str:
    """A size: 16, 24,576, 12.5."""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"


def tolerance(value: float) -> str:
    """A tolerance as it is typed: 1e-3, 2.5e-3, 0.5."""
    mantissa, _, exponent = f"{value:.6e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return (
        f"{value:g}"
        if int(exponent) == 0 or (int(exponent) == -1 and mantissa != "1")
        else f"{mantissa}e{int(exponent)}"
    )


def count(n: int, word: str) -> str:
    """1 layer, 2 layers."""
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def ranges(numbers: Iterable[int]) -> str:
    """0-3, 7: sorted, each number once."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
