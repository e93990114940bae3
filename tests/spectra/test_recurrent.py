"""Spectra of recurrent operators against the SVD of every H_i of the dense T, closed forms, mpmath and pyMOR."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ess.errors import NonFiniteOperator
from hf_ess.operators import DeltaRule, RecurrentOperator, SelectiveScan, SSDScan
from hf_ess.spectra import recurrent, recurrent_factors
from hf_ess.spectra.reference import all_spectra
from tests.spectra.recurrences import FAMILIES, TRANSITIONS, family, recurrence, shift

ENGINES = ["kernels", "qr", "gramians"]


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    use(request.param, monkeypatch)
    return request.param


def use(name, monkeypatch):
    """kernels: CPU with numba; qr: without; gramians: what other devices do."""
    if name == "kernels":
        pytest.importorskip("numba")
    if name == "qr":
        monkeypatch.setattr(recurrent_factors, "compiled", lambda: False)
    if name == "gramians":
        monkeypatch.setattr(recurrent, "by_factors", lambda op: False)


def spectrum(op, positions=None, **options):
    return torch.cat([sigma for _, sigma in recurrent.spectrum(op, positions, **options)])


def padded(op):
    """Singular values of every H_i of the dense T, filled with zeros or cut to n: (operator, L-1, n)."""
    out = torch.zeros(op.count, op.length - 1, op.state, dtype=torch.float64)
    for i, sigma in enumerate(all_spectra(op.dense())):
        k = min(sigma.shape[1], op.state)
        out[:, i, :k] = sigma[:, :k]
    return out


def check(op, accuracy=1e-7, tolerances=(1e-1, 1e-3, 1e-5)):
    """Values within accuracy sigma_1, within their own resolution, and counts equal at tolerances in units of T."""
    exact, sigma = padded(op), spectrum(op)
    assert sigma.shape == exact.shape and sigma.dtype == torch.float64
    assert (sigma.diff(dim=-1) <= 0).all()
    error = (sigma - exact).abs().amax(-1)
    top = exact[..., 0]
    assert (error <= accuracy * top + recurrent.resolution(op)).all()
    assert (error <= 2 * recurrent.resolution(op)).all()  # twice: LAPACK errs as well
    tol = torch.tensor(tolerances, dtype=torch.float64)[:, None] * top.amax(-1).clamp_min(1e-300)
    number, resolved = recurrent.tolerance_counts(op, tol)
    assert resolved.float().mean() > 0.9
    expected = (exact >= tol[..., None, None] * (1 - recurrent.TIE)).sum(-1)
    assert torch.equal(number[resolved], expected[resolved])
    return number, resolved


@pytest.mark.parametrize("kind", TRANSITIONS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_transition(engine, kind, n):
    _, resolved = check(recurrence(kind, 3, 24, n))
    assert resolved.all()


@pytest.mark.parametrize("kind", ["identity", "diagonal", "diagonal + rank one"])
@pytest.mark.parametrize("length", [2, 3, 70])
def test_sixteen_states(engine, kind, length):
    check(recurrence(kind, 2, length, 16))


@pytest.mark.parametrize("n", [64, 128])
def test_large_states(engine, n):
    op = recurrence("scalar + rank one", 1, 40, n)
    exact = padded(op)
    for i in (1, 20, 39):
        assert torch.allclose(spectrum(op, [i])[:, 0], exact[:, i - 1], atol=1e-7 * float(exact.max()))


@pytest.mark.parametrize("name", FAMILIES)
def test_counts_are_right_or_unresolved(engine, name):
    op = family(name, 3, 36, 5)
    exact, error = padded(op), recurrent.resolution(op)
    assert ((spectrum(op) - exact).abs().amax(-1) <= 2 * error).all()
    top = float(exact.max()) or 1.0
    tolerances = [top * 10.0**-k for k in range(17)] + [1e-1, 1e-3, 1e-5]
    number, resolved = recurrent.tolerance_counts(op, tolerances)
    tol = torch.tensor(tolerances, dtype=torch.float64)[:, None, None]
    expected = (exact >= tol[..., None] * (1 - recurrent.TIE)).sum(-1)
    assert torch.equal(number[resolved], expected[resolved])
    assert resolved[tol.expand_as(resolved) > 8 * error].float().mean() > 0.99


@pytest.mark.parametrize("left, new", [(3.2e-154, 2.8e-154), (2.8e-154, 3.2e-154), (1e-158, 7e-159), (1e-150, 1e-170)])
def test_squares_that_underflow(engine, left, new):
    """A rotation made from them is none, and would spoil what the other state remembers."""
    a, b = (torch.ones(1, 6, 2, dtype=torch.float64) for _ in range(2))
    a[0, 1, 0], b[0, 1:, 0] = left, 0.0
    b[0, 1, 0] = new
    check(RecurrentOperator(a, b, recurrence("diagonal", 1, 6, 2).c))


@given(
    kind=st.sampled_from(TRANSITIONS),
    operators=st.integers(1, 5),
    length=st.integers(2, 20),
    n=st.integers(1, 9),
    seed=st.integers(0, 1000),
    exponents=st.tuples(*[st.integers(-140, 140)] * 2),
)
@settings(max_examples=60, deadline=None)
def test_any_recurrence(kind, operators, length, n, seed, exponents):
    op = recurrence(kind, operators, length, n, seed)
    op.b = op.b * 10.0 ** exponents[0]
    op.c = op.c * 10.0 ** exponents[1]
    if sum(exponents) < 140:
        check(op)


def test_one_state_has_one_value(engine):
    length, a = 30, 0.9
    one = torch.ones(1, length, 1, dtype=torch.float64)
    i = torch.arange(1, length, dtype=torch.float64)
    running_sum = spectrum(RecurrentOperator(None, one, one))
    assert torch.allclose(running_sum[0, :, 0], (i * (length - i)).sqrt(), rtol=1e-13)
    decay = spectrum(RecurrentOperator(a * one, one, one))
    energy = (1 - a ** (2 * i)) * (1 - a ** (2 * (length - i))) * a**2 / (1 - a**2) ** 2
    assert torch.allclose(decay[0, :, 0], energy.sqrt(), rtol=1e-12)


@pytest.mark.parametrize("by", [1, 7])
def test_shift(engine, by):
    """All singular values are 1: a tolerance of 1 is a tie, which counts."""
    length = 40
    i = torch.arange(1, length)
    number, resolved = recurrent.tolerance_counts(shift(length, by), [1.0, 1e-5, 1 + 1e-6])
    expected = torch.minimum(i, length - i).clamp_max(by)
    assert resolved.all()
    assert torch.equal(number[:, 0], torch.stack([expected, expected, 0 * expected]))


def test_fir(engine):
    length, taps = 30, torch.tensor([0.5, 1.0, -2.0, 0.25], dtype=torch.float64)
    n = len(taps)
    cells, i = torch.eye(n, dtype=torch.float64)[None], torch.arange(length)
    lag = (i[:, None] - torch.arange(n)) % n
    op = RecurrentOperator(1 - cells[:, i % n], cells[:, i % n], taps[lag][None])
    number, resolved = check(op)
    assert resolved.all() and number.max() == n - 1


def test_a_reset_empties_the_memory(engine):
    length, at = 40, 20
    op = recurrence("diagonal", 2, length, 4)
    op.a[:, at] = 0
    number, resolved = recurrent.tolerance_counts(op, [1e-1, 1e-9])
    assert resolved.all() and (number[:, :, at - 1] == 0).all()
    assert (number[1, :, at - 4 : at - 1] == torch.tensor([3, 2, 1])).all()  # few later outputs still use the past
    assert (number[1, :, at : at + 3] == torch.tensor([1, 2, 3])).all()


def test_decay_that_underflows(engine):
    n, length = 4, 12
    dt = torch.full((2, length), 0.1, dtype=torch.float64)
    dt[0, 6] = 1e6
    A = -torch.arange(1.0, n + 1, dtype=torch.float64).expand(2, -1)
    B, C = (torch.randn(length, n, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in (1, 2))
    op = SelectiveScan(dt, A, B, C)
    assert (op.recurrent().a[0, 6] == 0).all()
    sigma = spectrum(op)
    assert (sigma[0, 5] == 0).all() and (sigma[1, 5, 0] > 0).all()
    check(op)


@pytest.mark.parametrize("power", [1e-150, 1e150])
def test_extreme_scales(engine, power):
    op = recurrence("diagonal", 2, 20, 3)
    plain = spectrum(op)
    for b, c in ((power, 1.0), (1.0, power), (power, power**0.9)):
        scaled = RecurrentOperator(op.a, op.b * b, op.c * c)
        assert torch.allclose(spectrum(scaled) / (b * c), plain, rtol=1e-12, atol=1e-13)


def test_rank_one_factors_of_extreme_scales(engine):
    op = recurrence("diagonal + rank one", 2, 20, 3)
    p, q = op.rank_one
    power = 10.0 ** torch.linspace(-150, 150, 20, dtype=torch.float64)[:, None]
    unbalanced = RecurrentOperator(op.a, op.b * 1e-150, op.c, (p * power, q / power))
    assert torch.allclose(spectrum(unbalanced) * 1e150, spectrum(op), rtol=1e-10, atol=1e-10)


def test_operators_of_layers(engine):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    length, n = 24, 4
    dt, keys = normal(6, length).abs(), torch.nn.functional.normalize(normal(2, length, n), dim=-1)
    for op in (
        SelectiveScan(dt, -normal(6, n).exp(), normal(length, n), normal(length, n)),
        SSDScan(dt, -normal(6).exp(), normal(2, length, n), normal(2, length, n), multiplicity=3),
        DeltaRule(normal(2, length, n), keys, -normal(6, length, 1).abs(), torch.sigmoid(normal(6, length))),
        DeltaRule(normal(2, length, n), keys, -normal(6, length, n).abs(), torch.sigmoid(normal(6, length))),
    ):
        _, resolved = check(op)
        assert resolved.all()


def test_positions_in_any_order(engine):
    op = recurrence("diagonal", 3, 40, 4)
    whole = spectrum(op)
    for positions in ([20], [39, 1, 17, 17], [1, 2, 3]):
        some = spectrum(op, positions)
        assert torch.allclose(some, whole[:, torch.tensor(positions) - 1], atol=1e-12)
    assert spectrum(op, []).shape == (3, 0, 4)
    for bad in ([0], [40], [-1, 5]):
        with pytest.raises(ValueError, match="not one of the cuts"):
            spectrum(op, bad)


def test_blocks_cover_the_operators_and_do_not_change_them(engine):
    op = recurrence("c for all", 7, 30, 3)
    one = list(recurrent.spectrum(op))
    many = list(recurrent.spectrum(op, memory=1))
    assert len(one) == 1 and [part for part, _ in many] == [slice(k, k + 1) for k in range(7)]
    assert torch.allclose(torch.cat([sigma for _, sigma in many]), one[0][1], atol=1e-12)


def test_one_token_has_no_cuts(engine):
    op = recurrence("diagonal", 2, 1, 3)
    assert spectrum(op).shape == (2, 0, 3)
    assert recurrent.tolerance_counts(op, [0.1])[0].shape == (1, 2, 0)


def test_tolerances_per_operator():
    op = recurrence("diagonal", 3, 30, 4)
    tol = torch.tensor([[0.1, 1.0, 2.0], [1e-3, 1e-3, 1e-2]], dtype=torch.float64)
    number, _ = recurrent.tolerance_counts(op, tol)
    for k in range(3):
        alone, _ = recurrent.tolerance_counts(op[k : k + 1], tol[:, k].tolist())
        assert torch.equal(number[:, k : k + 1], alone)
    for bad in ([0.0], [-1.0], [math.nan], torch.ones(2, 2)):
        with pytest.raises(ValueError, match="tolerances > 0"):
            recurrent.tolerance_counts(op, bad)


@pytest.mark.parametrize("name", ["a", "b", "c", "p", "q"])
def test_numbers_that_are_not_finite_are_refused(engine, name):
    op = recurrence("diagonal + rank one", 4, 10, 3)
    x = {"a": op.a, "b": op.b, "c": op.c, "p": op.rank_one[0], "q": op.rank_one[1]}[name]
    x[2, 5, 1] = math.nan
    with pytest.raises(NonFiniteOperator, match="1 of 4 recurrences hold NaN or Inf, the first is number 2"):
        spectrum(op)
    with pytest.raises(NonFiniteOperator, match="the first is number 2"):
        spectrum(op, memory=1)


def test_states_that_overflow_are_refused(engine):
    op = recurrence("diagonal", 3, 60, 3)
    op.a[1] = 1e12
    with pytest.raises(NonFiniteOperator, match=r"1 of 3 recurrences overflow float64.*number 1"):
        spectrum(op)


def test_inputs_stay_as_they_are(engine):
    op = recurrence("diagonal + rank one", 2, 20, 3)
    parts = (op.a, op.b, op.c, *op.rank_one)
    before = [x.clone() for x in parts]
    recurrent.tolerance_counts(op, [1e-3])
    assert all(torch.equal(x, y) for x, y in zip(parts, before))


def test_denormal_numbers_still_exist_afterwards():
    """The kernels' threads flush them; this one must not."""
    pytest.importorskip("numba")
    spectrum(recurrence("diagonal", 2, 20, 3))
    assert torch.tensor(1e-308, dtype=torch.float64) / 10 > 0


