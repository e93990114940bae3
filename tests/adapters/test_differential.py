"""Differential attention: one operator per pair of heads, and nothing of the two maps it is made of."""

from __future__ import annotations

import pytest
import torch

from hf_ess.adapters import differential
from tests.adapters.contract import captured, check, token_ids
from tests.tiny import tiny_model

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def model_of(spread=0.5, **overrides):
    """Lambda well away from its first value, and different in every layer."""
    model = tiny_model("diffllama", **overrides)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "lambda_" in path:
                parameter.normal_(std=spread, generator=generator)
    return model.requires_grad_(False)


def factor(attention):
    q1, k1, q2, k2 = (getattr(attention, f"lambda_{name}").double() for name in ("q1", "k1", "q2", "k2"))
    return float(torch.exp(q1 @ k1) - torch.exp(q2 @ k2)) + attention.lambda_init


@pytest.mark.parametrize("heads", [{}, {"num_key_value_heads": 4}, {"num_attention_heads": 8}])
def test_contract(heads):
    model = model_of(**heads)
    layers = check(model, mixers=2, kinds={"differential"})
    assert [layer.module for layer in layers] == [f"model.layers.{i}.self_attn" for i in range(2)]
    assert [layer.operator.count for layer in layers] == [model.config.num_attention_heads // 2] * 2
    assert [layer.operator.multiplicity for layer in layers] == [2 * model.config.head_dim] * 2


def test_the_operator_is_the_difference_of_the_maps_that_the_model_returns():
    model = model_of()
    ids = token_ids(model)
    layers, _ = captured(model, ids)
    with torch.no_grad():
        maps = model(input_ids=ids[None], use_cache=False, output_attentions=True).attentions
    factors = [factor(layer.self_attn) for layer in model.model.layers]
    assert abs(factors[0] - factors[1]) > 0.05
    for layer, weights, scale in zip(layers, maps, factors, strict=True):
        plus, minus = weights[0].double().chunk(2)
        T = layer.operator.dense()
        assert (T - (plus - scale * minus)).abs().max() < 1e-6
        assert T.min() < -0.05  # no softmax has such entries


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision(dtype):
    layers, skipped = captured(model_of().to(dtype), token_ids(model_of()))
    assert skipped == [] and len(layers) == 2
    for layer in layers:
        assert layer.verified and layer.error < 5e-6
        assert (layer.rounding == 0) if dtype == torch.float32 else (1e-4 < layer.rounding < 0.05)


def _lambda_left_out(module, call, multiplicity):
    T = call.operator().dense().chunk(2)[0]
    return differential.DenseOperator(T, multiplicity)


def _halves_swapped(module, call, multiplicity):
    minus, plus = call.operator().dense().chunk(2)
    return differential.DenseOperator(plus - factor(module) * minus, multiplicity)


def _neighbours_paired(module, call, multiplicity):
    maps = call.operator().dense()
    return differential.DenseOperator(maps[0::2] - factor(module) * maps[1::2], multiplicity)


def _first_value_of_lambda(module, call, multiplicity):
    plus, minus = call.operator().dense().chunk(2)
    return differential.DenseOperator(plus - module.lambda_init * minus, multiplicity)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [_lambda_left_out, _halves_swapped, _neighbours_paired, _first_value_of_lambda])
def test_what_is_left_out_fails_verification(wrong, dtype, monkeypatch):
    model = model_of().to(dtype)
    monkeypatch.setattr(differential, "operator_of", wrong)
    layers, _ = captured(model, token_ids(model))
    assert len(layers) == 2
    assert all(not layer.verified and layer.error > 1e-2 for layer in layers), [layer.error for layer in layers]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloaded_weights(dtype):
    from accelerate import cpu_offload

    model = model_of().to(dtype)
    ids = token_ids(model)
    there, _ = captured(model, ids)
    cpu_offload(model, execution_device=torch.device("cpu"), offload_buffers=True)
    layers, skipped = captured(model, ids)
    assert skipped == [] and len(layers) == 2
    for layer, before in zip(layers, there):
        assert layer.verified and torch.equal(layer.operator.dense(), before.operator.dense())
