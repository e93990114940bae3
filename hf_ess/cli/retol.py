"""hf-ess retol: tolerance-ESS at other tolerances from stored singular values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hf_ess.cli import ending, options

EXAMPLES = """
Examples:

  hf-ess probe gpt2 --text file.txt --keep spectra --positions every:8 -o result

  hf-ess retol result --tol 1e-2 --tol 3e-4 -o result-retol
"""


def command(
    directory: Annotated[Path, typer.Argument(help="A result with spectra: hf-ess probe --keep spectra -o DIR.")],
    tol: Annotated[list[float], typer.Option("--tol", help="Tolerance; repeatable.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the counts, a result of its own.")
    ] = None,
    overwrite: options.Overwrite = False,
    memory: options.Memory = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Count stored singular values at other tolerances; the model is not run again."""
    from hf_ess.results.files import refuse_existing
    from hf_ess.retolerancing import retol
    from hf_ess.tables import result as table

    if output is not None:
        refuse_existing(output, overwrite)
    found = retol(directory, tol, **({} if memory is None else {"memory": memory}))
    if output is not None:
        found.save(output, overwrite)
    if as_json:
        ending.document(found.summary)
    elif not quiet:
        table.show(found)
    if not quiet:
        ending.notes([*found.summary["notes"], *table.notes(found)], "result", output)
    sys.stdout.flush()


command.__doc__ = f"{command.__doc__}\n{EXAMPLES}"
