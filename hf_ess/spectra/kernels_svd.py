"""Singular values of many small lower-triangular matrices at once, compiled by numba (imported by kernels_recurrent).

The matrices are the last, contiguous dimension of every array (lanes): each inner loop does the same operation on
LANES of them, which the compiler turns into vector instructions.  Householder reduction to bidiagonal form, then dqds
with Laguerre's lower bound as shift, is branch-free enough for that.  Measured at n = 16 on one thread: 1.4 us a
matrix, to 1e-15 of the largest singular value; LAPACK through torch.linalg.svdvals takes 37 us.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher

LANES = 64  # measured: 16 lanes run at half the speed (loop overhead), 128 no faster
EPS = float(np.finfo(np.float64).eps)
# Fused multiply-add is the only liberty: the loops rely on NaN, infinities and the order of operations.
OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}

# Rows of the qd array, one set per diagonal entry k: q_k, e_k (squares of the bidiagonal), the shifts taken off so
# far, the two sums of Laguerre's bound over the block that ends at k, where that block starts, and three carries.
Q, E, TAKEN, SUM1, SUM2, START, D, U, V = range(9)
ROWS = 9
# Rows of the array of scalars per lane.
SHIFT, FIRST, NEGLIGIBLE, FLOOR = range(4)


inlined = njit(**OPTIONS)


def compiled(function: Callable) -> Dispatcher:
    """Compile and keep the result on disk; whatever function calls must be in its own file, whose age is checked."""
    try:
        return njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return njit(**OPTIONS)(function)


@compiled
def singular_values(matrices: np.ndarray, chosen: np.ndarray, sigma: np.ndarray) -> None:
    """Singular values of chosen lower-triangular matrices, descending.

    Args:
        matrices: (n, n, number); what lies above the diagonal is not read.
        chosen: (count,) int64, which of them.
        sigma: (n, count), result; NaN where the iteration failed.
    """
    n, count = sigma.shape
    M = np.zeros((n, n, LANES))
    values = np.empty((n, LANES))
    work = np.empty((n + 1) * ROWS * LANES), np.empty(4 * LANES), np.empty((4, LANES))
    for first in range(0, count, LANES):
        used = min(LANES, count - first)
        for i in range(n):
            for j in range(i + 1):
                for z in range(used):
                    M[i, j, z] = matrices[i, j, chosen[first + z]]
                M[i, j, used:] = 0.0
        _of_lanes(M, values, work, n)
        for k in range(n):
            for z in range(used):
                sigma[k, first + z] = values[k, z]


@inlined
def _of_lanes(M: np.ndarray, sigma: np.ndarray, work: tuple[np.ndarray, ...], n: int) -> None:
    """Singular values of LANES lower-triangular matrices, which are overwritten."""
    qd, lane, scratch = work
    top = scratch[3]
    for z in range(LANES):
        top[z] = 0.0
    for i in range(n):
        for j in range(i + 1):
            for z in range(LANES):
                top[z] = max(top[z], abs(M[i, j, z]))
    for z in range(LANES):
        scratch[0, z] = 1.0 / top[z] if top[z] > 1e-290 else 0.0
    for i in range(n):
        for j in range(i + 1):
            for z in range(LANES):
                M[i, j, z] *= scratch[0, z]
        M[i, i + 1 :] = 0.0
    _bidiagonalise(M, qd, scratch, n)
    _all_values(qd, lane, n)
    for k in range(n):
        for z in range(LANES):
            square = qd[(k * ROWS + Q) * LANES + z] + qd[(k * ROWS + TAKEN) * LANES + z]
            sigma[k, z] = top[z] * np.sqrt(square)
    for k in range(1, n):  # insertion sort, compare-exchange only
        for j in range(k, 0, -1):
            for z in range(LANES):
                x, y = sigma[j - 1, z], sigma[j, z]
                sigma[j - 1, z], sigma[j, z] = max(x, y), min(x, y)


@inlined
def _bidiagonalise(M: np.ndarray, qd: np.ndarray, scratch: np.ndarray, n: int) -> None:
    """Householder reduction to lower bidiagonal form; squares of its entries into rows Q and E of qd."""
    norm2, scale, dot = scratch[0], scratch[1], scratch[2]
    for k in range(n):
        norm2[:] = 0.0
        for j in range(k, n):
            for z in range(LANES):
                norm2[z] += M[k, j, z] * M[k, j, z]
        qd[(k * ROWS + Q) * LANES : (k * ROWS + Q + 1) * LANES] = norm2
        if 0 < k < n - 1:  # row 0 of a triangular matrix needs no reflection
            _reflector(M[k, k], norm2, scale)
            for i in range(k + 1, n):
                dot[:] = 0.0
                for j in range(k, n):
                    for z in range(LANES):
                        dot[z] += M[i, j, z] * M[k, j, z]
                for z in range(LANES):
                    dot[z] *= scale[z]
                for j in range(k, n):
                    for z in range(LANES):
                        M[i, j, z] -= dot[z] * M[k, j, z]
        norm2[:] = 0.0
        for i in range(k + 1, n):
            for z in range(LANES):
                norm2[z] += M[i, k, z] * M[i, k, z]
        qd[(k * ROWS + E) * LANES : (k * ROWS + E + 1) * LANES] = norm2
        if k < n - 2:
            _reflector(M[k + 1, k], norm2, scale)
            for j in range(k + 1, n):
                dot[:] = 0.0
                for i in range(k + 1, n):
                    for z in range(LANES):
                        dot[z] += M[i, k, z] * M[i, j, z]
                for z in range(LANES):
                    dot[z] *= scale[z]
                for i in range(k + 1, n):
                    for z in range(LANES):
                        M[i, j, z] -= dot[z] * M[i, k, z]


@inlined
def _reflector(head: np.ndarray, norm2: np.ndarray, scale: np.ndarray) -> None:
    """I - scale v v^T that maps x to -+|x| e_1: v = x but for its head, which becomes x_1 +- |x|."""
    for z in range(LANES):
        norm, x = np.sqrt(norm2[z]), head[z]
        head[z] = x + np.copysign(norm, x)
        denominator = norm * (norm + abs(x))
        # Squares that may have underflowed would make a reflection that is none; what is so small is left out.
        scale[z] = 1.0 / denominator if denominator > 1e-200 else 0.0


@inlined
def _all_values(qd: np.ndarray, lane: np.ndarray, n: int) -> None:
    """Eigenvalues of B B^T as rows Q + TAKEN of qd, unsorted; NaN if a lane did not converge.

    dqds (Fernando and Parlett, Numer. Math. 67, 1994): each sweep takes a shift off all eigenvalues of a block, and
    the smallest comes out at its end.  The shift is Laguerre's lower bound of the smallest eigenvalue from the traces
    of the first two powers of the inverse, as in von Matt's orthogonal qd algorithm (SIAM J. Sci. Comput. 18, 1997):
    it never overshoots, so that no sweep has to be undone and all lanes go in step, about 4 sweeps a value.
    """
    for z in range(LANES):
        trace = 0.0
        for k in range(n):
            trace += qd[(k * ROWS + Q) * LANES + z] + qd[(k * ROWS + E) * LANES + z]
        lane[NEGLIGIBLE * LANES + z] = (0.5 * EPS) ** 2 * trace
        lane[FLOOR * LANES + z] = 1e-40 * trace + 1e-290  # keeps q > 0, so that no division is by 0
        lane[SHIFT * LANES + z] = 0.0
        lane[FIRST * LANES + z] = 0.0
    for k in range(n):
        for z in range(LANES):
            qd[(k * ROWS + TAKEN) * LANES + z] = 0.0
            qd[(k * ROWS + Q) * LANES + z] = max(qd[(k * ROWS + Q) * LANES + z], lane[FLOOR * LANES + z])
    last = n - 1
    _sweep(qd, lane, last)
    sweeps = 0
    while last > 0:
        split = True
        for z in range(LANES):
            split = split & ~(qd[((last - 1) * ROWS + E) * LANES + z] > 0.0)  # or NaN: no hope for that lane
        if split:
            last -= 1
            continue
        if sweeps == 100 * n:  # never seen: about 4 n suffice
            qd[:] = np.nan
            return
        _laguerre(qd, lane, last)
        _sweep(qd, lane, last)
        sweeps += 1


@inlined
def _laguerre(qd: np.ndarray, lane: np.ndarray, last: int) -> None:
    """The next shift of every lane, for the unsplit block that ends at last: FIRST .. last."""
    o = last * ROWS * LANES
    for z in range(LANES):
        sum1, sum2 = qd[o + SUM1 * LANES + z], qd[o + SUM2 * LANES + z]
        first = qd[o + START * LANES + z]
        size = last + 1 - first
        # The second term outweighs the cancellation in the first, which could otherwise let the bound overshoot.
        spread = max((size - 1) * (size * sum2 - sum1 * sum1), 0.0) + 8 * EPS * (size * sum1) ** 2
        shift = size / (sum1 + np.sqrt(spread))
        lane[SHIFT * LANES + z] = shift if shift > 0 else 0.0
        lane[FIRST * LANES + z] = first


@inlined
def _sweep(qd: np.ndarray, lane: np.ndarray, last: int) -> None:
    """One dqds transformation of the entries 0 .. last, with the sums of Laguerre's bound for its result.

    Blocks before FIRST stay as they are: swept to no purpose, settled values drift.  The sums are tr C^-1 and
    tr C^-2 of C = B^T B, from the first two derivatives of log det(C - t I) at t = 0: all terms are positive, and
    they cost no further division.
    """
    for z in range(LANES):
        qd[D * LANES + z] = qd[Q * LANES + z]
        qd[U * LANES + z] = 1.0
        for row in (V, SUM1, SUM2, START):
            qd[row * LANES + z] = 0.0
    # Constant strides within one flat array: only then can the compiler prove that the lanes are independent.
    for k in range(last):
        o = k * ROWS * LANES
        for z in range(LANES):
            moving = k >= lane[FIRST * LANES + z]
            shift = lane[SHIFT * LANES + z] if moving else 0.0
            next_shift = lane[SHIFT * LANES + z] if k + 1 >= lane[FIRST * LANES + z] else 0.0
            d = max(qd[o + D * LANES + z] - shift, lane[FLOOR * LANES + z])
            e = qd[o + E * LANES + z]
            q = d + e if moving else d
            inverse = 1.0 / q
            next_q = qd[o + (ROWS + Q) * LANES + z]
            ratio = next_q * inverse
            d = d * ratio if moving & (e != 0.0) else next_q
            e = e * ratio if moving else e
            qd[o + Q * LANES + z] = q
            qd[o + (ROWS + D) * LANES + z] = d
            qd[o + TAKEN * LANES + z] += shift

            # Dropping e moves an eigenvalue by at most e + sqrt(e q), q the next diagonal entry.
            small = 0.5 * EPS * (qd[o + (ROWS + TAKEN) * LANES + z] + next_q)
            q_after = max(d - next_shift, 0.0) + qd[o + (ROWS + E) * LANES + z]
            cut = (e <= lane[NEGLIGIBLE * LANES + z]) | ((e <= small) & (e * q_after <= small * small))
            e = 0.0 if cut else e
            qd[o + E * LANES + z] = e

            u, v = qd[o + U * LANES + z], qd[o + V * LANES + z]
            w = u * inverse
            sum1 = qd[o + SUM1 * LANES + z] + w
            sum2 = qd[o + SUM2 * LANES + z] + w * w + v * inverse
            qd[o + SUM1 * LANES + z] = sum1
            qd[o + SUM2 * LANES + z] = sum2
            qd[o + (ROWS + U) * LANES + z] = 1.0 + e * inverse * u
            qd[o + (ROWS + V) * LANES + z] = e * inverse * (v + 2.0 * u * w)
            qd[o + (ROWS + SUM1) * LANES + z] = 0.0 if cut else sum1
            qd[o + (ROWS + SUM2) * LANES + z] = 0.0 if cut else sum2
            qd[o + (ROWS + START) * LANES + z] = k + 1.0 if cut else qd[o + START * LANES + z]
    o = last * ROWS * LANES
    for z in range(LANES):
        shift = lane[SHIFT * LANES + z] if last >= lane[FIRST * LANES + z] else 0.0
        q = max(qd[o + D * LANES + z] - shift, lane[FLOOR * LANES + z])
        qd[o + Q * LANES + z] = q
        qd[o + TAKEN * LANES + z] += shift
        w = qd[o + U * LANES + z] / q
        qd[o + SUM1 * LANES + z] += w
        qd[o + SUM2 * LANES + z] += w * w + qd[o + V * LANES + z] / q
