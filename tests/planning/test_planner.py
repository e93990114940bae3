"""Plans against the runs that they are of."""

import json

import pyarrow.compute as pc
import pytest
import torch

import hf_ess
from hf_ess import BadInput
from hf_ess.planning import disk, memory, timing
from hf_ess.planning.guard import foresee
from hf_ess.planning.planner import plan
from hf_ess.probing import _options
from hf_ess.text.limits import check_memory
from tests.tiny import tiny_checkpoint, tiny_config, tiny_model, tiny_tokenizer

TEXT = "The lamp was out. Nobody had paid.\n" * 8


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return str(tiny_checkpoint(tmp_path_factory.mktemp("models") / "m", "qwen3_next"))


@pytest.mark.parametrize(
    "options",
    [{}, {"keep": "reductions"}, {"entropy": False, "tolerances": (1e-2,)}, {"norms": True}, {"layers": [0]}],
    ids=str,
)
def test_layers_and_curves_are_those_of_the_run(hybrid, options):
    planned = plan(hybrid, TEXT, time=False, **options)
    result = hf_ess.probe(hybrid, TEXT, **options)
    measured = [(x["layer"], x["module"], x["kind"], x["operators"], x["multiplicity"]) for x in result.layers]
    assert [(x.layer, x.module, x.kind, x.operators, x.multiplicity) for x in planned.layers] == measured
    for layer, row in zip(planned.layers, result.layers):
        assert layer.tss.mean(planned.tokens[0]) == pytest.approx(row["tss"])
    assert planned.tokens == [result.summary["prompts"][0]["tokens"]]
    kept = result.ess.filter(
        pc.and_(pc.is_valid(result.ess["layer"]), pc.not_equal(result.ess["metric"], "unresolved"))
    )
    opts = _options(
        options.get("tolerances", (1e-1, 1e-3, 1e-5)), False, options.get("entropy", True),
        options.get("norms", False), None, options.get("keep", "auto"), None, "bfloat16", None,
    )  # fmt: skip
    assert sum(sum(disk.rows(layer, opts)) for layer in planned.layers) == kept.num_rows


def test_disk_is_that_of_the_folder(hybrid, tmp_path):
    arguments = {"keep": "spectra", "positions": "every:3", "spectra_dtype": "float32", "output": tmp_path / "out"}
    planned = plan(hybrid, [TEXT, TEXT[:150]], time=False, **arguments)
    hf_ess.probe(hybrid, [TEXT, TEXT[:150]], **arguments)
    there = sum(f.stat().st_size for f in (tmp_path / "out").rglob("*") if f.is_file())
    stored = sum(f.stat().st_size for f in (tmp_path / "out" / "spectra").rglob("*.safetensors"))
    assert planned.disk.spectra == pytest.approx(stored, rel=0.2)
    assert 1 / 1.5 < planned.disk.result / there < 1.5
    assert planned.disk.building > planned.disk.result and planned.disk.free > 0


def test_nothing_is_loaded(tmp_path, monkeypatch):
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    monkeypatch.setattr("hf_ess.loading.weights.read", lambda request: pytest.fail("weights were read"))
    monkeypatch.setattr("hf_ess.loading.models._own_tokenizer", lambda *_: pytest.fail("a tokenizer was loaded"))
    planned = plan(str(folder), tokens=[100, 50], time=False)
    assert planned.tokens == [100, 50] and planned.cuts == 148 and planned.parameters > 0
    assert json.loads(json.dumps(planned.to_json(), allow_nan=False))["memory"]["peak"] == planned.memory.peak


def test_config_json_alone_is_enough(tmp_path):
    tiny_config("mamba2").save_pretrained(tmp_path)
    assert {layer.kind for layer in plan(str(tmp_path), tokens=100, time=False).layers} == {"mamba2"}
    with pytest.raises(BadInput, match="no weights"):
        hf_ess.probe(str(tmp_path), [1, 2, 3])


def test_processes_share_prompts_and_memory(hybrid, monkeypatch):
    alone, free = plan(hybrid, tokens=[300] * 4), memory.available_bytes({"cpu"})
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    shared = plan(hybrid, tokens=[300] * 4)
    assert shared.time.spectra == pytest.approx(alone.time.spectra / 2)
    assert memory.available_bytes({"cpu"}) < 0.7 * free and any("2 processes" in note for note in shared.notes)


def test_a_model_in_memory_and_ids():
    model = tiny_model("falcon_mamba")
    planned = plan(model, [5, 6, 7, 8], time=False)
    assert planned.memory.weights == 0 and planned.tokens == [4]  # the process holds its weights already
    assert {layer.kind for layer in planned.layers} == {"mamba"}


