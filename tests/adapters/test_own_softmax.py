"""Attention written out in its modelling file, seen through torch, against the weights that the model returns."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hf_ess.adapters import own_softmax
from hf_ess.capturing import capture
from tests.adapters.contract import captured, check, token_ids
from tests.tiny import tiny_model

OWN = {
    "bloom": {},  # ALiBi
    "mpt": {},  # ALiBi
    "falcon": {},
    "falcon alibi": {"alibi": True},
    "falcon grouped": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gpt_neo": {},  # global and local
    "gpt_neox_japanese": {},
    "openai-gpt": {},  # masks with -1e4
    "xglm": {},
    "xlm": {},
    "xlnet": {},  # einsum, relative positions, masks with -1e30
    "git": {},
    "big_bird": {},
    "megatron-bert": {},
    "rembert": {},
    "roformer": {},
    "mvp": {},
    "trocr": {},
    "gpt2": {"reorder_and_upcast_attn": True},
}
HALF = [torch.bfloat16, torch.float16]


def model_of(name, **overrides):
    model = tiny_model(name.split()[0], **{**OWN.get(name, {}), **overrides})
    if not is_causal(model):
        pytest.skip(f"this version of transformers runs {name} without a causal mask")
    return model


def is_causal(model):
    """Whether the first tokens' logits are blind to the last token: in older versions not so of some BERT types."""
    ids = token_ids(model)
    other = ids.clone()
    other[-1] = ids[-1] - 1
    with torch.no_grad():
        a, b = (model(input_ids=x[None], use_cache=False).logits[:, :-1] for x in (ids, other))
    return torch.allclose(a, b, atol=1e-5 * float(a.abs().max()))


def own_weights(model, ids):
    """The attention weights that the model returns itself, one (head, L, L) per layer."""
    with torch.no_grad():
        out = model(input_ids=ids[None], use_cache=False, output_attentions=True)
    return [weights[0].double() for weights in (out.attentions if "attentions" in out else out.decoder_attentions)]


@pytest.mark.parametrize("name", OWN)
def test_contract(name):
    model = model_of(name)
    layers = check(model, mixers=2, kinds={"softmax"})
    assert [layer.call for layer in layers] == [0, 0] and all(layer.error < 1e-6 for layer in layers)


@pytest.mark.parametrize("name", OWN)
def test_the_operator_is_what_the_model_returns_as_its_attention(name):
    model = model_of(name)
    ids = token_ids(model)
    layers, _ = captured(model, ids)
    for T, weights in zip((x.operator.dense() for x in layers), own_weights(model, ids), strict=True):
        assert (T - weights).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", OWN)
def test_in_half_precision_the_operator_is_exact_for_what_the_projections_gave(name, dtype):
    model = model_of(name, gain=1.0).to(dtype)
    ids = token_ids(model)
    layers, skipped = captured(model, ids)
    assert [s for s in skipped if s.called] == []
    for layer in layers:
        assert layer.verified and layer.error < 1e-6
        assert 1e-5 < layer.rounding < 0.05
        rows = layer.operator.dense().sum(-1)
        assert (rows - 1).abs().max() < 1e-12  # not rounded to half precision
    returned = own_weights(model, ids)
    for T, weights in zip((x.operator.dense() for x in layers), returned, strict=True):
        assert (T - weights).abs().max() < 0.1


def test_the_ngram_streams_of_prophetnet_are_named():
    """Their T is triangular, but its entries depend on later tokens: their position bias mixes up tokens and heads."""
    model = model_of("prophetnet")
    ids = token_ids(model)
    layers, skipped = captured(model, ids)
    assert [layer.layer for layer in layers] == [0, 1] and all(layer.verified for layer in layers)
    assert [s.layer for s in skipped] == [0, 1]
    assert all(s.reason == "it is not measured in full: it also attends with 32 queries over 64 keys" for s in skipped)
    other = ids.clone()
    other[10] = ids[10] + 1
    with torch.no_grad():
        one, two = (model(input_ids=x[None], use_cache=False, output_attentions=True) for x in (ids, other))
    assert torch.equal(one.attentions[1][0, :, :10], two.attentions[1][0, :, :10])
    assert not torch.equal(one.ngram_attentions[1][0, :, :, :10], two.ngram_attentions[1][0, :, :, :10])


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("alibi", [False, True])
def test_falcon_that_was_loaded_with_sdpa(alibi, dtype):
    model = tiny_model("falcon", alibi=alibi).to(dtype)
    model.config._attn_implementation_internal = "sdpa"  # what from_pretrained chooses; it cannot be switched
    layers = check(model, mixers=2, kinds={"softmax"})
    assert [layer.operator.count for layer in layers] == [4, 4]
    assert (layers[0].rounding > 0) == (dtype != torch.float32)
    rows = layers[0].operator.dense().sum(-1)
    assert (rows - 1).abs().max() < 1e-12


