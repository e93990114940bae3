"""The gated short convolution of lfm2, lfm2_moe and lfm3."""

from __future__ import annotations

import pytest
import torch

from hf_ess.adapters import shortconv
from hf_ess.operators import ConvolutionOperator
from tests.adapters.contract import captured, check, token_ids
from tests.adapters.controls import assert_found
from tests.tiny import tiny_model

# mixer calls
HOMES = {"lfm2": 2, "lfm2_moe": 2, "lfm3": 3}


@pytest.mark.parametrize("name", HOMES)
def test_contract(name):
    check(tiny_model(name), mixers=HOMES[name], kinds={"shortconv", "softmax"})


@pytest.mark.parametrize("name, width", [("lfm2", 3), ("lfm3", 7)])
def test_one_operator_per_channel_that_remembers_a_few_tokens(name, width):
    model = tiny_model(name)
    layers, _ = captured(model, token_ids(model))
    op = layers[0].operator
    assert (op.count, op.multiplicity, op.width) == (model.config.hidden_size, 1, width)
    assert torch.equal(op.tss()[0], torch.arange(1, 32).clamp_max(width - 1).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bias_is_not_part_of_the_operator(dtype):
    model = tiny_model("lfm2", conv_bias=True).to(dtype)
    torch.nn.init.constant_(model.model.layers[0].conv.conv.bias, 3.0)
    layers, _ = captured(model, token_ids(model))
    assert layers[0].kind == "shortconv" and layers[0].verified
    assert (layers[0].rounding > 0) == (dtype != torch.float32)


def _exchanged(BCx, weight):
    B, C, x = BCx.chunk(3, -1)
    return torch.cat([C, B, x], -1), weight


CONTROLS = {
    "order of the taps": lambda BCx, weight: (BCx, weight.flip(-1)),
    "taps of the right channel": lambda BCx, weight: (BCx, weight.roll(1, 0)),
    "gates before and after": _exchanged,
    "shift": lambda BCx, weight: (BCx, torch.nn.functional.pad(weight, (0, 1))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", CONTROLS)
def test_what_is_left_out_fails_verification(part, dtype, monkeypatch):
    right = shortconv.operator_of
    assert_found(
        tiny_model("lfm2").to(dtype),
        "shortconv",
        lambda: monkeypatch.setattr(shortconv, "operator_of", lambda *args: right(*CONTROLS[part](*args))),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gate", ["before", "after"])
def test_each_gate_is_part_of_it(gate, dtype, monkeypatch):
    right = shortconv.operator_of

    def without(*args):
        op, x = right(*args)
        setattr(op, gate, torch.ones_like(op.before))
        return op, x

    model = tiny_model("lfm2").to(dtype)
    assert_found(model, "shortconv", lambda: monkeypatch.setattr(shortconv, "operator_of", without))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_operator_is_the_float64_formula_on_the_captured_features(dtype):
    model, length = tiny_model("lfm2").to(dtype), 15
    module = model.model.layers[0].conv
    seen = []
    handle = module.in_proj.register_forward_hook(lambda m, args, output: seen.append(output[0].double()))
    layers, _ = captured(model, token_ids(model, length))
    handle.remove()
    B, C, _ = seen[0].chunk(3, -1)
    taps = module.conv.weight.detach().double()[:, 0]
    T = torch.zeros(taps.shape[0], length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(max(0, i - 2), i + 1):
            T[:, i, j] = C[i] * taps[:, 2 - (i - j)] * B[j]
    assert isinstance(layers[0].operator, ConvolutionOperator)
    assert (layers[0].operator.dense() - T).abs().max() < 1e-12 * T.abs().max()
    assert 0 < layers[0].rounding < 0.05


def test_convolutions_inside_other_mixers_are_not_mixers_of_their_own():
    model = tiny_model("qwen3_next")
    layers, skipped = captured(model, token_ids(model))
    assert [layer.kind for layer in layers] == ["gated_deltanet", "softmax"] and skipped == []
