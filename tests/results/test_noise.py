"""The noise floor: rounding features of that size moves no singular value further, and it is said where it matters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hf_ess
from hf_ess.results import noise
from hf_ess.spectra.reference import all_spectra
from tests.adapters.contract import captured, token_ids
from tests.tiny import tiny_model


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["bfloat16", "float16", "float32"]))
def test_rounding_every_entry_moves_no_singular_value_beyond_the_floor(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    size = torch.randn(2, 12, 12, generator=generator, dtype=torch.float64) * 10
    T = (torch.randn(2, 12, 12, generator=generator, dtype=torch.float64) * size.exp().clamp(1e-3, 1e3)).tril()
    rounded = T.to(getattr(torch, dtype)).double()
    exact, moved = all_spectra(T), all_spectra(rounded)
    frobenius = torch.stack([s.square().sum(-1).sqrt() for s in exact], -1)
    floor = noise.floors(frobenius, dtype)
    for a, b in zip(exact, moved):
        assert ((a - b).abs() <= floor[:, None] * (1 + 1e-9)).all()
    assert (torch.stack([(a - b).abs().amax(1) for a, b in zip(exact, moved)]).amax(0) > 0).all()


@pytest.mark.parametrize(("dtype", "rounding"), [("bfloat16", 2**-8), ("float16", 2**-11)])
@pytest.mark.parametrize("name", ["llama", "falcon_mamba"])
def test_a_tolerance_below_the_floor_is_named(name, dtype, rounding, tmp_path):
    model = tiny_model(name).to(getattr(torch, dtype))
    ids = token_ids(model)
    tolerances = (10.0, 1e-6)
    result = hf_ess.probe(model, ids, tolerances=tolerances, output=tmp_path / "out", keep="spectra", positions="all")
    layers, _ = captured(model, ids)
    for info, layer in zip(result.layers, layers):
        frobenius = torch.stack([s.square().sum(-1).sqrt() for s in all_spectra(layer.operator.dense())], -1)
        floors = rounding * frobenius.amax(1)
        assert info["noise_floor"] == pytest.approx(float(floors.max()), rel=1e-6)
        assert info["below_noise"] == [int((floors > tol).sum()) for tol in tolerances]
    (note,) = result.summary["notes"]
    operators = sum(info["operators"] for info in result.layers)
    assert note.startswith(f"tolerance 1e-6 is below the noise floor of {dtype} features for {operators} operators in")
    counted = hf_ess.retol(result, [2e-6, 5.0])
    assert [n for n in counted.summary["notes"] if "noise floor" in n] == [note.replace("1e-6", "2e-6")]


def test_relative_tolerances_are_compared_in_their_own_units():
    model = tiny_model("llama").bfloat16()
    result = hf_ess.probe(model, token_ids(model), tolerances=(0.9, 2**-10), relative=True)
    for info in result.layers:
        assert info["below_noise"] == [0, info["operators"]]


def test_single_precision_says_nothing_at_the_usual_tolerances():
    model = tiny_model("llama")
    result = hf_ess.probe(model, token_ids(model))
    assert result.summary["notes"] == [] and all(0 < info["noise_floor"] < 1e-5 for info in result.layers)


def test_a_dtype_of_unknown_rounding_has_no_floor():
    assert noise.floors(torch.ones(2, 3), "float8_e4m3fn") is None
    assert noise.described(None, torch.ones(1, 2)) == {}
