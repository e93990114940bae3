"""Square-root Gramians of recurrent operators, compiled by numba, channels as the last, contiguous dimension.

P_i = L_i L_i^T and Q_i = U_i U_i^T are carried as triangular factors, L lower and U upper, so that
sigma(H_i) = sigma(U_i^T L_i), a lower-triangular product.  Nothing is squared, and a step costs O(n^2):

    L_{i+1} L_{i+1}^T = (A_i L_i)(A_i L_i)^T + b_i b_i^T        U_i U_i^T = A_i^T (U_{i+1} U_{i+1}^T + c_i c_i^T) A_i

A diagonal A_i keeps a factor triangular, and a vector is rotated in.  A rank-one part of A_i changes one column, which
is rotated out, changed and rotated in again.  U is kept with its states reversed: lower triangular too, same code.
"""

from __future__ import annotations

import numpy as np

from hf_ess.spectra.kernels_svd import compiled, inlined

UNDERFLOW = 1e-140  # as in recurrent_scaling; everything is of order 1


@compiled
def forward(
    factor: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    first: int,
    end: int,
    kept: np.ndarray,
) -> None:
    """Factor of P, from cut first to cut end; kept (end - first or 0, packed, w) receives it at first .. end - 1.

    Args:
        factor: (n (n + 1) / 2, w), packed by rows, changed in place; 0 at cut 0.
        a: (L, n, w), (L, 1, w) or (0, 0, w); diagonal of the transition, nothing for the identity.
        b: (L, n, w).
        p, q: (L, n, w) or (0, 0, w); rank-one part of the transition A = diag(a) - p q^T.
    """
    vectors = np.empty((4, b.shape[1], b.shape[2]))
    for i in range(first, end):
        if kept.shape[0]:
            kept[i - first] = factor
        _transition(factor, a, p, q, i, 0, 1, vectors)
        vectors[0] = b[i]
        _push(factor, vectors)


@compiled
def backward_products(
    factor: np.ndarray,
    a: np.ndarray,
    c: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    first: int,
    end: int,
    kept: np.ndarray,
    products: np.ndarray,
) -> None:
    """Factor of Q with its states reversed, from cut end to cut first, and U_i^T L_i on the way.

    Args:
        factor: (n (n + 1) / 2, w), changed in place; 0 at cut L.
        a, p, q: as for forward; c: (L, n, w).
        kept: (end - first, n (n + 1) / 2, w), what forward kept.
        products: (n, n, (end - first) w), lower triangular; cut first + k in lanes k w .. (k + 1) w - 1.
    """
    n, w = c.shape[1:]
    vectors = np.empty((4, n, w))
    for i in range(end - 1, first - 1, -1):
        for k in range(n):
            vectors[0, k] = c[i, n - 1 - k]
        _push(factor, vectors)
        _transition(factor, a, q, p, i, n - 1, -1, vectors)
        _product(factor, kept[i - first], products, (i - first) * w)


@inlined
def _transition(
    factor: np.ndarray, a: np.ndarray, p: np.ndarray, q: np.ndarray, i: int, first: int, step: int, vectors: np.ndarray
) -> None:
    """Factor of A F F^T A^T with A = diag(a_i) - p_i q_i^T, states in the order first, first + step, ..."""
    n, w = vectors.shape[1:]
    if p.shape[0]:
        _dots(factor, q[i], first, step, vectors)
    if a.shape[0]:
        row = 0
        for k in range(n):
            scale = a[i, first + step * k if a.shape[1] > 1 else 0]
            for j in range(k + 1):
                for z in range(w):
                    factor[row + j, z] *= scale[z]
            row += k + 1
    if p.shape[0]:
        _rotate_out(factor, p[i], first, step, vectors)
        _push(factor, vectors)


@inlined
def _push(factor: np.ndarray, vectors: np.ndarray) -> None:
    """Factor of F F^T + x x^T by Givens rotations; x = vectors[0], destroyed."""
    x, cos, sin = vectors[0], vectors[1], vectors[2]
    n, w = x.shape
    row = 0
    for i in range(n):
        for k in range(i):
            for z in range(w):
                f = factor[row + k, z]
                factor[row + k, z] = cos[k, z] * f + sin[k, z] * x[i, z]
                x[i, z] = cos[k, z] * x[i, z] - sin[k, z] * f
        row += i
        for z in range(w):
            cos[i, z], sin[i, z], factor[row, z] = _rotation(factor[row, z], x[i, z])
        row += 1


@inlined
def _rotation(x: float, y: float) -> tuple[float, float, float]:
    """cos, sin and r with cos x + sin y = r and cos y - sin x = 0; y is dropped where squares may underflow.

    From such squares the rotation would not be orthogonal, and it turns large entries of other rows as well.
    """
    square = x * x + y * y
    if square < UNDERFLOW * UNDERFLOW:
        return 1.0, 0.0, x
    norm = np.sqrt(square)
    inverse = 1.0 / norm
    return x * inverse, y * inverse, norm


@inlined
def _dots(factor: np.ndarray, q: np.ndarray, first: int, step: int, vectors: np.ndarray) -> None:
    """r = F^T q, and the rotations of neighbouring columns that gather r in its first entry.

    Into vectors: 1 cosines, 2 sines, and |r| at [3, 0].
    """
    r, cos, sin = vectors[3], vectors[1], vectors[2]
    n, w = r.shape
    r[:] = 0.0
    row = 0
    for i in range(n):
        for k in range(i + 1):
            for z in range(w):
                r[k, z] += factor[row + k, z] * q[first + step * i, z]
        row += i + 1
    for k in range(n - 2, -1, -1):
        for z in range(w):
            cos[k, z], sin[k, z], r[k, z] = _rotation(r[k, z], r[k + 1, z])


@inlined
def _rotate_out(factor: np.ndarray, p: np.ndarray, first: int, step: int, vectors: np.ndarray) -> None:
    """Rotate the columns as _dots found, take the first one out, less p |r|, into vectors[0]; close the gap.

    The rotations fill one superdiagonal; without the first column that is the diagonal of a lower triangle.
    """
    x, cos, sin, norm = vectors[0], vectors[1], vectors[2], vectors[3, 0]
    n, w = x.shape
    row = 0
    for i in range(n):
        for z in range(w):
            f = factor[row + i, z]
            if i < n - 1:
                factor[row + i, z] = -sin[i, z] * f
                x[i, z] = cos[i, z] * f
            else:
                factor[row + i, z] = 0.0
                x[i, z] = f
        for k in range(i - 1, -1, -1):
            for z in range(w):
                f = factor[row + k, z]
                factor[row + k, z] = cos[k, z] * x[i, z] - sin[k, z] * f
                x[i, z] = cos[k, z] * f + sin[k, z] * x[i, z]
        for z in range(w):
            x[i, z] -= p[first + step * i, z] * norm[z]
        row += i + 1


@inlined
def _product(backward: np.ndarray, forward: np.ndarray, matrices: np.ndarray, lane: int) -> None:
    """U^T L into the lower triangles of w matrices, from lane on."""
    w = forward.shape[1]
    n = matrices.shape[0]
    for j in range(n):
        for m in range(j + 1):
            matrices[j, m, lane : lane + w] = 0.0
        for k in range(j + 1):  # the sum outside: neighbours in memory for m, 1.3 times faster at n = 16, 1.7 at 128
            u = backward[(n - 1 - k) * (n - k) // 2 + n - 1 - j]
            for m in range(k + 1):
                out = matrices[j, m, lane : lane + w]
                f = forward[k * (k + 1) // 2 + m]
                for z in range(w):
                    out[z] += u[z] * f[z]
