"""Reading text: files as they are, and one sentence for what is not text."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_ess.errors import BadInput
from hf_ess.text.reading import read_dataset, read_text


def written(folder: Path, data: bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_a_text_is_read_as_it_is(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = written(tmp_path_factory.mktemp("texts"), text.encode())
    expected = text.removeprefix("\ufeff")
    if expected:
        assert read_text(path) == expected
    else:
        with pytest.raises(BadInput, match="is empty"):
            read_text(path)


def test_newlines_blanks_and_separators_stay(tmp_path: Path) -> None:
    text = "a \r\nb\rc\u2028d\u2029e\x85f\n\n  \n"
    assert read_text(written(tmp_path, text.encode())) == text
    assert read_text(written(tmp_path, b"The lamp\x00 is out.")) == "The lamp\x00 is out."


def test_the_byte_order_mark_goes(tmp_path: Path) -> None:
    assert read_text(written(tmp_path, b"\xef\xbb\xbfThe lamp")) == "The lamp"
    assert read_text(written(tmp_path, "The lamp".encode("utf-16")), "utf-16") == "The lamp"
    assert read_text(written(tmp_path, "été".encode("latin-1")), "latin-1") == "été"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("灯\r\n".encode())))
    assert read_text("-") == "灯\r\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(BadInput, match="standard input is empty"):
        read_text("-")


@pytest.mark.parametrize(
    ("data", "pattern"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        ("Le phare était éteint".encode("latin-1"), r"byte 9 \(0xe9\) .* --encoding latin-1"),
        (b"The lamp is out.\xff", r"byte 16 \(0xff\)"),
        ("灯。灯。".encode() + b"\xff" + "灯。".encode(), "byte 12 .* may be damaged there"),
        (gzip.compress(b"The lamp", mtime=1_700_000_000), r"byte 1 \(0x8b\) .* gzip"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", r"byte 0 \(0x89\) .* PNG"),
        (b"PK\x03\x04\x14\x00\xff\xff", "zip file"),
        ("The lamp is out.".encode("utf-16"), "not text in UTF-8.* UTF-16: try --encoding utf-16"),
        ("The lamp is out.".encode("utf-16-le"), "NUL bytes; it looks like UTF-16 without a mark"),
    ],
)
def test_what_is_not_text(data: bytes, pattern: str, tmp_path: Path) -> None:
    path = written(tmp_path, data)
    with pytest.raises(BadInput, match=pattern) as caught:
        read_text(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no text file"):
        read_text(tmp_path / "nothing.txt")
    with pytest.raises(BadInput, match="is a directory"):
        read_text(tmp_path)
    with pytest.raises(BadInput, match="no text encoding 'klingon'"):
        read_text(written(tmp_path, b"x"), "klingon")


ROWS = [{"id": 0, "text": "The lamp.\n"}, {"id": 1, "text": ""}, {"id": 2, "text": "灯。"}]
TEXTS = [str(row["text"]) for row in ROWS]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same rows in every format, and a folder with two splits."""
    import datasets

    datasets.disable_progress_bars()
    folder = tmp_path_factory.mktemp("data")
    table = datasets.Dataset.from_list(ROWS)
    table.to_parquet(folder / "rows.parquet")
    table.save_to_disk(folder / "saved")
    datasets.DatasetDict({"train": table, "test": table.select([2])}).save_to_disk(folder / "splits")
    (folder / "rows.json").write_text(json.dumps(ROWS))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "\n")
    (folder / "rows.csv").write_text('id,text\n0,"The lamp.\n"\n2,灯。\n')
    (folder / "folder").mkdir()
    (folder / "folder" / "train.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    (folder / "folder" / "test.jsonl").write_text(json.dumps(ROWS[2]) + "\n")
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["rows.parquet", "rows.json", "rows.jsonl", "saved", "splits"])
def test_a_data_set_in_every_format(name: str, files: dict[str, Path]) -> None:
    assert read_dataset(str(files[name])) == TEXTS
    assert read_dataset(str(files[name]), limit=1) == TEXTS[:1]
    assert read_dataset(str(files[name]), field="text") == TEXTS
    with pytest.raises(BadInput, match="has no field 'prompt': it has id, text"):
        read_dataset(str(files[name]), field="prompt")


def test_csv_and_plain_text(files: dict[str, Path], tmp_path: Path) -> None:
    assert read_dataset(str(files["rows.csv"])) == [TEXTS[0], TEXTS[2]]
    assert read_dataset(str(written(tmp_path, b"one\ntwo\n"))) == ["one\ntwo\n"]


@pytest.mark.parametrize("name", ["folder", "splits"])
def test_splits(name: str, files: dict[str, Path]) -> None:
    assert read_dataset(str(files[name]), split="test") == [TEXTS[2]]
    assert read_dataset(str(files[name]))[0] == TEXTS[0]
    with pytest.raises(BadInput, match="no split 'dev'; there is train, test"):
        read_dataset(str(files[name]), split="dev")


def test_broken_lines_are_all_named(tmp_path: Path) -> None:
    lines = ['{"text": "The lamp."}', '{"text": "cut', '{"prompt": "x"}', "[1,2]", "", '{"text": null}']
    path = written(tmp_path, "\n".join(lines).encode(), "bad.jsonl")
    with pytest.raises(BadInput) as caught:
        read_dataset(str(path))
    for part in (
        "line 2 is not valid JSON",
        "line 3 has no field 'text'",
        "line 4 is not an object",
        "line 6 has no text in field 'text'",
    ):
        assert part in str(caught.value)
    assert read_dataset(str(path), limit=1) == ["The lamp."]


@pytest.mark.parametrize(
    ("name", "data", "options", "pattern"),
    [
        ("two.jsonl", b'{"a": "x", "b": "y"}', {}, "choose the field .* from a, b"),
        ("two.jsonl", b'{"a": "x", "b": 1}', {"limit": 0}, "at least 1"),
        ("no.jsonl", b"\n\n", {}, "no rows"),
        ("bad.json", b'[{"text": "x"}, {"te', {}, "cannot be read"),
        ("bad.parquet", b"PAR1 nonsense", {}, "cannot be read"),
        ("lamp.xyz", b"x", {}, "is not a data set"),
        ("one.csv", b"text\nx\n", {"split": "test"}, "no split 'test'; there is train"),
    ],
)
def test_bad_data_sets(name: str, data: bytes, options: dict[str, object], pattern: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=pattern) as caught:
        read_dataset(str(written(tmp_path, data, name)), **options)
    assert "\n" not in str(caught.value)


def test_a_column_of_text_is_found(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"id": 1, "prompt": "x"}', "one.jsonl")
    assert read_dataset(str(path)) == ["x"]


def test_data_sets_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with pytest.raises(BadInput, match="no file or folder"):
        read_dataset("./nothing.jsonl")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match="owner/nothing"):
        read_dataset("owner/nothing")
