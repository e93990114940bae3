"""Mamba-1 in its four homes: the scan function is the seam, and its operator is the exact scan."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F

from hf_ess.adapters import mamba
from tests.adapters.contract import captured, check, token_ids
from tests.tiny import tiny_model

# mixer calls, kinds
HOMES = {
    "mamba": (2, {"mamba"}),
    "falcon_mamba": (2, {"mamba"}),
    "jamba": (None, {"mamba", "softmax"}),
    "zamba": (None, {"mamba", "softmax"}),
}


@pytest.mark.parametrize("name", HOMES)
def test_contract(name):
    mixers, kinds = HOMES[name]
    model = tiny_model(name)
    ids = token_ids(model)
    calls, _ = captured(model, ids)
    check(model, mixers=mixers or len(calls), kinds=kinds, ids=ids)


def test_hybrids_name_every_layer_by_its_real_number():
    model = tiny_model("jamba")
    layers, _ = captured(model, token_ids(model))
    kinds = {layer.layer: layer.kind for layer in layers}
    attention = [i for i, kind in enumerate(model.config.layers_block_type) if kind == "attention"]
    assert sorted(kinds) == list(range(model.config.num_hidden_layers))
    assert [i for i, kind in kinds.items() if kind == "softmax"] == attention


def test_shared_attention_is_named_by_the_layer_that_runs_it():
    model = tiny_model("zamba")
    layers, _ = captured(model, token_ids(model))
    shared = [layer for layer in layers if layer.kind == "softmax"]
    assert len({layer.module for layer in shared}) == len(shared)
    for layer in shared:
        assert f"layers.{layer.layer}." in layer.module


def test_one_call_per_mamba_head():
    model = tiny_model("zamba")
    heads = model.config.n_mamba_heads
    layers, _ = captured(model, token_ids(model))
    first = [layer for layer in layers if layer.kind == "mamba" and layer.layer == 0]
    assert [layer.call for layer in first] == list(range(heads))
    width = model.config.mamba_expand * model.config.hidden_size
    assert sum(layer.operator.count for layer in first) == width


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", ["bias", "softplus", "B and C", "channel order"])
def test_what_is_left_out_fails_verification(part, dtype, monkeypatch):
    model = tiny_model("falcon_mamba").to(dtype)
    ids = token_ids(model)
    right = mamba.operator_of
    layers, _ = captured(model, ids)
    assert layers and all(layer.verified for layer in layers)

    def wrong(dt, A, B, C, bias=None, softplus=False):
        if part == "bias":
            return right(dt, A, B, C, None, softplus)
        if part == "softplus":
            return right(dt, A, B, C, bias, False)
        if part == "B and C":
            return right(dt, A, C, B, bias, softplus)
        return right(dt.roll(1, 0), A, B, C, bias, softplus)

    monkeypatch.setattr(mamba, "operator_of", wrong)
    layers, _ = captured(model, ids)
    assert all(not layer.verified for layer in layers)


def test_half_precision_operator_is_the_float64_formula_on_the_captured_features():
    model = tiny_model("falcon_mamba").to(torch.bfloat16)
    file = sys.modules[type(model).__module__]
    seen = []
    scan = file.mamba_selective_scan

    def spy(u, dt, A, B, C, **kw):
        seen.append((dt, A, B, C, kw["delta_bias"]))
        return scan(u, dt, A, B, C, **kw)

    file.mamba_selective_scan = spy
    try:
        layers, _ = captured(model, token_ids(model, 12))
    finally:
        file.mamba_selective_scan = scan
    dt, A, B, C, bias = (x.double() for x in seen[0])
    dt = F.softplus(dt[0] + bias[:, None])
    T = torch.zeros(dt.shape[0], 12, 12, dtype=torch.float64)
    for i in range(12):
        for j in range(i + 1):
            decay = torch.exp(A * dt[:, j + 1 : i + 1].sum(-1)[:, None])
            T[:, i, j] = (C[0, :, i] * decay * B[0, :, j]).sum(-1) * dt[:, j]
    assert (layers[0].operator.dense() - T).abs().max() < 1e-12 * T.abs().max()
    assert 0 < layers[0].rounding < 0.05


def test_strong_decay_underflows_to_nothing_not_to_nan():
    model = tiny_model("mamba")
    for block in model.backbone.layers:
        with torch.no_grad():
            block.mixer.A_log.fill_(12.0)
            block.mixer.dt_proj.weight.zero_()
            block.mixer.dt_proj.bias.fill_(3.0)
    layers, _ = captured(model, token_ids(model))
    for layer in layers:
        T = layer.operator.dense()
        assert layer.verified and T.isfinite().all()
        assert (T.tril(-1) == 0).all()