def test_threads_and_lanes_do_not_change_anything():
    pytest.importorskip("numba")
    op = recurrence("diagonal + rank one", 130, 12, 3)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = spectrum(op)
        torch.set_num_threads(3)
        three = spectrum(op)
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(one, three, atol=1e-13)
    results = {}
    threads = [threading.Thread(target=lambda k=k: results.update({k: spectrum(op)})) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[k], results[0]) for k in results)


def test_long_and_undamped(engine):
    """Rounding errors pile up over all tokens where nothing is forgotten."""
    op = recurrence("identity", 1, 1500, 2)
    i = 700
    exact = torch.linalg.svdvals(_factor(op.c[0, i:]).mT.contiguous() @ _factor(op.b[0, :i]))
    assert torch.allclose(spectrum(op, [i])[0, 0], exact, rtol=1e-12)


def _factor(x):
    return torch.linalg.qr(x, mode="r").R.mT


@pytest.mark.parametrize("name", ["equal states", "hidden from the output", "resets", "keys overwritten", "growing"])
def test_fifty_digits(name):
    """The exact values of the numbers given: what is called resolved is right, and the error is below resolution."""
    mp = pytest.importorskip("mpmath")
    op = family(name, 1, 12, 3)
    with mp.workdps(50):
        exact = _in_many_digits(mp, op)
    sigma, error = spectrum(op), recurrent.resolution(op)
    assert ((sigma - exact).abs().amax(-1) <= error).all()
    tolerances = [10.0**-k for k in range(18)]
    number, resolved = recurrent.tolerance_counts(op, tolerances)
    tol = torch.tensor(tolerances, dtype=torch.float64)[:, None, None, None]
    assert torch.equal(number[resolved], (exact >= tol * (1 - recurrent.TIE)).sum(-1)[resolved])


