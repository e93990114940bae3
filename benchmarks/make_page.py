"""Draws docs/benchmarks.md from the tables in benchmarks/results/: python -m benchmarks.make_page"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from matplotlib.axes import Axes

from hf_ess.plotting import style

HERE = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def rows(name: str, heading: str) -> Iterator[dict[str, str]]:
    """Rows of the Markdown table whose heading begins with the given cells."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(heading))
    columns = cells(lines[start])
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        yield dict(zip(columns, cells(line)))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def number(text: str) -> float:
    """The first number of a cell: "1,234x", "0.45 (0.43)", "12.3 h"."""
    found = re.search(r"[\d,]*\.?\d+(?:e[-+]?\d+)?", text)
    return float(found[0].replace(",", "")) if found else float("nan")


def lines(ax: Axes, data: dict[str, list[tuple[float, float]]]) -> None:
    """A line per name, both axes logarithmic, the lengths as they are."""
    for colour, (name, points) in zip(COLOURS, data.items()):
        x, y = zip(*sorted(points))
        ax.plot(x, y, "o-", color=colour, linewidth=1.6, markersize=5, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = sorted({x for points in data.values() for x, _ in points})
    ax.set_xticks(ticks, [f"{x:,.0f}" for x in ticks])
    ax.minorticks_off()
    ax.grid(visible=True, axis="y", color="#ececec")
    style.label(ax, "tokens")
    ax.legend(frameon=False, fontsize=8.5)


def draw(name: str, title: str, subtitle: str, panels: list[tuple[str, dict[str, list[tuple[float, float]]]]]) -> None:
    """One picture with a panel per quantity."""
    fig = style.figure(4.3)
    frame = style.Frame(fig, left=0.75, right=0.3)
    frame.title(title, subtitle)
    gap = 0.85
    width = (frame.inner - gap * (len(panels) - 1)) / len(panels)
    for k, (label, data) in enumerate(panels):
        ax = frame.axes(k * (width + gap), 1.2, width, 2.5)
        lines(ax, data)
        style.heading(ax, label)
    fig.savefig(DOCS / "images" / f"{name}.png", dpi=110, facecolor="white", metadata={"Software": "hf-ess"})


def engines() -> None:
    """How many times faster than all SVDs."""
    speed: dict[str, list[tuple[float, float]]] = {}
    for row in rows("engines.md", "| L | engine |"):
        L = number(row["L"])
        speed.setdefault("attention, three tolerances", []).append(
            (L, number(row["all SVDs, s/head"]) / number(row["three tolerances, ms/head"]) * 1e3)
        )
        speed.setdefault("attention, entropy", []).append(
            (L, number(row["all SVDs, s/head"]) / number(row["entropy, ms/head"]) * 1e3)
        )
    for row in rows("engines.md", "| source | engine |"):
        if row["engine"] == "numba":
            speed.setdefault("Mamba, n = 16, whole spectrum", []).append((number(row["L"]), number(row["ratio"])))
    for row in rows("engines.md", "| source | n |"):
        if row["n"] == "128":
            kind = {"ssd": "Mamba-2", "delta": "delta rule"}[row["source"]]
            speed.setdefault(f"{kind}, n = 128, counts and entropy", []).append(
                (number(row["L"]), number(row["ratio"]))
            )
    draw("bench-engines", "Speed against one SVD per position", "one CPU thread, every position", [("times", speed)])


def shapes() -> None:
    """Time and memory of layers of real shapes."""
    times: dict[str, list[tuple[float, float]]] = {}
    memory: dict[str, list[tuple[float, float]]] = {}
    for row in rows("shapes.md", "| shape of a layer |"):
        name = row["shape of a layer"].split(":")[0]
        times.setdefault(name, []).append((number(row["L"]), number(row["time, s"])))
        peak = next(value for key, value in row.items() if key.startswith("peak memory"))
        memory.setdefault(name, []).append((number(row["L"]), number(peak)))
    draw(
        "bench-shapes",
        "One layer of a large model on a CPU",
        "three tolerances and entropy at every position of every head or channel",
        [("seconds", times), ("peak memory of the process, GiB", memory)],
    )


def runs() -> None:
    """Whole runs against what others offer."""
    times: dict[str, list[tuple[float, float]]] = {}
    memory: dict[str, list[tuple[float, float]]] = {}
    for row in rows("whole_runs.md", "| L | |"):
        task, L = row[""], number(row["L"])
        seconds, svd = number(row["run, s"]), row["SVDs of all heads, extrapolated"]
        after = 0.0 if not svd else number(svd) * (3600 if svd.endswith("h") else 1)
        name = {"forward": "forward pass", "hf-ess": "hf-ess, whole job"}.get(task, f"{task}, then SVDs")
        times.setdefault(name, []).append((L, seconds + after))
        memory.setdefault(name, []).append((L, number(row["peak memory, GiB"])))
    draw(
        "bench-runs",
        "SmolLM2-135M, every position of all 270 heads",
        "three tolerances and entropy; SVDs of the others extrapolated from a sample",
        [("seconds", times), ("peak memory of the process, GiB", memory)],
    )


PAGE = """# Benchmarks

Every figure comes from a table in `benchmarks/results/`, which names machine, versions and date; every table from a
command. Ratios are of two measurements in one run. (This page: `python -m benchmarks.make_page`.)

## Engines against all SVDs

![Speed against one SVD per position](images/bench-engines.png)

One SVD per position is what the paper's listing does. [Table](../benchmarks/results/engines.md), with errors and wrong
counts: `python -m benchmarks.engines`.

## Whole runs

![Whole runs of SmolLM2](images/bench-runs.png)

hf-ess beside the plain forward pass, and beside the same job done with the attention matrices that
`output_attentions=True` or TransformerLens hand out. [Table](../benchmarks/results/whole_runs.md):
`python -m benchmarks.whole_runs`.

## Layers of large models

![Layers of real shapes](images/bench-shapes.png)

Random features of the real shapes on a CPU. [Table](../benchmarks/results/shapes.md), with totals extrapolated to the
whole model: `python -m benchmarks.shapes`.

## On a GPU

Not measured: no card was at hand. `python -m benchmarks.whole_models` builds Llama-3-8B, Falcon-Mamba-7B and Mamba-2
2.7B from their configurations with random weights and would measure time, device memory above the weights and the
ratio to the forward pass; `pytest -m gpu` would test the engines there.

## More

[Memory and time that `--dry-run` predicts](../benchmarks/results/dry_run.md) (`python -m benchmarks.dry_run`);
[stored spectra](../benchmarks/results/spectra_storage.txt) (`python -m benchmarks.spectra_storage`); size and speed of
the report page (`python -m benchmarks.report_page`).
"""


def main() -> None:
    engines()
    shapes()
    runs()
    (DOCS / "benchmarks.md").write_text(PAGE, encoding="utf-8")


if __name__ == "__main__":
    main()
