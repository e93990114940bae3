"""Pictures of studies: total ESS along a text with its classes of tokens, or behind more and more examples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_ess.errors import BadInput
from hf_ess.plotting import comparison, labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hf_ess.studying.outcome import StudyOutcome

KINDS = {"separators": ("curves", "layers"), "classes": ("curves", "effects"), "shots": ("curves",)}
MORE = ("#7d7d7d", "#b2182b", "#762a83", "#1b7837")


def draw(outcome: StudyOutcome, kind: str = "curves", prompt: int = 0) -> Figure:
    """Draws an outcome; nothing is shown, no global state is touched.

    Args:
        outcome: what study() returned.
        kind: "curves", total ESS along a prompt; "effects" (classes) or "layers" (separators), the effects.
        prompt: (curves) its number.

    Raises:
        BadInput: the outcome has no such picture, or no such prompt.
    """
    if kind not in KINDS[outcome.kind]:
        raise BadInput(f"there is no plot {kind!r} of this study; the kinds are {', '.join(KINDS[outcome.kind])}")
    if not 0 <= prompt < len(outcome.summary["prompts"]):
        raise BadInput(f"there is no prompt {prompt!r}; this study has {len(outcome.summary['prompts'])}")
    if outcome.kind == "separators":
        assert outcome.comparison is not None
        options = {} if kind == "layers" else {"prompt": prompt, "reduction": outcome.summary["study"]["reduction"]}
        return comparison.draw(outcome.comparison, kind, **options)
    if kind == "effects":
        return _effects(outcome)
    return _along(outcome, prompt) if outcome.kind == "classes" else _behind_examples(outcome, prompt)


def save_all(outcome: StudyOutcome, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes every kind of picture (of the first prompt) into a folder.

    Returns:
        The paths written.
    """
    from hf_ess.plots import DPI

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in KINDS[outcome.kind]:
        paths.append(target / f"{kind}.png")
        draw(outcome, kind).savefig(paths[-1], dpi=DPI, facecolor="white", metadata={"Software": "hf-ess"})
    return paths


