"""capture(): streaming, the model left as it was, everything named, nothing guessed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from hf_ess import BadInput, NonFiniteOperator, VerificationFailed
from hf_ess.adapters import softmax
from hf_ess.capturing import capture
from tests.adapters.contract import captured, state, token_ids
from tests.tiny import tiny_model


def test_layers_come_in_order_of_execution_while_the_model_runs():
    model = tiny_model("llama")
    running, order = [], []
    model.model.layers[1].register_forward_hook(lambda *_: running.append("layer 1 done"))
    capture(model, token_ids(model), lambda layer: order.append((layer.layer, list(running))))
    assert order == [(0, []), (1, [])]


def test_one_layer_exists_at_a_time():
    model = tiny_model("llama", num_hidden_layers=4)
    alive = []

    def on_layer(layer):
        gc.collect()
        assert sum(ref() is not None for ref in alive) == 0
        alive.append(weakref.ref(layer.operator))

    capture(model, token_ids(model), on_layer)
    assert len(alive) == 4


@pytest.mark.parametrize("name", ["llama", "falcon_mamba"])
def test_model_is_left_as_it_was_also_after_an_error(name):
    model = tiny_model(name)
    if name == "llama":
        model.set_attn_implementation("sdpa")
    model.train()
    before = state(model)

    def fail(layer):
        assert not model.training
        torch.rand(3)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        capture(model, token_ids(model), fail)
    assert state(model) == before
    capture(model, token_ids(model), lambda layer: None)
    assert state(model) == before


def test_dropout_of_a_model_in_training_does_not_enter():
    model = tiny_model("llama", attention_dropout=0.5)
    model.train()
    layers, _ = captured(model, token_ids(model))
    rows = layers[0].operator.dense().sum(-1)
    assert torch.allclose(rows, torch.ones_like(rows)) and layers[0].verified


def test_sdpa_and_eager_give_the_same_operators():
    model = tiny_model("llama")
    ids = token_ids(model)
    eager, _ = captured(model, ids)
    model.set_attn_implementation("sdpa")
    sdpa, _ = captured(model, ids)
    assert model.config._attn_implementation == "sdpa"
    for a, b in zip(eager, sdpa):
        assert torch.equal(a.operator.dense(), b.operator.dense())


def test_unsupported_mixers_are_named_with_class_and_reason():
    model = tiny_model("mamba2")
    layers, skipped = captured(model, token_ids(model))
    if not layers:
        assert [s.layer for s in skipped] == [0, 1]
        assert all("Mamba2Mixer" in s.reason and s.called for s in skipped)


def test_a_layer_without_any_known_mixer_is_named():
    model = tiny_model("llama")

    class Mystery(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, hidden_states, **kwargs):
            return hidden_states.cumsum(1)

    model.model.layers[1] = Mystery(model.model.layers[1].mlp)
    layers, skipped = captured(model, token_ids(model))
    assert [layer.layer for layer in layers] == [0]
    assert [s.module for s in skipped] == ["model.layers.1"]


def test_a_mixer_without_a_causal_operator_is_named():
    model = tiny_model("cpmant")
    layers, skipped = captured(model, token_ids(model))
    assert layers == []
    assert {s.class_name for s in skipped} == {"CpmAntAttention"}


def test_mixers_that_never_ran_are_listed_apart():
    model = tiny_model("marian")
    layers, skipped = captured(model, token_ids(model))
    assert layers and all(not s.called for s in skipped) and skipped
    assert "encoder_attn" in skipped[0].module


def test_chosen_layers_only():
    model = tiny_model("llama", num_hidden_layers=4)
    seen = []
    skipped = capture(model, token_ids(model), lambda layer: seen.append(layer.layer), layers={1, 3})
    assert seen == [1, 3] and skipped == []


def test_not_finite_is_reported_with_its_layer():
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = float("nan")
    layers, _ = captured(model, token_ids(model))
    assert [layer.finite for layer in layers] == [True, False]
    assert not layers[1].verified
    with pytest.raises(NonFiniteOperator, match=r"layers\.1\.self_attn"):
        capture(model, token_ids(model), lambda layer: None, strict=True)


def test_strict_raises_on_failed_verification(monkeypatch):
    model = tiny_model("llama")
    build = softmax.SoftmaxAttention
    monkeypatch.setattr(softmax, "SoftmaxAttention", lambda q, k, scaling, **kw: build(q, k, 2 * scaling, **kw))
    with pytest.raises(VerificationFailed, match=r"layers\.0\.self_attn.*relative error"):
        capture(model, token_ids(model), lambda layer: None, strict=True)


@pytest.mark.parametrize("ids", [[5], [[1, 2], [3, 4]], []])
def test_bad_ids(ids):
    with pytest.raises(BadInput, match="one sequence of at least 2 token ids"):
        capture(tiny_model("llama"), ids, lambda layer: None)


def test_compiled_model_is_refused():
    model = torch.compile(tiny_model("llama"), backend="eager")
    with pytest.raises(BadInput, match=r"torch\.compile"):
        capture(model, [1, 2, 3], lambda layer: None)


def test_mixers_of_an_image_tower_do_not_mix_the_text():
    from hf_ess.adapters.inventory import is_mixer, layer_number

    class SomeAttention(torch.nn.Module):
        pass

    assert not is_mixer("vision_tower.encoder.layers.0.self_attn", SomeAttention())
    assert is_mixer("model.layers.0.self_attn", SomeAttention())
    assert layer_number("model.language_model.layers.7.self_attn") == 7
