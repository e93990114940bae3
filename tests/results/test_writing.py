"""Results on disk: whole or not there, resumable, never two writers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from hf_ess import BadInput, HfEssError
from hf_ess.results import ESS_SCHEMA, TOKENS_SCHEMA, Result, ess_table, load_result
from hf_ess.results.writing import PartialResult


def some_rows(n=3):
    return ess_table(
        [
            {"prompt": 0, "layer": 0, "call": 0, "module": "m", "kind": "softmax", "unit": u, "metric": "tolerance",
             "tolerance": 0.1, "values": [1.0, None, 2.0]}
            for u in range(n)
        ]
    )  # fmt: skip


def some_result():
    summary = {
        "schema_version": 1,
        "provenance": {"model": "m"},
        "options": {"tolerances": [0.1]},
        "prompts": [{"tokens": 4}],
        "layers": [],
        "skipped": [],
    }
    tokens = pa.Table.from_pylist(
        [{"prompt": 0, "position": i, "id": i, "text": f"t{i}", "delimiter": []} for i in range(4)], TOKENS_SCHEMA
    )
    return Result(summary, some_rows(), tokens)


def test_save_and_load_give_the_same(tmp_path):
    result = some_result()
    result.save(tmp_path / "out")
    loaded = load_result(tmp_path / "out")
    assert loaded.summary == result.summary
    assert loaded.ess.equals(result.ess) and loaded.ess.schema == ESS_SCHEMA
    assert loaded.tokens.equals(result.tokens)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_dataset_has_a_row_per_position_with_its_token():
    rows = some_result().to_dataset().to_list()
    assert len(rows) == 9
    assert rows[0] == {
        "prompt": 0, "layer": 0, "call": 0, "module": "m", "kind": "softmax", "unit": 0, "reduction": None,
        "position": 1, "token": "t1", "metric": "tolerance", "tolerance": 0.1, "value": 1.0,
    }  # fmt: skip
    assert rows[1]["value"] is None and [r["position"] for r in rows[:3]] == [1, 2, 3]


def test_rows_select_by_column_and_null():
    result = some_result()
    assert len(result.rows(metric="tolerance", reduction=None)) == 3
    assert len(result.rows(unit=1)) == 1
    assert result.rows(metric="entropy") == []


def test_existing_output_is_refused_and_overwrite_replaces_results_only(tmp_path):
    out = tmp_path / "out"
    some_result().save(out)
    with pytest.raises(BadInput, match="exists already"):
        some_result().save(out)
    some_result().save(out, overwrite=True)
    other = tmp_path / "precious"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="not a result of hf-ess"):
        some_result().save(other, overwrite=True)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(BadInput, match="is a file"):
        some_result().save(file, overwrite=True)


def test_unwritable_output():
    with pytest.raises(BadInput, match="cannot write"):
        PartialResult(Path("/proc/nope/x"), {"a": 1})


def test_not_a_result(tmp_path):
    with pytest.raises(BadInput, match=r"no summary\.json"):
        load_result(tmp_path)
    some_result().save(tmp_path / "out")
    summary = tmp_path / "out" / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "schema_version": 99}))
    with pytest.raises(BadInput, match="schema version 99"):
        load_result(tmp_path / "out")


def test_finished_layers_come_back_and_others_do_not(tmp_path):
    out = tmp_path / "out"
    with PartialResult(out, {"ids": [1, 2]}) as first:
        first.put(0, "model.layers.0", 0, {"layer": 0}, some_rows())
        first.close()
    with PartialResult(out, {"ids": [1, 2]}) as second:
        info, table = second.get(0, "model.layers.0", 0)
        assert info == {"layer": 0} and table.equals(some_rows())
        assert second.get(0, "model.layers.1", 0) is None
        second.publish(some_result())
    assert sorted(p.name for p in out.iterdir()) == ["ess.parquet", "summary.json", "tokens.parquet"]


def test_a_damaged_layer_is_measured_again(tmp_path):
    out = tmp_path / "out"
    with PartialResult(out, {}) as first:
        first.put(0, "m", 0, {}, some_rows())
        file = next(first.folder.glob("layer-*.parquet"))
        file.write_bytes(file.read_bytes()[:40])
        assert first.get(0, "m", 0) is None


def test_unfinished_run_of_something_else_is_refused(tmp_path):
    out = tmp_path / "out"
    with PartialResult(out, {"ids": [1]}) as first:
        first.put(0, "m", 0, {}, some_rows())
    first.close()
    with pytest.raises(BadInput, match="unfinished run of another"):
        PartialResult(out, {"ids": [2]})
    with PartialResult(out, {"ids": [2]}, overwrite=True) as second:
        assert second.get(0, "m", 0) is None


def test_files_of_others_are_never_removed(tmp_path):
    (tmp_path / "out.partial").mkdir()
    precious = tmp_path / "out.partial" / "thesis.tex"
    precious.write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="not of hf-ess"):
            PartialResult(tmp_path / "out", {}, overwrite)
    assert precious.read_text() == "years of work"


def test_a_run_that_died_while_it_was_renamed_is_done_again(tmp_path):
    out = tmp_path / "out"
    with PartialResult(out, {"a": 1}) as first:
        first.put(0, "m", 0, {}, some_rows())
    first.close()
    (first.folder / "summary.json").write_text("{}")
    for name in ("key.json", "layer-00000-m-0.parquet"):
        (first.folder / name).unlink()
    with PartialResult(out, {"a": 1}) as second:
        assert [p.name for p in second.folder.iterdir() if p.name != "lock"] == ["key.json"]
        second.publish(some_result())
    assert load_result(out).ess.equals(some_rows())


def test_nothing_is_left_where_nothing_was_finished(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RuntimeError):
        with PartialResult(out, {}):
            raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError):
        with PartialResult(out, {}) as partial:
            partial.put(0, "m", 0, {}, some_rows())
            raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["out.partial"]


def test_two_writers_do_not_mix(tmp_path):
    out = tmp_path / "out"
    code = (
        "import sys, pathlib; from hf_ess.results.writing import PartialResult; from hf_ess import BadInput\n"
        "try: PartialResult(pathlib.Path(sys.argv[1]), {})\n"
        "except BadInput as e: sys.exit(str(e))"
    )
    with PartialResult(out, {}):
        second = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True)
    assert second.returncode == 1 and "another run is writing" in second.stderr


def test_full_disk_says_what_was_kept(tmp_path, monkeypatch):
    from hf_ess.results import files

    def full(path, write):
        raise OSError(28, "No space left on device")

    with PartialResult(tmp_path / "out", {}) as partial:
        partial.put(0, "a", 0, {}, some_rows())
        monkeypatch.setattr(files, "write_durably", full)
        with pytest.raises(HfEssError, match=r"No space left on device.*goes on from them"):
            partial.put(0, "b", 0, {}, some_rows())
        assert partial.get(0, "a", 0) is not None


def test_json_is_strict(tmp_path):
    from hf_ess.results.files import write_json

    with pytest.raises(ValueError):
        write_json({"x": float("nan")}, tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []
