"""The sweep of dense_sweep.py as compiled loops (numba, the optional extra `fast`): one operator and shift at a time.

Why compiled: on one core at L = 512 batched torch calls spend most of their time on slicing, copies and Python; here
all happens in place in three small matrices, and `_subtract` is as fast as a BLAS product.

A node [o, o + s) is kept as upper triangles, rows and columns o .. o + s - 1 of three matrices: P (future x future),
Q (past x past) and N (past x future, the transpose of M there: past k reaches future j only if k < j).  Its children
are [o, o + h) and [o + h, o + s).  Entries below a diagonal are never read, and may be overwritten.

All sizes are multiples of 4.  All arrays are float64, C-contiguous and passed whole, with offsets: slices would
hide the unit stride from the compiler.  Single precision gained less than 10 %.  A function has few callers, because
each of them compiles it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

LEAF = 16  # last node: below this size the loops over one node are too short to pay
LANES = 64  # last nodes eliminated side by side, one in each lane
PANEL, DEPTH = 256, 128  # columns and terms of a product taken at once: 256 KB, which stay in the second-level cache
TILE = 32  # side of the tiles in which a matrix is transposed


def _compiled(function: Callable[..., Any]) -> Any:
    """Compiled on first use, and kept on disk where numba finds a folder that it may write to."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # no such folder
        return numba.njit(function, **options)


