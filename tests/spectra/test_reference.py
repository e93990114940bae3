"""The paper's listing, as printed, against our readable form of it."""

import pytest
import torch

from hf_ess.spectra import reference
from tests.spectra.families import operator


def printed_spectra(T, d=1):
    """T2Ss of the listing: H_i = T[..., d*i:, :d*i], values of torch.svd."""
    seqlen = T.size(-2) // d
    Ss = []
    for i in range(1, seqlen):
        H_i = T[..., d * i :, : d * i]
        _, S_i, _ = torch.svd(H_i)
        Ss.append(S_i)
    return Ss


def printed_tolerance_ess(Ss, tol=1e-4):
    ranks = []
    for SV in Ss:
        ranks.append(torch.sum(SV >= tol, dim=-1))  # noqa: SIM300
    return torch.stack(ranks, dim=-1)


def printed_entropy_ess(Ss, clip=1e-12):
    ranks = []
    for SV in Ss:
        p = SV / SV.sum(dim=-1)[..., None]
        p = torch.clip(p, clip)
        ranks.append(torch.exp(-torch.sum(p * torch.log(p), dim=-1)))
    return torch.stack(ranks, dim=-1)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_equals_the_listing(block):
    T = torch.stack([operator("softmax", 12 * block, seed) for seed in range(2)])
    printed, ours = printed_spectra(T, block), reference.all_spectra(T, block)
    assert len(ours) == 11
    for p, o in zip(printed, ours):
        assert o.shape == p.shape and torch.allclose(o, p, rtol=0, atol=1e-14)
    for tol in (1e-1, 1e-3):
        assert torch.equal(reference.tolerance_ess(ours, tol), printed_tolerance_ess(printed, tol))
    assert torch.allclose(reference.entropy_ess(ours), printed_entropy_ess(printed), rtol=1e-10)


def test_ties_count_and_zero_has_no_entropy():
    spectra = [torch.tensor([1.0, 0.5, 0.5]), torch.zeros(3)]
    assert reference.tolerance_ess(spectra, 0.5).tolist() == [3, 0]
    assert reference.entropy_ess(spectra)[1].isnan()


def test_memory_matrix_maps_past_tokens_to_later_ones():
    T = torch.arange(36.0).reshape(6, 6)
    assert torch.equal(reference.memory_matrix(T, 2), T[2:, :2])
    assert torch.equal(reference.memory_matrix(T, 1, block=2), T[2:, :2])
