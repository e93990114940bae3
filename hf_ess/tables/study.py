"""Tables of a study's outcome: for a terminal, and as a page that can be committed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from hf_ess.plotting.labels import count, tolerance, visible
from hf_ess.tables import terminal
from hf_ess.tables.comparison import effect_table, heading, layer_name, numbers, percent

if TYPE_CHECKING:
    from rich.table import Table

    from hf_ess.studying.outcome import StudyOutcome

#: A page has a row per layer for models with at most so many mixers.
FEW_LAYERS = 8

Block = tuple[list[str], "Table"]


def blocks(outcome: StudyOutcome, per_layer: bool = False) -> list[Block]:
    """Lines and a table, one or several times.

    Args:
        outcome: what a study found.
        per_layer: a row per layer too.
    """
    return {"separators": _separators, "classes": _classes, "shots": _shots}[outcome.kind](outcome, per_layer)


def page(outcome: StudyOutcome) -> str:
    """The outcome as Markdown."""
    study, origin = outcome.summary["study"], outcome.summary["provenance"]
    versions, checks = origin["versions"], outcome.summary["verification"]
    what = f"{study['name']}, preset {study['preset']}" if study["preset"] else study["name"]
    software = ", ".join(f"{name} {versions[name]}" for name in ("hf-ess", "torch", "transformers"))
    lines = [
        f"# {study['title']}",
        "",
        f"Study `{what}` of `{visible(str(origin['model']))}`.",
        "",
        study["claim"],
        "",
        "```text",
        _text(outcome),
        "```",
        "",
        *(f"* {visible(note)}" for note in outcome.summary["notes"]),
        *(f"* skipped {s['module']} ({s['class']}): {s['reason']}" for s in outcome.summary["skipped"]),
        f"* verified: largest error {checks['largest_error'] or 0:.1e}; {checks['failed']} failed, "
        f"{checks['not_finite']} not finite",
        f"* weights {str(origin['weights_hash'])[:16]}, {origin['model_dtype']}, {origin['device']}; {software}; "
        f"{origin['created']}",
        "",
    ]
    return "\n".join(lines)


def _text(outcome: StudyOutcome) -> str:
    """Tables as a terminal shows them."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, markup=False, highlight=False, emoji=False, width=200, color_system=None)
    few = len(outcome.summary["layers"]) <= FEW_LAYERS
    for lines, table in blocks(outcome, per_layer=few):
        for line in lines:
            console.print(line, soft_wrap=True)
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))


def _separators(outcome: StudyOutcome, per_layer: bool) -> list[Block]:
    assert outcome.comparison is not None
    return [(heading(outcome.comparison), effect_table(outcome.comparison, per_layer))]


def _classes(outcome: StudyOutcome, per_layer: bool) -> list[Block]:
    s = outcome.summary
    lengths = [p["tokens"] for p in s["prompts"]]
    lines = [
        f"{_model(outcome)}: {count(len(lengths), 'text')} of {min(lengths)} to {max(lengths)} tokens",
        "  dip: smallest total ESS over the cuts p .. p+2 against p-12 .. p-3 and p+5 .. p+14",
        "  step: total ESS at the cut p+1 against that at the cut p, over the token itself",
        "  both against the same of the tokens of no class; 95 % t interval over texts",
        "  cut i lies before token i: H_i = T[i:, :i]",
        "  all: sum_channels_layers, over channels and layers; a layer: sum_channels",
        "  p: Wilcoxon signed rank of the dip, not corrected for the number of rows",
    ]
    columns = ["class", "tol", "layer", "dip", "95 % interval", "p", "step", "95 % interval", "texts", "tokens"]
    table = terminal.new_table(columns, left=("class", "layer"))
    for row in outcome.rows:
        if row["layer"] is None or per_layer:
            step = "-" if row["step_low"] is None else f"{100 * row['step_low']:+.1f} .. {100 * row['step_high']:+.1f}"
            cells = [row["class"], tolerance(row["tolerance"]), layer_name(row), *numbers(row)]
            table.add_row(*_literal([*cells, percent(row["step"]), step, str(row["prompts"]), str(row["places"])]))
    return [(lines, table)]


def _shots(outcome: StudyOutcome, per_layer: bool) -> list[Block]:
    s = outcome.summary
    known = [p for p in s["prompts"] if p["right"] is not None]
    lines = [
        f"{_model(outcome)}: {count(len(s['prompts']), 'question')} behind 0 or more examples",
        f"  accuracy: {', '.join(_accuracy(n, a, len(known)) for n, a in s['accuracy'].items())}; "
        f"chance {s['chance']:.2f}",
        "  effect: change of total ESS over the question's tokens against fewer examples; 95 % t interval",
        "  start: the first quarter of the question; question: all of it",
        "  full: the same of total ESS / bound, because rank H_i <= i where few tokens stand before",
        "  cut i lies before token i: H_i = T[i:, :i]",
        "  all: sum_channels_layers, over channels and layers; a layer: sum_channels",
        "  p: Wilcoxon signed rank, not corrected for the number of rows",
    ]
    columns = ["examples", "part", "tol", "layer", "effect", "95 % interval", "p", "full", "95 % interval", "questions"]
    table = terminal.new_table(columns, left=("examples", "part", "layer"))
    for row in outcome.rows:
        if row["layer"] is None or per_layer:
            full = "-" if row["full_low"] is None else f"{100 * row['full_low']:+.1f} .. {100 * row['full_high']:+.1f}"
            cells = [f"{row['shots']} against {row['against']}", row["part"], tolerance(row["tolerance"])]
            cells += [layer_name(row), *numbers(row), percent(row["full"]), full, str(row["prompts"])]
            table.add_row(*_literal(cells))
    return [(lines, table), _segments(s)]


def _segments(summary: dict[str, Any]) -> Block:
    """Mean total ESS of every part of the prompts."""
    most = max(summary["shots"])
    columns = ["examples", "tol", *(f"example {k + 1}" for k in range(most)), "question"]
    table = terminal.new_table(columns)
    for row in summary["segments"]:
        own = [f"{v:,.0f}" for v in row["examples"] or []]
        question = "-" if row["question"] is None else f"{row['question']:,.0f}"
        cells = [str(row["shots"]), tolerance(row["tolerance"]), *own, *[""] * (most - len(own)), question]
        table.add_row(*_literal(cells))
    return ["", "  total ESS, sum_channels_layers: mean over the cuts of each part and over questions"], table


def _accuracy(shots: str, value: float | None, of: int) -> str:
    name = count(int(shots), "example")
    return f"{name} -" if value is None else f"{name} {value:.2f} ({round(value * of)} of {of})"


def _model(outcome: StudyOutcome) -> str:
    return visible(str(outcome.summary["provenance"]["model"]))


def _literal(cells: list[str]) -> list[Any]:
    from rich.text import Text

    return [Text(cell) for cell in cells]
