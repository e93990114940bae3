"""Pictures that may fail without losing the measurement that they are of."""

from __future__ import annotations

from collections.abc import Callable


def attempt(draw: Callable[[], object], notes: list[str], advice: str = "") -> None:
    """Draws; what goes wrong becomes a note, because the measurement is done.

    Args:
        draw: what draws and saves.
        notes: of the summary; one is added where drawing fails.
        advice: what to do about it, at the end of that note.
    """
    try:
        draw()
    except Exception as error:
        first = str(error).partition("\n")[0]
        notes.append(f"the pictures could not be drawn ({first}){advice}")
