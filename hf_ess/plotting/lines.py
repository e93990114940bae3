"""ESS along the tokens: one panel per tolerance, one column per family of mixers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hf_ess.errors import BadInput
from hf_ess.plotting import labels, marks, style
from hf_ess.plotting.data import Curve, Mixer, View

LIMITED = ("tolerance", "entropy", "stable_rank", "tss", "bound")  # what min(TSS, i, L-i) is a limit of
MOST_UNITS = 64  # heads drawn one by one
MOST_ROOM = 4.0  # a bound higher than this times the curves would flatten them: it is cut off
NARROW = 3.2  # inches of a panel that has no room for long words
DASHED, DOTTED = (0, (4, 2.2)), (0, (1, 1.6))
FAMILY_DASHES: dict[str, Any] = {"attention": "-", "recurrent": (0, (5, 1.2)), "convolution": (0, (2, 1))}


@dataclass(frozen=True)
class Lines:
    """What is to be drawn.

    Attributes:
        view: the prompt.
        metric, reduction: as in the result.
        tolerances: one panel each.
        layer: that layer alone, with the spread of its heads or channels.
        unit: one head or channel of it.
    """

    view: View
    metric: str
    reduction: str
    tolerances: list[float | None]
    layer: int | None = None
    unit: int | None = None

    def __post_init__(self) -> None:
        view = self.view
        if self.layer is not None and self.layer not in {m.layer for m in view.mixers}:
            have = labels.ranges(m.layer for m in view.mixers)
            raise BadInput(f"there is no layer {self.layer!r} in this result; it has {have}")
        if self.layer is not None and self.together:
            raise BadInput(f"{self.reduction} joins the layers; it does not go with layer=")
        if self.unit is not None:
            if self.layer is None:
                raise BadInput("unit= needs layer=: heads and channels are numbered within a layer")
            kept = [u for m in self.mixers for u in view.units(m, self.metric, self.tolerances[0])]
            if not kept:
                raise BadInput(f'layer {self.layer} keeps no single heads or channels; probe with keep="units"')
            if self.unit not in kept:
                raise BadInput(f"layer {self.layer} has no head or channel {self.unit!r}; it has {labels.ranges(kept)}")

    @property
    def together(self) -> bool:
        """Whether the reduction joins all layers into one curve."""
        return self.reduction.startswith("sum_channels_")

    @property
    def mixers(self) -> list[Mixer]:
        """Those that are drawn."""
        return [m for m in self.view.mixers if self.layer is None or m.layer == self.layer]

    @property
    def columns(self) -> list[tuple[str, list[Mixer]]]:
        """One column per family: attention and recurrences live on different scales."""
        if self.together:
            return [("", self.mixers)]
        return [(f, [m for m in self.mixers if m.family == f]) for f in self.families or [""]]

    @property
    def families(self) -> list[str]:
        """ "attention", "recurrent": those that are drawn, in order."""
        return list(dict.fromkeys(m.family for m in self.mixers))

    def quantity(self, mixers: list[Mixer]) -> str:
        """The name of the y axis."""
        return labels.quantity(self.metric, self.reduction, self.view.unit(mixers))

    @property
    def single(self) -> bool:
        """Whether the spread within one layer is drawn, in place of the layers."""
        return not self.together and len({m.layer for m in self.mixers}) <= 1


def figure(lines: Lines) -> Figure:
    """The whole figure: title, legends, panels, caption."""
    view, columns, rows = lines.view, lines.columns, len(lines.tolerances)
    handles, named = _handles(lines), marks.handles(view)
    caption = _caption(lines)
    gap_x, gap_y, panel = 0.8, 0.42, 1.85 if rows > 1 else 3.0
    head = 0.80 + 0.26 + (0.26 if named else 0) + (0.30 if len(columns) > 1 else 0.06) + 0.26
    names = [style.wrapped(lines.quantity(mixers), panel) for _, mixers in columns]
    extra = 0.17 * max(name.count("\n") for name in names)  # room for a name on several lines
    gap_x, left = gap_x + extra, 0.85 + extra
    width = (style.WIDTH - left - 0.95 - gap_x * (len(columns) - 1)) / len(columns)
    probe = style.figure(1.0).add_axes((0, 0, 1, 1))
    with_tokens = style.position_axis(probe, view, width)
    foot = 0.50 + (style.token_room(view) if with_tokens else 0.0) + style.caption_height(caption)
    fig = style.figure(head + rows * panel + (rows - 1) * gap_y + foot)
    frame = style.Frame(fig, left=left)
    frame.title(_title(lines), style.subtitle(view))
    frame.legend(0.82, handles)
    if named:
        frame.legend(1.08, named, of="delimiters")
    for c, (_, mixers) in enumerate(columns):
        x = c * (width + gap_x)
        if len(columns) > 1:
            frame.text(frame.left + x, head - 0.52, _column_title(mixers, width), 10.5, weight="bold", color=style.GREY)
        for r, tolerance in enumerate(lines.tolerances):
            ax = frame.axes(x, head + r * (panel + gap_y), width, panel)
            panel_of(ax, lines, tolerance, mixers)
            last = r == rows - 1
            style.position_axis(ax, view, width)
            if last:
                style.label(ax, x=style.position_label(with_tokens) if width > NARROW else "position i")
            ax.tick_params(axis="x", labelbottom=last)
            style.label(ax, y=names[c])
    if not lines.single and not lines.together:
        height = rows * panel + (rows - 1) * gap_y
        _depth_bar(fig, frame.axes(frame.inner + 0.18, head, 0.13, min(height, 3.2)), view)
    frame.caption(caption)
    return fig


def on_axes(ax: Axes, lines: Lines) -> Figure:
    """One panel on the axes given, all families together."""
    style.style(ax)
    for family, mixers in lines.columns:
        panel_of(ax, lines, lines.tolerances[0], mixers, dashes=FAMILY_DASHES.get(family, "-"))
    with_tokens = style.position_axis(ax, lines.view, style.width(ax))
    style.label(ax, style.position_label(with_tokens), lines.quantity(lines.mixers))
    style.heading(ax, f"{style.model_name(lines.view)}  {style.tolerance_heading(lines.view, lines.tolerances[0])}")
    handles = [*_handles(lines), *_families(lines), *marks.handles(lines.view)]
    legend = ax.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    style.literal(legend.get_texts())
    return ax.figure.figure


def panel_of(ax: Axes, lines: Lines, tolerance: float | None, mixers: list[Mixer], dashes: Any = "-") -> None:
    """Curves, limits and delimiters of one family at one tolerance."""
    view = lines.view
    top = 0.0
    if lines.together:
        curve = view.total(lines.metric, tolerance, lines.reduction)
        if curve is not None:
            _bold(ax, view, curve, dashes)
            top = _top([curve])
        averages = ""
        limits = {name: [view.total(name, None, lines.reduction)] for name in ("tss", "bound")}
    else:
        curves = {m: c for m, c in view.curves(lines.metric, tolerance, lines.reduction).items() if m in mixers}
        drawn = _layer(ax, lines, tolerance, curves, dashes) if lines.single else _layers(ax, view, curves, dashes)
        top = _top(drawn)
        averages = _averages(lines, tolerance, curves)
        limits = {
            name: [c for m, c in view.limits(name, lines.reduction).items() if m in mixers] for name in ("tss", "bound")
        }
    style.heading(ax, style.tolerance_heading(view, tolerance), averages if style.width(ax) > NARROW else "")
    if lines.metric in LIMITED:
        top = _limits(ax, view, limits, top)
    else:
        top *= 1.08
    if top > 0:
        ax.set_ylim(0, top if ax.get_autoscaley_on() else max(top, ax.get_ylim()[1]))
    else:
        _nothing(ax, bool(np.isnan(top)))
    marks.draw(ax, view, hairlines=top > 0)


def _layers(ax: Axes, view: View, curves: dict[Mixer, Curve], dashes: Any) -> list[Curve]:
    """A thin line per layer coloured by depth, and their mean."""
    colour = dict(zip(view.mixers, style.depth_colours(len(view.mixers))))
    thin = 0.4 if view.length > 1000 else 1.1 if len(curves) <= 16 else 0.7
    for mixer, curve in curves.items():
        _line(ax, view, curve, color=colour[mixer], linewidth=thin, alpha=0.85, linestyle=dashes, zorder=2)
    measured = [c for c in curves.values() if np.isfinite(c).any()]
    if len(measured) > 1:
        _bold(ax, view, _mean(measured), dashes)
    return measured


def _layer(ax: Axes, lines: Lines, tolerance: float | None, curves: dict[Mixer, Curve], dashes: Any) -> list[Curve]:
    """The spread of the heads or channels of one layer, and their mean; or one of them."""
    view, drawn = lines.view, list(curves.values())
    for mixer, curve in curves.items():
        units = view.units(mixer, lines.metric, tolerance)
        if lines.reduction == "mean":
            low, high = (view.curves(lines.metric, tolerance, q)[mixer] for q in ("q10", "q90"))
            if np.isfinite(low).any():
                ax.fill_between(view.positions, low, high, color="#0072b2", alpha=0.16, linewidth=0, zorder=1.5)
                drawn.append(high)
            if 1 < len(units) <= MOST_UNITS:
                for unit in units.values():
                    _line(ax, view, unit, color="#0072b2", linewidth=0.6, alpha=0.4, zorder=1.8)
                drawn += list(units.values())
        _bold(ax, view, curve, dashes)
        if lines.unit in units:
            _line(ax, view, units[lines.unit], color="#d55e00", linewidth=2.0, zorder=4)
            drawn.append(units[lines.unit])
    return drawn


def _limits(ax: Axes, view: View, limits: dict[str, list[Curve | None]], top: float) -> float:
    """Bound dashed, TSS dotted; returns the upper end of the y axis, where the curves stay legible."""
    peaks, drawn = {}, np.empty((0, view.length - 1))
    for name, dashes, colour in (("bound", DASHED, style.EDGE), ("tss", DOTTED, style.FAINT)):
        curves = [c for c in limits[name] if c is not None and np.isfinite(c).any()]
        for curve in curves:
            fresh = ~np.isclose(curve, drawn).any(0)  # two dashed lines on top of each other look solid
            if fresh.any():
                ends = fresh | np.append(fresh[1:], False) | np.append(False, fresh[:-1])
                shown = np.where(ends, curve, np.nan)
                _line(ax, view, shown, point="_", color=colour, linewidth=1.2, linestyle=dashes, zorder=1.2)
                drawn = np.vstack([drawn, curve])
        peaks[name] = _top(curves)
    if not peaks["bound"] > 0:
        return top
    if top > 0 and peaks["bound"] > MOST_ROOM * top:
        where = ", above this panel" if style.width(ax) > NARROW else ""
        _note(ax, 0.93, f"the bound goes up to {labels.plain(peaks['bound'])}{where}")
        return 1.32 * top
    # the TSS of attention, which grows with the text, leaves the panel; that of a state stays in it
    return 1.06 * (peaks["tss"] if peaks["tss"] <= 1.3 * peaks["bound"] else peaks["bound"])


def _line(ax: Axes, view: View, curve: Curve, point: str = "o", **options: Any) -> None:
    if view.length <= 4 or np.isfinite(curve).sum() <= 2:  # a line through one point is invisible
        options |= {"marker": point, "markersize": 5 if point == "o" else 30, "clip_on": False}
    ax.plot(view.positions, curve, solid_capstyle="round", **options)


def _bold(ax: Axes, view: View, curve: Curve, dashes: Any) -> None:
    width = 2.2 if view.length <= 600 else 1.2  # hundreds of dips side by side would melt into black
    halo = [patheffects.withStroke(linewidth=1.5 * width, foreground="white")]
    _line(ax, view, curve, color=style.INK, linewidth=width, linestyle=dashes, path_effects=halo, zorder=3)


def _mean(curves: list[Curve]) -> Curve:
    """Mean over the layers that have a value there."""
    stacked = np.array(curves)
    known = np.isfinite(stacked)
    total = np.where(known, stacked, 0.0).sum(0)
    return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)


def _top(curves: list[Curve]) -> float:
    """The largest value; NaN where there is none."""
    peaks = [float(np.nanmax(c)) for c in curves if np.isfinite(c).any()]
    return max(peaks) if peaks else float("nan")


def _nothing(ax: Axes, unmeasured: bool) -> None:
    """A panel without any value says so."""
    ax.set_ylim(0, 1)
    if unmeasured:
        style.hatched(ax)
    _note(ax, 0.5, "no value: nothing could be measured here" if unmeasured else "0 everywhere")


def _note(ax: Axes, height: float, words: str) -> None:
    """Small print in the middle of a panel, readable over lines."""
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 2.0, "alpha": 0.85}
    ax.text(
        0.5,
        height,
        words,
        transform=ax.transAxes,
        ha="center",
        va="center",
        fontsize=8.5,
        color=style.GREY,
        bbox=ground,
    )


def _averages(lines: Lines, tolerance: float | None, curves: dict[Mixer, Curve]) -> str:
    """Mean over layers and positions, at the right of the heading."""
    measured = [c for c in curves.values() if np.isfinite(c).any()]
    if not measured or lines.unit is not None:
        return ""
    words = f"mean {labels.number(float(np.nanmean(measured)))}"
    if lines.metric == "tolerance" and lines.reduction == "mean":
        used = [c for m, c in lines.view.curves("utilisation", tolerance, "mean").items() if m in curves]
        used = [c for c in used if np.isfinite(c).any()]
        words += f"  ·  {np.nanmean(used):.0%} of TSS" if used else ""
    return words


def _handles(lines: Lines) -> list[Any]:
    out: list[Any] = []
    unit = lines.view.unit(lines.mixers)
    mean = f"mean of its {unit}s" if lines.single else "mean over layers"
    if lines.together:
        mean = "all layers together"
    elif lines.single and lines.reduction != "mean":
        mean = f"layer {lines.mixers[0].label}"
    out.append(Line2D([], [], color=style.INK, linewidth=2.2, label=mean))
    if lines.single and lines.reduction == "mean":
        out.append(Patch(facecolor="#0072b2", alpha=0.16, label=f"10% to 90% of the {unit}s"))
        if any(1 < m.operators <= MOST_UNITS for m in lines.mixers):
            out.append(Line2D([], [], color="#0072b2", linewidth=0.8, alpha=0.6, label=f"one {unit}"))
    elif not lines.together:
        out.append(Line2D([], [], color=style.depth_colours(3)[1], linewidth=1.2, label="one layer"))
    if lines.unit is not None:
        out.append(Line2D([], [], color="#d55e00", linewidth=2.0, label=f"{unit} {lines.unit}"))
    if lines.metric in LIMITED:
        out.append(Line2D([], [], color=style.EDGE, linewidth=1.2, linestyle=DASHED, label="bound: min(TSS, i, L−i)"))
        out.append(Line2D([], [], color=style.FAINT, linewidth=1.2, linestyle=DOTTED, label="TSS: size of the memory"))
    return out


def _families(lines: Lines) -> list[Any]:
    """Which dashes are which family, where both are in one panel."""
    return [
        Line2D(
            [], [], color=style.GREY, linewidth=1.6, linestyle=FAMILY_DASHES[family], label=_column_title(mixers, 6.0)
        )
        for family, mixers in lines.columns
        if len(lines.columns) > 1
    ]


def _title(lines: Lines) -> str:
    name = {"tolerance": "Effective state-size (ESS)", "entropy": "Entropy-ESS"}.get(lines.metric)
    name = name or labels.METRICS.get(lines.metric, lines.metric)
    name = f"{name[0].upper()}{name[1:]} along the text"
    if lines.layer is not None:
        name += f", layer {lines.layer} ({', '.join(dict.fromkeys(m.kind for m in lines.mixers))})"
    return name


def _column_title(mixers: list[Mixer], width: float) -> str:
    """Family, kinds and layers; in a column too narrow for the layers' numbers, how many they are."""
    name = f"{mixers[0].family} ({', '.join(dict.fromkeys(m.kind for m in mixers))})"
    word = "layer" if len(mixers) == 1 else "layers"
    most = int(width / 0.088)
    titles = (
        f"{name} · {word} {labels.ranges(m.layer for m in mixers)}",
        f"{name} · {labels.count(len(mixers), 'layer')}",
        name,
    )
    return next((title for title in titles if len(title) <= most), labels.shortened(name, most))


