"""The mLSTM of xlstm: exponential gates and a normaliser with a floor."""

from __future__ import annotations

import pytest
import torch

from hf_ess.adapters import mlstm
from hf_ess.adapters.base import Watch
from tests.adapters.contract import captured, check, token_ids
from tests.adapters.controls import assert_found
from tests.tiny import tiny_model


def xlstm(dtype=torch.float32, **overrides):
    """In half precision transformers cannot run a whole chunk (its state is float32): a chunk longer than the text."""
    return tiny_model("xlstm", **{"chunk_size": 16 if dtype == torch.float32 else 64, **overrides}).to(dtype)


def test_contract():
    layers = check(xlstm(), mixers=2, kinds={"mlstm"})
    assert layers[0].module == "backbone.blocks.0.mlstm_layer.mlstm_backend"


@pytest.mark.parametrize("length", [10, 16, 40, 150])
def test_chunks_and_what_is_left_of_them(length):
    model = xlstm()
    layers, _ = captured(model, token_ids(model, length))
    assert len(layers) == 2 and all(layer.verified for layer in layers)


def test_one_operator_per_head_and_its_channels():
    model = xlstm()
    config = model.config
    layers, _ = captured(model, token_ids(model))
    op = layers[0].operator
    assert (op.count, op.multiplicity, op.state) == (config.num_heads, config.v_head_dim, 8)
    assert config.hidden_size * config.qk_dim_factor / config.num_heads == 8
    assert (op.tss() == 8).all()


def _changed(op, **parts):
    for name, change in parts.items():
        setattr(op, name, change(getattr(op, name)))
    return op


BEFORE = {
    "input gate": lambda q, k, i, f, eps: (q, k, torch.zeros_like(i), f, eps),
    "forget gate": lambda q, k, i, f, eps: (q, k, i, f + 1, eps),
    "queries and keys": lambda q, k, i, f, eps: (k, q, i, f, eps),
    "gates of the right head": lambda q, k, i, f, eps: (q, k, i.roll(1, 0), f.roll(1, 0), eps),
    "epsilon": lambda q, k, i, f, eps: (q, k, i, f, 0.0),
    "scale": lambda q, k, i, f, eps: (q * q.shape[-1] ** 0.5, k, i, f, eps),
}
AFTER = {
    "normaliser": lambda op, q: _changed(op, c=lambda c: q.double() * q.shape[-1] ** -0.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", [*BEFORE, *AFTER])
def test_what_is_left_out_fails_verification(part, dtype, monkeypatch):
    right = mlstm.operator_of

    def wrong(q, k, i, f, eps, multiplicity):
        op, lost = right(*(BEFORE[part](q, k, i, f, eps) if part in BEFORE else (q, k, i, f, eps)), multiplicity)
        return AFTER[part](op, q) if part in AFTER else op, lost

    assert_found(xlstm(dtype, eps=0.1), "mlstm", lambda: monkeypatch.setattr(mlstm, "operator_of", wrong))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_operator_is_the_float64_formula_on_the_captured_features(dtype):
    model, length = xlstm(dtype, eps=1e-2), 20
    module = model.backbone.blocks[0].mlstm_layer.mlstm_backend
    seen = []
    handle = module.register_forward_pre_hook(lambda m, args, kwargs: seen.append(kwargs), with_kwargs=True)
    layers, _ = captured(model, token_ids(model, length))
    handle.remove()
    q, k, i_gate, f_gate = (seen[0][name][0].double() for name in ("query", "key", "igate", "fgate"))
    F = torch.cumsum(-torch.log1p(torch.exp(-f_gate)), -1)
    exponent = (F[:, :, None] - F[:, None] + i_gate[:, None]).masked_fill(
        torch.ones(length, length).triu(1).bool(), -torch.inf
    )
    W = torch.exp(exponent) * (q @ k.mT) * q.shape[-1] ** -0.5
    m = torch.maximum(exponent.amax(-1), F)  # the maximum starts from 0 before the first token
    T = W / (W.sum(-1).abs().clamp_min(1.0) + 1e-2 * torch.exp(m))[..., None]
    floor = W.sum(-1).abs() < 1
    assert floor.any() and not floor.all()
    assert (layers[0].operator.dense() - T).abs().max() < 1e-12 * T.abs().max()
    assert 0 < layers[0].rounding < 0.2


def test_where_the_normaliser_cancels_float32_itself_is_worse_and_the_bound_says_so():
    model = xlstm()
    big = tiny_model("xlstm", gain=4.0)
    usual, _ = captured(model, token_ids(model))
    layers, _ = captured(big, token_ids(big, 150))
    assert max(layer.error for layer in layers) > 1e-5 >= min(layer.error for layer in usual)
    assert all(layer.verified for layer in layers)


def test_extreme_gates_stay_finite():
    q = k = torch.ones(1, 6, 2)
    gates = torch.tensor([[-800.0, 900.0, -900.0, 0.0, 800.0, -1000.0]])
    op, _ = mlstm.operator_of(q, k, gates, -gates, 1e-6)
    assert op.is_finite() and op.dense().isfinite().all()
    closed = torch.full((1, 6), -1e4)
    op, _ = mlstm.operator_of(q, k, closed, closed, 1e-6)
    assert op.is_finite() and (op.dense().tril(-1) == 0).all()


def test_a_long_text_that_is_run_in_pieces_is_refused():
    model = xlstm(max_inference_chunksize=20, hidden_size=128)
    layers, skipped = captured(model, token_ids(model, 32))
    assert layers == []
    assert {s.layer for s in skipped} == {0, 1} and all("state" in s.reason for s in skipped)


def test_a_batch_is_refused():
    refusals = []
    watch = Watch(torch.nn.Identity(), pytest.fail, lambda m, reason: refusals.append(reason))
    features = dict.fromkeys(("query", "key", "value"), torch.zeros(2, 1, 4, 3))
    mlstm._record(watch, torch.nn.Identity(), {**features, "igate": None, "fgate": None}, None)
    assert "batch of 2" in refusals[0]
