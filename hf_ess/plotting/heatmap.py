"""Layer by position: where in the text and how deep in the model the memory is in use."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hf_ess.plotting import fonts, labels, marks, style
from hf_ess.plotting.data import Mixer, View

# One scale per family: an attention layer may hold hundreds, a state of 16 at most 16.
ALONE, TOGETHER = "viridis", {"attention": "Blues", "recurrent": "Oranges", "convolution": "Purples"}


@dataclass(frozen=True)
class Heatmap:
    """What is to be drawn.

    Attributes:
        view: the prompt.
        metric, reduction, tolerance: as in the result.
    """

    view: View
    metric: str
    reduction: str
    tolerance: float | None

    @property
    def quantity(self) -> str:
        """What the colours show."""
        return labels.quantity(self.metric, self.reduction, self.view.unit(self.view.mixers))

    def curves(self) -> dict[Mixer, np.ndarray]:
        """One row per mixer."""
        return self.view.curves(self.metric, self.tolerance, self.reduction)


def figure(heat: Heatmap) -> Figure:
    """The whole figure: title, delimiters, picture, colour bars, caption."""
    view = heat.view
    named, caption = marks.handles(view), _caption(heat)
    height = float(np.clip(0.30 * len(view.mixers), 1.5, 6.5))
    head = 0.80 + (0.26 if named else 0) + 0.34
    probe = style.figure(1.0).add_axes((0, 0, 1, 1))
    width = style.WIDTH - 0.85 - 0.95
    with_tokens = style.position_axis(probe, view, width)
    foot = 0.50 + (style.token_room(view) if with_tokens else 0.0) + style.caption_height(caption)
    fig = style.figure(head + height + foot)
    frame = style.Frame(fig)
    name = {"tolerance": "Effective state-size (ESS)", "entropy": "Entropy-ESS"}.get(heat.metric)
    name = name or labels.METRICS.get(heat.metric, heat.metric)
    frame.title(f"{name[0].upper()}{name[1:]}, layer by layer", style.subtitle(view))
    if named:
        frame.legend(0.82, named, of="delimiters")
    ax = frame.axes(0, head, width, height)
    images = _draw(ax, heat)
    style.position_axis(ax, view, width)
    style.label(ax, style.position_label(with_tokens), "layer")
    quantity = f"colour: {heat.quantity}"
    quantity += ", a scale per family" if len(images) > 1 else ""
    style.heading(ax, style.tolerance_heading(view, heat.tolerance), quantity)
    each = height / max(1, len(images))
    for k, (family, image) in enumerate(images.items()):
        cax = frame.axes(width + 0.16, head + k * each, 0.13, each - (0.25 if k + 1 < len(images) else 0.0))
        _bar(fig, image, cax, heat, family if len(images) > 1 else "")
    frame.caption(caption)
    return fig


def on_axes(ax: Axes, heat: Heatmap) -> Figure:
    """The picture alone on the axes given, with its colour bars."""
    style.style(ax)
    images = _draw(ax, heat)
    width = style.width(ax)
    style.label(ax, style.position_label(style.position_axis(ax, heat.view, width)), "layer")
    style.heading(ax, f"{style.model_name(heat.view)}  {style.tolerance_heading(heat.view, heat.tolerance)}")
    for family, image in images.items():
        bar = ax.figure.colorbar(image, ax=ax)
        _label_bar(bar, heat, family if len(images) > 1 else "")
    return ax.figure.figure


def _draw(ax: Axes, heat: Heatmap) -> dict[str, AxesImage]:
    """An image per family over the same axes; what has no value shows the hatched ground."""
    view, curves = heat.view, heat.curves()
    n = len(view.mixers)
    images: dict[str, AxesImage] = {}
    matrix = np.array([curves[m] for m in view.mixers]).reshape(n, view.length - 1)
    families = list(dict.fromkeys(m.family for m in view.mixers))
    for family in families:
        rows = np.array([m.family == family for m in view.mixers])
        shown = np.where(rows[:, None], matrix, np.nan)
        top = float(np.nanmax(shown)) if np.isfinite(shown).any() else 0.0
        images[family] = ax.imshow(
            np.ma.masked_invalid(shown),
            aspect="auto",
            extent=(0.5, view.length - 0.5, n - 0.5, -0.5),
            cmap=matplotlib.colormaps[ALONE if len(families) == 1 else TOGETHER[family]],
            vmin=0.0,
            vmax=top if top > 0 else 1.0,
            interpolation="nearest" if view.length <= 1000 else "antialiased",
            interpolation_stage="data",
            zorder=1,
        )
    style.hatched(ax)
    ax.grid(False)
    step = max(1, -(-n // 32))
    initials = letters(view)
    ticks = list(range(0, n, step))
    names = [f"{view.mixers[k].label} {initials[view.mixers[k].kind]}" for k in ticks]
    ax.set_yticks(ticks, names, fontsize=8.5)
    style.literal(ax.get_yticklabels())
    ax.tick_params(axis="y", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    marks.draw(ax, view, hairlines=False)
    return images


def letters(view: View) -> dict[str, str]:
    """The shortest capital beginning of each kind that tells it from the others: A is attention."""
    out: dict[str, str] = {}
    for kind in dict.fromkeys(m.kind for m in view.mixers):
        word = "A" if "softmax" in kind else fonts.literal(kind)
        short = next(
            (word[:k].capitalize() for k in range(1, len(word) + 1) if word[:k].capitalize() not in out.values()), word
        )
        out[kind] = short
    return out


def _bar(fig: Figure, image: AxesImage, cax: Axes, heat: Heatmap, family: str) -> None:
    room = cax.get_window_extent().height / fig.dpi
    _label_bar(fig.colorbar(image, cax=cax), heat, family, room)


def _label_bar(bar: Colorbar, heat: Heatmap, family: str, room: float = 9.0) -> None:
    bar.outline.set_visible(False)
    style.style(bar.ax)
    bar.ax.grid(False)
    bar.ax.tick_params(length=2, labelsize=8.5)
    for spine in bar.ax.spines.values():
        spine.set_visible(False)
    name = heat.quantity
    style.label(bar.ax, y=style.wrapped(family or name, room))
    bar.ax.yaxis.set_label_position("right")


def _caption(heat: Heatmap) -> str:
    view = heat.view
    named = [f"{short} = {fonts.literal(kind)}" for kind, short in letters(view).items()]
    words = f"Rows: layers ({', '.join(named)}), the first on top. "
    if heat.metric in ("tolerance", "entropy"):
        words += "They fade towards both ends because H_i has i columns and L−i rows. "
    words += "Marks on top: delimiters." if view.delimiters else ""
    return words.strip() + style.missing_note(view)
