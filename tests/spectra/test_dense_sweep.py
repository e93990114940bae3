"""The sweep itself: f and p by their definition, halves, certificate, quadrature, norms."""

import math

import pytest
import torch

from hf_ess.spectra import dense, dense_counts, dense_entropy, dense_norms, dense_sweep, reference
from tests.spectra.families import NAMES, operator

AVAILABLE = [True, False] if dense_norms.compiled_available() else [False]
ENGINES = [pytest.param(x, id="compiled" if x else "torch") for x in AVAILABLE]


def block_matrix(T, w, sign, past, future):
    """[[w I, H], [sign H^T, w I]] for given index sets."""
    H = T[future][:, past]
    n = len(future)
    A = w * torch.eye(n + len(past), dtype=T.dtype)
    A[:n, n:], A[n:, :n] = H, sign * H.T
    return A


@pytest.mark.parametrize("compiled", ENGINES)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("L", [7, 24, 53])
def test_f_and_p_are_the_schur_complements_of_their_definition(L, sign, compiled):
    T = torch.stack([operator("softmax", L, 3), 3.0 * operator("gaussian", L, 4)])
    op = dense_sweep.prepare(T, compiled)
    w = torch.tensor([[0.21, 0.37], [0.05, 0.011]], dtype=torch.float64)
    f, p = op(w, sign)
    assert f.shape == (2, 2, L)
    for k in range(2):
        for b in range(2):
            A, x = op.T[b, :L, :L], float(w[k, b])
            for i in (0, 1, L // 2 - 1, L // 2, L - 2, L - 1):
                past, future = list(range(i)), list(range(i + 1, L))
                rest = torch.linalg.slogdet(block_matrix(A, x, sign, past, future))
                for value, roles in ((f, (past, [i, *future])), (p, ([*past, i], future))):
                    whole = torch.linalg.slogdet(block_matrix(A, x, sign, *roles))
                    ratio = float(whole[0] * rest[0] * torch.exp(whole[1] - rest[1])) / x
                    assert float(value[k, b, i]) == pytest.approx(ratio, rel=1e-7)


def test_units_are_powers_of_two():
    T = torch.stack([operator("gaussian", 20) * s for s in (1e-300, 1.0, 1e300, 0.0)])
    op = dense_sweep.prepare(T, False)
    assert torch.equal(torch.frexp(op.unit).mantissa, torch.full((4,), 0.5).double())
    size = op.T.abs().amax((1, 2))
    assert (size[:3] >= 1).all() and (size < 2).all()
    assert torch.equal(op.T[:, :20, :20] * op.unit[:, None, None], T)


@pytest.mark.slow
def test_engines_give_equal_counts_at_length_500():
    pytest.importorskip("numba")
    T = torch.stack([operator(n, 500, 8) for n in ("softmax", "softmax with a sink", "gaussian", "graded rows")])
    tol = torch.tensor([1e-1, 1e-3, 1e-5]).double()[:, None].expand(-1, 4)
    assert torch.equal(dense_counts.counts(T, tol, True)[0], dense_counts.counts(T, tol, False)[0])


class Poisoned:
    """A sweep whose answer is changed on the way."""

    def __init__(self, op, change):
        self.op, self.change = op, change
        self.L, self.T, self.squares, self.unit = op.L, op.T, op.squares, op.unit

    def __call__(self, w, sign, single=False):
        fp = self.op(w, sign, single).clone()
        self.change(fp)
        return fp


@pytest.mark.parametrize("what", ["one step", "a tiny pivot", "nan", "zero"])
def test_a_sweep_gone_wrong_is_noticed_and_repaired(what, monkeypatch):
    L = 60
    T = operator("softmax", L, 2)
    tolerances = [1e-1, 1e-3]

    def change(fp):
        if what == "one step":  # the count does not come back to 0
            fp[1, :, :, 20] *= -1
        elif what == "a tiny pivot":  # and its partner, so that it does
            fp[0, :, :, 20], fp[1, :, :, 20] = -1e-30, 1e-30
            fp[1, :, :, 31] = -1e-30
        elif what == "nan":
            fp[:, :, :, 25:40] = math.nan
        else:
            fp[:] = 0.0

    prepare = dense_sweep.prepare
    monkeypatch.setattr(dense_counts, "prepare", lambda T, compiled=None: Poisoned(prepare(T, False), change))
    counts, resolved = dense_counts.counts(T[None], torch.tensor(tolerances).double()[:, None], False)
    exact = torch.stack([reference.tolerance_ess(reference.all_spectra(T), t) for t in tolerances])
    assert resolved.all() and torch.equal(counts[:, 0], exact)


def test_what_float64_cannot_tell_is_marked():
    T = operator("low rank", 40)[None]
    sigma = float(dense.largest(T).max())
    counts, resolved = dense.tolerance_counts(T, [1e-17 * sigma, 1e-16 * sigma, 1e-3 * sigma])
    assert not resolved[0, 0, 8:31].any() and not resolved[1, 0, 8:31].any() and resolved[2].all()
    assert (counts >= 0).all() and (counts[:, 0] <= torch.minimum(torch.arange(1, 40), 40 - torch.arange(1, 40))).all()
    counts, resolved = dense.tolerance_counts(torch.zeros(1, 40, 40), [5e-324, 1e-300])
    assert resolved.all() and (counts == 0).all()


def test_a_tie_too_fine_for_float64_is_marked():
    T = (torch.arange(40)[:, None] - torch.arange(40) == 3).double()
    T[30, 5] = 1e-8  # alone at the cuts 9 .. 27, so it is a singular value there
    counts, resolved = dense.tolerance_counts(T[None], [1e-8])
    assert not resolved[0, 0, 10:20].any() and resolved[0, 0, 31:].all()
    assert counts[0, 0, 31:].tolist() == [3, 3, 3, 3, 3, 3, 2, 1]


@pytest.mark.parametrize("compiled", ENGINES)
@pytest.mark.parametrize("name", [n for n in NAMES if n != "zero"])
def test_no_count_that_is_vouched_for_is_wrong(name, compiled):
    """Down to 1e-8 |H|: the sweep alone errs from about 1e-7."""
    T = operator(name, 70, 11)
    spectra = reference.all_spectra(T)
    size = max(float(s.norm()) for s in spectra)
    tol = size * 10 ** -torch.arange(5, 8.5, 0.5, dtype=torch.float64)
    counts, resolved = dense_counts.counts(T[None], tol[:, None], compiled)
    w = tol * (1 - dense_counts.SHADE)
    exact = torch.stack([torch.stack([(s >= x).sum() for s in spectra]) for x in w])
    clear = torch.stack([torch.stack([~dense_counts._too_close(s, x) for s in spectra]) for x in w])
    assert resolved[:, 0][clear].all()
    assert torch.equal(counts[:, 0][clear], exact[clear])


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ENGINES)
def test_the_certificate_on_fresh_operators(compiled):
    from benchmarks.engine_dense import certificate

    verdicts = certificate([50, 110], 4, compiled, first_seed=int(torch.randint(10**6, ()).item()))
    assert sum(v.wrong for v in verdicts.values()) == 0
    assert sum(v.raw_wrong for v in verdicts.values()) > 0  # so there was something to notice
    assert all(v.svds == 0 for e, v in verdicts.items() if e >= -5)


