"""Figures of a result: ESS along the text, layer by position, utilisation per layer.  And those of a comparison."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from hf_ess.errors import BadInput
from hf_ess.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hf_ess.comparing.comparison import Comparison
    from hf_ess.studying.outcome import StudyOutcome

KINDS = ("lines", "heatmap", "utilisation")

#: save_all draws this many prompts; draw(prompt=) any other.
MOST_PROMPTS = 8

DPI = 160


def draw(
    result: Result,
    kind: str = "lines",
    *,
    ax: Axes | None = None,
    layer: int | None = None,
    tolerance: float | None = None,
    metric: str = "tolerance",
    reduction: str = "mean",
    prompt: int = 0,
    unit: int | None = None,
) -> Figure:
    """Draws a result with matplotlib's object interface; nothing is shown, no global state is touched.

    Position i is the cut before token i: H_i = T[i:, :i] (arXiv 2504.19561, section 2).  Drawn with every ESS are
    TSS (dotted) and the bound min(TSS, i, L-i) on the rank of H_i (dashed).

    Args:
        result: what probe() returned or load_result() read.
        kind: "lines", ESS along the tokens with a panel per tolerance; "heatmap", layer by position;
            "utilisation", ESS / TSS per layer.
        ax: draw one panel there, in place of a new figure.
        layer: (lines) this layer alone, with the spread of its heads or channels.
        tolerance: (lines, utilisation) this one alone; (heatmap, and everything with ax) default the middle one.
        metric: "tolerance", "entropy", "utilisation", "saturation", "norm" ... as in the result's table.
        reduction: over the heads or channels of a layer: "mean", "sum_channels", "q90" ... as in the table;
            (lines) also "sum_channels_layers" and "sum_channels_mean_layers".
        prompt: number of the prompt.
        unit: (lines, with layer) one head or channel, drawn on top.

    Returns:
        The figure, that of ax where one was given.

    Raises:
        BadInput: the result does not hold what is asked for, or the options do not go together.
    """
    if kind not in KINDS:
        raise BadInput(f"there is no plot {kind!r}; the kinds are {', '.join(KINDS)}")
    for name, value in (("layer", layer), ("unit", unit)):
        if value is not None and kind != "lines":
            raise BadInput(f'{name}= goes with the plot "lines", not with {kind!r}')
    _need_matplotlib()
    from hf_ess.plotting import heatmap, lines, utilisation
    from hf_ess.plotting.data import View

    if ax is not None and not hasattr(ax, "get_window_extent"):
        raise BadInput(f"ax must be a matplotlib Axes, got {type(ax).__name__}")
    view = View(result, prompt)
    if kind == "utilisation":
        if metric not in ("tolerance", "utilisation") or reduction != "mean":
            raise BadInput(
                'the plot "utilisation" shows the mean of ESS / TSS; metric= and reduction= do not go with it'
            )
        metric = "utilisation"
    one = tolerance is not None or ax is not None or kind == "heatmap"
    tolerances = [view.chosen(metric, tolerance)] if one else view.tolerances(metric)
    view.check_reduction(metric, reduction)
    if kind == "lines":
        asked = lines.Lines(view, metric, reduction, tolerances, layer, unit)
        return lines.figure(asked) if ax is None else lines.on_axes(ax, asked)
    if kind == "utilisation":
        used = utilisation.Utilisation(view, tolerances)
        return utilisation.figure(used) if ax is None else utilisation.on_axes(ax, used)
    if reduction.startswith("sum_channels_"):
        raise BadInput(f'{reduction} joins the layers, so it has no heatmap; use the plot "lines"')
    heat = heatmap.Heatmap(view, metric, reduction, tolerances[0])
    return heatmap.figure(heat) if ax is None else heatmap.on_axes(ax, heat)


def save_all(result: Result | Comparison | StudyOutcome, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes the standard pictures of a result, a comparison or a study into a folder.

    Of a result: lines.png, heatmap.png (middle tolerance) and utilisation.png; further prompts, up to the eighth, get
    lines-1.png and so on.  Of a comparison: curves.png, layers.png, difference.png, and groups.png where heads or
    groups of channels were ranked.  Of a study: its own.  Every file is whole or not there.

    Returns:
        The paths written.

    Raises:
        BadInput: the folder cannot be written.
    """
    if not isinstance(result, Result):
        from hf_ess.comparing.comparison import Comparison
        from hf_ess.plotting import comparison, study

        return comparison.save_all(result, folder) if isinstance(result, Comparison) else study.save_all(result, folder)
    target, written = Path(folder), []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for prompt in range(min(len(result.summary["prompts"]), MOST_PROMPTS)):
            for kind in KINDS:
                path = target / (f"{kind}.png" if prompt == 0 else f"{kind}-{prompt}.png")
                save(draw(result, kind, prompt=prompt), path)
                written.append(path)
    except OSError as error:
        raise BadInput(f"cannot write the plots to {target}: {error.strerror or error}") from error
    return written


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG, durable and atomic; the temporary name is unique, so that two runs may draw into one folder."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.writing")
    try:
        with open(temporary, "xb") as f:
            figure.savefig(f, format="png", dpi=DPI, facecolor="white", metadata={"Software": "hf-ess"})
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _need_matplotlib() -> None:
    """matplotlib cannot even be imported with some values of MPLBACKEND that a shell may carry along."""
    try:
        import matplotlib  # noqa: F401
    except ValueError as error:
        backend = os.environ.get("MPLBACKEND")
        raise BadInput(
            f"matplotlib cannot start with MPLBACKEND={backend!r}; unset that variable, or set it to agg"
        ) from error
