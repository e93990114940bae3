"""The gated delta rule with one decay per head (Gated DeltaNet) and per key channel (Kimi delta attention)."""

from __future__ import annotations

import sys

import pytest
import torch

from hf_ess.adapters import delta
from hf_ess.adapters.base import Watch
from hf_ess.operators import RecurrentOperator
from tests.adapters.contract import captured, check, token_ids
from tests.adapters.controls import assert_found
from tests.tiny import tiny_model

KINDS = {
    "qwen3_next": "gated_deltanet",
    "qwen3_5": "gated_deltanet",
    "qwen3_5_text": "gated_deltanet",
    "qwen3_5_moe": "gated_deltanet",
    "qwen3_5_moe_text": "gated_deltanet",
    "qwen4_exp": "gated_deltanet",
    "qwen4_exp_text": "gated_deltanet",
    "olmo_hybrid": "gated_deltanet",
    "lara_mini": "gated_deltanet",
    "kimi_linear": "kimi_delta",
    "bailing_hybrid": "kimi_delta",
}


@pytest.mark.parametrize("name", KINDS)
def test_contract(name):
    model = tiny_model(name)
    layers = check(model, mixers=model.config.get_text_config().num_hidden_layers, kinds={KINDS[name], "softmax"})
    assert all(layer.bound >= 1e-4 for layer in layers if layer.kind == KINDS[name])


@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear"])
def test_several_chunks(name):
    model = tiny_model(name)
    layers, _ = captured(model, token_ids(model, 150))
    assert all(layer.verified for layer in layers)


def test_one_operator_per_value_head_and_its_channels():
    model = tiny_model("qwen3_next", linear_value_head_dim=8)
    config = model.config
    layers, _ = captured(model, token_ids(model))
    op = layers[0].operator
    assert (op.count, op.multiplicity, op.state) == (config.linear_num_value_heads, 8, config.linear_key_head_dim)
    # older versions of transformers repeat the key heads themselves, before the call
    assert op.k.shape[0] in (config.linear_num_key_heads, op.count) and config.linear_num_key_heads < op.count
    assert (op.tss() == config.linear_key_head_dim).all()


def test_corrections_may_overshoot_in_olmo_hybrid():
    model = tiny_model("olmo_hybrid")
    layers, _ = captured(model, token_ids(model))
    beta = layers[0].operator.beta
    assert layers[0].verified and 1.5 < beta.max() <= 2.0


def _set(name, change):
    def changed(op):
        setattr(op, name, change(getattr(op, name)))
        return op

    return changed


def _decays_after_erasing(op):
    """diag(e^g) (I - beta k k^T) instead of (I - beta k k^T) diag(e^g)."""
    right, k = op.recurrent(), op.k[op.groups]
    return RecurrentOperator(right.a, right.b, right.c, (right.a * right.b, k), op.multiplicity)


def _never_erases(op):
    right = op.recurrent()
    return RecurrentOperator(right.a, right.b, right.c, multiplicity=op.multiplicity)


