"""Operators go to a device whole."""

from __future__ import annotations

import pytest
import torch

import hf_ess
from hf_ess.operators import Operator
from hf_ess.spectra.ess import measure
from tests.adapters.contract import captured, token_ids
from tests.tiny import tiny_model

NAMES = ("llama", "gpt_oss", "falcon_mamba", "mamba2", "qwen3_next", "lfm2", "rwkv", "recurrent_gemma", "minimax")


def tensors(value):
    """All tensors of an operator, also those of operators in it."""
    for part in vars(value).values() if isinstance(value, Operator) else value:
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, Operator | tuple | list):
            yield from tensors(part)


@pytest.mark.parametrize("name", NAMES)
def test_all_numbers_of_an_operator_move_and_the_original_stays(name):
    model = tiny_model(name)
    for layer in captured(model, token_ids(model))[0]:
        moved = layer.operator.to("meta")
        assert type(moved) is type(layer.operator) and moved.count == layer.operator.count
        assert {t.device.type for t in tensors(moved)} == {"meta"}
        assert {t.device.type for t in tensors(layer.operator)} == {"cpu"}
        there_and_back = layer.operator.to("cpu")
        assert torch.equal(there_and_back.dense(), layer.operator.dense())


def test_measuring_on_a_named_device_gives_the_same(tmp_path):
    model = tiny_model("jamba")
    ids = token_ids(model)
    here = hf_ess.probe(model, ids, spectra_device="cpu")
    assert here.ess.equals(hf_ess.probe(model, ids).ess) and here.ess.equals(
        hf_ess.probe(model, ids, spectra_device="layer").ess
    )
    assert here.summary["options"]["spectra_device"] == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_counts_on_cuda_are_those_of_the_cpu(name):
    model = tiny_model(name)
    for layer in captured(model, token_ids(model))[0]:
        a, b = (measure(layer.operator.to(where), [1e-1, 1e-3, 1e-5]) for where in ("cpu", "cuda"))
        both = a.resolved & b.resolved
        assert torch.equal(a.counts[both], b.counts[both]) and both.double().mean() > 0.9
        assert torch.allclose(a.frobenius, b.frobenius, rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("device_map", "spectra_device"), [("cuda", "layer"), ("cuda", "cpu"), (None, "cuda")])
def test_a_probe_with_cuda(device_map, spectra_device, tmp_path):
    from tests.tiny import tiny_checkpoint

    folder = tiny_checkpoint(tmp_path / "m", "jamba")
    ids = token_ids(tiny_model("jamba")).tolist()
    options = {"keep": "spectra", "positions": "every:4", "tolerances": (1e-1, 1e-3)}
    here = hf_ess.probe(str(folder), ids, output=tmp_path / "here", **options)
    there = hf_ess.probe(
        str(folder), ids, output=tmp_path / "there", device_map=device_map, spectra_device=spectra_device, **options
    )
    for a, b in zip(here.spectra.entries, there.spectra.entries):
        for i in (4, 16, 28):
            x, y = here.spectra.open(a).at(i), there.spectra.open(b).at(i)
            assert torch.allclose(x, y, rtol=2**-7, atol=1e-5 * float(x.max()))