def _caption(lines: Lines) -> str:
    if lines.metric == "tolerance":
        words = (
            "ESS at i counts the singular values of H_i = T[i:, :i] that reach the tolerance: "
            "how many independent things about the tokens before i still matter from token i on."
        )
    elif lines.metric == "entropy":
        words = (
            "Entropy-ESS at i is the exponential of the entropy of the normalised singular values of "
            "H_i = T[i:, :i]; gaps: the largest of them is below the gate."
        )
    else:
        words = "H_i = T[i:, :i] maps the tokens before i to the outputs from token i on."
    if lines.metric in LIMITED:
        attention = " (attention: all tokens before i, or its window)" if "attention" in lines.families else ""
        words += (
            " Dashed: the most it can be there, min(TSS, i, L−i), for a text of L tokens. "
            f"Dotted: TSS, the size of the memory{attention}."
        )
    return words + style.missing_note(lines.view)


def _depth_bar(fig: Figure, cax: Axes, view: View) -> None:
    """Which colour is which layer."""
    n = len(view.mixers)
    cmap = ListedColormap(style.depth_colours(n))
    bar = fig.colorbar(ScalarMappable(BoundaryNorm(np.arange(n + 1) - 0.5, cmap.N), cmap), cax=cax)
    bar.outline.set_visible(False)
    step = max(1, -(-n // 12))
    ticks = list(range(0, n, step))
    bar.set_ticks(ticks, labels=[view.mixers[k].label for k in ticks])
    bar.minorticks_off()
    cax.tick_params(length=0, labelsize=8.5, labelcolor=style.INK)
    cax.invert_yaxis()
    cax.set_title("layer", fontsize=9, color=style.INK, loc="left", pad=5)
