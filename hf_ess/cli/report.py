"""hf-ess report: one HTML page of what was saved."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(help="Written by hf-ess probe -o, compare -o or study separators -o.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; default DIR/report.html.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Write one self-contained HTML page of a saved result or comparison, to be opened as a file.

    It needs plotly (pip install 'hf-ess[report]'), and nothing else when it is read: no network, no other file.
    DIR/report.html is replaced where an earlier report stands there.
    """
    from hf_ess.reporting import report

    sys.stdout.write(f"{report(directory, output, overwrite=overwrite)}\n")
