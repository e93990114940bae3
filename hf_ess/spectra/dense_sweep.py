"""Every H_i = T[i:, :i] of dense causal operators in one divide and conquer, O(L^3) for each shift.

For a shift w > 0 let A_i = [[w I, H_i], [s H_i^T, w I]], whose rows are the future indices j >= i and then the past
ones j < i: its size is L for every i.  With s = +1 its negative eigenvalues number #{sigma(H_i) > w}; with s = -1
det A_i = w^L det(I + H_i H_i^T / w^2).  From i to i + 1 only index i changes its role, from future row to past
column, so with f_i and p_i the Schur complements of index i in either role, all others eliminated,

    det A_{i+1} / det A_i = p_i / f_i,    and the count moves by [p_i < 0] - [f_i < 0].

The 2 L numbers f, p give every cut.  A node [a, b) of the divide and conquer holds the Schur complement of its indices
in both roles with everything outside eliminated, as three blocks: P (future x future), Q (past x past), M (future x
past, strictly lower: future row j reaches past column k only if k < j).  Its children eliminate their siblings, each
in the one role that it can have: seen from the left child the right one lies in the future, and conversely.

Eliminations are symmetric (block LDL^T, small blocks, no pivoting).  LU with pivoting, or an explicit inverse, breaks
the symmetry and gave hundreds of wrong counts at L = 512 on attention with a sink.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAF = 16  # size of the last node, at most
BASE = 16  # pivots eliminated at once
CHUNK = 512  # last nodes handled at once: what stays in the cache


class Prepared:
    """Scaled and padded operators with the Gram matrices that all shifts share.

    Args:
        T: (B, L, L) float64, strictly lower triangular.

    Attributes:
        T: (B, n, n), T / unit, padded with zeros to n = m 2^depth.  The unit of an operator is a power of two, at
            least sigma_1(T): the division rounds nothing.
    """

    def __init__(self, T: Tensor) -> None:
        self.B, self.L = T.shape[:2]
        self.T, self._first, self._second = _normalise(T)
        self.depth = (-(-self.L // LEAF) - 1).bit_length()
        self.m = -(-self.L // 2**self.depth)
        self.n = self.m << self.depth
        self.T = torch.nn.functional.pad(self.T, (0, self.n - self.L) * 2)
        self._grams: dict[torch.dtype, tuple[Tensor, list[tuple[Tensor, Tensor]]]] = {}

    def in_units(self, x: Tensor) -> Tensor:
        """x / unit; x: (..., B)."""
        return x / self._first / self._second

    @property
    def square(self) -> Tensor:
        """The squared entries of T, (B, L, L), in units of unit^2."""
        return self.T[:, : self.L, : self.L] ** 2

    def grams(self, dtype: torch.dtype) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """T and, for each level, the Gram matrices of the first node (H^T H) and of the last one (H H^T).

        The outside of the first node is all future and that of the last all past: w I with nothing inside, so that
        eliminating it leaves w I -+ Gram / w for any shift.
        """
        if dtype not in self._grams:
            T, n, levels, h = self.T.to(dtype), self.n, [], self.n // 2
            first = last = torch.zeros_like(T)
            for _ in range(self.depth):
                below, beside = T[:, h : 2 * h, :h], T[:, n - h :, n - 2 * h : n - h]
                first, last = first[:, :h, :h].contiguous(), last[:, h:, h:].contiguous()
                _add_upper(first, below.mT, below, 1.0)
                _add_upper(last, beside, beside.mT, 1.0)
                levels.append((first, last))
                h //= 2
            self._grams[dtype] = T, levels
        return self._grams[dtype]


def _normalise(T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """T divided by two powers of two, and these: the first brings its entries to 1, the second sigma_1 below 1.

    They stay apart because their product can overflow where T itself does not.  sigma_1 <= sqrt(|T|_1 |T|_inf).
    """
    one = T.new_ones(())
    largest = T.abs().amax((1, 2))
    first = torch.where(largest > 0, largest / (2 * torch.frexp(largest).mantissa), one)
    T = T / first[:, None, None]
    norm = T.abs().sum(1).amax(1).sqrt() * T.abs().sum(2).amax(1).sqrt()
    second = torch.where(norm > 0, norm / torch.frexp(norm).mantissa, one)
    return T / second[:, None, None], first, second


def _add_upper(X: Tensor, left: Tensor, right: Tensor, alpha: float, keep: int = 64) -> None:
    """X += alpha left right; where X is large only the blocks on and above its diagonal, the only ones ever read."""
    t = X.shape[-1] // 2
    if t < keep and X.stride(-1) > 1:
        X.mT.baddbmm_(right.mT, left.mT, alpha=alpha)
    elif t < keep:
        X.baddbmm_(left, right, alpha=alpha)
    else:
        X[:, :t, t:].baddbmm_(left[:, :t], right[:, :, t:], alpha=alpha)
        _add_upper(X[:, :t, :t], left[:, :t], right[:, :, :t], alpha, 2 * keep)
        _add_upper(X[:, t:, t:], left[:, t:], right[:, :, t:], alpha, 2 * keep)


def _factor(Z: Tensor, r: int, Y: Tensor, V: Tensor, definite: bool) -> None:
    """Eliminates the pivot block D of Z = [D | R]: fills rows r.. of Y and V with R^T D^-1 R = Y^T V."""
    n, N = Z.shape[1], Z.shape[0]
    if n <= (2 * BASE if definite else BASE):
        eye = torch.eye(n, dtype=Z.dtype, device=Z.device)
        if definite:
            low = torch.linalg.cholesky_ex(Z[:, :, :n].mT)[0]
            y = torch.bmm(torch.linalg.solve_triangular(low, eye, upper=False), Z[:, :, n:])
        else:  # LDL^T of all blocks at once, batch last, applied to the identity
            W = torch.empty(n, 2 * n, N, dtype=Z.dtype, device=Z.device)
            W[:, :n] = Z[:, :, :n].permute(1, 2, 0)
            W[:, n:] = eye[:, :, None]
            for k in range(n - 1):
                row = (W[k, k + 1 : n] / W[k, k])[:, None]
                W[k + 1 :, k + 1 : n + k + 1].addcmul_(row, W[k, None, k + 1 : n + k + 1], value=-1)
            y = torch.bmm(W[:, n:].permute(2, 0, 1).contiguous(), Z[:, :, n:])
            pivots = W[:, :n].diagonal(dim1=0, dim2=1)
            torch.mul(y, pivots.reciprocal()[:, :, None], out=V[:, r : r + n, r + n :])
        Y[:, r : r + n, r + n :] = y
        return
    h = n // 2
    _factor(Z[:, :h], r, Y, V, definite)
    y, v, rest = Y[:, r : r + h, r + h : r + n], V[:, r : r + h, r + h :], Z[:, h:, h:]
    # in place is slower for small strided blocks
    rest = rest.baddbmm_(y.mT, v, alpha=-1) if n >= 64 else torch.baddbmm(rest, y.mT, v, alpha=-1)
    _factor(rest, r + h, Y, V, definite)


def _leaf(P: Tensor, Q: Tensor, M: Tensor, sign: int) -> list[Tensor]:
    """f and p, (s, N) each, of nodes (s, s, N), s a power of two: the same recursion with scalar pivots, batch last."""
    s, N = P.shape[0], P.shape[-1]
    if s == 1:
        return [P[0], Q[0]]
    h = s // 2
    a, b = slice(0, h), slice(h, s)
    # Rows and columns of Z: sibling in its one role, child in that role, child in the other.
    Z = P.new_empty(3, h, 3, h, 2, N)
    cross = M[b, a]
    cross_t = cross.transpose(0, 1)
    right = P[b, b], P[b, a], cross, P[a, a], Q[a, a], M[a, a]
    left = Q[a, a], Q[a, b], cross_t, Q[b, b], P[b, b], M[b, b].transpose(0, 1)
    for r, (pivot, own, other, own_own, other_other, mixed) in enumerate((right, left)):
        Z[0, :, 0, :, r], Z[0, :, 1, :, r], Z[0, :, 2, :, r] = pivot, own, other
        Z[1, :, 0, :, r], Z[2, :, 0, :, r] = own.transpose(0, 1), other.transpose(0, 1) * sign
        Z[1, :, 1, :, r], Z[2, :, 2, :, r], Z[1, :, 2, :, r], Z[2, :, 1, :, r] = own_own, other_other, mixed, 0
    W = Z.view(3 * h, 3 * h, 2 * N)
    for k in range(h):
        W[k + 1 :, k + 1 :].addcmul_(W[k + 1 :, k, None], (W[k, k + 1 :] / W[k, k])[None], value=-1)
    pairs = (
        (Z[1, :, 1, :, 0], Z[2, :, 2, :, 1]),
        (Z[2, :, 2, :, 0], Z[1, :, 1, :, 1]),
        (Z[1, :, 2, :, 0], Z[1, :, 2, :, 1].transpose(0, 1)),
    )
    children = [torch.stack(pair, 2).reshape(h, h, 2 * N) for pair in pairs]
    return [x.view(h, 2, N).transpose(0, 1).reshape(s, N) for x in _leaf(*children, sign)]


def sweep(op: Prepared, w: Tensor, sign: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """f and p, stacked, (2, K, B, L).

    Args:
        w: (K, B) shifts > 0, in units (Prepared.in_units).
        sign: +1 (counts) or -1 (determinants).
    """
    K, B, n, m, device = w.shape[0], op.B, op.n, op.m, op.T.device
    KB = K * B
    T, grams = op.grams(dtype)
    w = w.to(dtype).reshape(KB, 1)

    def repeated(X: Tensor) -> Tensor:
        return X.expand(K, *X.shape).reshape(KB, *X.shape[1:])

    def put_gram(G: Tensor, i: slice, j: slice, out: Tensor) -> None:
        """Block of w I - sign Gram / w."""
        out.copy_(repeated(G[:, i, j]) * (-sign / w[:, :, None]))
        if i == j:
            out.diagonal(dim1=1, dim2=2).add_(w)

    P = Q = M = torch.empty(0, n, n, dtype=dtype, device=device)
    start, s, definite = [], n // 2, sign < 0
    for level in range(1, op.depth):
        h = s // 2
        a, b, N = slice(0, h), slice(h, s), P.shape[0]
        R, S = KB + N, 2 * (KB + N)  # right children first, then left ones; first or last node leading in each
        (first, last), r0 = grams[level - 1], n - s
        Z = torch.empty(S, h, 3 * h, dtype=dtype, device=device)
        P2, Q2, M2 = (torch.empty(S, h, h, dtype=dtype, device=device) for _ in range(3))
        pivot, own, other = Z[:, :, :h], Z[:, :, h : 2 * h], Z[:, :, 2 * h :]
        right_of_first = first, a, b, Q2, P2, T[:, b, a].mT, T[:, b, b]
        rows, columns = slice(r0 + h, n), slice(r0, r0 + h)
        left_of_last = last, b, a, P2, Q2, T[:, rows, columns], T[:, columns, columns]
        for c, (G, i, j, kept, fresh, low, mixed) in (
            (slice(0, KB), right_of_first),
            (slice(R, R + KB), left_of_last),
        ):
            put_gram(G, i, i, pivot[c])
            put_gram(G, a, b, own[c] if i == a else own[c].mT)
            put_gram(G, j, j, kept[c])
            fresh[c].zero_().diagonal(dim1=1, dim2=2).add_(w)
            other[c], M2[c] = repeated(low), repeated(mixed)
        if N:
            c, d = slice(KB, R), slice(R + KB, S)
            pivot[c], own[c], other[c] = Q[:, a, a], Q[:, a, b], M[:, b, a].mT
            pivot[d], own[d], other[d] = P[:, b, b], P[:, a, b].mT, M[:, b, a]
            for X2, X in ((P2, P), (Q2, Q), (M2, M)):
                X2[c], X2[d] = X[:, b, b], X[:, a, a]
        Y = torch.empty_like(Z)
        V = Y if definite else torch.empty_like(Z)
        _factor(Z, 0, Y, V, definite)
        y1, y2, v1, v2 = Y[:, :, h : 2 * h].mT, Y[:, :, 2 * h :].mT, V[:, :, h : 2 * h], V[:, :, 2 * h :]
        _add_upper(Q2[:R], y1[:R], v1[:R], -1.0)
        _add_upper(P2[:R], y2[:R], v2[:R], -sign)
        _add_upper(P2[R:], y1[R:], v1[R:], -1.0)
        _add_upper(Q2[R:], y2[R:], v2[R:], -sign)
        # M' = M - other' D^-1 own (right), M - own' D^-1 other (left): the part below the diagonal, so as transposes
        _add_upper(M2[:R].mT, v1[:R].mT, y2[:R].mT, -1.0)
        _add_upper(M2[R:].mT, v2[R:].mT, y1[R:].mT, -1.0)
        start = [h] + [x + h for x in start] + [r0] + start
        P, Q, M, s = P2, Q2, M2, h

    N, ends = len(start) * KB, 2 if op.depth else 1
    leaves = torch.zeros(3, N + ends * KB, m, m, dtype=dtype, device=device)
    if N:
        leaves[0, :N], leaves[1, :N], leaves[2, :N] = P, Q, M
    leaves[:2, N:].diagonal(dim1=2, dim2=3).add_(w.repeat(ends, 1))
    leaves[2, N : N + KB] = repeated(T[:, :m, :m])
    if op.depth:
        all_of_it = slice(0, m)
        leaves[2, N + KB :] = repeated(T[:, n - m :, n - m :])
        put_gram(grams[-1][0], all_of_it, all_of_it, leaves[1, N : N + KB])
        put_gram(grams[-1][1], all_of_it, all_of_it, leaves[0, N + KB :])
    leaves[:2] = leaves[:2].triu() + leaves[:2].triu(1).mT  # below the diagonal nothing was kept up to date
    start = start + [0, n - m][:ends]
    fp = _leaves(leaves, sign).view(2, m, len(start), K, B)[:, :, torch.tensor(start, device=device).argsort()]
    return fp.permute(0, 3, 4, 2, 1).reshape(2, K, B, n)[..., : op.L]


def _leaves(leaves: Tensor, sign: int) -> Tensor:
    """f and p of the last nodes: (3, N, m, m) -> (2, m, N)."""
    m, N = leaves.shape[-1], leaves.shape[1]
    big = 1 << (m - 1).bit_length()
    fp = leaves.new_empty(2, m, N)
    for c in range(0, N, CHUNK):
        X = leaves[:, c : c + CHUNK].permute(0, 2, 3, 1)
        if big > m:
            X = torch.nn.functional.pad(X, (0, 0, 0, big - m, 0, big - m))
            X[:2].diagonal(dim1=1, dim2=2)[..., m:] = 1.0
        fp[:, :, c : c + CHUNK] = torch.stack(_leaf(*X.contiguous(), sign))[:, :m]
    return fp
