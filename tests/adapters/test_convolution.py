"""Short convolutions that stand in a layer by themselves."""

from __future__ import annotations

import pytest
import torch

from hf_ess.adapters import convolution
from hf_ess.operators import ConvolutionOperator
from tests.adapters.contract import captured, check, token_ids
from tests.adapters.controls import assert_found
from tests.tiny import tiny_model

# calls of attention, and of convolutions after it and after the MLP
HOMES = {"inkling_text": (2, 4), "inkling2_text": (2, 4), "inkling2_loop_text": (6, 12)}


@pytest.mark.parametrize("name", HOMES)
def test_contract(name):
    attention, alone = HOMES[name]
    layers = check(tiny_model(name), mixers=attention + alone, kinds={"softmax", "convolution"})
    found = [layer for layer in layers if layer.kind == "convolution"]
    assert len(found) == alone
    assert not any("self_attn" in layer.module for layer in found)  # those of keys and values are no layers


def test_every_text_has_the_same_operator_with_a_memory_of_a_few_tokens():
    model = tiny_model("inkling_text")
    runs = [captured(model, token_ids(model, seed=seed))[0] for seed in (1, 2)]
    for one, other in zip(*runs, strict=True):
        same = torch.equal(one.operator.dense(), other.operator.dense())
        assert same == (one.kind == "convolution")
    op = next(layer.operator for layer in runs[0] if layer.kind == "convolution")
    assert (op.count, op.multiplicity, op.width) == (model.config.hidden_size, 1, model.config.sconv_kernel_size)
    assert torch.equal(op.tss()[0], torch.arange(1, 32).clamp_max(op.width - 1).double())
    weight = model.model.layers[0].attn_sconv.conv1d.weight[:, 0]
    u = torch.randn(32)
    padded = torch.nn.functional.pad(u, (op.width - 1, 0))
    expected = padded.unfold(0, op.width, 1) @ weight.T
    assert torch.allclose(op.apply(u[None, :, None].expand(op.count, -1, 1))[..., 0].T.float(), expected, atol=1e-5)


@pytest.mark.parametrize("rounded", [False, True])
def test_half_precision(rounded):
    model = tiny_model("inkling_text").to(torch.bfloat16)
    if not rounded:  # as from_pretrained loads it
        for path, module in model.named_modules():
            if path.endswith("sconv"):
                module.float()
    layers, skipped = captured(model, token_ids(model))
    found = [layer for layer in layers if layer.kind == "convolution"]
    assert skipped == [] and len(found) == 4 and all(layer.verified and layer.error < 1e-6 for layer in found)
    assert all((layer.rounding > 1e-4) == rounded for layer in found)


def _one_tap(weight, length):
    return ConvolutionOperator(weight[:, -1:], *torch.ones(2, len(weight), length))


CONTROLS = {
    "order of the taps": lambda weight, length: convolution_of(weight.flip(-1), length),
    "taps of the right channel": lambda weight, length: convolution_of(weight.roll(1, 0), length),
    "all but the newest tap": _one_tap,
    "residual": lambda weight, length: convolution_of(weight + torch.eye(weight.shape[1])[-1].to(weight), length),
}
convolution_of = convolution.operator_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", CONTROLS)
def test_what_is_left_out_fails_verification(part, dtype, monkeypatch):
    model = tiny_model("inkling_text").to(dtype)
    assert_found(model, "convolution", lambda: monkeypatch.setattr(convolution, "operator_of", CONTROLS[part]))


def test_a_dilated_convolution_of_hashed_ngrams_is_named():
    model = tiny_model("qwen4_exp_text", ple_layer_ids=[1], heads_per_ngram=4)
    layers, skipped = captured(model, token_ids(model))
    assert [s.class_name for s in skipped] == ["Qwen4ExpTextPLELayer"] and skipped[0].called
    assert [layer.layer for layer in layers] == [0, 1]
