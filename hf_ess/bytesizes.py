"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from hf_ess.errors import BadInput

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS |= {f"{_letter}IB": 1024**_power, f"{_letter}B": 1000**_power, _letter: 1024**_power}


def parsed(size: str | int) -> int:
    """Bytes from 2GiB, 500MB, 1.5G (binary) or a number of bytes.

    Raises:
        BadInput: it is none of these, or not above 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", str(size).strip().upper())
    unit = _UNITS.get(found[2]) if found else None
    count = int(float(found[1]) * unit) if found and unit else 0
    if count < 1:
        raise BadInput(f"{size!r} is not an amount of memory: write 2GiB, 500MB or a number of bytes")
    return count


def written(count: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1, such as 1.4 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
