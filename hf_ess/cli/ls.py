"""hf-ess ls: which families of sequence mixers are known, in which architectures, and what was verified."""

from __future__ import annotations

import json
import sys
from importlib import resources
from typing import Annotated, Any

import typer


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with all architectures.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """List the families of sequence mixers with exact operators and the model types in which each was verified."""
    from hf_ess.adapters.registry import adapters
    from hf_ess.tables import terminal

    state = json.loads(resources.files("hf_ess").joinpath("data", "coverage.json").read_text(encoding="utf-8"))
    types: dict[str, list[str]] = state["kinds"]
    own = {adapter.kind: type(adapter).__module__ for adapter in adapters()}
    rows: list[dict[str, Any]] = [
        {"kind": kind, "from": own.get(kind, "hf_ess.adapters"), "model_types": types.get(kind, [])}
        for kind in dict.fromkeys([*types, *own])
        if kind in types or not own[kind].startswith("hf_ess.")  # an adapter may record under another's kind
    ]
    if as_json:
        sys.stdout.write(json.dumps({"schema_version": 1, **state, "kinds": rows}) + "\n")
        return
    table = terminal.new_table(("kind", "types", "such as"), left=("kind", "such as"))
    for row in sorted(rows, key=lambda row: -len(row["model_types"])):
        known = row["model_types"]
        other = "" if row["from"].startswith("hf_ess.") else f"not in the survey; from {row['from']}"
        table.add_row(row["kind"], str(len(known)), other or ", ".join(known[:4]) + (" ..." if len(known) > 4 else ""))
    lines = [
        f"{state['covered']} of {state['types']} causal model types verified on every mixer",
        f"  tiny models, transformers {state['transformers']}, {state['date']}; hf-ess verify MODEL checks yours",
    ]
    terminal.show(lines, table)
