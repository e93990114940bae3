"""hf-ess plot: draw a saved result again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(help="A result directory of hf-ess probe.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the pictures; default DIR/plots.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Draw a saved result: ESS along the tokens, layer by position, utilisation per layer."""
    from hf_ess import plots
    from hf_ess.results import load_result

    for path in plots.save_all(load_result(directory), output or directory / "plots"):
        sys.stdout.write(f"{path}\n")
