"""A directory while it grows: DIR.partial, durable piece by piece, renamed to DIR when it is whole."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, Self

import pyarrow as pa
import pyarrow.parquet as pq

from hf_ess.errors import BadInput, HfEssError
from hf_ess.processes import Processes
from hf_ess.results import Result, files


class PartialDirectory:
    """DIR.partial, in which a run leaves each finished piece, so that a run that dies goes on where it stopped.

    A subclass names its pieces, writes them with `keep`, and reads them back.  One writer at a time; removed again
    where the run fails before any piece is finished.

    Args:
        target: DIR, the directory to be.
        key: what this run and the one before must have in common: model, tokens, options, versions.
        overwrite: replace DIR when the new one is whole.
        first: of several processes, the one that makes, locks and publishes the directory; the others leave pieces.

    Raises:
        BadInput: DIR exists, DIR.partial belongs to another run or is in use, or cannot be written.
    """

    #: Glob patterns of the files that go when the directory is whole; there is something to go on from if any exists.
    pieces: ClassVar[tuple[str, ...]] = ()
    #: What a piece is called in a message.
    noun: ClassVar[str] = "pieces"

    def __init__(self, target: Path, key: dict[str, Any], overwrite: bool = False, first: bool = True) -> None:
        files.refuse_existing(target, overwrite)
        self.target, self.overwrite, self.first = target, overwrite, first
        self.folder = files.partial_path(target)
        self._lock: IO[str] | None = None
        key = json.loads(json.dumps(key))
        try:
            if first:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = locked(self.folder)
                self._adopt(key)
            elif self._key() != key:
                raise BadInput(
                    f"this process does not see {self.folder} as the first process wrote it: name an output directory "
                    "that all machines share"
                )
            self.existing = {path.name for path in self.finished()}
        except OSError as error:
            kind = HfEssError if files.full(error) else BadInput
            if files.full(error):
                self.abandon()
            raise kind(f"cannot write to {target}: {error.strerror or error}") from error

    @classmethod
    def of(cls, shared: Processes, target: Path, key: dict[str, Any], overwrite: bool = False) -> Self:
        """The directory of one or several processes, in each of them: the first makes it.

        Raises:
            BadInput: as the constructor.
        """
        if shared.first:
            made = cls(target, key, overwrite)
        shared.wait()
        return made if shared.first else cls(target, key, overwrite, first=False)

    def _key(self) -> Any:
        try:
            return json.loads((self.folder / "key.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _adopt(self, key: dict[str, Any]) -> None:
        """Goes on from what is there if it has the same key; else it is refused, or removed with overwrite."""
        path = self.folder / "key.json"
        try:
            same = json.loads(path.read_text(encoding="utf-8")) == key
        except (OSError, ValueError):
            same = False
        if same:
            for half in self.folder.rglob("*.writing"):  # where a run was killed
                half.unlink()
        else:
            self._clear(ours=path.exists() or (self.folder / "summary.json").exists())
        files.write_json(key, path)

    def _clear(self, ours: bool) -> None:
        """Makes room for another run, where nothing is lost that somebody may want."""
        others = [p for p in self.folder.iterdir() if p.name != "lock" and not p.name.startswith("key.json")]
        if others and not (ours and (self.overwrite or not self.finished())):
            self.close()
            raise BadInput(
                f"{self.folder} holds an unfinished run of another model, text or options; "
                "delete it, pass --overwrite, or choose another output directory"
                if ours
                else f"{self.folder}, where the result is put together, holds files that are not of hf-ess; "
                "choose another output directory"
            )
        for old in others:
            shutil.rmtree(old) if old.is_dir() else old.unlink()

    def finished(self) -> list[Path]:
        """The finished pieces."""
        return [path for pattern in self.pieces for path in self.folder.glob(pattern)]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns what a full or broken disk says into a sentence.

        Raises:
            HfEssError: in the place of an OSError.
        """
        try:
            yield
        except OSError as error:
            kept = (
                f"the {self.noun} finished so far are kept there, and the same command goes on from them"
                if self.finished()
                else f"none of the {self.noun} was finished"
            )
            raise HfEssError(f"cannot write to {self.folder}: {error.strerror or error}; {kept}") from error

    def keep(self, name: str, write: Callable[[IO[bytes]], Any]) -> None:
        """Makes a piece durable: write(file) fills a file that takes its name when it is whole and on the disk."""
        with self.writing():
            files.write_durably(self.folder / name, write)

    def publish_by(self, write: Callable[[Path], None]) -> None:
        """Lets write(folder) fill the directory, takes the pieces away, and renames it into place.

        Raises:
            HfEssError: it cannot be written; the pieces are still there.
        """
        with self.writing():
            write(self.folder)
        try:
            for old in [*self.finished(), self.folder / "key.json"]:
                old.unlink()
            self.close()
            files.refuse_existing(self.target, self.overwrite)
            files.publish(self.folder, self.target)
        except OSError as error:
            raise HfEssError(f"cannot write to {self.target}: {error.strerror or error}") from error

    def abandon(self) -> None:
        """Removes DIR.partial where nothing in it is finished; keeps what is."""
        if self.first and self.folder.exists() and not self.finished():
            shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def close(self) -> None:
        """Lets another run use the directory."""
        if self._lock is not None and not self._lock.closed:
            (self.folder / "lock").unlink(missing_ok=True)
            self._lock.close()


class PartialResult(PartialDirectory):
    """DIR.partial of a probe: a parquet file per finished layer, whose summary travels in the file's metadata."""

    pieces = ("layer-*.parquet", "prompt-*.json")
    noun = "layers"

    def prompt(self, number: int) -> tuple[list[tuple[str, int]], list[dict[str, Any]]] | None:
        """Of a prompt that is finished: its mixer calls in order, and its unmeasured mixers; else None."""
        try:
            kept = json.loads((self.folder / f"prompt-{number:05d}.json").read_text(encoding="utf-8"))
            return [(module, call) for module, call in kept["layers"]], list(kept["skipped"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def finish(self, number: int, layers: list[tuple[str, int]], skipped: list[dict[str, Any]]) -> None:
        """Makes durable that every layer of a prompt is."""
        text = json.dumps({"layers": layers, "skipped": skipped})
        self.keep(f"prompt-{number:05d}.json", lambda f: f.write(text.encode()))

    def get(self, prompt: int, module: str, call: int) -> tuple[dict[str, Any], pa.Table] | None:
        """A layer that an earlier run finished, or None."""
        try:
            table = pq.read_table(self.folder / self._name(prompt, module, call))
            info = json.loads(table.schema.metadata[b"hf_ess"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return info, table.replace_schema_metadata(None)

    def put(self, prompt: int, module: str, call: int, info: dict[str, Any], table: pa.Table) -> None:
        """Makes one finished layer durable."""
        tagged = table.replace_schema_metadata({"hf_ess": json.dumps(info, allow_nan=False)})
        self.keep(self._name(prompt, module, call), lambda f: pq.write_table(tagged, f, compression="zstd"))

    def old(self, prompt: int, module: str, call: int) -> bool:
        """Whether this layer was there when this run began."""
        return self._name(prompt, module, call) in self.existing

    @staticmethod
    def _name(prompt: int, module: str, call: int) -> str:
        return f"layer-{prompt:05d}-{module}-{call}.parquet"

    def publish(self, result: Result) -> None:
        """Writes the whole result and renames it into place."""

        def write(folder: Path) -> None:
            files.write_table(result.ess, folder / "ess.parquet")
            files.write_table(result.tokens, folder / "tokens.parquet")
            files.write_json(result.summary, folder / "summary.json")

        self.publish_by(write)


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
