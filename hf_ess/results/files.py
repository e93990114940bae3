"""Files that are whole or not there: strict JSON, parquet, and a directory that is renamed into place."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_ess.errors import BadInput, HfEssError


def full(error: OSError) -> bool:
    """Whether it is the disk that is full, or the share of it that one may use, and not the path that is wrong."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def partial_path(target: Path) -> Path:
    """Where a result is built before it is whole: DIR.partial beside DIR."""
    return target.with_name(target.name + ".partial")


def refuse_existing(target: Path, overwrite: bool) -> None:
    """Raises BadInput where the target exists and may not be replaced, or is not ours to replace."""
    try:
        if target.is_symlink():
            raise BadInput(f"the output path {target} is a link; name the directory itself")
        if not target.exists():
            return
    except OSError as error:
        raise BadInput(f"cannot write to {str(target)[:80]}...: {error.strerror or error}") from error
    if not target.is_dir():
        raise BadInput(f"the output path {target} is a file; name a directory that does not exist yet")
    if not overwrite:
        raise BadInput(f"{target} exists already; choose another output directory or pass --overwrite")
    if any(target.iterdir()) and not (target / "summary.json").is_file():
        raise BadInput(f"{target} holds files that are not a result of hf-ess; it is not overwritten")


def write_json(value: Any, path: Path) -> None:
    """Durable, strict JSON: NaN and infinity are refused, so other programs can read it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_durably(path, lambda f: f.write(text.encode("utf-8")))


def write_table(table: pa.Table, path: Path) -> None:
    """Durable parquet, zstd."""
    write_durably(path, lambda f: pq.write_table(table, f, compression="zstd"))


def write_durably(path: Path, write: Any) -> None:
    """Calls write(file) on a file that takes its name only when it is whole and on the disk."""
    with durable(path) as file:
        write(file)


@contextmanager
def durable(path: Path) -> Iterator[IO[bytes]]:
    """A file to fill, which takes its name only when the block has ended well and it is on the disk."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.writing")  # processes may share a directory
    try:
        with open(temporary, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_directory(target: Path, overwrite: bool, what: str) -> Iterator[Path]:
    """A folder to fill, which becomes the target when the block ends well; else nothing is left behind.

    It is not DIR.partial, where an unfinished run may lie that is worth going on from.

    Args:
        target: the directory to be.
        overwrite: replace one that exists.
        what: is being written, for the message.

    Raises:
        BadInput: the target exists (and overwrite is False), or cannot be written.
        HfEssError: the disk is full.
    """
    refuse_existing(target, overwrite)
    folder = target.with_name(f"{target.name}.saving-{os.getpid()}")
    try:
        folder.mkdir(parents=True)
        yield folder
        publish(folder, target)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(folder, ignore_errors=True)
        kind = HfEssError if isinstance(error, shutil.Error) or full(error) else BadInput
        reason = getattr(error, "strerror", None) or error
        raise kind(f"cannot write {what} to {target}: {reason}") from error


def publish(partial: Path, target: Path) -> None:
    """Renames the finished directory into place; a result that it replaces goes only after that."""
    old = None
    if target.exists():
        old = target.with_name(f"{target.name}.replaced-{os.getpid()}")
        target.rename(old)
    partial.rename(target)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
