"""How long the singular values of dense operators will take: one SVD per cut, O(L^3) each."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from hf_ess.spectra.svds import one_blas_thread

_PROBE = 192  # rows and columns of the matrix that tells the speed of this machine


def operations(length: int, cuts: Sequence[int]) -> float:
    """Floating-point operations of the singular values of H_i, (L-i) x i, at the cuts: 4 m n^2 - 4 n^3 / 3 each.

    (Golub, Van Loan: Matrix Computations, 8.6.3, without vectors.)
    """
    total = 0.0
    for i in cuts:
        n, m = sorted((i, length - i))
        total += 4 * m * n**2 - 4 * n**3 / 3
    return total


def seconds(length: int, cuts: Sequence[int], operators: int) -> float:
    """Time for all operators on this machine's CPU, by the speed of one small SVD just now."""
    matrix = torch.rand(_PROBE, _PROBE, dtype=torch.float64)
    times = []
    with one_blas_thread() as threads:
        for _ in range(3):
            start = time.perf_counter()
            torch.linalg.svdvals(matrix)
            times.append(time.perf_counter() - start)
    return operators * operations(length, cuts) * min(times) / operations(2 * _PROBE, [_PROBE]) / threads
