"""Which heads, or groups of neighbouring channels, a token modulates most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hf_ess.errors import BadInput
from hf_ess.plotting import comparison as compared
from hf_ess.plotting import fonts, labels, style

if TYPE_CHECKING:
    from hf_ess.comparing.comparison import Comparison

#: Rows of a ranking.
MOST = 12


def figure(
    comparison: Comparison,
    *,
    tolerance: float | None = None,
    replace: Sequence[str] | str | None = None,
    most: int = MOST,
) -> Figure:
    """The heads or groups of channels with the largest effect, with their intervals, a panel per tolerance.

    Raises:
        BadInput: none were ranked, or the comparison does not hold what is asked for.
    """
    if not comparison.groups:
        raise BadInput("this comparison ranks no heads: compare with groups (--groups N)")
    if most < 1:
        raise BadInput(f"the number of rows must be at least 1, got {most}")
    name = compared.one_candidate(comparison, replace)
    tolerances = compared.chosen_tolerances(comparison, tolerance)
    look = compared.shown_tokens(comparison, [name], with_control=False)[name]
    ranked = {t: rows(comparison, name, t)[:most] for t in tolerances}
    control = next(c["name"] for c in comparison.summary["candidates"] if c["role"] == "control")
    caption = (
        f'Change of m, the smallest total ESS over the cuts p .. p+2 of a place p, against "{fonts.literal(control)}" '
        f"there: exp(mean log ratio) − 1, with its 95 % t interval over prompts. The {most} largest of "
        f"{len(rows(comparison, name, tolerances[0]))}, not corrected for picking the largest."
    )
    longest = max((len(r) for r in ranked.values()), default=1)
    panel, gap, head = max(1.0, 0.24 * longest + 0.2), 0.8, 1.05
    fig = style.figure(
        head + len(tolerances) * panel + (len(tolerances) - 1) * gap + 0.6 + style.caption_height(caption)
    )
    frame = style.Frame(fig, left=1.9, right=0.5)
    frame.title(
        "The most modulated heads" if _heads(comparison) else "The most modulated channels",
        compared.subtitle(comparison, f"{labels.shortened(look['label'], 30)} against the control"),
    )
    for row, t in enumerate(tolerances):
        ax = frame.axes(0, head + row * (panel + gap), frame.inner, panel)
        _draw(ax, ranked[t], [group_label(r, comparison) for r in ranked[t]], look, longest)
        style.heading(ax, f"tolerance {labels.tolerance(t)}{compared.tolerance_unit(comparison)}")
        style.label(ax, "effect on ESS" if row == len(tolerances) - 1 else None)
    frame.caption(caption)
    return fig


def rows(comparison: Comparison, name: str, tolerance: float) -> list[dict[str, Any]]:
    """Rows of one token and tolerance that have an effect, the most modulated first."""
    return [
        r for r in comparison.groups if r["replace"] == name and r["tolerance"] == tolerance and r["effect"] is not None
    ]


def group_label(row: dict[str, Any], comparison: Comparison) -> str:
    """layer 3 · head 5, or layer 3 · channels 0-47."""
    mixers = comparison.summary["layers"]
    wheres = [compared.where(info) for info in mixers]
    at = wheres.index(compared.where(row))
    unit = "head" if mixers[at]["multiplicity"] > 1 else "channel"
    first, last = row["first"], row["last"]
    which = f"{unit} {first}" if first == last else f"{unit}s {first}-{last}"
    return f"layer {compared.layer_label(wheres, at)} · {which}"


def _draw(ax: Axes, found: list[dict[str, Any]], names: list[str], look: dict[str, Any], longest: int) -> None:
    ax.axvline(0, color=style.EDGE, linewidth=0.9, zorder=1)
    for k, r in enumerate(found):
        if r["low"] is not None:
            ends = [100 * r["low"], 100 * r["high"]]
            ax.plot(ends, [k, k], color=look["colour"], linewidth=1.6, alpha=0.6, zorder=2, solid_capstyle="butt")
        ax.plot(100 * r["effect"], k, look["marker"], color=look["colour"], markersize=5.5, zorder=3)
    ax.set_ylim(max(longest, 1) - 0.5, -0.5)
    ax.set_yticks(np.arange(len(found)), names, fontsize=8.5)
    style.literal(ax.get_yticklabels())
    ax.grid(visible=True, axis="x", color="#ececec", linewidth=0.8)
    ax.grid(visible=False, axis="y")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:+.3g} %".replace("-", "−").replace("+0 ", "0 ")))


def _heads(comparison: Comparison) -> bool:
    return any(info["multiplicity"] > 1 for info in comparison.summary["layers"])
