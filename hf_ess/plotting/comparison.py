"""Delimiters compared: total ESS under each token overlaid (the paper's figure 6a), and the effect per layer.

The other pictures of a comparison are in difference.py and groups.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.compute as pc

from hf_ess.errors import BadInput
from hf_ess.plotting import labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hf_ess.comparing.comparison import Comparison
    from hf_ess.plotting.data import View
    from hf_ess.studying.outcome import StudyOutcome

KINDS = ("curves", "layers", "difference", "groups")

# The end of text is drawn as in the figures of a probe; the neutral tokens are grey.
COLOURS = ("#d55e00", "#0072b2", "#cc79a7", "#e69f00", "#009e73", "#56b4e9", "#000000")
MARKERS = ("v", "o", "s", "D", "^", "P", "X")
NEUTRAL = {"control": "#5c5c5c", "second control": "#a0a0a0"}


@dataclass(frozen=True)
class PromptTokens:
    """What the position axis of a figure needs of a prompt."""

    length: int
    positions: np.ndarray
    texts: list[str]
    ids: list[int]


def draw(comparison: Comparison, kind: str = "curves", **options: Any) -> Figure:
    """Draws a comparison; nothing is shown, no global state is touched.

    Args:
        comparison: what compare() returned or load_comparison() read.
        kind: "curves", total ESS along the tokens under every token; "layers", effect per layer with its interval;
            "difference", layer by position, token minus control; "groups", the most modulated heads.
        **options: of "curves": prompt (number), layer (number; default all together), replace (names to draw);
            and reduction over all layers; of "layers": replace; of "difference": prompt, replace (one name);
            of "groups": replace (one name), most (rows); of all: tolerance (this one alone).

    Raises:
        BadInput: the comparison does not hold what is asked for.
    """
    from hf_ess.plotting import difference, groups

    drawers = {"curves": curves, "layers": layers, "difference": difference.figure, "groups": groups.figure}
    if kind not in drawers:
        raise BadInput(f"there is no plot {kind!r}; the kinds are {', '.join(KINDS)}")
    return drawers[kind](comparison, **options)


def save_all(comparison: Comparison, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes curves.png and difference.png (first prompt), layers.png, and groups.png where heads were ranked.

    Returns:
        The paths written.

    Raises:
        BadInput: the folder cannot be written.
    """
    from hf_ess.plots import save

    target, written = Path(folder), []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            if kind != "groups" or comparison.groups:
                written.append(target / f"{kind}.png")
                save(draw(comparison, kind), written[-1])
    except OSError as error:
        raise BadInput(f"cannot write the plots to {target}: {error.strerror or error}") from error
    return written


