"""The folder spectra/ of a result: a file of singular values per mixer call, and an index of them."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_ess import bytesizes
from hf_ess.errors import BadInput
from hf_ess.operators import Operator
from hf_ess.results import files
from hf_ess.results.shards import DTYPES, Shard, ShardWriter, about

if TYPE_CHECKING:
    from hf_ess.capturing import CapturedLayer

FOLDER = "spectra"
INDEX = "index.json"
INDEX_VERSION = 1


class SpectraFolder:
    """spectra/ while it is filled: each file is durable before the index names it.

    Every file says itself what it holds, so that the index can always be made from what is there.  Of several processes
    that fill the folder the first writes the index.

    Args:
        folder: where; it is made when the first file is.
        cuts: the cuts of each prompt.
        lengths: number of tokens of each prompt.
        dtype: a key of DTYPES.
        process: number of this process among those that fill the folder.
    """

    def __init__(
        self, folder: Path, cuts: Sequence[Sequence[int]], lengths: Sequence[int], dtype: str, process: int = 0
    ) -> None:
        self.process = process
        self.folder, self.cuts, self.lengths, self.dtype = folder, cuts, lengths, dtype
        self._known: dict[str, dict[str, Any]] = {}

    def has(self, prompt: int, module: str, call: int) -> bool:
        """Whether the file of a mixer call is there and whole."""
        return self._entry(self.folder / shard_name(prompt, module, call)) is not None

    def _entry(self, path: Path) -> dict[str, Any] | None:
        """A file's row in the index; None for one that is missing or damaged."""
        if path.name not in self._known:
            try:
                self._known[path.name] = {"file": path.name, **about(path), "bytes": path.stat().st_size}
            except (ValueError, OSError):
                return None
        return self._known[path.name]

    @contextmanager
    def shard(self, layer: CapturedLayer, prompt: int) -> Iterator[ShardWriter]:
        """A file for the spectra of one mixer call, named and listed when the block ends well.

        Raises:
            OSError: it cannot be written, or would not fit on the disk.
        """
        operator, positions = layer.operator, self.cuts[prompt]
        widths, tss = _widths(operator, positions)
        entry = {
            "prompt": prompt,
            "layer": layer.layer,
            "call": layer.call,
            "module": layer.module,
            "kind": layer.kind,
            "operators": operator.count,
            "multiplicity": operator.multiplicity,
            "shape": [operator.count, sum(widths)],
            "dtype": self.dtype,
        }
        self.folder.mkdir(exist_ok=True)
        size, free = operator.count * sum(widths) * DTYPES[self.dtype].itemsize, shutil.disk_usage(self.folder).free
        if size > free:  # said before an hour of work
            reason = f"the spectra of {layer.module} take {bytesizes.written(size)}, {bytesizes.written(free)} are free"
            raise OSError(errno.ENOSPC, reason)
        with files.durable(self.folder / shard_name(prompt, layer.module, layer.call)) as file:
            writer = ShardWriter(file, operator.count, positions, widths, tss, self.dtype, entry)
            yield writer
            writer.finish()
        if self.process == 0:
            self.gather()

    def gather(self) -> list[dict[str, Any]]:
        """Lists what is there, in the order of prompts and layers, and returns the rows."""
        found = [entry for path in self.folder.glob("*.safetensors") if (entry := self._entry(path)) is not None]
        found.sort(key=lambda e: (e["prompt"], e["layer"], e["module"], e["call"]))
        prompts = [
            {"prompt": number, "tokens": length, "positions": list(at)}
            for number, (at, length) in enumerate(zip(self.cuts, self.lengths))
        ]
        if self.folder.is_dir():
            index = {"schema_version": INDEX_VERSION, "prompts": prompts, "files": found}
            files.write_json(index, self.folder / INDEX)
        return found

    def summary(self) -> dict[str, Any]:
        """What summary.json says of the folder, whose index is written once more: all processes are done."""
        found = self.gather()
        return {
            "files": len(found),
            "bytes": sum(entry["bytes"] for entry in found),
            "dtype": self.dtype,
            "positions": [len(cuts) for cuts in self.cuts],
        }


def shard_name(prompt: int, module: str, call: int) -> str:
    """Name of the file of one mixer call."""
    return f"{prompt:05d}-{module}-{call}.safetensors"


def _widths(operator: Operator, positions: Sequence[int]) -> tuple[list[int], Tensor]:
    """How many singular values of H_i are not 0 by structure, min(TSS, i, L-i), and TSS at the positions.

    The largest TSS over the operators counts; it is one row where all have the same.
    """
    at = torch.tensor(list(positions)) - 1
    tss = operator.tss().cpu()[:, at]
    if (tss == tss[:1]).all():
        tss = tss[:1]
    block = getattr(operator, "block", 1)  # channels flattened into T: H_i has i d columns
    i = torch.tensor(list(positions), dtype=tss.dtype)
    bound = torch.minimum(tss.amax(0), block * torch.minimum(i, operator.length - i))
    return [int(w) for w in bound], tss


class StoredSpectra:
    """The stored singular values of a result.

    Args:
        path: the result's directory; also DIR.partial, while the run goes on.

    Attributes:
        entries: a row per file, as in the index: file, prompt, layer, call, module, kind, operators, shape, dtype.
        dtype: of the stored values.

    Raises:
        BadInput: there are none, or the index cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder = Path(path) / FOLDER
        if not (self.folder / INDEX).is_file():
            raise BadInput(f"{path} holds no spectra: measure it again with --keep spectra (and --positions for where)")
        try:
            index = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))
            if index["schema_version"] > INDEX_VERSION:
                raise BadInput(f"{self.folder / INDEX} was written by a newer hf-ess: update this one")
            self.entries: list[dict[str, Any]] = index["files"]
            self.dtype: str = self.entries[0]["dtype"]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise BadInput(f"{self.folder / INDEX} cannot be read: {error}") from error

    def open(self, entry: dict[str, Any]) -> Shard:
        """The file of an entry.

        Raises:
            BadInput: it is missing or damaged.
        """
        path = self.folder / entry["file"]
        try:
            if path.stat().st_size != entry["bytes"]:
                raise BadInput(f"{path} is cut off or damaged: {entry['bytes']} bytes expected")
            return Shard(path)
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror or error}") from error

    def bytes(self) -> int:
        """What the files take on disk."""
        return sum(entry["bytes"] for entry in self.entries)


__all__ = ["DTYPES", "FOLDER", "INDEX", "SpectraFolder", "StoredSpectra", "shard_name"]
