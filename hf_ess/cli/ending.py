"""How commands end: one JSON document on stdout, notes on stderr, and an exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def document(value: Any) -> None:
    """Prints a value as one strict JSON document."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def notes(lines: Iterable[str], what: str = "", output: Path | None = None) -> None:
    """Says what the table does not, and where what was written lies."""
    for line in lines:
        sys.stderr.write(f"note: {line}\n")
    if output is not None:
        sys.stderr.write(f"{what} written to {output}\n")


def status(summary: dict[str, Any]) -> int:
    """0, or 3 where a layer failed its verification or was not finite (its values are null)."""
    checks = summary["verification"]
    return 3 if checks["failed"] or checks["not_finite"] else 0
