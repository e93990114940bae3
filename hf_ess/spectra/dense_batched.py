"""The sweep of dense_sweep.py in batched torch calls, for any device and without a compiler."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ess.spectra.dense_sweep import Sweep

LEAF = 16  # size of the last node, at most
BASE = 16  # pivots eliminated at once
BATCH = 3 * 2**20  # elements of shifts x operators swept at once on a CPU
LANES = 512  # last nodes handled at once on a CPU: what stays in the cache


class BatchedSweep(Sweep):
    """Sweep of all operators, nodes and shifts of a level at once; both halves are operators of one batch."""

    def __init__(self, T: Tensor) -> None:
        L = T.shape[1]
        self.depth = max(1, (-(-L // LEAF) - 1).bit_length())
        self.leaf = -(-L // 2**self.depth)
        super().__init__(T, self.leaf << self.depth)
        self.size = self.T.shape[1] // 2
        # Both halves see their own indices first and the future after them.
        self.both = torch.cat([self.T[:, :, : self.size], self.T.flip(1, 2).mT[:, :, : self.size]])
        self._grams: dict[torch.dtype, list[Tensor]] = {}

    def grams(self, dtype: torch.dtype) -> list[Tensor]:
        """H^T H with H = T[s:, :s] for s = size, size / 2 .. leaf, (2 B, s, s) each, upper triangles."""
        if dtype not in self._grams:
            T, s, end, levels = self.both.to(dtype), self.size, 2 * self.size, []
            G = torch.zeros_like(T[:, :s, :s])
            while s >= self.leaf:
                G = G[:, :s, :s].contiguous()
                below = T[:, s:end, :s]
                _add_upper(G, below.mT, below, 1.0)
                levels.append(G)
                s, end = s // 2, s
            self._grams[dtype] = levels
        return self._grams[dtype]

    def __call__(self, w: Tensor, sign: int, single: bool = False) -> Tensor:
        room = BATCH if w.device.type == "cpu" else 2**27
        some = max(1, room // self.L**2 // self.B)
        return torch.cat([self._sweep(part, sign, single) for part in w.split(some)], 1)

    def _sweep(self, w: Tensor, sign: int, single: bool) -> Tensor:
        dtype = torch.float32 if single else torch.float64
        K, count, device = w.shape[0], w.shape[0] * 2 * self.B, w.device
        T, grams = self.both.to(dtype), self.grams(dtype)
        w = torch.cat([w, w], 1).to(dtype).reshape(count, 1)

        def repeated(X: Tensor) -> Tensor:
            return X.expand(K, *X.shape).reshape(count, *X.shape[1:])

        def with_gram(G: Tensor, diagonal: bool) -> Tensor:
            """Block of Q = w I - sign Gram / w."""
            block = repeated(G) * (-sign / w[:, :, None])
            if diagonal:
                block.diagonal(dim1=1, dim2=2).add_(w)
            return block

        # The first node of each level is known; P, Q, M hold the other ones, N of them (`count` for each start).
        P = Q = M = torch.empty(0, self.size, self.size, dtype=dtype, device=device)
        starts: list[int] = []
        s = self.size
        for level in range(self.depth - 1):
            h = s // 2
            a, b, N, G = slice(0, h), slice(h, s), P.shape[0], grams[level]
            right = count + N  # right children of all nodes, then left ones of the others
            Z = torch.empty(right + N, h, 3 * h, dtype=dtype, device=device)  # pivot, own role, other role
            P2, Q2, M2 = (torch.empty(right + N, h, h, dtype=dtype, device=device) for _ in range(3))
            c, d, e = slice(0, count), slice(count, right), slice(right, right + N)
            Z[c, :, :h], Z[c, :, h : 2 * h] = with_gram(G[:, a, a], True), with_gram(G[:, a, b], False)
            Z[c, :, 2 * h :] = repeated(T[:, b, a]).mT
            P2[c] = torch.diag_embed(w.expand(-1, h))
            Q2[c], M2[c] = with_gram(G[:, b, b], True), repeated(T[:, b, b])
            Z[d, :, :h], Z[d, :, h : 2 * h], Z[d, :, 2 * h :] = Q[:, a, a], Q[:, a, b], M[:, b, a].mT
            Z[e, :, :h], Z[e, :, h : 2 * h], Z[e, :, 2 * h :] = P[:, b, b], P[:, a, b].mT, M[:, b, a]
            for new, old in ((P2, P), (Q2, Q), (M2, M)):
                new[d], new[e] = old[:, b, b], old[:, a, a]
            Y = torch.empty_like(Z)
            V = Y if sign < 0 else torch.empty_like(Z)
            _eliminate(Z, 0, Y, V, sign < 0)
            c = slice(0, right)
            own, other, own_d, other_d = Y[..., h : 2 * h], Y[..., 2 * h :], V[..., h : 2 * h], V[..., 2 * h :]
            _add_upper(Q2[c], own[c].mT, own_d[c], -1.0)
            _add_upper(P2[c], other[c].mT, other_d[c], -sign)
            _add_upper(M2[c].mT, own_d[c].mT, other[c], -1.0)  # of M the part below the diagonal
            if N:
                _add_upper(P2[e], own[e].mT, own_d[e], -1.0)
                _add_upper(Q2[e], other[e].mT, other_d[e], -sign)
                _add_upper(M2[e].mT, other_d[e].mT, own[e], -1.0)
            starts = [h] + [x + h for x in starts] + starts
            P, Q, M, s = P2, Q2, M2, h

        first = torch.diag_embed(w.expand(-1, s)), with_gram(grams[-1], True), repeated(T[:, :s, :s])
        leaves = torch.stack([torch.cat(pair) for pair in zip((P[:, :s, :s], Q[:, :s, :s], M[:, :s, :s]), first)])
        leaves[:2] = leaves[:2].triu() + leaves[:2].triu(1).mT  # below the diagonal nothing was kept up to date
        order = torch.tensor([*starts, 0], device=device).argsort()
        fp = _leaves(leaves, sign).view(2, s, len(order), K, 2 * self.B)[:, :, order]
        fp = (fp / w.view(K, -1)).permute(0, 3, 4, 2, 1).reshape(2, K, 2 * self.B, self.size).double()
        return torch.cat([fp[:, :, : self.B], fp[:, :, self.B :].flip(0, 3)], -1)[..., : self.L]


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


def _eliminate(Z: Tensor, r: int, Y: Tensor, V: Tensor, definite: bool) -> None:
    """Eliminates the pivot block D of Z = [D | R]: fills rows r.. of Y and V with R^T D^-1 R = Y^T V."""
    n, N = Z.shape[1], Z.shape[0]
    if n <= (2 * BASE if definite else BASE):
        eye = torch.eye(n, dtype=Z.dtype, device=Z.device)
        if definite:  # Y = V = L^-1 R with L L^T = D
            lower = torch.linalg.cholesky_ex(Z[:, :, :n].mT)[0]
            y = torch.bmm(torch.linalg.solve_triangular(lower, eye, upper=False), Z[:, :, n:])
        else:  # L D L^T of all blocks at once, the batch in the last dimension, applied to the identity
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
    _eliminate(Z[:, :h], r, Y, V, definite)
    y, v, rest = Y[:, r : r + h, r + h : r + n], V[:, r : r + h, r + h :], Z[:, h:, h:]
    # In place is slower for small strided blocks.
    rest = rest.baddbmm_(y.mT, v, alpha=-1) if n >= 64 else torch.baddbmm(rest, y.mT, v, alpha=-1)
    _eliminate(rest, r + h, Y, V, definite)


def _leaves(leaves: Tensor, sign: int) -> Tensor:
    """f and p of the last nodes: P, Q, M as (3, N, m, m) -> (2, m, N)."""
    N, m = leaves.shape[1:3]
    size = 1 << (m - 1).bit_length()
    parts = []
    for part in leaves.split(LANES if leaves.device.type == "cpu" else N, 1):
        X = torch.nn.functional.pad(part, (0, size - m, 0, size - m)).permute(0, 2, 3, 1).contiguous()
        X[:2].diagonal(dim1=1, dim2=2)[..., m:] = 1.0
        parts.append(torch.stack(_halve(X[0], X[1], X[2], sign))[:, :m])
    return torch.cat(parts, -1)


def _halve(P: Tensor, Q: Tensor, M: Tensor, sign: int) -> list[Tensor]:
    """f and p, (s, N) each, of nodes (s, s, N), s a power of two: the same recursion with scalar pivots.

    Of P and Q only the upper triangles are read, so that the elimination stays symmetric: reading both gave wrong
    counts at a tolerance of 1e-6 |T|.
    """
    s, N = P.shape[0], P.shape[-1]
    if s == 1:
        return [P[0], Q[0]]
    h = s // 2
    a, b = slice(0, h), slice(h, s)
    # Rows: the sibling in its one role, the child in that role, the child in the other.  Columns likewise.
    Z = P.new_zeros(3, h, 3, h, 2, N)
    right = Q[a, a], Q[a, b], M[b, a].transpose(0, 1), Q[b, b], P[b, b], M[b, b].transpose(0, 1)
    left = P[b, b], P[a, b].transpose(0, 1), M[b, a], P[a, a], Q[a, a], M[a, a]
    for r, (pivot, own, other, own_own, other_other, mixed) in enumerate((right, left)):
        Z[0, :, 0, :, r], Z[0, :, 1, :, r], Z[0, :, 2, :, r] = pivot, own, other
        Z[1, :, 1, :, r], Z[1, :, 2, :, r], Z[2, :, 2, :, r] = own_own, mixed, other_other
    W = Z.view(3 * h, 3 * h, 2 * N)
    signs = W.new_ones(3 * h, 1, 1)
    signs[2 * h :] = sign
    for k in range(h):
        row = W[k, k + 1 :]
        W[k + 1 :, k + 1 :].addcmul_((row / W[k, k])[:, None] * signs[k + 1 :], row[None], value=-1)
    # Z[1, ., 2, .] is past x future in right children and future x past in left ones.
    P2 = torch.stack((Z[2, :, 2, :, 0], Z[1, :, 1, :, 1]), 2)
    Q2 = torch.stack((Z[1, :, 1, :, 0], Z[2, :, 2, :, 1]), 2)
    M2 = torch.stack((Z[1, :, 2, :, 0].transpose(0, 1), Z[1, :, 2, :, 1]), 2)
    P2, Q2, M2 = (x.reshape(h, h, 2 * N) for x in (P2, Q2, M2))
    children = _halve(P2, Q2, M2, sign)
    # Lane 2 l is the right child of node l, lane 2 l + 1 the left one.
    return [torch.cat([x.view(h, 2, N)[:, 1], x.view(h, 2, N)[:, 0]]) for x in children]
