"""Curves as the page holds them: rounded, without NaN, each kept once."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np

#: Significant digits of a value: more than a picture shows, and what keeps the page small.
DIGITS = 4

# What would turn the direction of the text around it.
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def rounded(values: np.ndarray, digits: int = DIGITS) -> list[float | int | None]:
    """Values to so many significant digits, integers whole whatever their size, None for NaN and infinity.

    Args:
        values: (n,) float64.
        digits: of values that are no integers.
    """
    finite = np.isfinite(values)
    known = np.where(finite, values, 0.0)
    size = np.floor(np.log10(np.where(known == 0, 1.0, np.abs(known))))
    scale = 10.0 ** np.clip(digits - 1 - size, 0, 300)
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.round(known * scale) / scale
    near = np.where(np.isfinite(near), near, known)
    return [
        None if not f else int(v) if v.is_integer() and abs(v) < 1e15 else v
        for v, f in zip(near.tolist(), finite.tolist())
    ]


def scalar(value: float | None, digits: int = 8) -> float | int | None:
    """One value that is printed, so precise that printing does not round it a second time."""
    return None if value is None else rounded(np.array([value], dtype=float), digits)[0]


class Pool:
    """Curves by number; equal ones, such as the TSS of layers of one kind, are kept once.

    Attributes:
        curves: what the page gets.
    """

    def __init__(self) -> None:
        self.curves: list[list[Any]] = []
        self._known: dict[bytes, int] = {}

    def add(self, values: np.ndarray | None) -> int | None:
        """The number of a curve; None for one without any value."""
        if values is None or not np.isfinite(values).any():
            return None
        key = np.ascontiguousarray(values, dtype=float).tobytes()
        if key not in self._known:
            self._known[key] = len(self.curves)
            self.curves.append(rounded(values))
        return self._known[key]


def shown(text: str) -> str:
    r"""A token's text with everything invisible that could disturb the page written out: a newline is \n.

    The labels of a result have that done already; this is for tables that others wrote.  Joiners stay: emoji and
    Indic and Persian words need them.
    """
    hidden = ("Cc", "Cs", "Zl", "Zp")
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode("ascii") if c in _TURNING or unicodedata.category(c) in hidden else c
        for c in text
    )
