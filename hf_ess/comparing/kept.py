"""Finished runs of a comparison or a study, kept in DIR.partial, so that one that dies goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict
from zipfile import BadZipFile

import numpy as np

from hf_ess.capturing import SkippedLayer
from hf_ess.comparing.substituted import Key, Measured
from hf_ess.results.writing import PartialDirectory


class KeptRuns(PartialDirectory):
    """DIR.partial of a comparison or a study: one file per finished run.

    Attributes:
        reused: how many runs of an earlier attempt were read.
    """

    pieces = ("run-*.npz",)
    noun = "runs"
    reused = 0

    def get(self, prompt: int, variant: int) -> tuple[dict[Key, Measured], list[SkippedLayer]] | None:
        """A run that was finished earlier, or None."""
        try:
            with np.load(self.folder / _name(prompt, variant), allow_pickle=False) as kept:
                meta = json.loads(bytes(kept["meta"]).decode())
                layers = {
                    (row["module"], row["call"]): Measured(
                        info=row["info"],
                        **{name: kept.get(f"{name}-{k}") for name in ("total", "bound", "groups")},
                        spans=[(first, last) for first, last in row["spans"]],
                        unresolved=row["unresolved"],
                    )
                    for k, row in enumerate(meta["layers"])
                }
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None
        self.reused += _name(prompt, variant) in self.existing
        return layers, [SkippedLayer(**row) for row in meta["skipped"]]

    def put(self, prompt: int, variant: int, layers: dict[Key, Measured], skipped: list[SkippedLayer]) -> None:
        """Makes a finished run durable."""
        rows, arrays = [], {}
        for k, ((module, call), found) in enumerate(layers.items()):
            rows.append(
                {
                    "module": module,
                    "call": call,
                    "info": found.info,
                    "spans": found.spans,
                    "unresolved": found.unresolved,
                }
            )
            for name in ("total", "bound", "groups"):
                values = getattr(found, name)
                if values is not None:
                    arrays[f"{name}-{k}"] = values
        meta = json.dumps({"layers": rows, "skipped": [asdict(s) for s in skipped]}, allow_nan=False).encode()
        arrays["meta"] = np.frombuffer(meta, np.uint8)
        self.keep(_name(prompt, variant), lambda f: np.savez(f, **arrays))


def _name(prompt: int, variant: int) -> str:
    return f"run-{prompt:05d}-{variant:03d}.npz"
