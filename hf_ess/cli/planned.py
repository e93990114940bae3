"""hf-ess probe --dry-run: the plan of a probe in place of the probe."""

from __future__ import annotations

import sys
from typing import Any

from hf_ess.cli import ending
from hf_ess.errors import BadInput


def run(as_json: bool, quiet: bool, model: str, texts: list[str] | None, **arguments: Any) -> int:
    """Prints the plan of a probe; 0 if it fits, 2 if it does not.

    Raises:
        BadInput: as a probe, or neither a text nor a number of tokens.
    """
    from hf_ess.planning.planner import plan
    from hf_ess.processes import processes
    from hf_ess.tables import plan as table

    tokens = None if texts is not None else arguments.pop("max_tokens")
    if texts is None and tokens is None:
        raise BadInput("a dry run needs a text (--text, --prompt, --dataset) or a number of tokens (--max-tokens N)")
    planned = plan(model, texts, tokens=tokens, **arguments)
    if not processes().first:
        return 2 if planned.refusals else 0  # the first process speaks for all
    if as_json:
        ending.document(planned.to_json())
    elif not quiet:
        table.show(planned)
    if not quiet:
        ending.notes(table.notes(planned))
    for line in planned.refusals:
        sys.stderr.write(f"hf-ess: {line}\n")
    sys.stdout.flush()
    return 2 if planned.refusals else 0
