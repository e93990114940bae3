"""RWKV-4: a normalised recurrence with a bonus for the current token."""

from __future__ import annotations

import sys

import pytest
import torch

from hf_ess.adapters import rwkv
from hf_ess.adapters.base import Watch
from hf_ess.operators import RecurrentOperator
from tests.adapters.contract import captured, check, token_ids
from tests.adapters.controls import assert_found
from tests.tiny import tiny_model


def model_with_decays(dtype=torch.float32, low=-4.0, high=2.0):
    """Decays from e^-0.02 to e^-7 a token, and bonuses of both signs."""
    model = tiny_model("rwkv")
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("time_decay"):
                parameter.copy_(torch.linspace(low, high, len(parameter)))
            if path.endswith("time_first"):
                parameter.copy_(torch.linspace(2, -2, len(parameter)))
    return model.to(dtype)


def test_contract():
    layers = check(model_with_decays(), mixers=4, kinds={"rwkv", "token_shift_conv"})
    assert [layer.class_name for layer in layers] == ["RwkvSelfAttention", "RwkvFeedForward"] * 2


def test_one_operator_per_channel_whose_rows_are_weighted_means():
    model = model_with_decays()
    layers, _ = captured(model, token_ids(model))
    op = layers[0].operator
    assert (op.count, op.multiplicity, op.state) == (model.config.attention_hidden_size, 1, 1)
    assert (op.tss() == 1).all()
    assert (op.dense() >= 0).all() and (op.dense().sum(-1) - 1).abs().max() < 1e-12


def _changed(op, **parts):
    for name, change in parts.items():
        setattr(op, name, change(getattr(op, name)))
    return op


BEFORE = {
    "bonus": lambda decay, first, key: (decay, torch.zeros_like(first), key),
    "bonus of the right channel": lambda decay, first, key: (decay, first.flip(0), key),
    "exp of the decay": lambda decay, first, key: (decay.exp().clamp_max(3), first, key),
    "channels of the key": lambda decay, first, key: (decay, first, key.roll(1, -1)),
}
AFTER = {
    "diagonal": lambda op: _changed(op, diagonal=lambda d: (op.b * op.c)[..., 0]),
    "the newest token has not decayed": lambda op: _changed(op, c=lambda c: c * 0.9),
    "normaliser": lambda op: _changed(op, c=lambda c: c / c.amax(), diagonal=torch.ones_like),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", [*BEFORE, *AFTER])
def test_what_is_left_out_fails_verification(part, dtype, monkeypatch):
    right = rwkv.operator_of

    def wrong(decay, first, key):
        op, lost = right(*BEFORE[part](decay, first, key)) if part in BEFORE else right(decay, first, key)
        return AFTER[part](op) if part in AFTER else op, lost

    assert_found(model_with_decays(dtype), "rwkv", lambda: monkeypatch.setattr(rwkv, "operator_of", wrong))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_operator_is_the_float64_formula_on_the_captured_features(dtype, monkeypatch):
    model, length = model_with_decays(dtype), 14
    file = sys.modules[type(model).__module__]
    seen = []
    attention = file.rwkv_linear_attention

    def spy(decay, first, key, *args, **kwargs):
        seen.append((decay, first, key[0]))
        return attention(decay, first, key, *args, **kwargs)

    monkeypatch.setattr(file, "rwkv_linear_attention", spy)
    layers, _ = captured(model, token_ids(model, length))
    decay, first, key = (x.detach().double() for x in seen[0])
    assert seen[0][2].dtype == dtype
    logits = torch.full((key.shape[1], length, length), -torch.inf, dtype=torch.float64)
    for i in range(length):
        for j in range(i):
            logits[:, i, j] = key[j] - (i - 1 - j) * torch.exp(decay)
        logits[:, i, i] = key[i] + first
    assert (layers[0].operator.dense() - logits.softmax(-1)).abs().max() < 1e-12
    assert 0 < layers[0].rounding < 0.05


@pytest.mark.parametrize("level", [-9.0, 5.0, 8.0])
def test_hardly_any_decay_and_nothing_but_decay(level):
    model = model_with_decays(low=level, high=level)
    layers, _ = captured(model, token_ids(model, 80))
    for layer in layers[::2]:
        assert layer.verified and layer.operator.dense().isfinite().all()
        assert (layer.operator.dense().sum(-1) - 1).abs().max() < 1e-12


def test_large_keys_do_not_overflow():
    key = torch.tensor([[800.0], [-900.0], [1000.0], [990.0]])
    op, _ = rwkv.operator_of(torch.tensor([0.0]), torch.tensor([1.0]), key)
    logits = torch.tensor([[801.0, -torch.inf, -torch.inf, -torch.inf], [800.0, -899.0, -torch.inf, -torch.inf],
                           [799.0, -900.0, 1001.0, -torch.inf], [798.0, -901.0, 1000.0, 991.0]])  # fmt: skip
    assert torch.allclose(op.dense()[0], logits.double().softmax(-1), atol=1e-14)


def test_a_state_from_before_is_refused():
    records, refusals = [], []
    module = torch.nn.Identity()
    watch = Watch(module, records.append, lambda m, reason: refusals.append(reason), [module])
    attention = rwkv._observed(lambda decay, first, key, value, state, **_: (key, state), watch)
    attention(torch.zeros(3), torch.zeros(3), torch.zeros(1, 4, 3), torch.zeros(1, 4, 3), state=(torch.zeros(1, 3),))
    assert records == [] and "state" in refusals[0]


def test_slow_decay_costs_float32_digits_and_the_bound_says_so():
    model = tiny_model("rwkv", gain=4.0)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("time_decay"):
                parameter.fill_(-4.0)
    layers, _ = captured(model, token_ids(model, 400))
    assert all(isinstance(layer.operator, RecurrentOperator) and layer.verified for layer in layers[::2])
    assert max(layer.error for layer in layers) > 1e-5
