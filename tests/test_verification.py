"""verify(): passes where the operator is the layer's own, and can fail."""

from __future__ import annotations

import json

import pytest
import torch

import hf_ess
from hf_ess import BadInput, UnsupportedModel
from hf_ess.cli.main import run
from tests.tiny import tiny_checkpoint, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("name", ["jamba", "qwen3_next", "falcon_h1"])
def test_hybrids_pass_on_every_layer(name):
    done = hf_ess.verify(tiny_model(name), tokens=40)
    assert done.passed and done.tokens == 40 and done.skipped == []
    assert len({row.kind for row in done.layers}) == 2
    for row in done.layers:
        assert row.engine_wrong == 0 and row.engine_compared > 20 and row.engine_error < 1e-6
        assert row.tss >= 1 and row.operators >= 1


def test_the_shipped_text_is_used_and_its_length_stated():
    done = hf_ess.verify(tiny_model("llama"), tokenizer=tiny_tokenizer())
    assert done.tokens == 256


def test_learned_positions_shorten_the_text():
    model = tiny_model("gpt2", n_positions=48)
    assert hf_ess.verify(model, tokenizer=tiny_tokenizer()).tokens == 48


def test_a_window_that_the_text_does_not_reach_is_said():
    done = hf_ess.verify(tiny_model("mistral", sliding_window=100), tokens=40)
    assert all(row.notes == ["window of 100 not exercised by 40 tokens"] for row in done.layers)
    done = hf_ess.verify(tiny_model("mistral", sliding_window=8), tokens=40)
    assert all(row.notes == [] and row.tss == 7 for row in done.layers)


def test_a_wrong_operator_fails(monkeypatch):
    from hf_ess.adapters import softmax

    build = softmax.SoftmaxAttention
    monkeypatch.setattr(softmax, "SoftmaxAttention", lambda q, k, s, **kw: build(q.roll(1, 0), k, s, **kw))
    done = hf_ess.verify(tiny_model("llama"), tokens=40)
    assert not done.passed and not any(row.passed for row in done.layers)


def test_a_wrong_engine_fails(monkeypatch):
    from hf_ess.spectra import dense

    count = dense.tolerance_counts

    def off_by_one(*arguments, **options):
        counts, resolved = count(*arguments, **options)
        return counts + 1, resolved

    monkeypatch.setattr(dense, "tolerance_counts", off_by_one)
    done = hf_ess.verify(tiny_model("llama"), tokens=40)
    assert not done.passed and done.layers[0].engine_wrong > 0


def test_nothing_to_verify_is_refused():
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.transformer.h = torch.nn.ModuleList()
    with pytest.raises(UnsupportedModel, match="no layer of"):
        hf_ess.verify(model, tokens=20)
    with pytest.raises(BadInput, match="at least 2"):
        hf_ess.verify(tiny_model("llama"), [5])


def test_command_line(tmp_path, capsys):
    folder = str(tiny_checkpoint(tmp_path / "m", "jamba", dtype="bfloat16"))
    assert run(["verify", folder, "--max-tokens", "40"]) == 0
    printed = capsys.readouterr().out
    assert "mamba" in printed and "softmax" in printed and "0 failed" in printed
    assert run(["verify", folder, "--max-tokens", "40", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    assert all(row["passed"] and 0 < row["rounding"] < 0.1 for row in rows)


def test_command_line_status_3_where_a_layer_fails(tmp_path, capsys):
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[0, 0] = float("inf")
    model.save_pretrained(tmp_path / "inf")
    tiny_tokenizer().save_pretrained(tmp_path / "inf")
    assert run(["verify", str(tmp_path / "inf"), "--max-tokens", "40"]) == 3
    assert "not finite" in capsys.readouterr().out
    assert run(["verify", str(tmp_path / "inf"), "--max-tokens", "40", "--json"]) == 3
    assert [row["passed"] for row in json.loads(capsys.readouterr().out)["layers"]] == [True, False]


def test_ls_and_env(capsys):
    assert run(["ls", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    types = {row["kind"]: row["model_types"] for row in state["kinds"]}
    assert {"softmax", "mamba", "mamba2", "gated_deltanet"} <= set(types)
    assert "falcon_mamba" in types["mamba"] and "llama" in types["softmax"]
    assert len({name for names in types.values() for name in names}) == state["covered"]
    assert run(["env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["torch"] == torch.__version__
    assert run(["env"]) == 0 and "transformers" in capsys.readouterr().out
    assert run(["ls"]) == 0 and "mamba2" in capsys.readouterr().out
