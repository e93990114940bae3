"""A result while it grows: DIR.partial, durable layer by layer, renamed to DIR when it is whole."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_ess.errors import BadInput, HfEssError
from hf_ess.results import Result, files


class PartialResult:
    """The directory in which a run leaves each finished layer, so that a run that dies goes on where it stopped.

    Args:
        target: DIR, the result directory to be.
        key: what this run and the one before must have in common: model, tokens, options, versions.
        overwrite: replace DIR when the new result is whole.

    Raises:
        BadInput: DIR exists, DIR.partial belongs to another run, or cannot be written.
    """

    def __init__(self, target: Path, key: dict[str, Any], overwrite: bool = False) -> None:
        files.refuse_existing(target, overwrite)
        self.target, self.overwrite = target, overwrite
        self.folder = files.partial_path(target)
        try:
            existed = self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self.folder)
            self._adopt(key, existed)
        except OSError as error:
            raise BadInput(f"cannot write to {target}: {error.strerror or error}") from error

    def _adopt(self, key: dict[str, Any], existed: bool) -> None:
        path = self.folder / "key.json"
        if path.exists():
            try:
                same = json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(key))
            except ValueError:
                same = False
            if not same and list(self.folder.glob("layer-*.parquet")):
                if not self.overwrite:
                    self.close()
                    raise BadInput(
                        f"{self.folder} holds an unfinished run of another model, text or options; "
                        "delete it, pass --overwrite, or choose another output directory"
                    )
                for old in self.folder.glob("layer-*"):
                    old.unlink()
        files.write_json(key, path)

    def get(self, prompt: int, module: str, call: int) -> tuple[dict[str, Any], pa.Table] | None:
        """A layer that an earlier run finished, or None."""
        path = self._path(prompt, module, call)
        try:
            table = pq.read_table(path)
            info = json.loads(table.schema.metadata[b"hf_ess"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return info, table.replace_schema_metadata(None)

    def put(self, prompt: int, module: str, call: int, info: dict[str, Any], table: pa.Table) -> None:
        """Makes one finished layer durable: its summary travels in the parquet file's metadata."""
        tagged = table.replace_schema_metadata({"hf_ess": json.dumps(info, allow_nan=False)})
        try:
            files.write_table(tagged, self._path(prompt, module, call))
        except OSError as error:
            raise HfEssError(
                f"cannot write to {self.folder}: {error.strerror or error}; the layers finished so far are kept there, "
                "and the same command goes on from them"
            ) from error

    def _path(self, prompt: int, module: str, call: int) -> Path:
        return self.folder / f"layer-{prompt:05d}-{module}-{call}.parquet"

    def publish(self, result: Result) -> None:
        """Writes the whole result and renames it into place."""
        try:
            files.write_table(result.ess, self.folder / "ess.parquet")
            files.write_table(result.tokens, self.folder / "tokens.parquet")
            files.write_json(result.summary, self.folder / "summary.json")
            for old in self.folder.glob("layer-*.parquet"):
                old.unlink()
            (self.folder / "key.json").unlink()
            self.close()
            files.refuse_existing(self.target, self.overwrite)
            files.publish(self.folder, self.target)
        except OSError as error:
            raise HfEssError(f"cannot write the result to {self.target}: {error.strerror or error}") from error

    def abandon(self) -> None:
        """Removes DIR.partial where nothing in it is finished; keeps what is."""
        if self.folder.exists() and not list(self.folder.glob("layer-*.parquet")):
            shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def __enter__(self) -> PartialResult:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def close(self) -> None:
        """Lets another run use the directory."""
        if not self._lock.closed:
            (self.folder / "lock").unlink(missing_ok=True)
            self._lock.close()


def locked(folder: Path) -> IO[str]:
    """An exclusive lock that the system takes back when the process dies."""
    lock = open(folder / "lock", "w", encoding="ascii")  # noqa: SIM115  (held while the run lasts)
    try:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise BadInput(
            f"another run is writing {folder} just now; wait for it or choose another output directory"
        ) from error
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