def _along(outcome: StudyOutcome, prompt: int) -> Figure:
    """Total ESS along one text, the tokens of each class marked (figures 39 and 40 of the paper)."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullLocator

    text = outcome.summary["prompts"][prompt]
    marked = {name: p for name, p in text["classes"].items() if name and p}
    colours = dict(zip(marked, _colours(len(marked))))
    fig, frame, panels = _frame(
        outcome,
        f"Total ESS along {text['name']}",
        f"{_total(outcome)} of ESS; value i is the memory carried into token i, H_i = T[i:, :i]. Marks below: tokens "
        "of each class. Every curve rises from the start and falls to the end whatever the text is: "
        "rank H_i ≤ min(i, L−i).",
    )
    frame.legend(
        0.82,
        [Line2D([], [], color=c, marker="|", linewidth=0, markersize=9, label=n) for n, c in colours.items()],
    )
    for k, (ax, tolerance) in enumerate(panels):
        values = _curve(outcome, prompt, "", tolerance)
        at = np.arange(1, len(values) + 1)
        ax.plot(at, values, color="#0072b2", linewidth=1.3)
        top = float(np.nanmax(values)) or 1.0
        step = 0.045 * top
        for row, (name, places) in enumerate(marked.items()):
            ax.plot(places, np.full(len(places), -(row + 1) * step), "|", color=colours[name], markersize=6)
        ax.set_ylim(-(len(marked) + 1.5) * step, 1.05 * top)
        ax.set_yticks([t for t in ax.get_yticks() if 0 <= t <= 1.05 * top])
        ax.set_xlim(0.5, len(values) + 0.5)
        ax.yaxis.set_minor_locator(NullLocator())
        _finish(ax, tolerance, k == len(panels) - 1, "position i: the cut lies before token i", "total ESS")
    return fig


def _behind_examples(outcome: StudyOutcome, prompt: int) -> Figure:
    """Total ESS along one question with every number of examples before it, aligned at its end."""
    from matplotlib.lines import Line2D

    question = outcome.summary["prompts"][prompt]
    counts = [str(n) for n in outcome.summary["shots"]]
    colours = dict(zip(counts, _colours(len(counts))))
    fig, frame, panels = _frame(
        outcome,
        "Total ESS behind more and more examples",
        f"{_total(outcome)} of ESS along question {prompt} with each number of examples before it. All prompts end "
        "with the same tokens, so their ends are laid upon each other; lines: where each example and the question "
        "begin.",
    )
    frame.legend(
        0.82,
        [Line2D([], [], color=c, linewidth=1.6, label=labels.count(int(n), "example")) for n, c in colours.items()],
    )
    for k, (ax, tolerance) in enumerate(panels):
        for n in counts:
            values = _curve(outcome, prompt, n, tolerance)
            at = np.arange(1, len(values) + 1) - question["tokens"][n]
            ax.plot(at, values, color=colours[n], linewidth=1.3)
        longest = max(counts, key=lambda n: question["tokens"][n])
        length, first = question["tokens"][longest], question["first"][longest]
        ax.axvline(first - length, color="#5c5c5c", linewidth=0.9)
        for start in question["examples"][longest]:
            ax.axvline(start - length, color="#d0d0d0", linewidth=0.9, zorder=0)
        ax.set_xlim(-length - 0.5, 0.5)
        ax.set_ylim(bottom=0)
        _finish(ax, tolerance, k == len(panels) - 1, "tokens from the end of the prompt", "total ESS")
    return fig


def _effects(outcome: StudyOutcome) -> Figure:
    """Dip and step of every class over all layers, with intervals, a panel per tolerance."""
    names = list(dict.fromkeys(row["class"] for row in outcome.rows))
    fig, _, panels = _frame(
        outcome,
        "What the tokens of each class do to memory",
        "Dip (filled): smallest total ESS over the cuts p .. p+2 of a token at p, against its surroundings. Step "
        "(hollow): total ESS behind the token against before it. Both against the tokens of no class; 95 % t intervals "
        "over texts.",
        panel=max(1.4, 0.24 * len(names) + 0.3),
        left=1.6,
        gap=0.62,
        head=1.1,
    )
    for k, (ax, tolerance) in enumerate(panels):
        rows = {r["class"]: r for r in outcome.rows if r["layer"] is None and r["tolerance"] == tolerance}
        for y, name in enumerate(names):
            row = rows[name]
            for shift, value, low, high, fill in (
                (-0.14, "effect", "low", "high", "#0072b2"),
                (0.14, "step", "step_low", "step_high", "white"),
            ):
                if row[value] is not None:
                    if row[low] is not None:
                        ax.plot([100 * row[low], 100 * row[high]], [y + shift] * 2, color="#0072b2", linewidth=1.3)
                    ax.plot(100 * row[value], y + shift, "o", color="#0072b2", markerfacecolor=fill, markersize=5)
        ax.axvline(0, color="#404040", linewidth=0.9, zorder=0)
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.4, -0.6)
        _finish(ax, tolerance, k == len(panels) - 1, "change of total ESS, %", None)
    return fig


def _frame(
    outcome: StudyOutcome,
    title: str,
    caption: str,
    panel: float = 1.85,
    left: float = 1.0,
    gap: float = 0.42,
    head: float = 1.36,
) -> tuple[Figure, Any, list[tuple[Axes, float]]]:
    """A figure with a title, a caption and an empty panel per tolerance."""
    from hf_ess.plotting import fonts, style

    s = outcome.summary
    tolerances = s["options"]["tolerances"]
    panel = 3.0 if len(tolerances) == 1 and panel < 3.0 else panel
    height = head + len(tolerances) * panel + (len(tolerances) - 1) * gap + 0.55 + style.caption_height(caption)
    fig = style.figure(height)
    frame = style.Frame(fig, left=left, right=0.35)
    frame.title(title, f"{fonts.literal(str(s['provenance']['model']))[-60:]}  ·  study {s['study']['name']}")
    frame.caption(caption)
    rows = [frame.axes(0, head + k * (panel + gap), frame.inner, panel) for k in range(len(tolerances))]
    return fig, frame, list(zip(rows, tolerances))


def _finish(ax: Axes, tolerance: float, last: bool, x: str, y: str | None) -> None:
    from hf_ess.plotting import style

    style.heading(ax, f"tolerance {labels.tolerance(tolerance)}")
    ax.tick_params(axis="x", labelbottom=last or y is None)
    style.label(ax, x if last else None, y)
    style.literal(ax.get_yticklabels())


def _curve(outcome: StudyOutcome, prompt: int, label: str, tolerance: float) -> np.ndarray:
    """(L-1,) total ESS over all layers, by the study's reduction."""
    return comparison.curve(outcome, prompt, None, tolerance, label, outcome.summary["study"]["reduction"])


def _total(outcome: StudyOutcome) -> str:
    mean = outcome.summary["study"]["reduction"] == "sum_channels_mean_layers"
    return "Sum over channels, mean over layers" if mean else "Sum over channels and layers"


def _colours(n: int) -> list[str]:
    more = (
        "#0072b2",
        "#d55e00",
        "#009e73",
        "#cc79a7",
        "#e69f00",
        "#56b4e9",
        "#000000",
        "#7d7d7d",
        "#b2182b",
        "#762a83",
    )
    return [more[k % len(more)] for k in range(n)]