@_compiled
def half(s):  # type: ignore[no-untyped-def]
    """Size of the left child, a multiple of 8 (short rows of odd lengths are slow)."""
    return (s // 2 + 4) // 8 * 8


@_compiled
def _subtract(C, r, c, n, A, a, B, b, start, k, alpha):  # type: ignore[no-untyped-def]
    """C[r:r+4, c:c+n] -= alpha A[:, a:a+4]^T B[:, b:b+n] over rows start .. start+k-1, k a multiple of 4.

    Four rows and four terms at a time: 16 multiply-adds for each 8 loads and 4 stores.
    """
    c0, c1, c2, c3 = C[r, c : c + n], C[r + 1, c : c + n], C[r + 2, c : c + n], C[r + 3, c : c + n]
    for p in range(start, start + k, 4):
        b0, b1, b2, b3 = B[p, b : b + n], B[p + 1, b : b + n], B[p + 2, b : b + n], B[p + 3, b : b + n]
        a00, a10, a20, a30 = alpha * A[p, a], alpha * A[p + 1, a], alpha * A[p + 2, a], alpha * A[p + 3, a]
        q = a + 1
        a01, a11, a21, a31 = alpha * A[p, q], alpha * A[p + 1, q], alpha * A[p + 2, q], alpha * A[p + 3, q]
        q = a + 2
        a02, a12, a22, a32 = alpha * A[p, q], alpha * A[p + 1, q], alpha * A[p + 2, q], alpha * A[p + 3, q]
        q = a + 3
        a03, a13, a23, a33 = alpha * A[p, q], alpha * A[p + 1, q], alpha * A[p + 2, q], alpha * A[p + 3, q]
        for j in range(n):
            x0, x1, x2, x3 = b0[j], b1[j], b2[j], b3[j]
            c0[j] -= a00 * x0 + a10 * x1 + a20 * x2 + a30 * x3
            c1[j] -= a01 * x0 + a11 * x1 + a21 * x2 + a31 * x3
            c2[j] -= a02 * x0 + a12 * x1 + a22 * x2 + a32 * x3
            c3[j] -= a03 * x0 + a13 * x1 + a23 * x2 + a33 * x3


@_compiled
def _subtract_upper(C, o, A, a, B, b, r, k, m, alpha):  # type: ignore[no-untyped-def]
    """C[o:o+m, o:o+m] -= alpha A[r:r+k, a:a+m]^T B[r:r+k, b:b+m] on and above the diagonal."""
    for start in range(r, r + k, DEPTH):
        terms = min(DEPTH, r + k - start)
        for j in range(0, m, PANEL):
            end = min(j + PANEL, m)
            for i in range(0, end, 4):
                c = max(i, j)
                _subtract(C, o + i, o + c, end - c, A, a + i, B, b + c, start, terms, alpha)


@_compiled
def _eliminate(Y, V, k, n):  # type: ignore[no-untyped-def]
    """L D L^T of the pivot block in Y = [pivot | R], (k, n): Y becomes L^-1 Y, and V = D^-1 Y.

    So R^T pivot^-1 R = Y^T V.  The pivot block comes first, then R in panels of columns; rows look back at all rows
    above them, four at a time.
    """
    c = 0
    while c < n:
        end = k if c < k else min(c + PANEL, n)
        for i in range(0, k, 4):
            start = max(c, i)
            _subtract(Y, i, start, end - start, V, i, Y, start, 0, i, 1.0)
            for r in range(i, i + 4):
                y, v = Y[r, start:end], V[r, start:end]
                for q in range(i, r):
                    x = Y[q, start:end]
                    factor = V[q, r]
                    for j in range(end - start):
                        y[j] -= factor * x[j]
                if c < k:
                    V[r, r] = 1.0 / Y[r, r]  # kept here for the panels of R
                    for j in range(r + 1, k):
                        V[r, j] = Y[r, j] * V[r, r]
                else:
                    factor = V[r, r]
                    for j in range(end - start):
                        v[j] = y[j] * factor
        c = end


@_compiled
def _split(nodes, o, s, sign, both, Y, V):  # type: ignore[no-untyped-def]
    """Replaces a node by its children; the left one only if both are asked for.

    Seen from the right child the left one is past: pivot Q[a, a], own role Q[a, b], other role N[a, b].  Seen from the
    left one the right one is future: pivot P[b, b], own role P[a, b]^T, other role N[a, b]^T.
    """
    h = half(s)
    m = o + h
    P, Q, N = nodes[0], nodes[1], nodes[2]
    for left in range(2 if both else 1):
        k = s - h if left else h  # size of the sibling, and so the number of pivots
        if left:
            for i in range(k):
                for j in range(i, k):
                    Y[i, j] = Y[h + i, j]  # saved below; a row is written after it was read
                for j in range(h):
                    Y[i, k + j] = P[o + j, m + i]
                    Y[i, s + j] = N[o + j, m + i]
        else:
            for i in range(k):
                for j in range(i, s):
                    Y[i, j] = Q[o + i, o + j]
                for j in range(s - h):
                    Y[i, s + j] = N[o + i, m + j]
        _eliminate(Y, V, k, 2 * s - k)
        if both and not left:  # the right child is about to overwrite the pivots of the left one
            for i in range(s - h):
                for j in range(i, s - h):
                    Y[h + i, j] = P[m + i, m + j]
        for which in range(3):  # own role x own role, other x other, past x future; one loop, one compiled call
            role = which if which == 2 else (which + 1 + left) % 2
            past = s if which == 1 or (which == 2 and left) else k
            future = s if which == 1 or (which == 2 and not left) else k
            alpha = sign if which == 1 else 1.0
            _subtract_upper(nodes[role], o if left else m, V, past, Y, future, 0, k, s - k, alpha)


@_compiled
def _axpy(X, i, j, a, Y, k, m):  # type: ignore[no-untyped-def]
    """X[i, j] -= a Y[k, m] in every lane."""
    x, y = X[i, j], Y[k, m]
    for z in range(LANES):
        x[z] -= a[z] * y[z]


@_compiled
def _times(x, a, X, i, j, y):  # type: ignore[no-untyped-def]
    """x = a X[i, j] y in every lane."""
    for z in range(LANES):
        x[z] = a * X[i, j, z] * y[z]


@_compiled
def _leaves(P, Q, N, sign, D, E, K):  # type: ignore[no-untyped-def]
    """The rest of the recursion for LANES nodes at once, with scalar pivots; f and p end on the diagonals of P and Q.

    All arrays: (LEAF, LEAF, LANES); D, E and K are working room.
    """
    inverse, x, y = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    s = LEAF
    while s > 1:
        h = s // 2
        for o in range(0, LEAF, s):
            b = o + h
            for u in range(h):  # both children's pivots, and N[a, b], which both eliminate
                for v in range(h):
                    for z in range(LANES):
                        D[u, v, z] = Q[o + u, o + v, z]
                        E[u, v, z] = P[b + u, b + v, z]
                        K[u, v, z] = N[o + u, b + v, z]
            for t in range(h):  # right child
                for z in range(LANES):
                    inverse[z] = 1.0 / D[t, t, z]
                for u in range(t + 1, h):
                    _times(x, 1.0, D, t, u, inverse)
                    for v in range(u, h):
                        _axpy(D, u, v, x, D, t, v)
                    for v in range(b, o + s):
                        _axpy(Q, o + u, v, x, Q, o + t, v)
                        _axpy(N, o + u, v, x, N, o + t, v)
                for u in range(b, o + s):
                    _times(x, 1.0, Q, o + t, u, inverse)
                    _times(y, sign, N, o + t, u, inverse)
                    for v in range(u, o + s):
                        _axpy(Q, u, v, x, Q, o + t, v)
                        _axpy(N, u, v, x, N, o + t, v)
                        _axpy(P, u, v, y, N, o + t, v)
            for t in range(h):  # left child
                for z in range(LANES):
                    inverse[z] = 1.0 / E[t, t, z]
                for u in range(t + 1, h):
                    _times(x, 1.0, E, t, u, inverse)
                    for v in range(u, h):
                        _axpy(E, u, v, x, E, t, v)
                    for v in range(h):
                        _axpy(P, o + v, b + u, x, P, o + v, b + t)
                        _axpy(K, v, u, x, K, v, t)
                for u in range(h):
                    _times(x, 1.0, P, o + u, b + t, inverse)
                    _times(y, 1.0, K, u, t, inverse)
                    for v in range(u, h):
                        _axpy(P, o + u, o + v, x, P, o + v, b + t)
                        _axpy(N, o + u, o + v, y, P, o + v, b + t)
                    _times(y, sign, K, u, t, inverse)
                    for v in range(u, h):
                        _axpy(Q, o + u, o + v, y, K, v, t)
        s = h


@_compiled
def sweep(T, size, grams, w, sign, f, p):  # type: ignore[no-untyped-def]
    """f / w and p / w of the first indices of an operator.

    Args:
        T: (L, >= size), read below the diagonal only.
        size: number of indices, a multiple of 4.
        grams: what `gram_matrices` returns for T and size.
        w: (K,) shifts.
        sign: +1.0 (counts) or -1.0 (determinants).
        f, p: (K, size), filled.
    """
    nodes = np.empty((3, size, size + 8))  # the odd row length keeps rows from sharing cache sets
    P, Q, N = nodes[0], nodes[1], nodes[2]
    Y = np.empty((size // 2 + 8, size + size // 2 + 8))
    V = np.empty_like(Y)
    leaves, lane = np.ones((6, LEAF, LEAF, LANES)), 0
    where = np.empty((LANES, 3), np.int64)  # shift, start and size of the node in each lane
    stack = np.empty((64, 2), np.int64)
    upper = np.empty((size, size))
    for i in range(0, size, TILE):
        for j in range(i, size, TILE):
            for u in range(i, min(i + TILE, size)):
                for v in range(max(j, u), min(j + TILE, size)):
                    upper[u, v] = T[v, u]
    for k in range(w.shape[0]):
        for i in range(size):
            for j in range(i, size):
                P[i, j] = 0.0
                N[i, j] = upper[i, j]
            P[i, i] = w[k]
        stack[0, 0], stack[0, 1] = 0, size
        top, offset = 1, 0
        while top:
            top -= 1
            o, s = stack[top, 0], stack[top, 1]
            if o == 0:
                # The first node of a level: its outside is all future, w I and nothing else, so that P = w I and
                # Q = w I - sign Gram / w.  Its left child needs no elimination for the same reason.
                factor = -sign / w[k]
                for i in range(s):
                    for j in range(i, s):
                        Q[i, j] = factor * grams[offset + i * s + j]
                    Q[i, i] += w[k]
                offset += s * s
            if s > LEAF:
                _split(nodes, o, s, sign, o > 0, Y, V)
                stack[top, 0], stack[top, 1] = o, half(s)
                stack[top + 1, 0], stack[top + 1, 1] = o + half(s), s - half(s)
                top += 2
                continue
            for b in range(3):  # into a lane, filled up with pivots of 1 that touch nothing
                for i in range(LEAF):
                    for j in range(i, LEAF):
                        fill = 1.0 if b < 2 and i == j else 0.0
                        leaves[b, i, j, lane] = nodes[b, o + i, o + j] if j < s else fill
            where[lane, 0], where[lane, 1], where[lane, 2] = k, o, s
            lane += 1
            if lane == LANES or (top == 0 and k == w.shape[0] - 1):
                _leaves(leaves[0], leaves[1], leaves[2], sign, leaves[3], leaves[4], leaves[5])
                for z in range(lane):
                    for i in range(where[z, 2]):
                        f[where[z, 0], where[z, 1] + i] = leaves[0, i, i, z] / w[where[z, 0]]
                        p[where[z, 0], where[z, 1] + i] = leaves[1, i, i, z] / w[where[z, 0]]
                lane = 0


@_compiled
def gram_matrices(T, size):  # type: ignore[no-untyped-def]
    """H^T H with H = T[s:, :s], upper triangles, for s = size, half(size), .. down to LEAF, in one flat array."""
    total, s = size * size, size
    while s > LEAF:
        s = half(s)
        total += s * s
    flat = np.zeros(total)
    offset, s, end = 0, size, T.shape[0]
    while True:
        G = flat[offset : offset + s * s].reshape((s, s))
        _subtract_upper(G, 0, T, 0, T, 0, s, end - s, s, -1.0)
        if s <= LEAF:
            return flat
        offset, end, s = offset + s * s, s, half(s)
        for i in range(s):
            for j in range(i, s):
                flat[offset + i * s + j] = G[i, j]


@_compiled
def mirror(T, size):  # type: ignore[no-untyped-def]
    """The first columns of T reversed in time, M[i, j] = T[L-1-j, L-1-i]: future and past change places.

    Above the diagonal it is left unset.  L is a multiple of 8.
    """
    L = T.shape[0]
    M = np.empty((L, size))
    for i in range(0, L, 8):  # in tiles of one cache line
        for j in range(0, min(i + 1, size), 8):
            for v in range(j, min(j + 8, size)):
                for u in range(i, i + 8):
                    M[u, v] = T[L - 1 - v, L - 1 - u]
    return M


@_compiled
def squares(T, cuts, rows, columns):  # type: ignore[no-untyped-def]
    """Fills |H_i|_F^2 for i = 1 .. L-1 and the squared norms of the rows and columns of T, in one pass upwards."""
    rows[0] = 0.0
    for j in range(T.shape[0]):
        columns[j] = 0.0
    for i in range(T.shape[0] - 1, 0, -1):
        row, cut = 0.0, 0.0
        for j in range(i):
            x = T[i, j] * T[i, j]
            columns[j] += x
            row += x
            cut += columns[j]
        rows[i], cuts[i - 1] = row, cut
