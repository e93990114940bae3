"""The real thing: SmolLM2-135M, 512 tokens, all 30 layers, all 270 heads, all 511 positions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import hf_ess
from tests import real

pytestmark = pytest.mark.real

LENGTH, TOLERANCES = 512, (1e-1, 1e-3, 1e-5)


@pytest.fixture(scope="module")
def result():
    folder = real.require_smollm2()
    return hf_ess.probe(str(folder), real.text(LENGTH), max_tokens=LENGTH, tolerances=TOLERANCES)


def test_every_layer_is_verified_within_1e_5(result):
    assert len(result.layers) == 30 and result.skipped == []
    for info in result.layers:
        assert info["status"] == "verified"
        assert info["error"] <= 1e-5


def test_every_head_has_a_value_at_every_position(result):
    rows = result.rows(metric="tolerance", reduction=None)
    assert len({(row["layer"], row["unit"]) for row in rows}) == 270
    assert len(rows) == 270 * len(TOLERANCES)
    for row in rows:
        assert len(row["values"]) == LENGTH - 1 and None not in row["values"]
    assert sum(n for info in result.layers for n in info["unresolved"]) == 0


def test_counts_and_entropy_are_those_of_an_svd(result):
    cuts = [1, 7, 100, 256, 300, 450, 511]
    for layer, T in zip((0, 13, 29), real.attention(LENGTH, (0, 13, 29))):
        for head in (0, 4, 8):
            sigma = [torch.linalg.svdvals(T[head, i:, :i]) for i in cuts]
            for tol in TOLERANCES:
                (row,) = result.rows(layer=layer, unit=head, metric="tolerance", tolerance=tol)
                assert [row["values"][i - 1] for i in cuts] == [float((s >= tol).sum()) for s in sigma]
            (row,) = result.rows(layer=layer, unit=head, metric="entropy")
            for i, s in zip(cuts, sigma):
                p = (s / s.sum()).clamp_min(1e-12)
                expected = math.exp(float(-(p * p.log()).sum()))
                assert row["values"][i - 1] == pytest.approx(expected, rel=1e-3)


def test_attention_never_exceeds_its_bound(result):
    (bound,) = result.rows(layer=0, metric="bound", reduction="mean")
    for row in result.rows(metric="tolerance", reduction="max"):
        assert (np.array(row["values"]) <= np.array(bound["values"])).all()
