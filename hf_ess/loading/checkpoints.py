"""The weight files of a checkpoint folder, checked before they are loaded.

The errors of the readers name no file, and a tensor that is absent is filled with random numbers without a
word; so the files are looked at here: which of them are used, whether they are whole, and what they hold.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_ess.errors import BadInput
from hf_ess.loading.configs import read_json

SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
LOOKED_FOR = f"{SAFE}, {SAFE_INDEX}, {BIN}, {BIN_INDEX}"

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
HEADER_LIMIT = 100_000_000  # bytes; the safetensors format's own limit
ITEM_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
}  # fmt: skip


@dataclass
class WeightFiles:
    """The files that transformers will read from a folder.

    Attributes:
        files: paths, in the order of their names.
        index: the index of a sharded checkpoint, or None.
        notes: warnings as sentences (a second set of weights, an index that is out of date).
    """

    files: list[Path]
    index: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def safetensors(self) -> bool:
        return all(path.suffix == ".safetensors" for path in self.files)


def find_weights(folder: Path, config: dict[str, Any] | None = None) -> WeightFiles:
    """The weight files of a folder, chosen in the order in which transformers chooses them.

    Raises:
        BadInput: there are none, a shard is missing, or the index is broken.
    """
    named = (config or {}).get("transformers_weights")
    candidates = [named] if isinstance(named, str) else [SAFE, SAFE_INDEX, BIN, BIN_INDEX]
    present = [folder / entry for entry in candidates if (folder / entry).is_file()]
    if not present:
        raise BadInput(f"there are no weights in {folder} (looked for {named or LOOKED_FOR})")
    first = present[0]
    found = WeightFiles([first]) if first.suffix != ".json" else read_index(first)
    used = {path.name for path in [first, *found.files]}
    if others := [path.name for path in present[1:] if path.name not in used]:
        found.notes.append(f"{folder} holds two sets of weights: {first.name} was read, {' and '.join(others)} ignored")
    return found


def read_index(path: Path) -> WeightFiles:
    """The shards named by an index file, all of which must be there.

    Raises:
        BadInput: the index is not valid, or shards are missing.
    """
    index = read_json(path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise BadInput(f"{path} is not a weight index: it has no weight_map from tensors to files")
    names = sorted(set(weight_map.values()))
    if missing := [name for name in names if not (path.parent / name).is_file()]:
        raise BadInput(
            f"{len(missing)} of the {len(names)} weight files that {path} names "
            f"{'is' if len(missing) == 1 else 'are'} missing: {listing(missing)}"
        )
    return WeightFiles([path.parent / name for name in names], index=path)


def check_weights(weights: WeightFiles) -> str | None:
    """Look at every weight file without reading the tensors; return the type in which most numbers are stored.

    The type is read from the safetensors headers and given as torch names it ("bfloat16"), None where it is not
    known. A note is added to `weights` if the index places tensors in files that do not hold them.

    Raises:
        BadInput: a file is empty, cut off, garbled, or not a weight file at all; the sentence names it.
    """
    held: dict[str, Path] = {}
    counts: Counter[str] = Counter()
    for path in weights.files:
        if path.suffix != ".safetensors":
            check_bin(path)
            continue
        for name, (dtype, shape) in check_safetensors(path).items():
            held[name] = path
            counts[dtype] += math.prod(shape)
    if weights.index is not None and held:
        misplaced = {
            name: file
            for name, file in read_json(weights.index)["weight_map"].items()
            if name in held and held[name].name != file
        }
        if misplaced:
            name, file = next(iter(misplaced.items()))
            weights.notes.append(
                f"{weights.index} is out of date: it places {len(misplaced)} of the tensors in the wrong file "
                f"({name} in {file}, which is in {held[name].name}); the tensors themselves were found"
            )
    return FLOATS.get(counts.most_common(1)[0][0]) if counts else None


def check_safetensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Check that a safetensors file is whole, by its header alone; return type and shape of each tensor.

    Raises:
        BadInput: it is not; the sentence names the file and what is wrong with it.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(512)
        _refuse_stand_in(path, size, start)
        length = int.from_bytes(start[:8], "little")
        if size < 8 or length > HEADER_LIMIT:
            raise BadInput(f"{path} is not a safetensors file: its first bytes are not a header; download it again")
        if length > size - 8:
            raise BadInput(_cut_off(path, size, f"its header alone takes {length + 8}"))
        file.seek(8)
        data = file.read(length)
    try:
        header = json.loads(data)
        entries = {k: v for k, v in header.items() if k != "__metadata__"}
        spans = sorted((*map(int, v["data_offsets"]), k) for k, v in entries.items())
        shapes = {k: tuple(int(n) for n in v["shape"]) for k, v in entries.items()}
        wrong = [k for begin, end, k in spans if not _fits(entries[k]["dtype"], shapes[k], end - begin)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is damaged: its safetensors header is garbled; download it again") from error
    total = 0
    for begin, end, name in spans:
        if begin != total or name in wrong:
            raise BadInput(f"{path} is damaged: its header places {name} wrongly; download it again")
        total = end
    expected = 8 + length + total
    if size < expected:
        raise BadInput(_cut_off(path, size, f"its header promises {expected}"))
    if size > expected:
        raise BadInput(
            f"{path} is damaged: {size - expected} bytes follow its last tensor ({size} bytes, {expected} "
            "expected); download it again"
        )
    return {name: (entry["dtype"], shapes[name]) for name, entry in entries.items()}


def _fits(dtype: str, shape: tuple[int, ...], length: int) -> bool:
    bits = ITEM_BITS.get(dtype)
    if bits is None:
        return length >= 0
    for n in shape:
        bits *= n
    return length * 8 == bits


def _cut_off(path: Path, size: int, instead: str) -> str:
    return f"{path} is cut off: it has {size} bytes and {instead}; download it again."


def _refuse_stand_in(path: Path, size: int, start: bytes) -> None:
    """Refuse what often lies in the place of a weight file."""
    if size == 0:
        raise BadInput(f"{path} is empty (0 bytes; was the disk full?): download it again")
    if start.startswith(b"version https://git-lfs"):
        raise BadInput(f"{path} is a Git LFS pointer, not the weights: fetch them with 'git lfs pull'")
    if start.lstrip()[:1] == b"<":
        raise BadInput(f"{path} is an HTML or XML page, not weights (an error or login page saved as a file?)")


def check_bin(path: Path) -> None:
    """Check that a PyTorch weight file is a whole zip archive or an old-style pickle.

    Raises:
        BadInput: it is not.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(512)
    _refuse_stand_in(path, size, start)
    if start.startswith(b"PK") and not zipfile.is_zipfile(path):
        raise BadInput(f"{path} is cut off: it has {size} bytes and no end record; download it again")
    if not start.startswith((b"PK", b"\x80")):
        raise BadInput(f"{path} is not a PyTorch weight file: its first bytes are neither a zip archive nor a pickle")


