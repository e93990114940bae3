"""How much of its memory each layer uses: ESS / TSS, mean over the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from hf_ess.plotting import fonts, style
from hf_ess.plotting.data import View

KIND_MARKERS = ("o", "s", "D", "^", "v", "P", "X")


@dataclass(frozen=True)
class Utilisation:
    """What is to be drawn.

    Attributes:
        view: the prompt.
        tolerances: a series of dots each.
    """

    view: View
    tolerances: list[float | None]

    def values(self, tolerance: float | None) -> np.ndarray:
        """(mixer) mean over positions; NaN where nothing was measured."""
        curves = self.view.curves("utilisation", tolerance, "mean")
        return np.array([_mean(curves[m]) for m in self.view.mixers])

    def ceiling(self) -> np.ndarray:
        """(mixer) mean over positions of bound / TSS: what the length of the text leaves room for."""
        tss, bound = self.view.limits("tss", "mean"), self.view.limits("bound", "mean")
        return np.array([_mean(_ratio(bound[m], tss[m])) for m in self.view.mixers])


def figure(used: Utilisation) -> Figure:
    """The whole figure: title, legend, dots, caption."""
    view, caption = used.view, _caption(used)
    head, height = 1.42 + (0.26 if len(_markers(view)) > 1 else 0.0), 3.1
    fig = style.figure(head + height + 0.55 + style.caption_height(caption))
    frame = style.Frame(fig, right=0.3)
    frame.title("How much of its memory each layer uses", style.subtitle(view))
    tolerance, dash, kind = _handles(used)
    frame.legend(0.82, tolerance)
    frame.legend(1.08, [dash])
    if len(kind) > 1:
        frame.legend(1.34, kind, of="kinds")
    ax = frame.axes(0, head, frame.inner, height)
    _draw(ax, used, frame.inner)
    frame.caption(caption)
    return fig


def on_axes(ax: Axes, used: Utilisation) -> Figure:
    """The dots alone on the axes given."""
    style.style(ax)
    _draw(ax, used, style.width(ax))
    style.heading(ax, style.model_name(used.view))
    tolerance, dash, kind = _handles(used)
    legend = ax.legend(
        handles=[*tolerance, dash, *kind], fontsize=8, frameon=False, bbox_to_anchor=(1.0, 1.0), loc="upper left"
    )
    style.literal(legend.get_texts())
    return ax.figure.figure


def _draw(ax: Axes, used: Utilisation, width: float) -> None:
    view, n = used.view, len(used.view.mixers)
    x = np.arange(n)
    ceiling = used.ceiling()
    half = min(0.36, 2.0 / n + 0.25)
    ax.hlines(ceiling, x - half, x + half, color=style.EDGE, linewidth=1.3, linestyle=(0, (3, 1.5)), zorder=1.5)
    top = [ceiling]
    markers = _markers(view)
    size = float(np.clip(9.0 - n / 12, 3.5, 8.0))
    many = len(used.tolerances)
    apart = min(0.09, 0.5 / many) if n <= 40 else 0.0  # side by side, since equal values would hide each other
    for k, (colour, tolerance) in enumerate(zip(_colours(many), used.tolerances)):
        at = x + (k - (many - 1) / 2) * apart
        values = used.values(tolerance)
        top.append(values)
        for kind, marker in markers.items():
            mine = np.array([m.kind == kind for m in view.mixers])
            shown = np.where(mine, values, np.nan)
            # neighbours of the same kind are joined: the eye follows the depth
            ax.plot(at, shown, "-", color=colour, linewidth=0.9, alpha=0.6, zorder=2)
            dots: dict[str, Any] = {"markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.7}
            ax.plot(at, shown, marker, color=colour, clip_on=False, zorder=3, **dots)
    for k, mixer in enumerate(view.mixers):
        if mixer.status != "verified":
            ax.axvspan(
                k - 0.5, k + 0.5, facecolor="#f2f2f2", edgecolor="#b5b5b5", hatch="////", linewidth=0, zorder=0.9
            )
    peak = max((float(np.nanmax(v)) for v in top if np.isfinite(v).any()), default=0.0)
    ax.set_xlim(-0.6, n - 0.4)
    ax.set_ylim(0, min(1.04, peak * 1.12) if peak > 0 else 1.0)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}" if peak > 0.05 else f"{v:.1%}"))
    step = max(1, int(np.ceil(n * 0.3 / max(width, 1.0))))
    ax.set_xticks(x[::step], [view.mixers[k].label for k in x[::step]])
    style.label(ax, "layer", "utilisation: mean of ESS / TSS")


def _handles(used: Utilisation) -> tuple[list[Line2D], Line2D, list[Line2D]]:
    colours = _colours(len(used.tolerances))
    first = [
        Line2D([], [], color=c, linewidth=4, solid_capstyle="round", label=style.tolerance_heading(used.view, t))
        for c, t in zip(colours, used.tolerances)
    ]
    second = [
        Line2D([], [], color=style.GREY, marker=marker, linewidth=0, markersize=6, label=fonts.literal(kind))
        for kind, marker in _markers(used.view).items()
    ]
    dash = Line2D(
        [],
        [],
        color=style.EDGE,
        linewidth=1.3,
        linestyle=(0, (3, 1.5)),
        label="the most it can be: bound / TSS",
    )
    return first, dash, second


def _markers(view: View) -> dict[str, str]:
    kinds = list(dict.fromkeys(m.kind for m in view.mixers))
    return {kind: KIND_MARKERS[k % len(KIND_MARKERS)] for k, kind in enumerate(kinds)}


def _colours(n: int) -> list[tuple[float, ...]]:
    """Tolerances are ordered, so are their colours: the loosest dark, the strictest light."""
    cividis = matplotlib.colormaps["viridis"]
    return [cividis(x) for x in np.linspace(0.05, 0.78, n)] if n > 1 else [cividis(0.3)]


def _mean(curve: np.ndarray) -> float:
    return float(np.nanmean(curve)) if np.isfinite(curve).any() else float("nan")


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def _caption(used: Utilisation) -> str:
    words = (
        "Utilisation: ESS / TSS, mean over heads or channels and over the text. TSS is the size of the memory: "
        "the state of a recurrence, the tokens before i (or in the window) for attention. "
        "Dashes: what min(TSS, i, L−i) allows at most."
    )
    return words + style.missing_note(used.view)
