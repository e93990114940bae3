"""Where in the text and how deep in the model one token leaves less memory, or more, than the control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hf_ess.errors import BadInput
from hf_ess.plotting import comparison as compared
from hf_ess.plotting import fonts, labels, style

if TYPE_CHECKING:
    from hf_ess.comparing.comparison import Comparison
    from hf_ess.plotting.data import View


def figure(
    comparison: Comparison,
    *,
    prompt: int = 0,
    tolerance: float | None = None,
    replace: Sequence[str] | str | None = None,
) -> Figure:
    """Layer by position: total ESS of each layer under the token minus that under the control, a panel per tolerance.

    Raises:
        BadInput: the comparison does not hold what is asked for.
    """
    prompts = comparison.summary["prompts"]
    if not isinstance(prompt, int) or not 0 <= prompt < len(prompts):
        raise BadInput(f"there is no prompt {prompt!r}; this comparison has {len(prompts)}, numbered from 0")
    name = compared.one_candidate(comparison, replace)
    tolerances = compared.chosen_tolerances(comparison, tolerance)
    control = next(c["name"] for c in comparison.summary["candidates"] if c["role"] == "control")
    tokens = compared.prompt_tokens(prompts[prompt])
    axis = cast("View", tokens)
    n = len(comparison.summary["layers"])
    panel, gap, head = float(np.clip(0.26 * n, 1.2, 4.5)), 0.46, 1.05
    width = style.WIDTH - 0.85 - 0.95
    with_tokens = style.position_axis(style.figure(1.0).add_axes((0, 0, 1, 1)), axis, width)
    caption = (
        f'Total ESS of a layer, "{fonts.literal(name)}" at the places minus "{fonts.literal(control)}" there. Orange: '
        "less memory under the token than under the control; purple: more. Marks on top: the places. H_i has the rows "
        "of all later tokens, so a token changes the cuts before it too. Hatched: not measured."
    )
    foot = 0.5 + (style.token_room(axis) if with_tokens else 0) + style.caption_height(caption)
    fig = style.figure(head + len(tolerances) * panel + (len(tolerances) - 1) * gap + foot)
    frame = style.Frame(fig)
    frame.title(
        "What the token changes, layer by layer",
        compared.subtitle(
            comparison, f"prompt {prompt}, {labels.shortened(fonts.literal(name), 24)} against the control"
        ),
    )
    for row, t in enumerate(tolerances):
        top = head + row * (panel + gap)
        ax = frame.axes(0, top, width, panel)
        image = _draw(ax, matrix(comparison, prompt, t, name, control), comparison)
        style.position_axis(ax, axis, width)
        ax.plot(
            prompts[prompt]["places"],
            np.ones(len(prompts[prompt]["places"])),
            "v",
            color=style.INK,
            markersize=4,
            transform=ax.get_xaxis_transform(),
            clip_on=False,
        )
        style.heading(ax, f"tolerance {labels.tolerance(t)}{compared.tolerance_unit(comparison)}")
        last = row == len(tolerances) - 1
        ax.tick_params(axis="x", labelbottom=last)
        style.label(ax, style.position_label(with_tokens) if last else None, "layer")
        bar = fig.colorbar(image, cax=frame.axes(width + 0.16, top, 0.13, panel))
        bar.outline.set_visible(False)
        style.style(bar.ax)
        bar.ax.grid(False)
        bar.ax.tick_params(length=2, labelsize=8.5)
    frame.caption(caption)
    return fig


def matrix(comparison: Comparison, prompt: int, tolerance: float, name: str, control: str) -> np.ndarray:
    """(mixer, L-1) total ESS under the token minus that under the control; NaN where not measured."""
    length = int(comparison.summary["prompts"][prompt]["tokens"])
    mixers = [(i["layer"], i["module"], i["call"]) for i in comparison.summary["layers"]]
    kept: dict[tuple, np.ndarray] = {}
    for row in comparison.curves.select(
        ["prompt", "replace", "tolerance", "layer", "module", "call", "values"]
    ).to_pylist():
        if row["prompt"] == prompt and row["tolerance"] == tolerance and row["layer"] is not None:
            key = (row["replace"], row["layer"], row["module"], row["call"])
            kept[key] = np.array(row["values"], dtype=float)
    empty = np.full(length - 1, np.nan)
    return np.array([kept.get((name, *m), empty) - kept.get((control, *m), empty) for m in mixers])


def _draw(ax: Axes, values: np.ndarray, comparison: Comparison) -> AxesImage:
    """The picture, its colours as far to the one side as to the other."""
    n, length = values.shape[0], values.shape[1] + 1
    most = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    image = ax.imshow(
        np.ma.masked_invalid(values),
        aspect="auto",
        extent=(0.5, length - 0.5, n - 0.5, -0.5),
        cmap=matplotlib.colormaps["PuOr"],
        vmin=-(most or 1.0),
        vmax=most or 1.0,
        interpolation="nearest" if length <= 1000 else "antialiased",
        interpolation_stage="data",
        zorder=1,
    )
    style.hatched(ax)
    ax.grid(False)
    wheres = [compared.where(i) for i in comparison.summary["layers"]]
    ticks = list(range(0, n, max(1, -(-n // 24))))
    ax.set_yticks(ticks, [compared.layer_label(wheres, k) for k in ticks], fontsize=8.5)
    ax.tick_params(axis="y", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return image
