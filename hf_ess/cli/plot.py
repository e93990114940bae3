"""hf-ess plot: draw what was saved again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(help="Written by hf-ess probe -o, compare -o or study -o.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the pictures; default DIR/plots.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Draw a saved result (lines, heatmap, utilisation) or comparison (curves, layers, difference, groups)."""
    from hf_ess import plots
    from hf_ess.reporting.saved import load_saved

    for path in plots.save_all(load_saved(directory), output or directory / "plots"):
        sys.stdout.write(f"{path}\n")
