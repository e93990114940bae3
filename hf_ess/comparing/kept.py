"""Finished runs of a comparison or a study, kept in DIR.partial, so that one that dies goes on where it stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from hf_ess.capturing import SkippedLayer
from hf_ess.comparing.substituted import Key, Measured
from hf_ess.errors import BadInput, HfEssError
from hf_ess.results import files
from hf_ess.results.writing import locked

PIECES = "run-*.npz"


class KeptRuns:
    """DIR.partial of a comparison: one file per finished run, renamed to DIR when the whole is written.

    Args:
        target: DIR, the directory to be.
        key: what this and an earlier, unfinished run must have in common.
        overwrite: replace DIR when the new one is whole.

    Raises:
        BadInput: DIR exists, DIR.partial belongs to something else or is in use, or cannot be written.
    """

    def __init__(self, target: Path, key: dict[str, Any], overwrite: bool = False) -> None:
        files.refuse_existing(target, overwrite)
        self.target, self.overwrite = target, overwrite
        self.folder = files.partial_path(target)
        self.reused = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self.folder)
            self._adopt(json.loads(json.dumps(key)))
        except OSError as error:
            raise BadInput(f"cannot write to {target}: {error.strerror or error}") from error

    def _adopt(self, key: dict[str, Any]) -> None:
        path = self.folder / "key.json"
        try:
            same = json.loads(path.read_text(encoding="utf-8")) == key
        except (OSError, ValueError):
            same = False
        others = [p for p in self.folder.iterdir() if p.name not in ("lock", "key.json")]
        if others and not same:
            if not self.overwrite:
                self.close()
                raise BadInput(
                    f"{self.folder} holds an unfinished run of another model, text or options; "
                    "delete it, pass --overwrite, or choose another output directory"
                )
            for old in others:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        files.write_json(key, path)

    def get(self, prompt: int, variant: int) -> tuple[dict[Key, Measured], list[SkippedLayer]] | None:
        """A run that was finished earlier, or None."""
        try:
            with np.load(self._path(prompt, variant), allow_pickle=False) as kept:
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
        self.reused += 1
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
        try:
            files.write_durably(self._path(prompt, variant), lambda f: np.savez(f, **arrays))
        except OSError as error:
            raise HfEssError(
                f"cannot write to {self.folder}: {error.strerror or error}; the runs finished so far are kept there, "
                "and the same command goes on from them"
            ) from error

    def _path(self, prompt: int, variant: int) -> Path:
        return self.folder / f"run-{prompt:05d}-{variant:03d}.npz"

    def publish(self, write: Callable[[Path], None]) -> None:
        """Lets write(folder) fill the directory, takes the pieces away, and renames it into place."""
        try:
            write(self.folder)
            for old in [*self.folder.glob(PIECES), self.folder / "key.json"]:
                old.unlink()
            self.close()
            files.refuse_existing(self.target, self.overwrite)
            files.publish(self.folder, self.target)
        except OSError as error:
            raise HfEssError(f"cannot write to {self.target}: {error.strerror or error}") from error

    def __enter__(self) -> KeptRuns:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.folder.exists() and not list(self.folder.glob(PIECES)):
            shutil.rmtree(self.folder, ignore_errors=True)  # nothing in it is finished
        self.close()

    def close(self) -> None:
        """Lets another run use the directory."""
        if not self._lock.closed:
            (self.folder / "lock").unlink(missing_ok=True)
            self._lock.close()
