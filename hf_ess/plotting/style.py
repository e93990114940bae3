"""The look of all figures.  Everything is set on the objects themselves: no pyplot, no rcParams, no backend."""

from __future__ import annotations

import io
import textwrap
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hf_ess.plotting import fonts, labels
from hf_ess.plotting.data import View

LITERAL: dict[str, Any] = {"parse_math": False, "usetex": False}  # "$" is a dollar, whatever rcParams say
WIDTH = 10.0  # inches; 1,000 pixels at 100 dpi, so that 9 point text stays legible in a README
INK, GREY = "#1a1a1a", "#5c5c5c"
EDGE, FAINT = "#404040", "#7d7d7d"  # bound, TSS
CAPTION = 155  # characters of 8.5 points in a line


class Picture(Figure):
    """A matplotlib Figure that a notebook shows by itself, without pyplot."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=130)
        return out.getvalue()


def figure(height: float) -> Figure:
    """An empty figure of the common width, drawn by Agg whatever backend the session has."""
    fig = Picture(figsize=(WIDTH, height), dpi=100, facecolor="white")
    FigureCanvasAgg(fig)
    return fig


@dataclass
class Frame:
    """Margins of a figure in inches, and what is written into them.

    Attributes:
        fig: the figure.
        left, right: margins.
    """

    fig: Figure
    left: float = 0.85
    right: float = 0.95

    def axes(self, x: float, top: float, width: float, height: float) -> Axes:
        """An axes whose upper left corner lies x from the left margin and top from the upper edge, in inches."""
        w, h = self.fig.get_size_inches()
        return style(self.fig.add_axes(((self.left + x) / w, (h - top - height) / h, width / w, height / h)))

    @property
    def inner(self) -> float:
        """Width between the margins."""
        return float(self.fig.get_size_inches()[0]) - self.left - self.right

    def text(self, x: float, top: float, text: str, size: float, **options: Any) -> Text:
        """Literal text whose upper left corner lies x from the left edge and top from the upper edge, in inches."""
        w, h = self.fig.get_size_inches()
        options = {"color": INK, "va": "top", "fontfamily": fonts.families(), **LITERAL, **options}
        return self.fig.text(x / w, (h - top) / h, text, fontsize=size, **options)

    def title(self, title: str, subtitle: str) -> None:
        """Two lines at the top, 0.75 inches."""
        self.text(0.22, 0.16, title, 15, weight="bold")
        line = self.text(0.22, 0.47, subtitle, 10, color=GREY)
        room, needed = self.fig.get_size_inches()[0] - 0.4, line.get_window_extent().width / self.fig.dpi
        line.set_fontsize(10 * min(1.0, room / needed))

    def legend(self, top: float, handles: list[Any], of: str = "") -> None:
        """One row of a legend, its upper edge top inches from the upper edge of the figure, after the word `of`."""
        w, h = self.fig.get_size_inches()
        if of:
            self.text(0.22, top + 0.005, of, 9, color=GREY)
        left = 0.22 + (0.075 * len(of) + 0.08 if of else 0.0)
        for size in (9.0, 8.0, 7.0, 6.0, 5.0):  # the largest that fits
            legend = self.fig.legend(
                handles=handles,
                loc="upper left",
                bbox_to_anchor=(left / w, (h - top) / h),
                ncols=len(handles),
                frameon=False,
                fontsize=size,
                handlelength=1.0 if of else 2.4,
                handletextpad=0.6,
                columnspacing=1.6,
                borderpad=0,
                borderaxespad=0,
            )
            literal(legend.get_texts())
            if size == 5.0 or left + legend.get_window_extent().width / self.fig.dpi < w - 0.1:
                break
            legend.remove()

    def caption(self, text: str) -> None:
        """Small print at the bottom; caption_height() says how much room it takes."""
        height = float(self.fig.get_size_inches()[1])
        self.text(0.22, height - caption_height(text) + 0.02, _wrapped(text), 8.5, color=GREY, linespacing=1.35)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, CAPTION))


def caption_height(text: str) -> float:
    """Inches that a caption takes."""
    return 0.12 + 0.165 * len(textwrap.wrap(text, CAPTION))


def style(ax: Axes) -> Axes:
    """White ground, two thin spines, a pale grid behind the data, plain numbers."""
    ax.set_facecolor("white")
    for side, spine in ax.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=GREY, linewidth=0.8)
    ax.tick_params(colors=GREY, labelcolor=INK, labelsize=9, width=0.8, length=3, direction="out")
    ax.grid(visible=True, axis="y", color="#ececec", linewidth=0.8, linestyle="-")
    ax.set_axisbelow(True)
    plain = FuncFormatter(lambda value, _: f"{value:,.6g}".replace("-", "−"))
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(plain)
    ax.yaxis.set_major_formatter(plain)
    return ax


def width(ax: Axes) -> float:
    """Inches."""
    return float(ax.get_window_extent().width / ax.figure.dpi)


def literal(texts: list[Any]) -> None:
    """Makes texts literal ("$" is a dollar) and gives them fonts for more scripts."""
    for text in texts:
        text.set(**LITERAL, fontfamily=fonts.families(), color=INK)


def wrapped(name: str, room: float) -> str:
    """The name of an axis on as many lines as it needs where the axis is room inches long."""
    return textwrap.fill(name, max(12, int(room / 0.072)))


def label(ax: Axes, x: str | None = None, y: str | None = None) -> None:
    """Axis labels, literal."""
    options: dict[str, Any] = {
        "fontsize": 9.5,
        "color": INK,
        **LITERAL,
        "fontfamily": fonts.families(),
    }
    if x is not None:
        ax.set_xlabel(x, labelpad=4, **options)
    if y is not None:
        ax.set_ylabel(y, labelpad=5, **options)


def heading(ax: Axes, left: str, right: str = "") -> None:
    """The heading of one panel, above the delimiter marks."""
    options: dict[str, Any] = {
        "pad": 10,
        "fontsize": 10,
        **LITERAL,
        "fontfamily": fonts.families(),
    }
    ax.set_title(left, loc="left", color=INK, weight="bold", **options)
    ax.set_title(right, loc="right", color=GREY, **{**options, "fontsize": 9})


def position_axis(ax: Axes, view: View, width: float) -> bool:
    """Limits and ticks along the tokens; token labels where they fit (at most 60). Returns whether they do.

    Args:
        ax: the axes.
        view: the prompt.
        width: of the axes, in inches.
    """
    ax.set_xlim(0.5, view.length - 0.5)
    if len(view.texts) == view.length <= min(60, width / 0.135):
        shown = [fonts.token(view.texts[i], view.ids[i]) for i in view.positions]
        ax.set_xticks(view.positions, shown, rotation=90, fontsize=8)
        literal(ax.get_xticklabels())
        ax.tick_params(axis="x", length=2)
        return True
    ax.xaxis.set_major_locator(
        MaxNLocator(min(10, max(2, int(width * 1.6))), steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)
    )
    return False


def token_room(view: View) -> float:
    """Inches below the axes that the token labels need."""
    longest = max((len(fonts.token(view.texts[i], view.ids[i])) for i in view.positions), default=0)
    return 0.068 * longest


def position_label(with_tokens: bool) -> str:
    """The x axis and its convention."""
    return "token i: the cut lies before it" if with_tokens else "position i: the cut lies before token i"


def depth_colours(n: int) -> list[tuple[float, ...]]:
    """n colours from the first layer (dark) to the last (green), all dark enough on white."""
    viridis = matplotlib.colormaps["viridis"]
    return [viridis(x) for x in np.linspace(0.0, 0.83, n)] if n > 1 else [viridis(0.3)]


def hatched(ax: Axes) -> None:
    """What is not measured shows the hatched ground."""
    ax.patch.set(facecolor="#f2f2f2", edgecolor="#b5b5b5", hatch="////", linewidth=0)


def model_name(view: View) -> str:
    """The model's name, literal, not longer than the title can hold."""
    name = fonts.literal(str(view.result.summary["provenance"]["model"]))
    return name if len(name) <= 60 else "…" + name[-59:]


