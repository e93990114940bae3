"""Read the text to measure: a file, standard input, or a data set.

A text is read whole and kept as it is: newlines, trailing spaces and all. Only a byte order mark is taken
off.
"""

from __future__ import annotations

import codecs
import json
import sys
from pathlib import Path
from typing import Any

from hf_ess.errors import BadInput

# First bytes of what is often passed as text by mistake.
SIGNATURES = (
    (b"\x1f\x8b", "a gzip file: unpack it first"),
    (b"PK\x03\x04", "a zip file: unpack it first"),
    (b"BZh", "a bzip2 file: unpack it first"),
    (b"\xfd7zXZ", "an xz file: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file: unpack it first"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF"),
    (b"GGUF", "a GGUF file"),
    (codecs.BOM_UTF16_LE, "UTF-16: try --encoding utf-16"),
    (codecs.BOM_UTF16_BE, "UTF-16: try --encoding utf-16"),
)


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """Read one text.

    Args:
        path: a file, or "-" for standard input.
        encoding: any codec that Python knows. Decoding is strict.

    Raises:
        BadInput: missing, a folder, empty, or not in that encoding (with the file, the byte offset and a
        guess).
    """
    try:
        codec = codecs.lookup(encoding).name
        b"a".decode(codec, "ignore")  # "hex" is a codec, but none of text
    except LookupError as error:
        raise BadInput(f"there is no text encoding {encoding!r}: try utf-8, utf-16 or latin-1") from error
    name, data = _read(path)
    if not data:
        raise BadInput(f"{name} is empty")
    if codec == "utf-8" and data[:2000].count(0) > len(data[:2000]) // 4:
        raise BadInput(f"{name} is not text in UTF-8: it is full of NUL bytes{_guess(data, 0, codec)}")
    try:
        text = data.decode(codec)
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{name} is not text in {encoding.upper()}: byte {error.start} (0x{data[error.start]:02x}) "
            f"cannot be decoded{_guess(data, error.start, codec)}"
        ) from error
    text = text.removeprefix("\ufeff")
    if not text:
        raise BadInput(f"{name} is empty")
    return text


def _read(path: str | Path) -> tuple[str, bytes]:
    if str(path) == "-":
        if sys.stdin is None:
            raise BadInput("standard input is closed")
        return "standard input", sys.stdin.buffer.read()
    file = Path(path).expanduser()
    try:
        return str(path), file.read_bytes()
    except FileNotFoundError as error:
        raise BadInput(f"there is no text file {path}") from error
    except IsADirectoryError as error:
        raise BadInput(f"{path} is a directory, not a text file") from error
    except OSError as error:
        raise BadInput(f"the text file {path} cannot be read: {error.strerror or error}") from error


def _guess(data: bytes, offset: int, codec: str) -> str:
    """What the bytes look like, as the end of a sentence; empty where nothing comes to mind."""
    for signature, meaning in SIGNATURES:
        if data.startswith(signature):
            return f"; it looks like {meaning}"
    near = data[max(0, offset - 1000) : offset + 1000]
    if near.count(0) > len(near) // 4:
        return "; it looks like UTF-16 without a mark: try --encoding utf-16-le"
    control = sum(byte < 32 and byte not in b"\t\n\r\f" for byte in near)
    if codec != "utf-8" or control > len(near) // 20:
        return ""
    high = sum(byte >= 128 for byte in data)
    bad = data.decode("utf-8", "replace").count("\ufffd")
    if bad * 2 < high:  # most of the rest is sound UTF-8
        return "; the rest looks like UTF-8, so the file may be damaged there"
    return "; perhaps it is Latin-1: try --encoding latin-1"


