"""Lightning attention of minimax: the features come from the activation, the result from before the norm."""

from __future__ import annotations

import pytest
import torch

from hf_ess.adapters import lightning
from tests.adapters.contract import captured, check, token_ids
from tests.adapters.controls import assert_found
from tests.tiny import tiny_model


def test_contract():
    layers = check(tiny_model("minimax"), mixers=2, kinds={"lightning", "softmax"})
    assert layers[0].class_name == "MiniMaxLightningAttention"


def test_one_operator_per_head_and_its_channels():
    model = tiny_model("minimax")
    config = model.config
    layers, _ = captured(model, token_ids(model))
    op = layers[0].operator
    assert (op.count, op.multiplicity, op.state) == (config.num_attention_heads, config.head_dim, config.head_dim)
    assert (op.tss() == config.head_dim).all()


def _changed(op, **parts):
    for name, change in parts.items():
        setattr(op, name, change(getattr(op, name)))
    return op


CONTROLS = {
    "decay": lambda op: _changed(op, a=torch.ones_like),
    "decay of the right head": lambda op: _changed(op, a=lambda a: a.flip(0)),
    "queries and keys": lambda op: _changed(_changed(op, b=lambda b: op.c), c=lambda c: c.roll(1, 0)),
    "no scale": lambda op: _changed(op, c=lambda c: c * c.shape[-1] ** -0.5),
    "a token does not decay itself": lambda op: _changed(op, b=lambda b: op.a * b),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", CONTROLS)
def test_what_is_left_out_fails_verification(part, dtype, monkeypatch):
    right = lightning.operator_of
    assert_found(
        tiny_model("minimax").to(dtype),
        "lightning",
        lambda: monkeypatch.setattr(lightning, "operator_of", lambda *args: CONTROLS[part](right(*args))),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_keys_and_values_lie_side_by_side_in_each_head(dtype, monkeypatch):
    def by_kind(module, qkv):
        return tuple(x.unflatten(-1, (-1, module.head_dim)).transpose(0, 1) for x in qkv.chunk(3, -1))

    model = tiny_model("minimax").to(dtype)
    assert_found(model, "lightning", lambda: monkeypatch.setattr(lightning, "_split", by_kind))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_operator_is_the_float64_formula_on_the_captured_features(dtype):
    model, length = tiny_model("minimax").to(dtype), 20
    module = model.model.layers[0].self_attn
    seen = []
    handle = module.act_fn.register_forward_hook(lambda m, args, output: seen.append(output[0].double()))
    layers, _ = captured(model, token_ids(model, length))
    handle.remove()
    heads, d = module.num_attention_heads, module.head_dim
    T = torch.zeros(heads, length, length, dtype=torch.float64)
    for h in range(heads):
        q, k, _ = seen[0][:, 3 * d * h : 3 * d * (h + 1)].split(d, -1)
        for i in range(length):
            for j in range(i + 1):
                T[h, i, j] = torch.exp(-module.slope_rate[h].double() * (i - j)) * (q[i] @ k[j])
    assert (layers[0].operator.dense() - T).abs().max() < 1e-12 * T.abs().max()
    assert 0 < layers[0].rounding < 0.05


def test_the_layer_is_left_alone():
    model = tiny_model("minimax").to(torch.bfloat16)
    module = model.model.layers[0].self_attn
    before = {name: (value, value.dtype) for name, value in module.state_dict().items()}
    modules = dict(module.named_modules())
    captured(model, token_ids(model))
    after = module.state_dict()
    assert all(
        after[name].dtype == dtype and torch.equal(after[name], value) for name, (value, dtype) in before.items()
    )
    assert dict(module.named_modules()) == modules