def curves(
    comparison: Comparison,
    *,
    prompt: int = 0,
    layer: int | None = None,
    tolerance: float | None = None,
    replace: Sequence[str] | None = None,
    reduction: str = "sum_channels_layers",
) -> Figure:
    """Total ESS along one prompt under every token at its places, a panel per tolerance."""
    from matplotlib.lines import Line2D

    from hf_ess.plotting import fonts, style

    prompts = comparison.summary["prompts"]
    if not isinstance(prompt, int) or not 0 <= prompt < len(prompts):
        raise BadInput(f"there is no prompt {prompt!r}; this comparison has {len(prompts)}, numbered from 0")
    tolerances, shown = chosen_tolerances(comparison, tolerance), shown_tokens(comparison, replace, with_control=True)
    tokens = prompt_tokens(prompts[prompt])
    panels = [{name: curve(comparison, prompt, layer, t, name, reduction) for name in shown} for t in tolerances]
    drawn = reduction if layer is None else "sum_channels"
    panel, gap, head = 1.85 if len(tolerances) > 1 else 3.0, 0.42, 1.36
    axis = cast("View", tokens)
    width = style.WIDTH - 1.15 - 0.35
    with_tokens = style.position_axis(style.figure(1.0).add_axes((0, 0, 1, 1)), axis, width)
    caption = (
        f"{labels.quantity('tolerance', drawn)}; value i is the memory carried into token i, H_i = T[i:, :i]. "
        "Bands: the cuts p .. p+2 at which a token is judged. All curves share one sequence but for the tokens at the "
        "places. Each rises from the start and falls to the end whatever the text is: rank H_i ≤ min(i, L−i)."
    )
    foot = 0.5 + (style.token_room(axis) if with_tokens else 0) + style.caption_height(caption)
    fig = style.figure(head + len(tolerances) * panel + (len(tolerances) - 1) * gap + foot)
    frame = style.Frame(fig, left=1.15, right=0.35)
    where = "all layers" if layer is None else f"layer {layer}"
    frame.title(
        "Memory past each token, one in the place of the other", subtitle(comparison, f"prompt {prompt}, {where}")
    )
    frame.legend(
        0.82,
        [
            Line2D([], [], color=look["colour"], linewidth=look["width"], label=fonts.literal(look["label"]))
            for look in shown.values()
        ],
    )
    for row, (t, lines) in enumerate(zip(tolerances, panels)):
        ax = frame.axes(0, head + row * (panel + gap), frame.inner, panel)
        style.position_axis(ax, axis, width)
        for place in prompts[prompt]["places"]:
            ax.axvspan(place - 0.4, place + 2.4, color="#f0e9dc", linewidth=0, zorder=0)
        for name, values in lines.items():
            look = shown[name]
            ax.plot(tokens.positions, values, color=look["colour"], linewidth=look["width"], zorder=look["order"])
        top = max((float(np.nanmax(v)) for v in lines.values() if np.isfinite(v).any()), default=0.0)
        ax.set_ylim(0, top * 1.08 if top > 0 else 1.0)
        style.heading(ax, f"tolerance {labels.tolerance(t)}{tolerance_unit(comparison)}")
        last = row == len(tolerances) - 1
        ax.tick_params(axis="x", labelbottom=last)
        style.label(ax, style.position_label(with_tokens) if last else None, "total ESS")
    frame.caption(caption)
    return fig


