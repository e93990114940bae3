"""Softmax attention: every variant that goes through AttentionInterface, and what happens when a part is left out."""

from __future__ import annotations

import pytest
import torch

from hf_ess.adapters import softmax
from hf_ess.operators import SoftmaxAttention
from tests.adapters.contract import captured, check, token_ids
from tests.tiny import tiny_model

VARIANTS = {
    "llama": {},  # grouped-query attention
    "gpt2": {},
    "opt": {},
    "gpt_neox": {},
    "mistral": {"sliding_window": 5},
    "gemma2": {"sliding_window": 6, "attn_logit_softcapping": 2.0},
    "gpt_oss": {},  # sinks per head
    "granitemoe_swa": {},  # sinks as a factor on the output
    "deepseek_v3": {},  # multi-head latent attention: a value is narrower than a key
    "inkling_text": {},  # learned relative position bias
    "inkling2_text": {},  # sinks per token
    "deepseek_v32": {},  # sparse indexer
    "llama4_text": {},  # chunked mask
    "hrm_text": {},  # one module called several times
}


@pytest.mark.parametrize("name", VARIANTS)
def test_contract(name):
    model = tiny_model(name, **VARIANTS[name])
    ids = token_ids(model)
    calls, _ = captured(model, ids)
    check(model, mixers=len(calls), kinds={"softmax", "convolution"} if "inkling" in name else {"softmax"}, ids=ids)
    assert len(calls) >= model.config.get_text_config().num_hidden_layers


def test_one_operator_per_query_head_and_its_channels():
    model = tiny_model("llama")
    layers, _ = captured(model, token_ids(model))
    heads = model.config.num_attention_heads
    assert heads != model.config.num_key_value_heads
    assert [layer.operator.count for layer in layers] == [heads] * len(layers)
    assert layers[0].operator.multiplicity == model.config.hidden_size // heads
    assert [layer.module for layer in layers] == [f"model.layers.{i}.self_attn" for i in range(len(layers))]


def test_rows_are_probabilities_and_sinks_take_their_share():
    for name, least in (("llama", 1 - 1e-12), ("gpt_oss", 0.0)):
        model = tiny_model(name)
        layers, _ = captured(model, token_ids(model))
        rows = torch.cat([layer.operator.dense().sum(-1).flatten() for layer in layers])
        assert rows.max() <= 1 + 1e-12 and rows.min() >= least
    assert rows.min() < 0.95


def test_state_size_follows_the_mask():
    length, window = 24, 5
    model = tiny_model("mistral", sliding_window=window)
    layers, _ = captured(model, token_ids(model, length))
    i = torch.arange(1, length)
    assert torch.equal(layers[0].operator.tss()[0], i.clamp_max(window - 1).double())
    model = tiny_model("llama")
    layers, _ = captured(model, token_ids(model, length))
    assert torch.equal(layers[0].operator.tss()[0], i.double())


def test_window_of_one_remembers_nothing():
    model = tiny_model("mistral", sliding_window=1)
    layers, _ = captured(model, token_ids(model))
    for layer in layers:
        assert torch.equal(
            layer.operator.dense(), torch.eye(32, dtype=torch.float64).expand(layer.operator.count, -1, -1)
        )
        assert (layer.operator.tss() == 0).all()


def _without(monkeypatch, **changes):
    """Takes a part out of every operator: the adapter forgets it, the layer does not."""
    build = softmax.SoftmaxAttention

    def forgetful(q, k, scaling, **parts):
        for name, change in changes.items():
            if name == "q":
                q = change(q)
            elif name == "scaling":
                scaling = change(scaling)
            else:
                parts[name] = change(parts[name])
        return build(q, k, scaling, **parts)

    monkeypatch.setattr(softmax, "SoftmaxAttention", forgetful)


def _causal_only(mask):
    hidden = torch.ones_like(mask, dtype=torch.bool).triu(1)
    return torch.zeros_like(mask).masked_fill(hidden, torch.finfo(mask.dtype).min)


CONTROLS = {
    "window": ("mistral", {"sliding_window": 5}, {"mask": _causal_only}),
    "chunk": ("llama4_text", {}, {"mask": _causal_only}),
    "sink": ("gpt_oss", {}, {"sinks": lambda sinks: None}),
    "sink factor": ("granitemoe_swa", {}, {"sinks": lambda sinks: None}),
    "soft-cap": ("gemma2", {"attn_logit_softcapping": 2.0}, {"softcap": lambda cap: None}),
    "scale": ("llama", {}, {"scaling": lambda scale: scale * 1.01}),
    "head order": ("llama", {}, {"q": lambda q: q.roll(1, 0)}),
    "position bias": ("inkling_text", {}, {"position_bias": lambda bias: None}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("control", CONTROLS)
def test_what_is_left_out_fails_verification(control, dtype, monkeypatch):
    name, overrides, changes = CONTROLS[control]
    model = tiny_model(name, **overrides).to(dtype)
    ids = token_ids(model)
    layers, _ = captured(model, ids)
    assert layers and all(layer.verified for layer in layers)
    _without(monkeypatch, **changes)
    layers, _ = captured(model, ids)
    assert any(not layer.verified for layer in layers)
    assert max(layer.error for layer in layers) > 1e-3


def test_a_lost_mask_is_not_causal(monkeypatch):
    model = tiny_model("llama")
    _without(monkeypatch, mask=lambda mask: None)
    layers, skipped = captured(model, token_ids(model))
    assert layers == []
    assert len(skipped) == 2 and all("not causal" in s.reason for s in skipped)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_operator_is_the_float64_formula_on_the_captured_features(dtype):
    model = tiny_model("llama").to(dtype)
    layers, _ = captured(model, token_ids(model))
    for layer in layers:
        op = layer.operator
        assert op.q.dtype == dtype
        scores = torch.einsum("hid,hjd->hij", op.q.double(), op.k.double()) * op.q.shape[-1] ** -0.5
        weights = torch.exp(scores - scores.amax(-1, keepdim=True)).tril()
        expected = weights / weights.sum(-1, keepdim=True)
        assert (op.dense() - expected).abs().max() < 1e-6
        assert 0 < layer.rounding < 0.05


def test_grouped_heads_share_keys_in_order():
    q, k = torch.randn(4, 6, 8), torch.randn(2, 6, 8)
    mask = torch.ones(1, 6, 6).tril().bool()
    op = SoftmaxAttention(q, k, 1.0, mask)
    for head in range(4):
        alone = SoftmaxAttention(q[head : head + 1], k[head // 2 : head // 2 + 1], 1.0, mask)
        assert torch.allclose(op.dense()[head], alone.dense()[0])


def test_a_row_that_sees_nothing_follows_the_layer():
    mask = torch.full((1, 4, 4), torch.finfo(torch.float32).min).triu(1)
    mask[:, 2] = torch.finfo(torch.float32).min
    op = SoftmaxAttention(torch.randn(1, 4, 8), torch.randn(1, 4, 8), 1.0, mask)
    assert op.dense().isfinite().all()
    assert torch.allclose(op.dense()[0, 2], torch.full((4,), 0.25, dtype=torch.float64))
