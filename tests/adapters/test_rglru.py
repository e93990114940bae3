"""The RG-LRU of recurrent_gemma: gates computed once more from the module's input and parameters."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from hf_ess.adapters import rglru
from hf_ess.adapters.base import Watch
from hf_ess.agreement import relative_error
from tests.adapters.contract import captured, check, token_ids
from tests.adapters.controls import assert_found
from tests.tiny import tiny_model


def model_with_gates(dtype=torch.float32):
    """Decays from 0.4 to 0.9999 a token."""
    model = tiny_model("recurrent_gemma")
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("recurrent_param"):
                parameter.copy_(torch.linspace(-8, -1, len(parameter)))
    return model.to(dtype)


def test_contract():
    layers = check(model_with_gates(), mixers=3, kinds={"rglru", "softmax"})
    assert [layer.kind for layer in layers] == ["rglru", "rglru", "softmax"]
    assert layers[0].module == "model.layers.0.temporal_block.rg_lru"


def test_one_operator_per_channel_with_a_state_of_one():
    model = model_with_gates()
    layers, _ = captured(model, token_ids(model))
    op = layers[0].operator
    assert (op.count, op.multiplicity, op.state) == (model.config.lru_width, 1, 1)
    assert (op.tss() == 1).all()


def _sqrt(op):
    return torch.sqrt(1 - op.a.square())


def _changed(op, **parts):
    for name, value in parts.items():
        setattr(op, name, value)
    return op


def _transposed(module, reset):
    other = copy.deepcopy(module)
    other.input_gate_weight.data = other.input_gate_weight.mT
    return other, reset


BEFORE = {
    "first token is a reset": lambda module, reset: (module, torch.zeros_like(reset)),
    "layout of the gates": _transposed,
}
AFTER = {
    "sqrt(1 - a^2)": lambda op: _changed(op, b=op.b / _sqrt(op)),
    "input gate": lambda op: _changed(op, b=_sqrt(op)),
    "decay": lambda op: _changed(op, a=op.a.sqrt()),
    "decay of the right channel": lambda op: _changed(op, a=op.a.flip(0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", [*BEFORE, *AFTER])
def test_what_is_left_out_fails_verification(part, dtype, monkeypatch):
    right = rglru.operator_of

    def wrong(module, x, reset):
        module, reset = BEFORE[part](module, reset) if part in BEFORE else (module, reset)
        op, lost = right(module, x, reset)
        return AFTER[part](op) if part in AFTER else op, lost

    assert_found(model_with_gates(dtype), "rglru", lambda: monkeypatch.setattr(rglru, "operator_of", wrong))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_operator_is_the_float64_formula_on_the_captured_features(dtype):
    model, length = model_with_gates(dtype), 12
    module = model.model.layers[0].temporal_block.rg_lru
    seen = []
    handle = module.register_forward_pre_hook(lambda m, args: seen.append(args[0][0].double()))
    layers, _ = captured(model, token_ids(model, length))
    handle.remove()
    x, width = seen[0], module.block_width
    gates = {}
    for name in ("input", "recurrent"):
        weight, bias = (getattr(module, f"{name}_gate_{part}").detach().double() for part in ("weight", "bias"))
        blocks = [x[:, k * width : (k + 1) * width] @ weight[k] + bias[k] for k in range(len(weight))]
        gates[name] = 1 / (1 + torch.exp(-torch.cat(blocks, -1)))
    log_a = -8 * gates["recurrent"] * F.softplus(module.recurrent_param.detach().double())
    T = torch.zeros(x.shape[1], length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(i + 1):
            m = 1.0 if j == 0 else torch.sqrt(1 - torch.exp(2 * log_a[j]))
            T[:, i, j] = torch.exp(log_a[j + 1 : i + 1].sum(0)) * m * gates["input"][j]
    assert (layers[0].operator.dense() - T).abs().max() < 1e-12 * T.abs().max()
    assert layers[0].rounding > 0


def test_a_reset_within_the_text_wipes_the_state():
    module = model_with_gates().model.layers[0].temporal_block.rg_lru
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    x = torch.randn(1, 7, module.recurrent_param.shape[0], generator=torch.Generator().manual_seed(0))
    records = []
    with torch.no_grad(), rglru.RGLRU().watch(Watch(module, records.append, pytest.fail)):
        module(x, positions)
    (seen,) = records
    assert relative_error(seen.operator, seen.inputs, seen.reference) < 1e-5
    assert (seen.operator.dense()[:, 4:, :4] == 0).all()
    assert "_rnn_scan" not in vars(module)


@pytest.mark.parametrize("level", [-10.0, -14.0])
def test_near_a_decay_of_one_float32_itself_is_worse_and_the_bound_says_so(level):
    model = model_with_gates()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("recurrent_param"):
                parameter.fill_(level)
    layers, _ = captured(model, token_ids(model, 64))
    layers = [layer for layer in layers if layer.kind == "rglru"]
    assert all(1e-5 < layer.error <= layer.bound < 20 * layer.error for layer in layers)
    assert max(layer.bound for layer in layers) > 1e-4


def test_a_state_from_before_is_refused():
    module = model_with_gates().model.layers[0].temporal_block.rg_lru
    width = module.recurrent_param.shape[0]
    refusals = []
    module.recurrent_states = torch.zeros(1, width)
    with torch.no_grad(), rglru.RGLRU().watch(Watch(module, pytest.fail, lambda m, why: refusals.append(why))):
        module(torch.ones(1, 5, width), torch.arange(5)[None])
    assert "state" in refusals[0]
