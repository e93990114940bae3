"""Operators with a finite state: the lazy ones against explicit sums, and what all of them share."""

from __future__ import annotations

import pytest
import torch

from hf_ess.operators import DeltaRule, RecurrentOperator, SelectiveScan, SSDScan, StateSpaceOperator
from hf_ess.spectra.ess import singular_values, tolerance_ess
from hf_ess.spectra.reference import all_spectra

LENGTH = 9


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def selective_scan(seed: int) -> SelectiveScan:
    dt, A = _random(seed, 5, LENGTH).abs(), -_random(seed + 1, 5, 3).exp()
    return SelectiveScan(dt, A, _random(seed + 2, LENGTH, 3), _random(seed + 3, LENGTH, 3))


def ssd(seed: int) -> SSDScan:
    dt, A = _random(seed, 6, LENGTH).abs(), -_random(seed + 1, 6).exp()
    return SSDScan(dt, A, _random(seed + 2, 2, LENGTH, 3), _random(seed + 3, 2, LENGTH, 3), multiplicity=7)


def delta(seed: int, width: int = 1) -> DeltaRule:
    q, k = _random(seed, 2, LENGTH, 4), _random(seed + 1, 2, LENGTH, 4)
    g, beta = -_random(seed + 2, 6, LENGTH, width).abs(), 2 * torch.sigmoid(_random(seed + 3, 6, LENGTH))
    return DeltaRule(q, k / k.norm(dim=-1, keepdim=True), g, beta, multiplicity=7)


def with_diagonal(seed: int) -> RecurrentOperator:
    a, b, c = (_random(seed + k, 4, LENGTH, 2) for k in range(3))
    return RecurrentOperator(torch.sigmoid(a), b, c, diagonal=_random(seed + 3, 4, LENGTH), multiplicity=7)


KINDS = {
    "selective scan": selective_scan,
    "ssd": ssd,
    "delta": delta,
    "delta per channel": lambda seed: delta(seed, 4),
    "with diagonal": with_diagonal,
}


@pytest.mark.parametrize("kind", KINDS)
def test_apply_is_the_product_with_the_causal_matrix(kind):
    op = KINDS[kind](0)
    T, u = op.dense(), _random(9, op.count, LENGTH, 2)
    assert isinstance(op, StateSpaceOperator)
    assert T.shape == (op.count, LENGTH, LENGTH) and T.dtype == torch.float64
    assert (T.triu(1) == 0).all()
    assert torch.allclose(op.apply(u), T @ u, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_is_the_same_operators(kind):
    op = KINDS[kind](1)
    for part in (slice(0, 2), slice(1, 4), slice(3, None)):
        some = op[part]
        assert torch.equal(some.dense(), op.dense()[part])
        assert some.count == some.dense().shape[0] == some.tss().shape[0]
        assert (some.multiplicity, some.state, some.length) == (op.multiplicity, op.state, op.length)
        assert torch.equal(some[0:1].dense(), op.dense()[part][0:1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_engine_sees_the_singular_values_of_the_matrix(kind, seed):
    op = KINDS[kind](seed)
    sigma = all_spectra(op.dense())
    assert (op.tss() == op.state).all()
    for tol in (1e-1, 1e-3):
        exact = torch.stack([(s >= tol).sum(-1) for s in sigma], -1)
        assert torch.equal(tolerance_ess(op, tol)[0], exact)
    for i in (1, 4, LENGTH - 1):
        seen = singular_values(op, [i])[0]
        assert torch.allclose(seen, sigma[i - 1][:, : op.state], atol=1e-7)
        assert (sigma[i - 1][:, op.state :] < 1e-12).all()


def test_ssd_is_its_sum():
    op = ssd(2)
    T = torch.zeros(6, LENGTH, LENGTH, dtype=torch.float64)
    for h in range(6):
        for i in range(LENGTH):
            for j in range(i + 1):
                decay = torch.exp(op.A[h] * op.dt[h, j + 1 : i + 1].sum())
                T[h, i, j] = (op.C[h // 3, i] @ op.B[h // 3, j]) * decay * op.dt[h, j]
    assert torch.allclose(op.dense(), T, atol=1e-13)


@pytest.mark.parametrize("width", [1, 4])
def test_delta_rule_is_its_matrix_recurrence(width):
    op = delta(3, width)
    eye = torch.eye(4, dtype=torch.float64)
    for h in range(6):
        S = torch.zeros(4, LENGTH, dtype=torch.float64)  # d x value channel, the values being the identity
        for i in range(LENGTH):
            k = op.k[h // 3, i]
            S = (eye - op.beta[h, i] * torch.outer(k, k)) @ (op.g[h, i].exp()[:, None] * S)
            S[:, i] += op.beta[h, i] * k
            assert torch.allclose(op.dense()[h, i], op.q[h // 3, i] @ S, atol=1e-13)


def test_the_diagonal_takes_the_place_of_c_b_and_never_enters_the_memory():
    a, b, c = (_random(k, 3, LENGTH, 2) for k in range(3))
    plain, special = RecurrentOperator(a, b, c), RecurrentOperator(a, b, c, diagonal=torch.full((3, LENGTH), 5.0))
    assert (special.dense().diagonal(dim1=1, dim2=2) == 5).all()
    assert torch.allclose(special.dense().tril(-1), plain.dense().tril(-1), atol=1e-13)
    assert torch.equal(tolerance_ess(special, [1e-2]), tolerance_ess(plain, [1e-2]))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_seen(kind):
    for name in ("dt", "A", "B", "C", "q", "k", "g", "beta", "a", "b", "c", "diagonal"):
        op = KINDS[kind](4)
        if getattr(op, name, None) is not None:
            assert op.is_finite()
            getattr(op, name).view(-1)[-1] = torch.nan
            assert not op.is_finite(), name


def test_total_forgetting_is_finite():
    op = delta(5)
    op.g[:, 4] = -torch.inf
    assert op.is_finite() and op.dense().isfinite().all()
    assert (op.dense()[:, 4:, :4] == 0).all()


@pytest.mark.parametrize(
    "build",
    [
        lambda x: SSDScan(x(6, 9), x(6), x(4, 9, 3), x(4, 9, 3)),
        lambda x: SSDScan(x(6, 9), x(5), x(2, 9, 3), x(2, 9, 3)),
        lambda x: SSDScan(x(6, 9), x(6), x(2, 8, 3), x(2, 8, 3)),
        lambda x: DeltaRule(x(4, 9, 3), x(4, 9, 3), x(6, 9, 1), x(6, 9)),
        lambda x: DeltaRule(x(2, 9, 3), x(2, 8, 3), x(6, 9, 1), x(6, 9)),
        lambda x: DeltaRule(x(2, 9, 3), x(2, 9, 3), x(6, 8, 1), x(6, 9)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(build):
    with pytest.raises(ValueError, match=r"expected|share"):
        build(torch.zeros)
