"""keep="spectra": what is stored is what an SVD gives, while later layers still run, and after a crash too."""

from __future__ import annotations

import json

import pytest
import torch

import hf_ess
from hf_ess import BadInput, HfEssError
from hf_ess.results.stored import StoredSpectra
from hf_ess.spectra.reference import all_spectra
from tests.adapters.contract import captured, token_ids
from tests.tiny import tiny_model, tiny_tokenizer

TEXT = "The lamp was out. Nobody had paid.\n\nfunction lamp(a) { return a > 1; }\n"


def stored(model, ids, out, positions="every:5", **options):
    return hf_ess.probe(model, ids, output=out, keep="spectra", positions=positions, **options)


@pytest.mark.parametrize("name", ["llama", "mistral", "falcon_mamba", "mamba2", "lfm2", "jamba", "qwen3_next"])
def test_stored_spectra_are_those_of_an_svd(name, tmp_path):
    model = tiny_model(name, **({"sliding_window": 6} if name == "mistral" else {}))
    ids = token_ids(model)
    result = stored(model, ids, tmp_path / "out", spectra_dtype="float32")
    layers, _ = captured(model, ids)
    entries = result.spectra.entries
    assert [(e["layer"], e["call"], e["module"], e["kind"], e["operators"]) for e in entries] == [
        (x.layer, x.call, x.module, x.kind, x.operator.count) for x in layers
    ]
    for layer, entry in zip(layers, entries):
        shard = result.spectra.open(entry)
        assert shard.positions.tolist() == [5, 10, 15, 20, 25, 30]
        assert torch.equal(shard.tss.double().expand(shard.operators, -1), layer.operator.tss()[:, 4::5])
        exact = all_spectra(layer.operator.dense())
        for p, i in enumerate(shard.positions.tolist()):
            got, tss = shard.at(i), int(shard.tss[:, p].max())
            assert got.shape[1] == min(tss, i, len(ids) - i)
            expected = exact[i - 1][:, : got.shape[1]]
            assert torch.allclose(got, expected, rtol=2**-23, atol=1e-9 * float(expected.max()))
            assert (exact[i - 1][:, got.shape[1] :] <= 1e-12 * expected.amax(1, True)).all()


def test_the_rest_of_the_result_is_as_without(tmp_path):
    model = tiny_model("jamba")
    ids = token_ids(model)
    assert stored(model, ids, tmp_path / "out").ess.equals(hf_ess.probe(model, ids).ess)


def test_each_layer_is_on_the_disk_while_later_ones_run(tmp_path):
    model, out = tiny_model("jamba"), tmp_path / "out"
    seen = []

    def look(prompt, prompts, done, layers, module):
        found = StoredSpectra(tmp_path / "out.partial")
        assert [e["module"] for e in found.entries][-1] == module
        for entry in found.entries:
            assert found.open(entry).operators == entry["operators"]
        seen.append(len(found.entries))

    result = stored(model, token_ids(model), out, progress=look)
    assert seen == list(range(1, model.config.num_hidden_layers + 1))
    assert result.summary["spectra"] == {
        "files": len(seen), "bytes": result.spectra.bytes(), "dtype": "bfloat16", "positions": [6]
    }  # fmt: skip
    names = {p.name for p in (out / "spectra").iterdir()}
    assert names == {"index.json", *(e["file"] for e in result.spectra.entries)}


def test_positions_are_behind_delimiters_by_default(tmp_path):
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    result = hf_ess.probe(model, [TEXT, "the ship"], tokenizer=tokenizer, output=tmp_path / "out", keep="spectra")
    places = [r["position"] for r in result.tokens.to_pylist() if r["prompt"] == 0 and r["delimiter"]]
    length = result.summary["prompts"][0]["tokens"]
    index = json.loads((tmp_path / "out" / "spectra" / "index.json").read_text())
    expected = sorted({p + k for p in places for k in range(3) if 0 < p + k < length})
    assert index["prompts"][0]["positions"] == expected and index["prompts"][1]["positions"] == []
    assert {e["prompt"] for e in index["files"]} == {0}  # the other text has no delimiter
    assert any("prompt 1 has no position" in note for note in result.summary["notes"])


def interrupted(model, ids, out, after):
    def stop(prompt, prompts, done, layers, module):
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored(model, ids, out, progress=stop)


