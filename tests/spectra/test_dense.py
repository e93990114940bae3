"""The public functions for dense operators: against SVDs, closed forms and 60 digits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ess.errors import NonFiniteOperator
from hf_ess.spectra import dense, dense_counts, dense_entropy, dense_norms, dense_sweep, reference
from tests.spectra.families import NAMES, operator

TOLERANCES = [1.0, 1e-1, 1e-3, 1e-5]
AVAILABLE = [True, False] if dense_norms.compiled_available() else [False]
ENGINES = [pytest.param(x, id="compiled" if x else "torch") for x in AVAILABLE]


def exact_counts(spectra, tolerances):
    """#{sigma >= tol (1 - 1e-9)}, (K, L-1), and where no singular value is within rounding noise of it."""
    w = [t * (1 - dense_counts.SHADE) for t in tolerances]
    counts = torch.stack([torch.stack([(s >= x).sum() for s in spectra]) for x in w])
    clear = torch.stack([torch.stack([~dense_counts._too_close(s, x) for s in spectra]) for x in w])
    return counts, clear


def exact_entropy(spectra):
    return torch.stack([dense_entropy.from_spectrum(s) for s in spectra])


def column(tolerances):
    return torch.tensor(tolerances, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("compiled", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_every_family(name, compiled):
    for L in (3, 20, 77):
        T = operator(name, L)
        spectra = reference.all_spectra(T)
        counts, resolved = dense_counts.counts(T[None], column(TOLERANCES), compiled)
        exact, clear = exact_counts(spectra, TOLERANCES)
        assert clear.all() and resolved.all()
        assert torch.equal(counts[:, 0], exact)
        ess, error = dense_entropy.entropy(T[None], 12, 1, compiled)
        true = exact_entropy(spectra)
        assert ((ess[0] - true).abs() <= error[0] * true + 1e-9).all()
        assert ((ess[0] - true).abs() <= 1e-3 * true + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    L=st.integers(2, 60),
    seed=st.integers(0, 10**6),
    exponent=st.integers(-150, 150),
    tolerance=st.floats(-6.3, 0.3),
    compiled=st.sampled_from(AVAILABLE),
)
def test_any_operator_at_any_scale(name, L, seed, exponent, tolerance, compiled):
    T = operator(name, L, seed)
    spectra = reference.all_spectra(T)
    size = max(float(s.norm()) for s in spectra) or 1.0
    tolerances = [size * 10**tolerance]
    exact, clear = exact_counts(spectra, tolerances)
    scale = 10.0**exponent
    counts, resolved = dense_counts.counts(T[None] * scale, column(tolerances) * scale, compiled)
    assert resolved[:, 0][clear].all()
    assert torch.equal(counts[:, 0][clear], exact[clear])
    ess, error = dense_entropy.entropy(T[None] * scale, 12, 1, compiled)
    true = exact_entropy(spectra)
    assert ((ess[0] - true).abs() <= error[0] * true + 1e-9).all() and (error <= dense_entropy.BOUND).all()


@pytest.mark.parametrize("compiled", ENGINES)
@pytest.mark.parametrize("k", [1, 5, 30])
def test_a_shift_has_singular_values_one(k, compiled):
    L = 50
    i = torch.arange(1, L)
    T = (i.new_tensor(range(L))[:, None] - torch.arange(L) == k).double()[None]
    rank = torch.minimum(torch.minimum(i, L - i), torch.tensor(min(k, L - k)))
    counts, resolved = dense_counts.counts(T, column([1.0, 0.5]), compiled)
    assert resolved.all() and torch.equal(counts[0, 0], rank) and torch.equal(counts[1, 0], rank)
    ess, _ = dense_entropy.entropy(T, 12, 1, compiled)
    assert torch.allclose(ess[0], rank.double(), rtol=1e-3)


@pytest.mark.parametrize("compiled", ENGINES)
def test_running_sum_has_rank_one_and_a_known_singular_value(compiled):
    L = 64
    i = torch.arange(1, L)
    T = torch.ones(1, L, L, dtype=torch.float64)
    sigma = (i * (L - i)).double().sqrt()
    counts, _ = dense_counts.counts(T, column([1e-4, 20.0]), compiled)
    assert (counts[0, 0] == 1).all()
    assert torch.equal(counts[1, 0], (sigma >= 20.0).long())
    assert torch.allclose(dense.frobenius(T)[0], sigma) and torch.allclose(dense.largest(T)[0], sigma)


@pytest.mark.parametrize("compiled", ENGINES)
@pytest.mark.parametrize("seed", range(3))
def test_one_hot_rows_tie_exactly(seed, compiled):
    """Each column of H_i read by r later rows has the singular value sqrt(r): at 1 and sqrt(2) all is ties."""
    L = 120
    T = operator("one-hot rows", L, seed)
    readers = torch.stack([torch.nn.functional.pad(T[i:, :i].sum(0), (0, L - i)) for i in range(1, L)])
    counts, resolved = dense_counts.counts(T[None], column([1.0, math.sqrt(2.0)]), compiled)
    assert resolved.all()
    assert torch.equal(counts[0, 0], (readers >= 1).sum(1))
    assert torch.equal(counts[1, 0], (readers >= 2).sum(1))


@pytest.mark.parametrize("compiled", ENGINES)
def test_documents_are_forgotten_at_their_boundaries(compiled):
    sizes = [17, 40, 23]
    parts = [operator("softmax", n, n) for n in sizes]
    T = torch.block_diag(*parts)[None]
    counts, _ = dense_counts.counts(T, column(TOLERANCES), compiled)
    ess, _ = dense_entropy.entropy(T, 12, 1, compiled)
    start = 0
    for part, n in zip(parts, sizes):
        alone = slice(start, start + n - 1)  # the cuts inside this document
        exact, _ = exact_counts(reference.all_spectra(part), TOLERANCES)
        assert torch.equal(counts[:, 0, alone], exact)
        start += n
        if start < sum(sizes):
            assert (counts[:, 0, start - 1] == 0).all() and ess[0, start - 1] == 0


def test_sixty_digits():
    mpmath = pytest.importorskip("mpmath")
    L = 9
    T = operator("graded both", L, 5)
    with mpmath.workdps(60):
        spectra = []
        for i in range(1, L):
            H = mpmath.matrix(T[i:, :i].tolist())
            spectra.append(sorted(mpmath.svd_r(H, compute_uv=False), reverse=True))
        true = []
        for s in spectra:
            p = [x / sum(s) for x in s]
            true.append(float(mpmath.exp(-sum(x * mpmath.log(x) for x in p if x > 0))))
        for compiled in (None, *AVAILABLE):
            for tol in (1e-1, 1e-3, 1e-5, 1e-7):
                counts, resolved = dense_counts.counts(T[None], column([tol]), compiled)
                assert resolved.all()
                assert counts[0, 0].tolist() == [sum(x >= tol for x in s) for s in spectra]
            ess, _ = dense_entropy.entropy(T[None], 12, 1, compiled)
            assert torch.allclose(ess[0], torch.tensor(true, dtype=torch.float64), rtol=1e-3)
    for values, s in zip(dense.singular_values(T[None], range(1, L)), spectra):
        true_values = torch.tensor([float(x) for x in s], dtype=torch.float64)
        assert torch.allclose(values[0], true_values, rtol=0, atol=2e-15 * float(s[0]))


def test_any_length():
    for L in (2, 3, 4, 5, 16, 17, 18, 31, 33, 65, 100):
        T = torch.stack([operator("gaussian", L), operator("softmax", L)])
        for b, (c, _) in enumerate([exact_counts(reference.all_spectra(x), TOLERANCES) for x in T]):
            for compiled in (None, *AVAILABLE):
                assert torch.equal(dense_counts.counts(T, column(TOLERANCES).expand(-1, 2), compiled)[0][:, b], c)


@pytest.mark.slow
def test_a_thousand_tokens():
    T = torch.stack([operator("softmax with a sink", 1000, 1), operator("documents", 1000, 2)])
    counts, resolved = dense.tolerance_counts(T, TOLERANCES)
    ess, _ = dense.entropy(T)
    assert resolved.all()
    for i in (1, 250, 251, 500, 777, 999):
        for b in range(2):
            s = torch.linalg.svdvals(T[b, i:, :i])
            assert counts[:, b, i - 1].tolist() == [int((s >= t * (1 - 1e-9)).sum()) for t in TOLERANCES]
            assert ess[b, i - 1].item() == pytest.approx(dense_entropy.from_spectrum(s).item(), rel=1e-3)


@pytest.mark.parametrize("block", [2, 3, 5])
def test_blocks_of_channels(block):
    """H_i = T[i d:, :i d]; what lies inside the diagonal blocks plays no part, whatever it is."""
    L = 14
    g = torch.Generator().manual_seed(block)
    T = torch.randn(2, L * block, L * block, generator=g, dtype=torch.float64)
    token = torch.arange(L * block) // block
    T[:, token[:, None] == token] = math.nan
    T = T.masked_fill(token[:, None] < token, math.inf)
    spectra = [reference.all_spectra(x, block) for x in T]
    counts, resolved = dense.tolerance_counts(T, [1.0, 3.0], block=block)
    ess, _ = dense.entropy(T, block=block)
    assert counts.shape == (2, 2, L - 1) and ess.shape == (2, L - 1) and resolved.all()
    for b in range(2):
        assert torch.equal(counts[:, b], exact_counts(spectra[b], [1.0, 3.0])[0])
        assert torch.allclose(ess[b], exact_entropy(spectra[b]), rtol=1e-3)
        assert torch.allclose(dense.largest(T, block=block)[b], torch.stack([s[0] for s in spectra[b]]))
        assert torch.allclose(dense.frobenius(T, block=block)[b], torch.stack([s.norm() for s in spectra[b]]))
        assert torch.allclose(dense.singular_values(T, [4], block=block)[0][b], spectra[b][3])


def test_only_the_strict_lower_triangle_is_read_and_nothing_is_written():
    T = operator("softmax", 40)[None]
    dirty = T + torch.full((40, 40), math.nan).double().triu().nan_to_num(0.0) + torch.ones(40, 40).double().triu() * 7
    dirty[:, 3, 9], dirty[:, 5, 5] = math.nan, math.inf
    before = dirty.clone()
    assert torch.equal(dense.tolerance_counts(dirty, TOLERANCES)[0], dense.tolerance_counts(T, TOLERANCES)[0])
    assert torch.equal(dense.entropy(dirty)[0], dense.entropy(T)[0])
    assert torch.equal(dense.largest(dirty), dense.largest(T))
    assert torch.equal(dense.frobenius(dirty), dense.frobenius(T))
    assert torch.equal(dirty.nan_to_num(), before.nan_to_num())


def test_single_precision_and_strided_input():
    T = operator("softmax", 50)
    wide = torch.zeros(50, 120, 2)
    wide[:, ::2, 0][:, :50] = T.float()
    view = wide[:, :100:2, 0][None]
    assert not view.is_contiguous()
    assert torch.equal(
        dense.tolerance_counts(view, [1e-2])[0], dense.tolerance_counts(T.float().double()[None], [1e-2])[0]
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("L", [8, 40])
def test_what_is_not_finite_is_refused(value, L):
    T = torch.stack([operator("softmax", L), operator("softmax", L)])
    T[1, L - 1, 2] = value
    for function in (
        lambda: dense.tolerance_counts(T, [1e-2]),
        lambda: dense.entropy(T),
        lambda: dense.frobenius(T),
        lambda: dense.largest(T),
        lambda: dense.singular_values(T, [3]),
    ):
        with pytest.raises(NonFiniteOperator, match="not finite"):
            function()


def test_tolerances_for_each_operator():
    T = torch.stack([operator("gaussian", 40), 1e-3 * operator("gaussian", 40)])
    relative, _ = dense.tolerance_counts(T, torch.tensor([[2.0, 2e-3], [1.0, 1e-3]]).double())
    assert torch.equal(relative[:, 0], relative[:, 1])
    assert torch.equal(relative[:, :1], dense.tolerance_counts(T[:1], [2.0, 1.0])[0])


def test_empty_batches():
    T = operator("gaussian", 30)[None]
    assert dense.tolerance_counts(T[:0], [1.0])[0].shape == (1, 0, 29)
    assert dense.tolerance_counts(T, [])[0].shape == (0, 1, 29)
    assert dense.entropy(T[:0])[0].shape == (0, 29)
    assert dense.largest(T[:0]).shape == (0, 29) and dense.largest(T, []).shape == (1, 0)
    assert dense.frobenius(T[:0]).shape == (0, 29)


@pytest.mark.parametrize(
    "call",
    [
        lambda T: dense.tolerance_counts(T[0], [1.0]),
        lambda T: dense.tolerance_counts(T[:, :9], [1.0]),
        lambda T: dense.tolerance_counts(T, [0.0]),
        lambda T: dense.tolerance_counts(T, [-1.0]),
        lambda T: dense.tolerance_counts(T, [math.nan]),
        lambda T: dense.tolerance_counts(T, torch.ones(1, 3)),
        lambda T: dense.tolerance_counts(T, [1.0], block=7),
        lambda T: dense.entropy(T, nodes=3),
        lambda T: dense.entropy(T[:, :1, :1]),
        lambda T: dense.singular_values(T, [0]),
        lambda T: dense.largest(T, [10]),
    ],
)
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(ValueError):
        call(torch.zeros(1, 10, 10, dtype=torch.float64))


def test_results_do_not_depend_on_threads_or_batches():
    T = torch.stack([operator(name, 150, 4) for name in ("softmax", "gaussian", "documents", "softmax sharp")])
    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 3):
            torch.set_num_threads(n)
            results.append((dense.tolerance_counts(T, TOLERANCES)[0], dense.entropy(T)[0]))
    finally:
        torch.set_num_threads(threads)
    alone = [(dense.tolerance_counts(x[None], TOLERANCES)[0], dense.entropy(x[None])[0]) for x in T]
    results.append((torch.cat([c for c, _ in alone], 1), torch.cat([e for _, e in alone])))
    for counts, ess in results[1:]:
        assert torch.equal(counts, results[0][0]) and torch.allclose(ess, results[0][1], rtol=1e-9)


def test_without_numba_all_is_as_with_it(monkeypatch):
    T = torch.stack([operator(name, 90, 1) for name in ("softmax", "gaussian", "one-hot rows")])
    with_numba = dense.tolerance_counts(T, TOLERANCES)[0], dense.entropy(T)[0], dense.frobenius(T)
    monkeypatch.setattr(dense_norms, "compiled_available", lambda: False)
    assert type(dense_sweep.prepare(T)).__name__ == "BatchedSweep"
    counts, ess, norm = dense.tolerance_counts(T, TOLERANCES)[0], dense.entropy(T)[0], dense.frobenius(T)
    assert torch.equal(counts, with_numba[0]) and torch.allclose(ess, with_numba[1], rtol=1e-4)
    assert torch.allclose(norm, with_numba[2])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "documents", "one-hot rows", "zero"])