CONTROLS = {
    "scale": ("qwen3_next", _set("q", lambda q: q * q.shape[-1] ** 0.5)),
    "beta": ("qwen3_next", _set("beta", torch.ones_like)),
    "range of beta": ("olmo_hybrid", _set("beta", lambda beta: beta.clamp_max(1.0))),
    "decay": ("qwen3_next", _set("g", torch.zeros_like)),
    "key head order": ("qwen3_next", _set("groups", lambda groups: groups.flip(0))),
    "consecutive heads share": ("qwen3_next", _set("groups", lambda g: torch.arange(len(g)) % (int(g.max()) + 1))),
    "erasure": ("qwen3_next", _never_erases),
    "decay per key channel": ("kimi_linear", _set("g", lambda g: g.mean(-1, keepdim=True))),
    "order of decay and erasure": ("kimi_linear", _decays_after_erasing),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("control", CONTROLS)
def test_what_is_left_out_fails_verification(control, dtype, monkeypatch):
    name, change = CONTROLS[control]
    model, right = tiny_model(name).to(dtype), delta.operator_of
    layers, _ = captured(model, token_ids(model))
    if control == "consecutive heads share" and layers[0].operator.k.shape[0] == layers[0].operator.count:
        pytest.skip("this version of transformers repeats the key heads before the call")
    assert_found(
        model,
        KINDS[name],
        lambda: monkeypatch.setattr(delta, "operator_of", lambda *args, **options: change(right(*args, **options))),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear"])
def test_a_left_out_normalisation_or_its_epsilon_fails_verification(name, dtype, monkeypatch):
    right = delta.operator_of
    assert_found(_short_keys(name, dtype), KINDS[name], lambda: monkeypatch.setattr(delta, "EPS", 0.0))
    monkeypatch.undo()
    assert_found(
        tiny_model(name).to(dtype),
        KINDS[name],
        lambda: monkeypatch.setattr(delta, "operator_of", lambda *x, **o: right(*x, **{**o, "normalise": False})),
    )


def _short_keys(name, dtype):
    """A model whose queries and keys are so short that the epsilon of their normalisation matters."""
    model = tiny_model(name)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("conv1d.weight"):
                parameter.mul_(2e-3)
    return model.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name, function", [("qwen3_next", "torch_chunk_gated_delta_rule"), ("kimi_linear", "chunk_kimi_delta_attention")]
)
def test_half_precision_operator_is_the_float64_formula_on_the_captured_features(name, function, dtype, monkeypatch):
    model, length = tiny_model(name).to(dtype), 20
    file = sys.modules[type(model).__module__]
    seen = []
    rule = getattr(file, function)

    def spy(q, k, v, **kwargs):
        seen.append((q, k, kwargs["g"], kwargs["beta"]))
        return rule(q, k, v, **kwargs)

    monkeypatch.setattr(file, function, spy)
    layers, _ = captured(model, token_ids(model, length))
    layer = next(layer for layer in layers if layer.kind != "softmax")
    assert seen[0][0].dtype == dtype
    q, k, g, beta = (x[0].double() for x in seen[0])
    T = torch.zeros(beta.shape[1], length, length, dtype=torch.float64)
    for h in range(T.shape[0]):
        kh = h // (T.shape[0] // k.shape[1])
        keys = k[:, kh] / (k[:, kh].square().sum(-1, keepdim=True) + 1e-6).sqrt()
        queries = q[:, kh] / (q[:, kh].square().sum(-1, keepdim=True) + 1e-6).sqrt() / q.shape[-1] ** 0.5
        for i in range(length):
            r = queries[i].clone()  # the row of T is read from the output back to the inputs
            for j in range(i, -1, -1):
                T[h, i, j] = beta[j, h] * (r @ keys[j])
                r = torch.exp(g[j, h]) * (r - T[h, i, j] * keys[j])
    assert (layer.operator.dense() - T).abs().max() < 1e-12 * T.abs().max()
    assert 0 < layer.rounding < 0.05


def test_a_kernel_bound_to_the_name_is_seen_with_its_own_signature(monkeypatch):
    model = tiny_model("qwen3_next")
    file = sys.modules[type(model).__module__]
    rule = file.torch_chunk_gated_delta_rule

    def chunk_gated_delta_rule(
        q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
        cu_seqlens=None, **_,
    ):  # fmt: skip
        return rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel)

    monkeypatch.setattr(file, "torch_chunk_gated_delta_rule", chunk_gated_delta_rule)
    layers, _ = captured(model, token_ids(model))
    assert "gated_deltanet" in {layer.kind for layer in layers} and all(layer.verified for layer in layers)
    assert file.torch_chunk_gated_delta_rule is chunk_gated_delta_rule


@pytest.mark.parametrize("name", ["qwen3_next", "kimi_linear"])
def test_strong_decay_forgets_and_stays_finite(name):
    model = tiny_model(name)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("A_log"):
                parameter.fill_(9.0)
    layers, _ = captured(model, token_ids(model, 80))
    for layer in layers:
        assert layer.finite and layer.error <= layer.bound, (layer.error, layer.bound)
        assert layer.operator.dense().isfinite().all()


def test_a_state_from_before_is_refused():
    records, refusals = [], []
    module = torch.nn.Identity()
    watch = Watch(module, records.append, lambda m, reason: refusals.append((m, reason)), [module])
    rule = delta._observed("gated_deltanet")(lambda q, *args, **kwargs: (q, None), watch)
    q, beta = torch.zeros(1, 5, 2, 4), torch.zeros(1, 5, 2)
    rule(q, q, q, g=beta, beta=beta, initial_state=torch.zeros(1, 2, 4, 4))
    assert records == [] and "state" in refusals[0][1]
