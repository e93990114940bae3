"""At which cuts the spectra of a text are stored: behind its delimiters, all, every N-th, or a list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hf_ess.errors import BadInput

DELIMITERS, ALL = "delimiters", "all"
AFTER = 3  # cuts i = p .. p+2 behind a delimiter p: the memory carried into it and into the two tokens after it

_FORMS = '"delimiters", "all", "every:N" or a list such as 5,10-20'


def parsed(positions: str | Sequence[int]) -> str:
    """Positions as one of the words delimiters, all, every:N, or as a list such as 5,10-20.

    Raises:
        BadInput: it is none of these, or names a cut below 1.
    """
    if not isinstance(positions, str):
        positions = ",".join(str(int(i)) for i in positions)
    text = positions.replace(" ", "")
    if text in (DELIMITERS, ALL):
        return text
    if re.fullmatch(r"every:0*[1-9]\d*", text):
        return f"every:{int(text[6:])}"
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise BadInput(f"positions must be {_FORMS}, got {positions!r}")
    for first, last in _ranges(text):
        if first < 1 or last < first:
            raise BadInput(f"positions are cuts i = 1 .. L-1 and ranges go upwards, got {positions!r}")
    return text


def cuts(positions: str, lengths: Sequence[int], found: Sequence[Mapping[str, Iterable[int]]]) -> list[list[int]]:
    """The cuts of each text, ascending; none for a text that has no such position.

    Args:
        positions: from `parsed`.
        lengths: number of tokens L of each text; its cuts are i = 1 .. L-1.
        found: token positions of each delimiter, for each text.

    Raises:
        BadInput: no text has any such cut, or a cut of the list is in none of them.
    """
    chosen = [_of_one(positions, length, places) for length, places in zip(lengths, found)]
    longest = max(lengths)
    if positions[0].isdigit():
        beyond = [last for _, last in _ranges(positions) if last >= longest]
        if beyond:
            raise BadInput(
                f"position {beyond[0]} is not a cut of the text: it has {longest} tokens, so its cuts are "
                f"1 .. {longest - 1}"
            )
    if not any(chosen):
        if positions == DELIMITERS:
            names = ", ".join(repr(name)[1:-1] for name in (found[0] if found else ()))
            raise BadInput(
                f"no delimiter ({names}) was found in the text, so there is no position to store spectra at: give "
                "--positions all, every:N or a list such as 5,10-20, or other delimiters with --delimiter"
            )
        raise BadInput(f"--positions {positions} leaves nothing of a text of {longest} tokens: its cuts are 1 .. "
                       f"{longest - 1}")  # fmt: skip
    return chosen


def _of_one(positions: str, length: int, places: Mapping[str, Iterable[int]]) -> list[int]:
    if positions == ALL:
        return list(range(1, length))
    if positions == DELIMITERS:
        behind = {p + k for found in places.values() for p in found for k in range(AFTER)}
        return sorted(i for i in behind if 0 < i < length)
    if positions.startswith("every:"):
        step = int(positions[6:])
        return list(range(step, length, step))
    return sorted({i for first, last in _ranges(positions) for i in range(first, min(last, length - 1) + 1)})


def _ranges(text: str) -> list[tuple[int, int]]:
    parts = [part.partition("-") for part in text.split(",")]
    return [(int(first), int(last or first)) for first, _, last in parts]
