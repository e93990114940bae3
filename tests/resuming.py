"""What the tests of interrupted runs share: a run to interrupt, and when two results are equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hf_ess

KEPT = {"keep": "spectra", "positions": "every:8", "tolerances": (1e-1, 1e-3)}
ARGUMENTS = ["--keep", "spectra", "--positions", "every:8", "--tol", "1e-1", "--tol", "1e-3", "--no-plots", "-q"]
TEXT = "The lamp was out. Nobody had paid.\n\nfunction lamp(a) { return a > 1; }\n" * 3


def deep(folder: Path) -> str:
    """A hybrid of twelve layers, as a checkpoint."""
    from tests.tiny import tiny_checkpoint

    return str(tiny_checkpoint(folder, "jamba", num_hidden_layers=12, attn_layer_period=3, attn_layer_offset=1))


def facts(folder: Path) -> dict[str, Any]:
    """All that a result holds, but when and by which command it was made and how much of it was reused."""
    result = hf_ess.load_result(folder)
    summary = json.loads(json.dumps(result.summary))
    del summary["reused_layers"], summary["provenance"]["created"], summary["provenance"]["command"]
    spectra = {p.name: p.read_bytes() for p in sorted((folder / "spectra").iterdir())}
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
    return {"summary": summary, "ess": result.ess, "tokens": result.tokens, "spectra": spectra, "files": files}


def assert_equal(one: Path, other: Path) -> None:
    """The same files with the same values in them, spectra bit by bit."""
    a, b = facts(one), facts(other)
    assert a["ess"].equals(b["ess"]) and a["tokens"].equals(b["tokens"])
    for name in ("summary", "spectra", "files"):
        assert a[name] == b[name], name
