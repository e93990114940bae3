"""SVDs shared among threads: the same numbers for any number of them."""

from __future__ import annotations

import pytest
import torch

from hf_ess.spectra import dense, svds
from hf_ess.spectra.svd_cost import seconds

CUTS = [7, 1, 20, 29, 12]


@pytest.mark.parametrize("block", [1, 2])
def test_any_number_of_threads_gives_the_same_bits(block):
    T = torch.randn(3, 30 * block, 30 * block, dtype=torch.float64)
    expected = dense.singular_values(T, CUTS, block=block)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            found.append(svds.singular_values(T, CUTS, block))
            assert torch.get_num_threads() == threads
            assert all(torch.equal(a, b) for a, b in zip(found[-1], found[0]))
            assert all(torch.allclose(a, b, rtol=1e-13, atol=1e-13) for a, b in zip(found[-1], expected))
    finally:
        torch.set_num_threads(before)
    assert svds.singular_values(T, [], block) == []


def test_an_error_leaves_the_threads_as_they_were():
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="not one of the cuts"):
        svds.singular_values(torch.zeros(1, 5, 5), [9])
    assert torch.get_num_threads() == before


def test_the_estimate_grows_with_the_work():
    assert 0 < seconds(64, [32], 1) < seconds(128, [64], 8)
