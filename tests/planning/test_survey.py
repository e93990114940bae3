"""What is planned from the configuration against what a real run of the same model captures."""

import pytest
import torch

from hf_ess.capturing import capture
from hf_ess.planning.skeleton import on_meta, zeroed
from hf_ess.planning.survey import LENGTH, Size, survey
from tests.adapters.contract import token_ids
from tests.tiny import CONFIGS, tiny_config, tiny_model

FAMILIES = ("llama", "mistral", "jamba", "qwen3_next", "zamba2", "nemotron_h", "lfm2", "gemma3_text", "xlm", "rwkv")
# Sparse attention keeps the keys that score highest, patches depend on the bytes: the text decides.
BY_TEXT = {
    "axk2", "blt", "deepseek_v32", "dots3_note", "dots3_note_text", "glm_moe_dsa", "hy_v4", "minimax_m3_vl_text",
    "qwen4_exp", "qwen4_exp_text",
}  # fmt: skip


def compare(name: str, **overrides) -> None:
    """Every captured call is planned, and nothing else; skipped mixers likewise; parameters are counted right."""
    model, length, found = tiny_model(name, **overrides), 32, []

    def on_layer(layer):
        operator = layer.operator
        row = (layer.layer, layer.call, layer.module, layer.class_name, layer.kind, operator.count)
        found.append(((*row, operator.multiplicity), float(operator.tss().mean())))

    skipped = capture(model, token_ids(model, length), on_layer)
    planned = survey(tiny_config(name, **overrides))
    assert [(p.layer, p.call, p.module, p.class_name, p.kind, p.operators, p.multiplicity) for p in planned.layers] == [
        row for row, _ in found
    ]
    for layer, (_, tss) in zip(planned.layers, found):
        expected = layer.tss.mean(length)
        assert expected == pytest.approx(tss) or name in BY_TEXT
        assert expected is not None or name in BY_TEXT
    assert {(s.module, s.called) for s in planned.skipped} == {(s.module, s.called) for s in skipped}
    assert planned.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", FAMILIES)
def test_plan_is_what_a_run_captures(name):
    compare(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CONFIGS) - set(FAMILIES)))
def test_plan_of_every_type_is_what_a_run_captures(name):
    try:
        tiny_model(name)
        capture(tiny_model(name), token_ids(tiny_model(name), 32), lambda layer: None)
    except Exception as error:
        pytest.skip(f"{name} does not run here: {error}")
    compare(name)


def test_windows_longer_than_the_skeleton_s_text_are_told_apart():
    config = tiny_config("gemma2", sliding_window=4096)
    config.layer_types = ["sliding_attention", "full_attention"]
    rules = [layer.tss for layer in survey(config).layers]
    assert rules == [Size("window", 4096), Size("all")]
    assert config.sliding_window == 4096
    assert Size("window", 4096).mean(5001) == pytest.approx((sum(range(1, 4096)) + 4095 * (5000 - 4095)) / 5000)


def test_a_model_of_seven_billion_parameters_takes_no_memory():
    import psutil

    config = tiny_config(
        "llama", num_hidden_layers=32, hidden_size=4096, intermediate_size=11008, num_attention_heads=32,
        num_key_value_heads=32, head_dim=128, vocab_size=32000,
    )  # fmt: skip
    before = psutil.Process().memory_info().rss
    planned = survey(config, torch.bfloat16)
    assert psutil.Process().memory_info().rss - before < 2**28
    assert planned.parameters == 6738415616  # of Llama-2-7B
    assert planned.parameter_bytes == 2 * 6738415616
    assert len(planned.layers) == 32 and planned.layers[31].module == "model.layers.31.self_attn"
    assert abs(planned.matmul / (planned.parameters - 32000 * 4096) - 1) < 1e-3


def test_a_zeroed_model_runs():
    model = zeroed(on_meta(tiny_config("llama"), torch.float32))
    with torch.no_grad():
        assert model(input_ids=torch.arange(LENGTH)[None]).logits.abs().max() == 0


def test_what_cannot_be_run_is_named_and_not_guessed(monkeypatch):
    def broken(*args):
        raise RuntimeError("no such thing")

    monkeypatch.setattr("hf_ess.planning.survey._run", broken)
    planned = survey(tiny_config("llama"))
    assert planned.layers == []
    assert {s.module for s in planned.skipped} == {"model.layers.0.self_attn", "model.layers.1.self_attn"}
    assert all("no such thing" in s.reason for s in planned.skipped)
    assert planned.parameters > 0