def read_dataset(name: str, split: str | None = None, field: str | None = None, limit: int | None = None) -> list[str]:
    """Read one text per row of a data set, in order. Rows may be empty strings; what to do with them is for
    the caller.

    Args:
        name: a .json, .jsonl, .csv, .tsv, .parquet or .txt file, a folder of them or one from
        `save_to_disk`, or a Hub
            id, with a configuration after a colon where it has several ("owner/name:config").
        split: which split; may be left out where there is one, or one called train.
        field: which column; may be left out where there is one of text, or one called text.
        limit: read the first `limit` rows.

    Raises:
        BadInput: missing, not readable, no such split or field (naming those that exist), or a broken line.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"the number of rows to read must be at least 1, got {limit}")
    path = Path(name).expanduser()
    if path.is_file() and path.suffix in (".txt", ".text", ".md"):
        return [read_text(path)]
    rows, broken, unit = _rows(name, split, limit)
    return _texts(rows, broken, field, name, unit)


def read_rows(name: str, split: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
    """Read whole rows of a data set, in order.

    Args:
        name, split, limit: as in read_dataset().

    Raises:
        BadInput: missing, empty, not readable, no such split, or a broken line.
    """
    rows, broken, unit = _rows(name, split, limit)
    if broken or not rows:
        number, what = next(iter(sorted(broken.items())), (0, ""))
        raise BadInput(f"the data set {name} is damaged: {unit} {number} {what}" if broken else f"{name} has no rows")
    return [row for _, row in rows]


def _rows(
    name: str, split: str | None, limit: int | None
) -> tuple[list[tuple[int, dict[str, Any]]], dict[int, str], str]:
    """Rows with their numbers, what is wrong with the others, and what a row is called."""
    path = Path(name).expanduser()
    if path.is_file() and path.suffix in (".jsonl", ".ndjson"):
        return *_json_lines(path, limit), "line"
    table = _open(name, path, split)
    rows = []
    try:
        for number, row in enumerate(table):
            if number == limit:
                break
            rows.append((number, row))
    except Exception as error:
        raise BadInput(f"the data set {name} cannot be read: {_cause(error)}") from error
    return rows, {}, "row"


def _json_lines(path: Path, limit: int | None) -> tuple[list[tuple[int, dict[str, Any]]], dict[int, str]]:
    """Line number and object of each line that is not blank, and what is wrong with the other lines."""
    rows: list[tuple[int, dict[str, Any]]] = []
    broken: dict[int, str] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        if limit is not None and len(rows) + len(broken) >= limit:
            break
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            broken[number] = "is not valid JSON"
            continue
        if isinstance(row, dict):
            rows.append((number, row))
        else:
            broken[number] = "is not an object"
    return rows, broken


def _texts(
    rows: list[tuple[int, dict[str, Any]]], broken: dict[int, str], field: str | None, name: str, unit: str
) -> list[str]:
    """The texts of all rows; every row that has none is named in one sentence."""
    if not rows and not broken:
        raise BadInput(f"the data set {name} has no rows")
    field = _choose_field(field, rows, name) if rows else ""
    for number, row in rows:
        if not isinstance(row.get(field), str):
            broken[number] = f"has no {'text in ' if field in row else ''}field {field!r}"
    if broken:
        named = [f"{unit} {number} {broken[number]}" for number in sorted(broken)]
        more = f" and {len(named) - 10} more" if len(named) > 10 else ""
        raise BadInput(f"the data set {name} is damaged: {'; '.join(named[:10])}{more}")
    return [row[field] for _, row in rows]


def _choose_field(field: str | None, rows: list[tuple[int, dict[str, Any]]], name: str) -> str:
    columns = list(dict.fromkeys(key for _, row in rows for key in row))
    if field is not None:
        if field not in columns:
            raise BadInput(f"the data set {name} has no field {field!r}: it has {', '.join(columns)}")
        return field
    texts = [column for column in columns if isinstance(rows[0][1].get(column), str)]
    if "text" in columns:
        return "text"
    if len(texts) == 1:
        return texts[0]
    raise BadInput(f"choose the field of {name} that holds the text with --field, from {', '.join(columns)}")


def _open(name: str, path: Path, split: str | None) -> Any:
    """Rows of one split, as an iterable of dicts. Everything is streamed, so that nothing is copied into a cache."""
    import datasets

    try:
        if path.is_dir() and ((path / "dataset_dict.json").is_file() or (path / "state.json").is_file()):
            found = datasets.load_from_disk(str(path))
        elif path.exists():
            found = _local(datasets, path)
        else:
            found = _from_hub(datasets, name)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"the data set {name} cannot be read: {_cause(error)}") from error
    if not isinstance(found, dict):
        if split is not None:
            raise BadInput(f"the data set {name} has no splits, so there is no {split!r}")
        return found
    if split is None:
        split = "train" if "train" in found else next(iter(found)) if len(found) == 1 else None
    if split not in found:
        what = "choose its split with --split" if split is None else f"it has no split {split!r}"
        raise BadInput(f"the data set {name}: {what}; there is {', '.join(found)}")
    return found[split]


def _local(datasets: Any, path: Path) -> Any:
    if path.is_dir():
        return datasets.load_dataset(str(path), streaming=True)
    builder = {".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}.get(path.suffix)
    if builder is None:
        raise BadInput(f"{path} is not a data set: give a .jsonl, .json, .csv, .tsv, .parquet or .txt file")
    options = {"sep": "\t"} if path.suffix == ".tsv" else {}
    return datasets.load_dataset(builder, data_files=str(path), streaming=True, **options)


def _from_hub(datasets: Any, name: str) -> Any:
    from huggingface_hub import HfApi, constants

    from hf_ess.loading import hub

    repo_id, _, configuration = name.partition(":")
    if repo_id.startswith(("/", ".", "~")) or repo_id.count("/") > 1 or Path(repo_id).suffix in (".jsonl", ".csv"):
        raise BadInput(f"there is no file or folder {name}")
    if not constants.is_offline_mode():
        try:  # asked first and without retries, so that a wrong name is known within seconds
            HfApi().dataset_info(repo_id, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        except Exception as error:
            raise BadInput(hub.explain(error, repo_id, kind="data set")) from error
    return datasets.load_dataset(repo_id, configuration or None, streaming=not constants.is_offline_mode())


def _cause(error: BaseException) -> str:
    from hf_ess.loading.configs import first_line

    cause = error.__cause__ if "generating the dataset" in str(error) and error.__cause__ else error
    return first_line(cause)
