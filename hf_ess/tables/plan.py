"""What a probe will measure and cost, in a terminal."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from hf_ess.bytesizes import written
from hf_ess.planning.timing import spoken
from hf_ess.plotting.labels import plain, ranges, visible
from hf_ess.tables import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from hf_ess.planning.planner import Plan
    from hf_ess.planning.survey import PlannedLayer


def show(plan: Plan) -> None:
    """Prints the plan on stdout."""
    from rich.console import Console

    terminal.show(heading(plan), layer_table(plan))
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    for line in costs(plan):
        console.print(line, soft_wrap=True)


def heading(plan: Plan) -> list[str]:
    """What the plan is of."""
    tokens, cuts = sum(plan.tokens), plan.cuts
    text = f"{tokens:,} tokens" if len(plan.tokens) == 1 else f"{len(plan.tokens)} prompts, {tokens:,} tokens"
    return [
        f"{visible(plan.model)}: {text}, {cuts:,} cuts",
        f"  {_millions(plan.parameters)} parameters in {plan.dtype}; told by the configuration, nothing was loaded",
    ]


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"


def layer_table(plan: Plan) -> Table:
    """A row for consecutive layers that are alike."""
    table = terminal.new_table(["layer", "kind", "ops", "channels", "TSS", "rule"], ["layer", "kind", "rule"])
    length = max(plan.tokens)
    for (kind, ops, channels, tss, rule), group in groupby(plan.layers, key=lambda layer: _row(layer, length)):
        numbers = [layer.layer for layer in group]
        table.add_row(ranges(numbers), kind, f"{ops:,}", f"{channels:,}", tss, rule)
    return table


def _row(layer: PlannedLayer, length: int) -> tuple[str, int, int, str, str]:
    size, mean = layer.tss, layer.tss.mean(length)
    rules = {
        "all": "all before i", "window": f"window of {size.n:,}", "chunk": f"chunks of {size.n:,}",
        "state": "state", "taps": f"{size.n} taps", "unknown": "depends on the text",
    }  # fmt: skip
    tss = "?" if mean is None else plain(mean)
    return layer.kind, layer.operators, layer.operators * layer.multiplicity, tss, rules[size.rule]


def costs(plan: Plan) -> list[str]:
    """Memory, disk and time, a line each."""
    m, d, t = plan.memory, plan.disk, plan.time
    there = "" if m.available is None else f"; {written(m.available)} there"
    parts = [f"process {written(m.process)}", f"weights {written(m.weights)}", f"{m.largest} {written(m.run)}"]
    lines = [
        "",
        f"memory  {written(m.peak)} at most ({', '.join(parts)}, curves {written(m.rows)}){there}",
        f"disk    {written(d.result)}" + (f" ({written(d.spectra)} of it spectra)" if d.spectra else ""),
    ]
    if d.free is not None:
        lines[-1] += f", {written(d.building)} while it is built; {written(d.free)} free"
    if t is not None:
        lines.append(
            f"time    {spoken(t.total)} on this machine (start {spoken(t.starting)}, forward {spoken(t.forward)}, "
            f"operators {spoken(t.operators)}, spectra {spoken(t.spectra)})"
        )
    return lines


def notes(plan: Plan) -> list[str]:
    """Layers that will not be measured, and what is not known."""
    out = []
    skipped = sorted((s for s in plan.skipped if s.called), key=lambda s: (s.class_name, s.reason))
    for (name, reason), group in groupby(skipped, key=lambda s: (s.class_name, s.reason)):
        numbers = [s.layer for s in group if s.layer is not None]
        where = f"layer {ranges(numbers)}" if numbers else "a mixer"
        out.append(f"{where} ({name}) will not be measured: {reason}")
    return [*out, *plan.notes]