@pytest.mark.parametrize("alibi", [False, True])
def test_falcon_with_alibi_is_another_model_in_eager(alibi):
    """transformers adds the bias to the mask, and the eager code adds it once more: T follows what was computed."""
    model = tiny_model("falcon", alibi=alibi)
    ids = token_ids(model)
    eager, _ = captured(model, ids)
    model.config._attn_implementation_internal = "sdpa"
    sdpa, _ = captured(model, ids)
    apart = (eager[0].operator.dense() - sdpa[0].operator.dense()).abs().max()
    assert (apart > 1e-2) if alibi else (apart < 1e-6)
    if alibi:
        bias = _slopes(4)[:, None, None] * torch.arange(len(ids)) / model.config.head_dim**0.5
        twice = (sdpa[0].operator.logits() + sdpa[0].operator.mask.double() + bias.double()).softmax(-1)
        assert (eager[0].operator.dense() - twice).abs().max() < 1e-2  # the bias itself is rounded to bfloat16


def test_window_and_state_size():
    window, length = 5, 24
    model = tiny_model("gpt_neo", window_size=window)
    layers, _ = captured(model, token_ids(model, length))
    i = torch.arange(1.0, length, dtype=torch.float64)
    assert torch.equal(layers[0].operator.tss()[0], i)
    assert torch.equal(layers[1].operator.tss()[0], i.clamp_max(window - 1))


def test_a_steep_bias_is_not_a_mask():
    """ALiBi may bring weights to 0 in float64; the state that the layer carries is full all the same."""
    length = 64
    distance = (torch.arange(length)[:, None] - torch.arange(length)).double()
    logits = -torch.tensor([1.0, 400.0])[:, None, None] * distance
    T = own_softmax.operator_of(logits.masked_fill(distance < 0, torch.finfo(torch.float32).min))
    assert (T.dense()[1].tril(-3) == 0).all()
    assert torch.equal(T.tss()[1], torch.arange(1.0, length, dtype=torch.float64))


def _slopes(heads):
    return 2.0 ** (-8 * torch.arange(1.0, heads + 1) / heads)


def _without_alibi(logits):
    return logits - (_slopes(len(logits))[:, None, None] * torch.arange(logits.shape[2])).to(logits)


def _without_window(logits):
    """What lies before the window seen like everything else."""
    hidden = (logits < -1e30) & torch.ones_like(logits, dtype=torch.bool).tril()
    return logits.masked_fill(hidden, 0.0)


CONTROLS = {
    "ALiBi of bloom": ("bloom", _without_alibi),
    "ALiBi of mpt": ("mpt", _without_alibi),
    "ALiBi of falcon": ("falcon alibi", _without_alibi),
    "window of gpt_neo": ("gpt_neo", _without_window),
    "scale": ("roformer", lambda logits: logits * 1.01),
    "head order": ("xglm", lambda logits: logits.roll(1, 0)),
    "sign of the keys": ("xlnet", lambda logits: torch.where(logits > -1e4, -logits, logits)),
}


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("control", CONTROLS)
def test_what_is_left_out_fails_verification(control, dtype, monkeypatch):
    name, forget = CONTROLS[control]
    model = model_of(name).to(dtype)
    ids = token_ids(model)
    layers, _ = captured(model, ids)
    assert layers and all(layer.verified for layer in layers)
    build = own_softmax.operator_of
    monkeypatch.setattr(own_softmax, "operator_of", lambda logits, multiplicity: build(forget(logits), multiplicity))
    layers, _ = captured(model, ids)
    assert layers and max(layer.error for layer in layers) > 1e-3
    assert any(not layer.verified for layer in layers)


