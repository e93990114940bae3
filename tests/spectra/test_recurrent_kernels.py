"""The compiled SVD of many small triangular matrices against LAPACK, on what makes such iterations fail."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("numba")

from hf_ess.spectra import kernels_svd

EPS = 2.2e-16


def values(matrices: np.ndarray) -> np.ndarray:
    """(matrix, n, n) lower triangular -> (matrix, n)."""
    lanes_last = np.ascontiguousarray(matrices.transpose(1, 2, 0))
    sigma = np.empty((matrices.shape[1], len(matrices)))
    kernels_svd.singular_values(lanes_last, np.arange(len(matrices)), sigma)
    return sigma.T


def triangle_with(rng: np.random.Generator, sigma: np.ndarray) -> np.ndarray:
    """A lower-triangular matrix with these singular values."""
    n = len(sigma)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    return np.linalg.qr((left * sigma @ right).T)[1].T


def scale(rng: np.random.Generator, *shape: int, least: float = -20) -> np.ndarray:
    return 10.0 ** rng.uniform(least, 0, shape)


KINDS = {
    "random": lambda rng, n: rng.standard_normal((n, n)),
    "entries of all scales": lambda rng, n: rng.standard_normal((n, n)) * scale(rng, n, n),
    "rows of all scales": lambda rng, n: rng.standard_normal((n, n)) * scale(rng, n, 1),
    "columns of all scales": lambda rng, n: rng.standard_normal((n, n)) * scale(rng, 1, n),
    "squares that underflow": lambda rng, n: rng.standard_normal((n, n)) * scale(rng, n, 1, least=-250),
    "in columns": lambda rng, n: rng.standard_normal((n, n)) * scale(rng, 1, n, least=-250),
    "in both": lambda rng, n: rng.standard_normal((n, n)) * scale(rng, n, n, least=-250),
    "sparse": lambda rng, n: rng.standard_normal((n, n)) * (rng.random((n, n)) < 0.3),
    "clusters": lambda rng, n: triangle_with(rng, rng.choice([1, 1 + 1e-8, 1 + 1e-14, 0.5, 1e-9, 0], n)),
    "all equal": lambda rng, n: triangle_with(rng, np.ones(n)),
    "tiny": lambda rng, n: 1e-200 * rng.standard_normal((n, n)),
    "large": lambda rng, n: 1e150 * rng.standard_normal((n, n)),
    "ones": lambda rng, n: np.ones((n, n)),
    "identity": lambda rng, n: np.eye(n),
    "bidiagonal": lambda rng, n: np.diag(scale(rng, n)) + np.diag(scale(rng, n)[1:], -1),
    "singular in the middle": lambda rng, n: rng.standard_normal((n, n)) * (np.arange(n) != n // 2),
    "nilpotent": lambda rng, n: np.eye(n, k=-1),
    "zero": lambda rng, n: np.zeros((n, n)),
}


@pytest.mark.parametrize("n", [1, 2, 3, 8, 16, 33])
def test_as_lapack_whatever_shares_the_lanes(n):
    """Each kind among others, so that lanes wait for lanes; twice the rounding error of one step per row."""
    rng = np.random.default_rng(n)
    names = list(KINDS) * 11
    matrices = np.tril(np.stack([KINDS[name](rng, n) for name in names]))
    exact, sigma = np.linalg.svd(matrices, compute_uv=False), values(matrices)
    assert (np.diff(sigma, axis=1) <= 0).all()
    error = np.abs(sigma - exact).max(1)
    worst = {
        name: error[k] / exact[k, 0] for k, name in enumerate(names) if error[k] > (20 + 4 * n) * EPS * exact[k, 0]
    }
    assert not worst


def test_not_a_number_stays_in_its_lane():
    matrices = np.tril(np.random.default_rng(0).standard_normal((70, 5, 5)))
    exact = values(matrices)
    matrices[3, 2, 1], matrices[66, 0, 0] = np.nan, np.inf
    sigma = values(matrices)
    assert np.isnan(sigma[[3, 66]]).any(1).all()
    others = np.delete(np.arange(70), [3, 66])
    assert np.allclose(sigma[others], exact[others], rtol=1e-13)


def test_chosen_matrices_only():
    matrices = np.tril(np.random.default_rng(0).standard_normal((9, 4, 4)))
    sigma = np.empty((4, 3))
    kernels_svd.singular_values(np.ascontiguousarray(matrices.transpose(1, 2, 0)), np.array([7, 0, 4]), sigma)
    assert np.allclose(sigma.T, np.linalg.svd(matrices[[7, 0, 4]], compute_uv=False))


@pytest.mark.slow
def test_no_place_for_a_cache(tmp_path):
    """Compiled in memory where neither the package's folder nor the user's can be written."""
    program = """
from numba.core import caching
class Nowhere(caching._CacheLocator):
    @classmethod
    def from_function(cls, *args):
        return None
caching.CacheImpl._locator_classes = [Nowhere]
import numpy as np
from hf_ess.spectra import kernels_svd
sigma = np.empty((1, 1))
kernels_svd.singular_values(np.full((1, 1, 1), 3.0), np.zeros(1, np.int64), sigma)
assert sigma[0, 0] == 3
"""
    subprocess.run([sys.executable, "-c", program], check=True)
