"""Files of singular values: readable by safetensors, rounded to nearest, written block by block."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load

from hf_ess.results.shards import DTYPES, ROUNDING, Shard, ShardWriter

WIDTHS, CUTS = [1, 3, 0, 2], [1, 4, 6, 9]


def spectra(operators, widths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.rand(operators, w, generator=generator, dtype=torch.float64) * 10 ** (-3.0 * k)).sort(1, True).values
        for k, w in enumerate(widths)
    ]


def filled(file, sigma, block, dtype="bfloat16", cuts=CUTS):
    count = sigma[0].shape[0]
    tss = torch.full((1, len(cuts)), 3.0)
    writer = ShardWriter(file, count, cuts, [s.shape[1] for s in sigma], tss, dtype)
    for start in range(0, count, block):
        part = slice(start, start + block)
        some = len(sigma[0][part])
        writer(
            [s[part] for s in sigma],
            torch.arange(start, start + some) + 1.0,
            torch.full((some,), 1e-15, dtype=torch.float64),
        )
    writer.finish()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [1, 2, 5])
def test_what_is_written_block_by_block_is_read_back(tmp_path, dtype, block):
    sigma, path = spectra(5, WIDTHS), tmp_path / "s.safetensors"
    with open(path, "wb") as file:
        filled(file, sigma, block, dtype)
    shard = Shard(path)
    assert shard.positions.tolist() == CUTS and shard.offsets.tolist() == [0, 1, 4, 4, 6]
    assert shard.operators == 5 and shard.dtype == dtype and shard.tss.tolist() == [[3, 3, 3, 3]]
    assert shard.unit.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0] and shard.error.tolist() == [1e-15] * 5
    for cut, exact in zip(CUTS, sigma):
        got = shard.at(cut)
        assert got.dtype == torch.float64 and got.shape == exact.shape
        assert torch.equal(got, exact.to(DTYPES[dtype]).double())  # to nearest
        assert ((got - exact).abs() <= ROUNDING[dtype] * exact).all()
    with pytest.raises(ValueError, match="no spectra are stored at position 5"):
        shard.at(5)
    whole = torch.cat(sigma, 1).to(DTYPES[dtype]).double()
    parts = list(shard.blocks(memory=24 * 6 * 2))  # two operators at a time
    assert [p for p, _ in parts] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert torch.equal(torch.cat([values for _, values in parts]), whole)


def test_other_programs_read_it_with_safetensors(tmp_path):
    sigma, path = spectra(3, WIDTHS), tmp_path / "s.safetensors"
    with open(path, "wb") as file:
        filled(file, sigma, 2)
    tensors = load(path.read_bytes())
    assert set(tensors) == {"offsets", "unit", "error", "positions", "tss", "values"}
    assert tensors["values"].dtype == torch.bfloat16 and tensors["values"].shape == (3, 6)
    with safe_open(path, framework="np") as file:
        assert file.get_tensor("positions").tolist() == CUTS


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 99))
def test_any_ragged_shape(operators, widths, block, seed):
    sigma = spectra(operators, widths, seed)
    file = io.BytesIO()
    filled(file, sigma, block, cuts=list(range(1, len(widths) + 1)))
    tensors = load(file.getvalue())
    assert torch.equal(tensors["values"], torch.cat(sigma, 1).bfloat16())


def test_a_file_without_all_operators_is_not_finished():
    writer = ShardWriter(io.BytesIO(), 3, [1], [1], torch.ones(1, 1), "bfloat16")
    writer([torch.ones(2, 1)], torch.ones(2), torch.zeros(2))
    with pytest.raises(ValueError, match="2 operators were written, expected 3"):
        writer.finish()


def test_no_singular_value_is_lost_without_a_word():
    writer = ShardWriter(io.BytesIO(), 1, [2], [1], torch.ones(1, 1), "float32")
    writer([torch.tensor([[1.0, 1e-16]])], torch.ones(1), torch.full((1,), 1e-15))
    with pytest.raises(ValueError, match=r"more singular values than min\(TSS, i, L-i\) = 1"):
        writer([torch.tensor([[1.0, 1e-3]])], torch.ones(1), torch.full((1,), 1e-15))