def check_gguf(path: Path) -> None:
    """Check that a GGUF file is whole, and that the reader is installed.

    Raises:
        BadInput: it is not.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(512)
    _refuse_stand_in(path, size, start)
    if not start.startswith(b"GGUF"):
        raise BadInput(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise BadInput("reading a GGUF file needs the package gguf: pip install 'hf-ess[gguf]'") from error
    try:
        GGUFReader(path)
    except Exception as error:  # a cut-off file shows as any error of numpy's views
        raise BadInput(f"{path} is cut off or damaged: its tensors cannot be read; download it again") from error


TOKENIZER_WORDS = ("token", "vocab", "spiece", "sentencepiece", "merges", "bpe", "tekken")


def check_tokenizer_files(folder: Path, name: str) -> None:
    """Check that a folder holds tokenizer files, and that those in JSON can be parsed.

    Raises:
        BadInput: there are none, or one is damaged; the sentence names it.
    """
    files = [path for path in folder.iterdir() if any(word in path.name.lower() for word in TOKENIZER_WORDS)]
    if not files:
        raise BadInput(f"there is no tokenizer in {name}: give one with --tokenizer, or give token ids")
    for path in files:
        if path.suffix == ".json" and path.is_file():
            read_json(path)


def listing(names: Iterable[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