def layers(comparison: Comparison, *, tolerance: float | None = None, replace: Sequence[str] | None = None) -> Figure:
    """The effect of every token on every layer against the control, with its interval, a panel per tolerance."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter

    from hf_ess.plotting import fonts, style

    tolerances, shown = chosen_tolerances(comparison, tolerance), shown_tokens(comparison, replace, with_control=False)
    wheres = list(dict.fromkeys(where(row) for row in comparison.effects))  # all layers together first
    panel, gap, head = 1.85 if len(tolerances) > 1 else 3.0, 0.42, 1.36
    effects = comparison.effects
    prompts, places = (max((row[name] for row in effects), default=0) for name in ("prompts", "places"))
    control = next(c["name"] for c in comparison.summary["candidates"] if c["role"] == "control")
    caption = (
        f'Change of m, the smallest total ESS over the cuts p .. p+2 of a place p, against "{fonts.literal(control)}" '
        f"at the same places: exp(mean log ratio) − 1 over {labels.count(prompts, 'prompt')} and "
        f"{labels.count(places, 'place')}, with its 95 % t interval. Left: "
        "summed over channels and layers; right: over the channels of each layer. "
        "Not corrected for the number of comparisons."
    )
    fig = style.figure(
        head + len(tolerances) * panel + (len(tolerances) - 1) * gap + 0.55 + style.caption_height(caption)
    )
    frame = style.Frame(fig, left=1.0, right=0.35)
    frame.title("What each token does to the memory of each layer", subtitle(comparison, "effect against the control"))
    frame.legend(
        0.82,
        [
            Line2D(
                [],
                [],
                color=k["colour"],
                marker=k["marker"],
                linewidth=0,
                markersize=6,
                label=fonts.literal(k["label"]),
            )
            for k in shown.values()
        ],
    )
    x = np.arange(len(wheres)) + np.array([0.0 if k == 0 else 0.4 for k in range(len(wheres))])
    apart = min(0.13, 0.62 / max(len(shown), 1))
    for row, t in enumerate(tolerances):
        ax = frame.axes(0, head + row * (panel + gap), frame.inner, panel)
        ax.axhline(0, color=style.EDGE, linewidth=0.9, zorder=1)
        for k, (name, look) in enumerate(shown.items()):
            mine = {where(e): e for e in comparison.effects if e["replace"] == name and e["tolerance"] == t}
            at = x + (k - (len(shown) - 1) / 2) * apart
            points(ax, at, [mine[w] for w in wheres], look, len(wheres))
        ax.axvline(0.7, color="#d0d0d0", linewidth=0.9)
        ax.set_xlim(-0.55, x[-1] + 0.55)
        step = max(1, len(wheres) // 40 + 1)
        ticks = [0, *range(1, len(wheres), step)]
        names = ["all layers" if wheres[i][0] is None else layer_label(wheres, i) for i in ticks]
        ax.set_xticks(x[ticks], names)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:+.3g} %".replace("-", "−").replace("+0 ", "0 ")))
        style.heading(ax, f"tolerance {labels.tolerance(t)}{tolerance_unit(comparison)}")
        last = row == len(tolerances) - 1
        ax.tick_params(axis="x", labelbottom=last)
        style.label(ax, "layer" if last else None, "effect on ESS")
    frame.caption(caption)
    return fig


def points(ax: Axes, at: np.ndarray, rows: list[dict[str, Any]], look: dict[str, Any], many: int) -> None:
    """One marker per layer and its interval; nothing where there is no value."""
    size = float(np.clip(7.5 - many / 14, 2.5, 6.0))
    for x, row in zip(at, rows):
        if row["effect"] is None:
            continue
        if row["low"] is not None:
            ends = [100 * row["low"], 100 * row["high"]]
            ax.plot([x, x], ends, color=look["colour"], linewidth=1.3, alpha=0.75, zorder=2, solid_capstyle="butt")
        ax.plot(
            x,
            100 * row["effect"],
            look["marker"],
            color=look["colour"],
            markersize=size,
            markeredgecolor=look["colour"] if look["marker"] == "x" else "white",
            markeredgewidth=1.2 if look["marker"] == "x" else 0.5,
            zorder=3,
        )


def shown_tokens(
    comparison: Comparison, replace: Sequence[str] | None, with_control: bool
) -> dict[str, dict[str, Any]]:
    """Look of every token that is drawn, by name; the control is drawn below the others."""
    candidates = comparison.summary["candidates"]
    names = [c["name"] for c in candidates]
    unknown = [name for name in replace or () if name not in names]
    if unknown:
        raise BadInput(f"{unknown[0]!r} is not in this comparison; it has {', '.join(map(repr, names))}")
    out: dict[str, dict[str, Any]] = {}
    coloured = [c["name"] for c in candidates if c["role"] == "candidate"]
    for c in candidates:
        neutral = c["role"] in NEUTRAL
        if (c["role"] == "control" and not with_control) or (replace and c["name"] not in replace and not neutral):
            continue
        k = 0 if neutral else coloured.index(c["name"])
        word = {"control": "control", "second control": "second control"}.get(c["role"], "")
        name = labels.visible(c["name"])
        label = f'"{name}"' if name != "eos" else f"end of text {labels.visible(c['text'])}"
        out[c["name"]] = {
            "colour": NEUTRAL.get(c["role"], COLOURS[k % len(COLOURS)]),
            "marker": "x" if neutral else MARKERS[k % len(MARKERS)],
            "label": labels.shortened(label, 28) + (f" ({word})" if word else ""),
            "width": 1.0 if neutral else 1.5,
            "order": 2.0 if neutral else 3.0,
        }
    return out


def one_candidate(comparison: Comparison, replace: Sequence[str] | str | None) -> str:
    """The one token that a picture is of: the one named, else the first candidate.

    Raises:
        BadInput: it is not in the comparison, or several are named.
    """
    names = [c["name"] for c in comparison.summary["candidates"] if c["role"] != "control"]
    asked = [replace] if isinstance(replace, str) else list(replace or names[:1])
    if len(asked) != 1:
        raise BadInput(f"this plot shows one token: name one of {', '.join(map(repr, names))}")
    if asked[0] not in names:
        raise BadInput(f"{asked[0]!r} is not compared here; there are {', '.join(map(repr, names))}")
    return asked[0]


def curve(
    found: Comparison | StudyOutcome, prompt: int, layer: int | None, tolerance: float, name: str, reduction: str
) -> np.ndarray:
    """Total ESS of a layer, or of all by a reduction: sum_channels_layers or sum_channels_mean_layers, (L-1,).

    Raises:
        BadInput: there are no such values, or no such reduction.
    """
    if reduction not in ("sum_channels_layers", "sum_channels_mean_layers"):
        raise BadInput(f"there is no reduction {reduction!r}: sum_channels_layers or sum_channels_mean_layers")
    table = found.curves
    keep = pc.equal(table["prompt"], prompt)
    stored = "sum_channels_layers" if layer is None else "sum_channels"
    for column, value in (("replace", name), ("tolerance", tolerance)):
        keep = pc.and_(keep, pc.equal(table[column], value))
    here = table.filter(keep)
    rows = [r for r in here.filter(pc.equal(here["reduction"], stored)).to_pylist() if r["layer"] == layer]
    if not rows:
        have = labels.ranges(row["layer"] for row in found.summary["layers"])
        raise BadInput(f"there are no values of layer {layer!r} for prompt {prompt}; the layers are {have}")
    total = np.sum([np.array(row["values"], dtype=float) for row in rows], axis=0)
    if layer is None and reduction == "sum_channels_mean_layers":
        total /= len(pc.unique(here.filter(pc.is_valid(here["layer"]))["layer"]))
    return total


def chosen_tolerances(comparison: Comparison, tolerance: float | None) -> list[float]:
    if tolerance is None:
        return comparison.tolerances
    found = [t for t in comparison.tolerances if np.isclose(t, tolerance, rtol=1e-6, atol=0)]
    if not found:
        have = ", ".join(map(labels.tolerance, comparison.tolerances))
        raise BadInput(f"tolerance {tolerance!r} was not measured; this comparison has {have}")
    return found


def prompt_tokens(prompt: dict[str, Any]) -> PromptTokens:
    places, texts = set(prompt["places"]), prompt["texts"]
    shown = ["▢" if k in places else text for k, text in enumerate(texts)]
    return PromptTokens(len(texts), np.arange(1, len(texts)), shown, [0] * len(texts))


def where(row: dict[str, Any]) -> tuple[int | None, str | None, int | None]:
    return row["layer"], row["module"], row["call"]


def layer_label(wheres: list[tuple[int | None, str | None, int | None]], at: int) -> str:
    """The layer's number; with a letter where a layer has several mixers."""
    layer = wheres[at][0]
    same = [k for k, w in enumerate(wheres) if w[0] == layer]
    return str(layer) if len(same) == 1 else f"{layer}{chr(ord('a') + same.index(at))}"


def subtitle(comparison: Comparison, what: str) -> str:
    from hf_ess.plotting import fonts

    s = comparison.summary
    kinds = list(dict.fromkeys(layer["kind"] for layer in s["layers"]))
    mixers = " + ".join(
        labels.count(sum(r["kind"] == k for r in s["layers"]), f"{fonts.literal(k)} layer") for k in kinds
    )
    horizon = s["options"]["horizon"]
    parts = [fonts.literal(str(s["provenance"]["model"]))[-60:], mixers, what]
    return "  ·  ".join(parts + ([f"horizon {horizon}"] if horizon else []))


def tolerance_unit(comparison: Comparison) -> str:
    return " × the operator's largest singular value" if comparison.summary["options"]["relative"] else ""
