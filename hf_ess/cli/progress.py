"""A progress bar over layers, on stderr, that stays silent where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_ess.probing import Progress


@contextmanager
def bar(quiet: bool) -> Iterator[Progress | None]:
    """Yields what probe() calls after every layer; None (no bar) when quiet or stderr is not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("layers", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("layers", total=None)

        def advance(prompt: int, prompts: int, done: int, layers: int, module: str) -> None:
            shown.update(task, total=prompts * max(layers, done), completed=prompt * layers + done)

        yield advance