def test_on_cuda_all_is_as_on_the_cpu(name):
    T = torch.stack([operator(name, 70, seed) for seed in range(3)])
    counts, resolved = dense.tolerance_counts(T.cuda(), TOLERANCES)
    assert counts.is_cuda and resolved.is_cuda
    assert torch.equal(counts.cpu(), dense.tolerance_counts(T, TOLERANCES)[0])
    assert torch.allclose(dense.entropy(T.cuda())[0].cpu(), dense.entropy(T)[0], rtol=1e-3)
    assert torch.allclose(dense.largest(T.cuda()).cpu(), dense.largest(T), rtol=1e-6)
    assert torch.allclose(dense.frobenius(T.cuda()).cpu(), dense.frobenius(T))
    assert torch.allclose(dense.singular_values(T.cuda(), [9])[0].cpu(), dense.singular_values(T, [9])[0])


@pytest.mark.real
def test_trained_heads():
    from tests import real

    real.require_smollm2()
    T = torch.cat(real.attention(200, [3, 26]))[::4].tril(-1)
    counts, resolved = dense.tolerance_counts(T, TOLERANCES)
    ess, error = dense.entropy(T)
    assert resolved.all()
    for b in range(len(T)):
        spectra = reference.all_spectra(T[b])
        assert torch.equal(counts[:, b], exact_counts(spectra, TOLERANCES)[0])
        true = exact_entropy(spectra)
        assert ((ess[b] - true).abs() <= error[b] * true).all() and ((ess[b] / true - 1).abs() < 1e-3).all()


@pytest.mark.parametrize("decay", [0.05, 0.4, 3.0])
def test_fast_decays_leave_a_small_corner(decay):
    """Rows and columns that are nothing beside the rest are left out of the SVD: entropy does not notice."""
    L = 160
    g = torch.Generator().manual_seed(0)
    b, c = torch.randn(2, 2, L, 24, dtype=torch.float64, generator=g)
    i = torch.arange(L)
    T = (c @ b.mT * torch.exp(-decay * (i[:, None] - i))).tril()
    ess, error = dense.entropy(T)
    for cut in (1, 2, 7, 80, 81, 150, L - 1):
        sigma = torch.linalg.svdvals(T[:, cut:, :cut])
        p = sigma / sigma.sum(-1, keepdim=True)
        wanted = torch.exp(-torch.special.xlogy(p, p).sum(-1))
        assert ((ess[:, cut - 1] / wanted - 1).abs() <= error[:, cut - 1].clamp_min(1e-12)).all()
