"""Mamba-2 in its six homes: the chunked scan is the seam, and its operator is the exact scan."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F

from hf_ess.adapters import mamba2
from hf_ess.adapters.base import Watch
from hf_ess.agreement import relative_error
from tests.adapters.contract import captured, check, token_ids
from tests.adapters.controls import assert_found
from tests.tiny import tiny_model

# mixer calls, kinds
HOMES = {
    "mamba2": (2, {"mamba2"}),
    "bamba": (2, {"mamba2", "softmax"}),
    "falcon_h1": (4, {"mamba2", "softmax"}),
    "granitemoehybrid": (2, {"mamba2", "softmax"}),
    "nemotron_h": (2, {"mamba2", "softmax"}),
    "zamba2": (6, {"mamba2", "softmax"}),
}


@pytest.mark.parametrize("name", HOMES)
def test_contract(name):
    mixers, kinds = HOMES[name]
    check(tiny_model(name), mixers=mixers, kinds=kinds)


def test_attention_and_scan_side_by_side_in_one_layer_are_two_records():
    model = tiny_model("falcon_h1")
    layers, _ = captured(model, token_ids(model))
    assert [layer.layer for layer in layers] == [0, 0, 1, 1]
    assert len({layer.module for layer in layers}) == 4
    assert {layer.kind for layer in layers if layer.layer == 0} == {"mamba2", "softmax"}


def test_layers_that_only_feed_forward_are_not_missed_mixers():
    model = tiny_model("nemotron_h")
    layers, skipped = captured(model, token_ids(model))
    assert [(layer.layer, layer.kind) for layer in layers] == [(0, "mamba2"), (2, "softmax")]
    assert skipped == []


def test_one_operator_per_head_and_its_channels():
    model = tiny_model("mamba2")
    config = model.config
    layers, _ = captured(model, token_ids(model))
    op = layers[0].operator
    assert (op.count, op.multiplicity, op.state) == (config.num_heads, config.head_dim, config.state_size)
    assert op.B.shape[0] == config.n_groups < config.num_heads
    assert (op.tss() == config.state_size).all()


def _clamped(dtype):
    """A model whose step sizes lie below, within and above the limits of the clamp."""
    model = tiny_model("mamba2", time_step_limit=(0.02, 0.5)).to(dtype)
    with torch.no_grad():
        for block in model.backbone.layers:
            block.mixer.dt_bias.copy_(torch.linspace(-6, 2, block.mixer.num_heads))
    return model


PARTS = {
    "bias": lambda dt, A, B, C, o: (dt, A, B, C, {**o, "bias": None}),
    "softplus": lambda dt, A, B, C, o: (dt, A, B, C, {**o, "softplus": False}),
    "clamp": lambda dt, A, B, C, o: (dt, A, B, C, {**o, "limit": None}),
    "B and C": lambda dt, A, B, C, o: (dt, A, C, B, o),
    "group order": lambda dt, A, B, C, o: (dt, A, B.flip(1), C.flip(1), o),
    "head order": lambda dt, A, B, C, o: (dt.roll(1, 1), A, B, C, o),
    "dt in b": lambda dt, A, B, C, o: (dt, A, B / 0.3, C, o),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", PARTS)
def test_what_is_left_out_fails_verification(part, dtype, monkeypatch):
    right = mamba2.operator_of

    def wrong(dt, A, B, C, *, multiplicity, **options):
        dt, A, B, C, options = PARTS[part](dt, A, B, C, options)
        return right(dt, A, B, C, multiplicity=multiplicity, **options)

    assert_found(_clamped(dtype), "mamba2", lambda: monkeypatch.setattr(mamba2, "operator_of", wrong))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_operator_is_the_float64_formula_on_the_captured_features(dtype, monkeypatch):
    model, length = _clamped(dtype), 20
    file = sys.modules[type(model).__module__]
    seen = []
    scan = file.mamba2_chunk_scan

    def spy(x, dt, A, B, C, **kwargs):
        seen.append((dt, A, B, C, kwargs["dt_bias"]))
        return scan(x, dt, A, B, C, **kwargs)

    monkeypatch.setattr(file, "mamba2_chunk_scan", spy)
    layers, _ = captured(model, token_ids(model, length))
    dt, A, B, C, bias = (x.double() for x in seen[0])
    dt = F.softplus(dt[0] + bias).clamp(0.02, 0.5)
    heads, groups = dt.shape[1], B.shape[2]
    T = torch.zeros(heads, length, length, dtype=torch.float64)
    for h in range(heads):
        group = h // (heads // groups)
        for i in range(length):
            for j in range(i + 1):
                decay = torch.exp(A[h] * dt[j + 1 : i + 1, h].sum())
                T[h, i, j] = (C[0, i, group] @ B[0, j, group]) * decay * dt[j, h]
    assert (layers[0].operator.dense() - T).abs().max() < 1e-12 * T.abs().max()
    assert 0 < layers[0].rounding < 0.05


def test_a_kernel_bound_to_the_name_is_seen_with_its_own_signature(monkeypatch):
    model = tiny_model("bamba")
    file = sys.modules[type(model).__module__]
    torch_scan = file.mamba2_chunk_scan
    calls = []

    def mamba_chunk_scan_combined(
        x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None,
        cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, float("inf")), return_final_states=False,
    ):  # fmt: skip
        calls.append(x.dtype)
        out = torch_scan(
            x, dt, A, B, C, chunk_size=chunk_size, D=D, dt_bias=dt_bias, dt_softplus=dt_softplus, dt_limit=dt_limit
        )
        return (out, None) if return_final_states else out

    monkeypatch.setattr(file, "mamba2_chunk_scan", mamba_chunk_scan_combined)
    layers, _ = captured(model, token_ids(model))
    assert len(calls) == 2  # the model's own call, and the reference
    assert all(layer.verified for layer in layers)
    assert file.mamba2_chunk_scan is mamba_chunk_scan_combined


def test_after_a_reset_float32_itself_is_worse_and_the_bound_says_so():
    from transformers.models.mamba2 import modeling_mamba2

    torch.manual_seed(0)
    length, heads = 512, 4
    x, dt = torch.randn(1, length, heads, 8), 1e-3 * torch.rand(1, length, heads)
    dt[:, ::50] = 20.0
    B, C = torch.randn(2, 1, length, 1, 16)
    records = []
    watch = Watch(torch.nn.Identity(), records.append, pytest.fail, [torch.nn.Identity()])
    scan = mamba2._observed(modeling_mamba2.mamba2_chunk_scan, watch)
    scan(x, dt, torch.tensor([-1.0, -4.0, -16.0, -16.0]), B, C, chunk_size=256)
    (seen,) = records
    assert 1e-5 < relative_error(seen.operator, seen.inputs, seen.reference) < seen.bound < 1e-3


def test_strong_decay_underflows_to_nothing_not_to_nan():
    model = tiny_model("mamba2")
    with torch.no_grad():
        for block in model.backbone.layers:
            block.mixer.A_log.fill_(12.0)
            block.mixer.dt_bias.fill_(30.0)
    layers, _ = captured(model, token_ids(model))
    for layer in layers:
        T = layer.operator.dense()
        assert layer.verified and T.isfinite().all()
        assert (T.tril(-1) == 0).all()


@pytest.mark.parametrize("batch, state", [(2, None), (1, torch.zeros(1, 2, 4, 3))])
def test_a_batch_or_a_state_from_before_is_refused(batch, state):
    records, refusals = [], []
    module = torch.nn.Identity()
    watch = Watch(module, records.append, lambda m, reason: refusals.append((m, reason)), [module])
    scan = mamba2._observed(lambda x, *args, **kwargs: x, watch)
    x, dt, B = torch.zeros(batch, 5, 2, 4), torch.zeros(batch, 5, 2), torch.zeros(batch, 5, 1, 3)
    assert scan(x, dt, -torch.ones(2), B, B, chunk_size=16, initial_states=state) is x
    assert records == [] and refusals[0][0] is module
