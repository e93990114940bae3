"""The token shift of RWKV's feed-forward network."""

from __future__ import annotations

import pytest
import torch

from hf_ess.adapters import tokenshift
from tests.adapters.contract import captured, check, token_ids
from tests.adapters.controls import assert_found
from tests.tiny import tiny_model


def model_of(dtype=torch.float32):
    """Shares of the current token from 0.1 to 0.9, other ones for the receptance."""
    model = tiny_model("rwkv")
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "feed_forward.time_mix" in path:
                shares = torch.linspace(0.1, 0.9, parameter.numel())
                parameter.copy_((shares if "key" in path else shares.flip(0))[None, None])
    return model.to(dtype)


def test_contract():
    layers = check(model_of(), mixers=4, kinds={"rwkv", "token_shift_conv"})
    found = [layer for layer in layers if layer.kind == "token_shift_conv"]
    width = model_of().config.hidden_size
    assert [layer.operator.count for layer in found] == [2 * width] * 2
    assert (found[0].operator.tss() == 1).all()
    T = found[0].operator.dense()
    assert torch.allclose(T[0].diagonal(), torch.tensor(0.1).double()) and torch.allclose(
        T[0].diagonal(-1), torch.tensor(0.9).double()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model = model_of(dtype)
    layers, skipped = captured(model, token_ids(model))
    assert skipped == []
    for layer in layers:
        if layer.kind == "token_shift_conv":
            assert layer.verified and layer.error < 1e-6 and 1e-5 < layer.rounding < 0.02


CONTROLS = {
    "token before": lambda mu, length: convolution_of(torch.ones_like(mu), torch.ones_like(mu), length),
    "order": lambda mu, length: convolution_of(1 - mu, 1 - mu, length),
    "receptance of its own": lambda mu, length: convolution_of(mu, mu, length),
}
convolution_of = tokenshift.operator_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", CONTROLS)
def test_what_is_left_out_fails_verification(part, dtype, monkeypatch):
    def wrong(key, receptance, length):
        return CONTROLS[part](key, length)

    assert_found(model_of(dtype), "token_shift_conv", lambda: monkeypatch.setattr(tokenshift, "operator_of", wrong))