@pytest.mark.parametrize("damage", ["none", "missing", "cut off", "no index", "half-written"])
def test_a_run_goes_on_with_the_spectra_that_are_whole(tmp_path, damage):
    model = tiny_model("jamba")
    ids = token_ids(model)
    plain = stored(model, ids, tmp_path / "plain")
    interrupted(model, ids, tmp_path / "out", 2)
    folder = tmp_path / "out.partial" / "spectra"
    first = sorted(folder.glob("*.safetensors"))[0]
    if damage == "missing":
        first.unlink()
    elif damage == "cut off":
        first.write_bytes(first.read_bytes()[:-1])
    elif damage == "no index":
        (folder / "index.json").unlink()
    elif damage == "half-written":
        (folder / (first.name + ".writing")).write_bytes(b"half")
    resumed = stored(model, ids, tmp_path / "out")
    reused = 1 if damage in ("missing", "cut off") else 2
    assert resumed.summary["reused_layers"] == reused
    assert resumed.ess.equals(plain.ess)
    for path in (tmp_path / "plain" / "spectra").iterdir():
        assert (tmp_path / "out" / "spectra" / path.name).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "out" / "spectra").iterdir())) == len(list((tmp_path / "plain" / "spectra").iterdir()))


def test_a_layer_without_values_has_no_spectra_and_is_not_measured_again(tmp_path):
    model = tiny_model("llama", num_hidden_layers=3)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = float("nan")
    ids = token_ids(model)
    interrupted(model, ids, tmp_path / "out", 2)
    result = stored(model, ids, tmp_path / "out")
    assert result.summary["reused_layers"] == 2
    assert [e["layer"] for e in result.spectra.entries] == [0]  # NaN goes through layer 2 as well


def test_other_positions_are_another_run(tmp_path):
    model = tiny_model("llama")
    ids = token_ids(model)
    interrupted(model, ids, tmp_path / "out", 1)
    with pytest.raises(BadInput, match="unfinished run of another"):
        stored(model, ids, tmp_path / "out", positions="all")
    assert stored(model, ids, tmp_path / "out", positions="all", overwrite=True).summary["reused_layers"] == 0


def test_save_takes_the_spectra_along(tmp_path):
    model = tiny_model("llama")
    stored(model, token_ids(model), tmp_path / "out")
    loaded = hf_ess.load_result(tmp_path / "out")
    copy = hf_ess.load_result(loaded.save(tmp_path / "copy"))
    for entry in loaded.spectra.entries:
        assert torch.equal(copy.spectra.open(entry).at(10), loaded.spectra.open(entry).at(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "spectra"}, r"name it with output \(-o DIR\)"),
        ({"keep": "auto", "positions": "all"}, 'ask for keep "spectra"'),
        ({"keep": "spectra", "positions": "some", "output": "out"}, "positions must be"),
        ({"keep": "spectra", "positions": [99], "output": "out"}, "position 99 is not a cut"),
        ({"keep": "spectra", "output": "out"}, "no delimiter .* was found"),
        ({"keep": "spectra", "spectra_dtype": "int8", "output": "out"}, "stored as bfloat16 or float32"),
        ({"memory": "2 pounds"}, "not an amount of memory"),
        ({"spectra_device": "mps"}, "mps has no float64"),
    ],
)
def test_what_cannot_be_stored(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    model = tiny_model("llama")
    with pytest.raises(BadInput, match=message):
        hf_ess.probe(model, token_ids(model), **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", ["heads", "channels"])
def test_heads_and_channels_are_units(keep):
    model = tiny_model("llama")
    assert hf_ess.probe(model, token_ids(model), keep=keep).summary["options"]["keep"] == "units"


def test_a_result_in_memory_has_no_spectra(tmp_path):
    model = tiny_model("llama")
    result = hf_ess.probe(model, token_ids(model))
    with pytest.raises(BadInput, match="has no directory"):
        _ = result.spectra
    with pytest.raises(BadInput, match="holds no spectra: measure it again with --keep spectra"):
        _ = hf_ess.load_result(result.save(tmp_path / "out")).spectra


def test_what_would_not_fit_is_said_before_the_work(tmp_path, monkeypatch):
    import shutil

    from hf_ess import probe_run

    model = tiny_model("llama")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    monkeypatch.setattr(probe_run, "measure", None)  # is not reached
    with pytest.raises(HfEssError, match=r"cannot write to .*layers\.0\.self_attn take 408 B, 10 B are free"):
        stored(model, token_ids(model), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_long_work_is_announced(tmp_path, monkeypatch):
    from hf_ess.spectra import svd_cost

    said = []
    model = tiny_model("llama")
    stored(model, token_ids(model), tmp_path / "a", announce=said.append)
    assert said == []
    monkeypatch.setattr(svd_cost, "seconds", lambda length, cuts, operators: 600.0 * operators)
    stored(model, token_ids(model), tmp_path / "b", announce=said.append)
    assert len(said) == 1 and "8 attention heads at 6 positions take about 80 minutes" in said[0]
