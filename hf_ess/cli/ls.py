"""hf-ess ls: which families of sequence mixers are known."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """List the families of sequence mixers that have exact operators, and where each adapter comes from."""
    from hf_ess.adapters.registry import adapters
    from hf_ess.cli import terminal

    rows = [
        {
            "kind": adapter.kind,
            "what": (type(adapter).__doc__ or "").strip().partition("\n")[0],
            "from": type(adapter).__module__,
        }
        for adapter in adapters()
    ]
    if as_json:
        sys.stdout.write(json.dumps({"schema_version": 1, "adapters": rows}) + "\n")
        return
    table = terminal.new_table(("kind", "what", "from"), left=("kind", "what", "from"))
    for row in rows:
        table.add_row(row["kind"], row["what"], row["from"])
    terminal.show(["families of sequence mixers with exact operators"], table)