def test_the_dtype_is_that_of_the_files(tmp_path):
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="bfloat16")
    config = json.loads((folder / "config.json").read_text())
    for key in ("dtype", "torch_dtype"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config))
    small, large = (plan(str(folder), tokens=16, time=False, dtype=d) for d in ("auto", "float32"))
    assert small.dtype == "bfloat16" and large.dtype == "float32"
    assert large.memory.weights == pytest.approx(2 * small.memory.weights, rel=0.01)
    assert hf_ess.probe(str(folder), TEXT).summary["provenance"]["model_dtype"] == "bfloat16"


def test_memory_that_does_not_suffice(hybrid, monkeypatch):
    free = memory.process_bytes() + 2**30
    monkeypatch.setattr(memory, "available_bytes", lambda places: free)
    planned = plan(hybrid, tokens=30000, time=False)
    (refusal,) = planned.refusals
    assert "--max-tokens" in refusal and 100 < planned.fits_tokens < 30000
    assert plan(hybrid, tokens=planned.fits_tokens, time=False).refusals == []
    monkeypatch.setattr(memory, "available_bytes", lambda places: 2**20)
    (refusal,) = plan(hybrid, tokens=10, time=False).refusals
    assert "--dtype bfloat16" in refusal


def test_disk_that_does_not_suffice(hybrid, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda output: 1000)
    (refusal,) = plan(hybrid, tokens=64, output=tmp_path / "x", time=False).refusals
    assert "1e+03 B" in refusal or "1000 B" in refusal


def test_a_real_run_is_refused_before_its_weights_are_read(hybrid, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda places: 2**20)
    monkeypatch.setattr("hf_ess.loading.weights.read", lambda request: pytest.fail("weights were read"))
    with pytest.raises(BadInput, match="of memory"):
        hf_ess.probe(hybrid, TEXT * 10)


def test_a_model_that_cannot_be_planned_is_measured_all_the_same(hybrid, monkeypatch):
    def cannot(*_):
        raise BadInput("transformers cannot build it")

    monkeypatch.setattr("hf_ess.planning.planner.survey", cannot)
    monkeypatch.setattr("hf_ess.planning.survey.survey", cannot)
    monkeypatch.setattr("hf_ess.planning.guard._SMALL_LENGTH", 2)
    assert hf_ess.probe(hybrid, TEXT[:40]).layers
    check_memory(1000, tiny_model("llama"))


def test_what_takes_long_is_announced(hybrid, monkeypatch):
    said, lengths = [], [2000]
    options = _options((1e-3,), False, False, False, None, "auto", None, "bfloat16", None)
    loaded = hf_ess.loading.load(hybrid, with_model=False, with_tokenizer=False)
    foresee(loaded, lengths, options, None, None, False, said.append)
    assert said == []
    monkeypatch.setattr(timing, "nominal", lambda layers, lengths: 1000.0)
    monkeypatch.setattr(timing, "estimated", lambda *_: timing.Time(0.0, 0.0, 0.0, 7200.0))
    foresee(loaded, lengths, options, None, None, False, said.append)
    assert len(said) == 1 and "2.0 hours" in said[0] and "--dry-run" in said[0]


@pytest.mark.parametrize("arguments", [{}, {"text": "a b", "tokens": 3}, {"tokens": 1}, {"tokens": []}], ids=str)
def test_bad_input(arguments):
    with pytest.raises(BadInput):
        plan(tiny_model("llama"), tokenizer=tiny_tokenizer(), time=False, **arguments)


def test_spectra_at_delimiters_are_not_known_without_a_text(hybrid):
    planned = plan(hybrid, tokens=64, keep="spectra", time=False)
    assert planned.disk.spectra is None and any("delimiters" in note for note in planned.notes)
    assert plan(hybrid, TEXT, keep="spectra", time=False).disk.spectra > 0


def test_time_grows_as_the_engines_do(hybrid):
    planned = plan(hybrid, tokens=300)
    assert planned.time.total > planned.time.spectra > 0
    layers = [x for x in planned.layers if x.form == "dense"]
    options = _options((1e-3,), False, False, False, None, "auto", None, "bfloat16", None)
    short, long = (
        timing.estimated(planned.survey, layers, [n], None, options, torch.float32, False).spectra for n in (4000, 8000)
    )
    assert 4.9 < long / short < 8.1


@pytest.mark.parametrize(
    "need, longest", [(lambda n: n**2, 10), (lambda n: 200.0, 0), (lambda n: 1.0, 1000), (lambda n: n / 4.567, 450)]
)
def test_longest_text_that_fits(need, longest):
    assert memory.longest(need, 100.0, 1000) == longest
