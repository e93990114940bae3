"""Singular values of every H_i from square-root Gramians: to about 1e-15 of the largest, on the CPU.

P_i = L_i L_i^T and Q_i = U_i U_i^T (see recurrent_gramians) are never formed, only their factors, so that
sigma(H_i) = sigma(U_i^T L_i).  With numba (the optional extra `fast`) the kernels do it; without, torch does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from hf_ess.operators import RecurrentOperator


@cache
def compiled() -> bool:
    """Whether numba is there."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def singular_values(op: RecurrentOperator, cuts: Sequence[int], memory: int) -> Tensor:
    """Singular values of H_i at ascending cuts, (operator, cut, n), descending.

    Args:
        op: on the CPU, finite.
        cuts: in 1 .. L-1, at least one.
        memory: bytes for what the kernels keep on the way.
    """
    if not compiled():
        return by_qr(op, cuts)
    from hf_ess.spectra.kernels_svd import LANES

    threads = torch.get_num_threads()
    segment = math.isqrt(op.length - 1) + 1  # as many factors at the starts of segments as within one
    per_lane = 2 * 8 * segment * op.state**2
    lanes = max(1, min(LANES, math.ceil(op.count / threads), memory // threads // per_lane))
    sigma = torch.empty(op.count, len(cuts), op.state, dtype=torch.float64)
    out = sigma.numpy()  # in the threads below numpy does what torch would share out among still more threads

    def fill(part: slice) -> None:
        out[part] = _together(op[part], cuts, segment).transpose(2, 1, 0)

    # Threads of our own even if there is but one: the kernels release the interpreter's lock, and decaying states
    # fill with denormal numbers, which are 4 to 6 times slower (n = 64, 128), so that these threads flush them to 0.
    with ThreadPoolExecutor(threads, initializer=partial(torch.set_flush_denormal, True)) as pool:
        list(pool.map(fill, [slice(k, k + lanes) for k in range(0, op.count, lanes)]))
    return sigma


def _together(op: RecurrentOperator, cuts: Sequence[int], segment: int) -> np.ndarray:
    """Singular values (n, cut, w) of w operators, one lane of the kernels each; segments of cuts, the last first.

    The forward factors are kept at the starts of the segments and recomputed within one segment at a time.
    """
    from hf_ess.spectra import kernels_recurrent, kernels_svd

    n, w, length = op.state, op.count, op.length
    packed = n * (n + 1) // 2
    nothing = np.empty((0, 0, w))

    def lanes_last(x: Tensor | None) -> np.ndarray:
        return nothing if x is None else np.ascontiguousarray(x.expand(w, -1, -1).numpy().transpose(1, 2, 0))

    p, q = op.rank_one or (None, None)
    a, b, c, left, right = (lanes_last(x) for x in (op.a, op.b, op.c, p, q))
    starts = range(0, length, segment)
    at_start = np.zeros((len(starts), packed, w))
    for s in range(1, len(starts)):
        at_start[s] = at_start[s - 1]
        kernels_recurrent.forward(at_start[s], a, b, left, right, starts[s - 1], starts[s], nothing)

    sigma = np.empty((n, len(cuts), w))
    kept = np.empty((segment, packed, w))
    products = np.empty((n, n, segment * w))
    backward = np.zeros((packed, w))
    column = np.full(length, -1)
    column[list(cuts)] = np.arange(len(cuts))
    for s in range(len(starts) - 1, -1, -1):
        first, end = starts[s], min(starts[s] + segment, length)
        kernels_recurrent.forward(at_start[s], a, b, left, right, first, end, kept)
        kernels_recurrent.backward_products(backward, a, c, left, right, first, end, kept, products)
        wanted = np.flatnonzero(column[first:end] >= 0)
        values = np.empty((n, len(wanted) * w))
        lanes = (wanted[:, None] * w + np.arange(w)).ravel()
        kernels_svd.singular_values(products, lanes, values)
        sigma[:, column[first + wanted]] = values.reshape(n, -1, w)
    return sigma


def by_qr(op: RecurrentOperator, cuts: Sequence[int]) -> Tensor:
    """singular_values by one QR a step and LAPACK's SVDs: 6 to 8 times slower at n = 16, as fast as Gramians."""
    wanted = {i: k for k, i in enumerate(cuts)}
    zero = op.b.new_zeros(op.count, op.state, op.state)
    factor, kept = zero, {}
    for i in range(cuts[-1]):
        b = op.b[:, i, :, None].expand(op.count, -1, -1)
        factor = _square(torch.cat([op.transition(i, factor), b], 2))
        if i + 1 in wanted:
            kept[i + 1] = factor
    sigma = op.b.new_empty(op.count, len(cuts), op.state)
    factor = zero
    for i in range(op.length - 1, cuts[0] - 1, -1):
        c = op.c[:, i, :, None].expand(op.count, -1, -1)
        factor = op.adjoint_transition(i, _square(torch.cat([factor, c], 2)))
        if i in wanted:
            product = factor.mT @ kept.pop(i)
            finite = product.isfinite().all(2).all(1)
            product[~finite] = 0.0  # LAPACK is never shown NaN: it may not come back
            sigma[:, wanted[i]] = torch.linalg.svdvals(product)
            sigma[~finite, wanted[i]] = torch.nan
    return sigma


def _square(x: Tensor) -> Tensor:
    """Square F with F F^T = x x^T."""
    return torch.linalg.qr(x.mT, mode="r").R.mT