@pytest.mark.parametrize("nodes", list(dense_entropy.PLACES))
def test_quadrature_keeps_its_bounds(nodes):
    rule = dense_entropy.quadrature(nodes)
    g = torch.Generator().manual_seed(0)
    s = 10 ** (-14 * torch.rand(3000, generator=g, dtype=torch.float64))
    terms = torch.cat([torch.log1p((s[:, None] / rule.w) ** 2), (s**2)[:, None]], 1)
    for c, function, error in zip(rule.weights, (s, s * s.log()), rule.errors):
        assert ((terms @ c - function).abs() <= 1.02 * error * (s + dense_entropy.FLOOR)).all()
    assert rule.errors[1] + rule.errors[0] < 1.1e-3


def test_entropy_of_a_spectrum():
    s = torch.tensor([[3.0, 3.0, 3.0, 0.0], [5.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]).double()
    assert torch.allclose(dense_entropy.from_spectrum(s), torch.tensor([3.0, 1.0, 0.0]).double())


def test_norms_where_squares_underflow():
    T = torch.zeros(2, 30, 30, dtype=torch.float64)
    T[0, 1, 0] = 1e10
    T[0, 20:, :10] = 3e-200
    exact = torch.stack([torch.linalg.matrix_norm(T[0, i:, :i] * 1e200) * 1e-200 for i in range(1, 30)])
    exact[0] = 1e10
    assert torch.allclose(dense.frobenius(T)[0], exact, rtol=1e-12)
    assert (dense.frobenius(T)[1] == 0).all()
    assert torch.allclose(dense.largest(T, [15])[0], exact[14:15], rtol=1e-12)
    ess, _ = dense.entropy(T)
    assert torch.allclose(ess[0], torch.ones(29).double(), rtol=1e-3) and (ess[1] == 0).all()
    counts, _ = dense.tolerance_counts(T, [1e-200])
    assert torch.equal(counts[0, 0], torch.ones(29).long())


def test_zero_cuts():
    T = operator("documents", 40)[None]
    exact = torch.stack([(T[0, i:, :i] == 0).all() for i in range(1, 40)])
    assert exact.sum() == 3 and torch.equal(dense_norms.zero_cuts(T)[0], exact)


@pytest.mark.parametrize("name", NAMES)
def test_largest_singular_values(name):
    T = torch.stack([operator(name, 90, 5), 1e-5 * operator(name, 90, 6)])
    exact = torch.stack([dense_norms.svdvals(T[:, i:, :i])[:, 0] for i in range(1, 90)], -1)
    assert torch.allclose(dense.largest(T), exact, rtol=1e-6, atol=0)
    some = [40, 3, 88, 41, 42, 43]
    assert torch.allclose(dense.largest(T, some), exact[:, [i - 1 for i in some]], rtol=1e-6, atol=0)


def test_largest_falls_back_to_svd(monkeypatch):
    monkeypatch.setattr(dense_norms, "STEPS", 3)
    T = operator("gaussian", 40)[None]
    exact = torch.stack([torch.linalg.svdvals(T[:, i:, :i])[:, 0] for i in range(1, 40)], -1)
    assert torch.allclose(dense.largest(T), exact, rtol=1e-12)


def test_kernels_do_without_a_folder_for_their_cache(monkeypatch):
    numba = pytest.importorskip("numba")
    from hf_ess.spectra import kernels_dense

    njit = numba.njit

    def refusing(function, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(function, **options)

    monkeypatch.setattr(numba, "njit", refusing)
    half = kernels_dense._compiled(kernels_dense.half.py_func)
    assert [half(s) for s in (20, 24, 64, 100)] == [8, 16, 32, 48]


@pytest.mark.parametrize("sign", [1, -1])
def test_every_temporary_is_on_the_device_of_the_operator(sign, monkeypatch):
    """On the meta device, where a tensor left on the CPU raises: what can be checked of CUDA without one."""
    monkeypatch.setattr(dense_sweep, "strictly_lower", lambda T: (torch.tril(T, -1), dense_norms.magnitude(T)))
    op = dense_sweep.prepare(torch.empty(3, 150, 150, dtype=torch.float64, device="meta"))
    f, p = op(torch.empty(2, 3, dtype=torch.float64, device="meta"), sign, single=True)
    assert f.device.type == p.device.type == "meta" and f.shape == (2, 3, 150)
    assert all(x.device.type == "meta" for x in op.squares)


@pytest.mark.parametrize("scale", [1e-310, 1e306])
def test_tolerances_out_of_all_proportion(scale):
    T = scale * operator("gaussian", 40)[None]
    T[0, :, :12] = 0
    counts, resolved = dense.tolerance_counts(T, [5e-324, 1e308])
    assert (counts[1] == 0).all() and resolved[1].all()
    assert (counts[:, 0, :12] == 0).all() and resolved[:, 0, :12].all()
