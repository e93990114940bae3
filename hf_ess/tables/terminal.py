"""Tables on standard output, in whatever terminal that is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def ascii_only() -> bool:
    """Whether standard output cannot carry line-drawing characters."""
    return not (sys.stdout.encoding or "ascii").lower().replace("-", "").startswith("utf")


def new_table(columns: Sequence[str], left: Sequence[str] = ()) -> Table:
    """A table with a ruled heading; columns are right-aligned but for those named in left."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.ASCII if ascii_only() else box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def show(lines: Sequence[str], table: Table) -> None:
    """Prints lines and a table; one wider than the terminal is wrapped by the terminal: no number loses a digit."""
    from rich.console import Console

    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    console.width = max(console.width, table.__rich_measure__(console, console.options.update(width=10_000)).maximum)
    for line in lines:
        console.print(line, style="dim" if line.startswith(" ") else "bold", soft_wrap=True)
    console.print(table)