@pytest.mark.parametrize("name", ["bloom", "xlnet", "gpt_neo"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloaded_weights(name, dtype):
    from accelerate import cpu_offload

    model = model_of(name).to(dtype)
    ids = token_ids(model)
    there, _ = captured(model, ids)
    cpu_offload(model, execution_device=torch.device("cpu"), offload_buffers=True)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    layers, skipped = captured(model, ids)
    assert skipped == [] and len(layers) == len(there)
    for layer, before in zip(layers, there):
        assert layer.verified and torch.equal(layer.operator.dense(), before.operator.dense())


def _depth():
    return torch._C._len_torch_function_stack()  # how many TorchFunctionModes are on


def test_torch_is_watched_only_where_needed_and_no_longer():
    depths = []

    def look(layer):
        depths.append(_depth())
        raise RuntimeError("on purpose")

    for name, depth in (("llama", 0), ("bert", 0), ("bloom", 1)):
        model = tiny_model(name)
        model.register_forward_pre_hook(lambda *_: depths.append(_depth()))
        with pytest.raises(RuntimeError, match="on purpose"):
            capture(model, token_ids(model), look)
        assert depths[0] == depth and _depth() == 0
        depths.clear()


class Attention(torch.nn.Module):
    """Attention as a repository of its own might write it, in place of llama's."""

    def __init__(self, change=lambda weights: weights, chunk=None):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(64, 64) for _ in range(3))
        self.change, self.chunk = change, chunk

    def forward(self, hidden_states, **_):
        batch, length, width = hidden_states.shape
        x = hidden_states if self.chunk is None else hidden_states.view(-1, self.chunk, width)
        q, k, v = (f(x).unflatten(-1, (4, 16)).transpose(1, 2) for f in (self.q, self.k, self.v))
        logits = q @ k.mT / 4 + torch.full((x.shape[1],) * 2, -torch.inf, dtype=x.dtype).triu(1)
        weights = self.change(F.softmax(logits, -1))
        return (weights @ v).transpose(1, 2).reshape(batch, length, width), None


class SdpaAttention(Attention):
    def forward(self, hidden_states, **_):
        q, k, v = (f(hidden_states).unflatten(-1, (4, 16)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2), None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Attention, SdpaAttention])
def test_code_of_any_repository(kind, dtype):
    model = tiny_model("llama")
    model.model.layers[0].self_attn = kind()
    layers = check(model.to(dtype), mixers=2, kinds={"softmax"})
    assert layers[0].class_name == kind.__name__ and layers[0].operator.multiplicity == 16


@pytest.mark.parametrize(
    "attention, reason",
    [
        (Attention(change=lambda weights: weights * 2), "not what is multiplied"),
        (Attention(change=lambda weights: weights.flip(1)), "not what is multiplied"),
        (Attention(chunk=8), "batch of 4 sequences"),
    ],
)
def test_what_is_not_the_softmax_times_the_values_is_refused(attention, reason):
    model = tiny_model("llama")
    model.model.layers[0].self_attn = attention
    layers, skipped = captured(model, token_ids(model))
    assert [layer.layer for layer in layers] == [1]
    assert len(skipped) == 1 and reason in skipped[0].reason


@pytest.mark.parametrize("dtype", HALF)
def test_code_that_does_not_run_in_float32_is_refused_in_half_precision(dtype):
    model = tiny_model("llama")
    attention = Attention()
    attention.change = lambda weights: weights.view(weights.shape) if weights.dtype == dtype else 1 / 0
    model.model.layers[0].self_attn = attention
    layers, skipped = captured(model.to(dtype), token_ids(model))
    assert [layer.layer for layer in layers] == [1]
    assert "load the model in float32" in skipped[0].reason


def test_cpmant_is_not_causal():
    model = tiny_model("cpmant")
    ids = token_ids(model)
    text = own_weights(model, ids)[0][:, -len(ids) :, -len(ids) :]
    assert text.triu(1).max() > 0.1
    layers, skipped = captured(model, ids)
    assert layers == [] and all("not causal" in s.reason for s in skipped)


def test_bidirectional_xlnet_is_not_causal():
    model = tiny_model("xlnet", attn_type="bi")
    layers, skipped = captured(model, token_ids(model))
    assert layers == [] and all("not causal" in s.reason for s in skipped) and len(skipped) == 2


def test_big_bird_chooses_by_length():
    model_of("big_bird")  # skips where full attention of this type is not causal
    model = tiny_model("big_bird", attention_type="block_sparse", block_size=2, num_random_blocks=1)
    _, skipped = captured(model, token_ids(model, 64))
    assert [s.class_name for s in skipped] == ["BigBirdBlockSparseAttention"] * 2
    assert all("block_sparse" in s.reason for s in skipped)
    layers, skipped = captured(model, token_ids(model, 12))  # the model goes over to full attention, and stays there
    assert skipped == [] and all(layer.verified for layer in layers) and len(layers) == 2


def test_reformer_is_named():
    model = tiny_model("reformer")
    layers, skipped = captured(model, token_ids(model))
    assert layers == []
    assert [s.class_name for s in skipped] == ["LocalSelfAttention", "LSHSelfAttention"]