def text_start(view: View, most: int) -> str:
    """The beginning of the text in quotes, or nothing where the tokens have no text."""
    text = fonts.literal(view.opening(most).strip(" \n\t\"'“”‘’"))
    if len(text) > most:
        text = text[:most].rstrip(' "“') + "…"
    return f"“{text}”" if text else ""


def kinds(view: View) -> str:
    """8 mamba layers, 2 softmax layers."""
    names = list(dict.fromkeys(m.kind for m in view.mixers))
    counts = [(sum(m.kind == kind for m in view.mixers), kind) for kind in names]
    return " + ".join(labels.count(n, f"{fonts.literal(kind)} layer") for n, kind in counts)


def subtitle(view: View) -> str:
    """Model, layers, tokens, and how the text begins."""
    parts = [model_name(view), kinds(view), labels.count(view.length, "token")]
    if len(view.result.summary["prompts"]) > 1:
        parts.append(f"prompt {view.prompt}")
    line = "  ·  ".join(parts)
    start = text_start(view, max(12, 110 - len(line)))
    return f"{line}  ·  {start}" if start else line


def tolerance_heading(view: View, tolerance: float | None) -> str:
    """tolerance 1e-3, with its unit where it is relative."""
    if tolerance is None:
        return ""
    unit = " × the operator's largest singular value" if view.result.summary["options"].get("relative") else ""
    return f"tolerance {labels.tolerance(tolerance)}{unit}"


def missing_note(view: View) -> str:
    """A sentence on the layers without values, or nothing."""
    failed = [m for m in view.mixers if m.status != "verified"]
    if not failed:
        return ""
    reasons = []
    for status, word in (("failed", "failed verification"), ("not finite", "not finite")):
        layers = [m.layer for m in failed if m.status == status]
        if layers:
            reasons.append(f"{labels.ranges(layers)} ({word})")
    return f" Not measured: layer {', '.join(reasons)}."
