"""Short convolutions: the corner of H_i has its singular values."""

from __future__ import annotations

import pytest
import torch

from hf_ess.operators import ConvolutionOperator
from hf_ess.spectra import convolution
from hf_ess.spectra.ess import entropy_ess, measure, singular_values, tolerance_ess
from hf_ess.spectra.metrics import TIE
from hf_ess.spectra.reference import all_spectra, memory_matrix


def random(width: int, length: int, channels: int = 5) -> ConvolutionOperator:
    generator = torch.Generator().manual_seed(width * 100 + length)
    shapes = ((channels, width), (channels, length), (channels, length))
    return ConvolutionOperator(*(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes))


# fewer tokens than taps, as many, more
SIZES = [(1, 6), (2, 7), (3, 2), (3, 3), (4, 12), (7, 4), (7, 20)]


@pytest.mark.parametrize("width, length", SIZES)
def test_counts_and_values_are_those_of_the_whole_matrix(width, length):
    op = random(width, length)
    sigma = all_spectra(op.dense())
    for tol in (1.0, 1e-1, 1e-3):
        assert torch.equal(tolerance_ess(op, tol)[0], torch.stack([(s >= tol).sum(-1) for s in sigma], -1))
    for i in range(1, length):
        (seen,) = singular_values(op, [i])
        assert torch.allclose(seen, sigma[i - 1][:, : seen.shape[1]], atol=1e-13)
        assert (sigma[i - 1][:, seen.shape[1] :] < 1e-13).all()
        assert seen.shape[1] <= min(i, length - i, max(1, width - 1))


@pytest.mark.parametrize("width, length", SIZES)
def test_rank_is_at_most_the_state_size(width, length):
    op = random(width, length)
    assert torch.equal(op.tss()[0], torch.arange(1, length).clamp_max(width - 1).double())
    rank = torch.stack([torch.linalg.matrix_rank(memory_matrix(op.dense(), i)) for i in range(1, length)], -1)
    assert (rank <= op.tss()).all()


def test_one_tap_remembers_nothing():
    op = random(1, 5)
    measured = measure(op, [1e-8], sigma_1=True)
    assert (measured.counts == 0).all() and (measured.entropy == 0).all() and (measured.sigma_1 == 0).all()
    assert measured.resolved.all()


def test_entropy_norm_and_relative_tolerances():
    op = random(4, 15)
    T = op.dense()
    measured = measure(op, [1e-2], relative=True)
    tops = torch.stack([s[:, 0] for s in all_spectra(T)], -1)
    assert torch.allclose(measured.tolerances[0], 1e-2 * tops.amax(-1))
    norms = torch.stack([torch.linalg.matrix_norm(memory_matrix(T, i)) for i in range(1, 15)], -1)
    assert torch.allclose(measured.frobenius, norms)
    for i, s in enumerate(all_spectra(T)):
        p = s / s.sum(-1, keepdim=True)
        expected = torch.exp(-torch.special.xlogy(p, p).sum(-1))
        assert torch.allclose(entropy_ess(op)[:, i], expected, atol=1e-6)


def test_a_value_on_the_tolerance_is_told_apart_or_marked():
    op = ConvolutionOperator(torch.tensor([[0.0, 1.0]]), torch.ones(1, 6), torch.ones(1, 6))  # sigma_1 = 1 at all cuts
    assert (measure(op, [1.0]).counts == 1).all()
    sigma = torch.full((1, 5, 1), 1 - TIE, dtype=torch.float64)
    _, resolved = convolution.counts(op, sigma, torch.ones(1, 1, dtype=torch.float64))
    assert not resolved.any()


def test_blocks_of_channels_are_put_together_again():
    op = random(3, 9)
    whole = torch.cat([sigma for _, sigma in convolution.spectrum(op)])
    parts = list(convolution.spectrum(op, memory=1))
    assert [part for part, _ in parts] == [slice(k, k + 1) for k in range(5)]
    assert torch.equal(torch.cat([sigma for _, sigma in parts]), whole)
