"""What the adapters share: everything replaced is put back, and weights that are moved in and out are seen in time."""

from __future__ import annotations

import sys

import pytest
import torch

from hf_ess.adapters.base import Watch
from hf_ess.adapters.seams import Gives, Hears, lost_in_chunks, observing, replaced, run, twin
from tests.adapters.contract import captured, token_ids
from tests.tiny import tiny_model


def test_a_replaced_function_is_put_back_after_an_error_too():
    model = tiny_model("mamba2")
    file = sys.modules[type(model).__module__]
    scan = file.mamba2_chunk_scan
    watch = Watch(model, pytest.fail, pytest.fail)
    with pytest.raises(RuntimeError, match="stop"), observing(watch, "mamba2_chunk_scan", lambda function, _: None):
        assert file.mamba2_chunk_scan is None
        raise RuntimeError("stop")
    assert file.mamba2_chunk_scan is scan


def test_a_replaced_method_of_a_class_leaves_no_trace_on_its_objects():
    class Thing:
        def name(self):
            return "own"

    thing = Thing()
    with replaced(Thing, "name", lambda self: "other"):
        assert thing.name() == "other"
    assert thing.name() == "own" and vars(thing) == {}


def test_a_twin_is_in_float32_without_hooks_and_leaves_the_layer_alone():
    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).to(torch.bfloat16)
    layer.scale = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    layer.register_forward_hook(lambda *_: pytest.fail("the hook of the layer ran"))
    heard = Hears()
    other = twin(layer, **{"0": Gives(torch.ones(2, 3)), "1": heard})
    assert other.scale.dtype == torch.float32 and layer.scale.dtype == torch.bfloat16
    assert torch.equal(other(torch.zeros(2, 3)), torch.ones(2, 3)) and torch.equal(heard.heard, torch.ones(2, 3))
    assert torch.equal(run(other, None), torch.ones(2, 3))
    assert isinstance(layer[0], torch.nn.Linear) and len(layer._forward_hooks) == 1


def test_the_loss_of_decays_from_sums_grows_with_the_sum_and_not_with_what_has_gone():
    mild = torch.full((1, 64), -0.01)
    after_a_reset = mild.clone()
    after_a_reset[:, 0] = -320.0
    nothing_left = torch.full((1, 64), -320.0)
    assert lost_in_chunks(mild, 64) < 1e-7 < lost_in_chunks(after_a_reset, 64) < 1e-4
    assert lost_in_chunks(nothing_left, 64) < 1e-30
    assert lost_in_chunks(after_a_reset.repeat(1, 3), 64) == lost_in_chunks(after_a_reset, 64)


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "recurrent_gemma", "rwkv", "minimax", "xlstm", "lfm2"])
def test_offloaded_weights_are_seen_while_they_are_there(name):
    from accelerate import cpu_offload

    model = tiny_model(name)
    ids = token_ids(model)
    there, _ = captured(model, ids)
    cpu_offload(model, execution_device=torch.device("cpu"), offload_buffers=True)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    layers, skipped = captured(model, ids)
    assert skipped == [] and len(layers) == len(there)
    for layer, before in zip(layers, there):
        assert layer.verified and torch.equal(layer.operator.dense(), before.operator.dense())
    assert {p.device.type for p in model.parameters()} == {"meta"}
