"""Reductions over the operators of a layer: what each name means, and that null is left out."""

from __future__ import annotations

import math

import pytest
import torch

from hf_ess.spectra.reductions import REDUCTIONS, reduced

VALUES = torch.tensor([[4.0, 1.0], [2.0, 1.0], [0.0, 7.0], [10.0, 3.0]], dtype=torch.float64)
EXPECTED = {
    "mean": [4.0, 3.0],
    "sum_heads": [16.0, 12.0],
    "sum_channels": [48.0, 36.0],
    "min": [0.0, 1.0],
    "q10": [0.6, 1.0],
    "q50": [3.0, 2.0],
    "q90": [8.2, 5.8],
    "max": [10.0, 7.0],
}


def test_every_reduction_is_here():
    assert EXPECTED.keys() == REDUCTIONS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_meaning(name):
    expected = torch.tensor(EXPECTED[name], dtype=torch.float64)
    assert torch.allclose(REDUCTIONS[name](VALUES, 3), expected, atol=1e-12)
    assert torch.allclose(REDUCTIONS[name](VALUES[:, 0], 3), expected[0], atol=1e-12)
    cube = VALUES[:, :, None].expand(-1, -1, 5)
    assert torch.allclose(REDUCTIONS[name](cube, 3), expected[:, None].expand(-1, 5), atol=1e-12)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_null_is_left_out_and_only_nulls_give_null(name):
    null = torch.full((1, 2), math.nan, dtype=torch.float64)
    assert torch.allclose(REDUCTIONS[name](torch.cat([VALUES, null]), 3), REDUCTIONS[name](VALUES, 3))
    assert REDUCTIONS[name](torch.cat([null, null]), 3).isnan().all()


def test_several_at_once_are_the_same_one_by_one():
    values = torch.randn(33, 7, dtype=torch.float64)
    values[3, 2], values[:, 5] = math.nan, math.nan
    together = reduced(values, 2, list(REDUCTIONS))
    assert list(together) == list(REDUCTIONS)
    for name, value in together.items():
        assert torch.equal(value.nan_to_num(-1), REDUCTIONS[name](values, 2).nan_to_num(-1))
    assert list(reduced(values, 2, ["max"])) == ["max"]


def test_more_numbers_than_older_quantiles_of_torch_take():
    values = torch.arange(4.0, dtype=torch.float64)[:, None].expand(-1, 2**22 + 1)
    assert (REDUCTIONS["q50"](values, 1) == 1.5).all()