def _in_many_digits(mp, op):
    length, n = op.length, op.state
    A = []
    for i in range(length):
        a = mp.diag([mp.mpf(float(x)) for x in (op.a[0, i].expand(n) if op.a is not None else torch.ones(n))])
        if op.rank_one is not None:
            p, q = (mp.matrix(x[0, i].tolist()) for x in op.rank_one)
            a = a - p * q.T
        A.append(a)
    b, c = ([mp.matrix(x[0, i].tolist()) for i in range(length)] for x in (op.b, op.c))
    T = mp.zeros(length, length)
    for j in range(length):
        state = b[j]
        for i in range(j + 1, length):
            state = A[i] * state
            T[i, j] = (c[i].T * state)[0]
    out = torch.zeros(1, length - 1, n, dtype=torch.float64)
    for i in range(1, length):
        sigma = mp.svd_r(T[i:, :i], compute_uv=False)
        for k in range(min(len(sigma), n, i, length - i)):
            out[0, i - 1, k] = float(sigma[k])
    return out


def test_hankel_singular_values_of_pymor():
    """Far from both ends of a time-invariant system, H_i has its Hankel singular values; y_i reads s_i: C A for C."""
    pymor = pytest.importorskip("pymor.models.iosys")
    import numpy as np

    n, length = 6, 801
    rng = np.random.default_rng(0)
    a = np.array([0.95, 0.9, 0.8, 0.5, -0.3, -0.9])
    b, c = rng.standard_normal((n, 1)), rng.standard_normal((1, n))
    model = pymor.LTIModel.from_matrices(np.diag(a), b, c @ np.diag(a), sampling_time=1)
    parts = (torch.tensor(x).reshape(1, 1, n).expand(1, length, n) for x in (a, b, c))
    sigma = spectrum(RecurrentOperator(*parts), [length // 2])[0, 0]
    assert np.allclose(sigma.numpy(), model.hsv(), rtol=1e-9, atol=1e-14 * float(sigma[0]))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["identity", "diagonal", "diagonal + rank one"])
def test_cuda(kind):
    op = recurrence(kind, 4, 40, 8)
    rank_one = None if op.rank_one is None else tuple(x.cuda() for x in op.rank_one)
    there = RecurrentOperator(None if op.a is None else op.a.cuda(), op.b.cuda(), op.c.cuda(), rank_one)
    sigma = spectrum(there)
    assert sigma.is_cuda
    assert torch.allclose(sigma.cpu(), spectrum(op), atol=1e-7 * float(sigma.max()))
    for x, y in zip(recurrent.tolerance_counts(there, [1e-1, 1e-9]), recurrent.tolerance_counts(op, [1e-1, 1e-9])):
        assert torch.equal(x.cpu(), y)
