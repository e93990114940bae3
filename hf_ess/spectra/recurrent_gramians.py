"""Singular values of every H_i from Gramians, in batched torch operations: any device, no small QR.

H_i = O_i R_i with R_i = [A_{i-1} ... A_1 b_0, ..., b_{i-1}] and O_i the rows c_k^T A_k ... A_i, so that
sigma(H_i)^2 = eig(P_i Q_i) with P_i = R_i R_i^T and Q_i = O_i^T O_i:

    P_{i+1} = A_i P_i A_i^T + b_i b_i^T        Q_i = A_i^T (Q_{i+1} + c_i c_i^T) A_i
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_ess.operators import RecurrentOperator

EPS = torch.finfo(torch.float64).eps


def singular_values(op: RecurrentOperator, cuts: Sequence[int]) -> Tensor:
    """Singular values of H_i at ascending cuts, (operator, cut, n), descending.

    Their squares are wrong by about EPS sum_k P_kk Q_kk, so values below 1e-8 of the largest are noise.
    """
    F, G = _forward(op, cuts), _backward(op, cuts)
    d = F.diagonal(dim1=-2, dim2=-1).sqrt()
    # With unit diagonal the Cholesky factor is accurate in every coordinate, whatever the scales of the states.
    up = torch.where(d > 0, 1 / d, 0.0)
    F *= up[..., :, None] * up[..., None, :]
    G *= d[..., :, None] * d[..., None, :]
    F = _cholesky(F, d == 0)
    return torch.linalg.eigvalsh(F.mT @ G @ F).clamp_min_(0).sqrt_().flip(-1)


def _cholesky(P: Tensor, dead: Tensor) -> Tensor:
    """Factor of P + jitter I: P is often singular, and then the jitter must outweigh its rounding errors."""
    n = P.shape[-1]
    P.diagonal(dim1=-2, dim2=-1).add_(dead.double())
    jitter = n * EPS
    while True:
        P.diagonal(dim1=-2, dim2=-1).add_(jitter)
        F, failed = torch.linalg.cholesky_ex(P)
        if not failed.any():
            return F
        jitter *= 10


def _forward(op: RecurrentOperator, cuts: Sequence[int]) -> Tensor:
    """P_i at the cuts, (operator, cut, n, n)."""
    P = op.b.new_zeros(op.count, op.state, op.state)
    kept = P.new_empty(op.count, len(cuts), op.state, op.state)
    for k, i in enumerate(cuts):
        for j in range(cuts[k - 1] if k else 0, i):
            P = op.transition(j, op.transition(j, P).mT) + op.b[:, j, :, None] * op.b[:, j, None, :]
        kept[:, k] = P
    return kept


def _backward(op: RecurrentOperator, cuts: Sequence[int]) -> Tensor:
    """Q_i at the cuts, (operator, cut, n, n)."""
    Q = op.b.new_zeros(op.count, op.state, op.state)
    kept = Q.new_empty(op.count, len(cuts), op.state, op.state)
    ends = [*cuts[1:], op.length]
    for k in range(len(cuts) - 1, -1, -1):
        for j in range(ends[k] - 1, cuts[k] - 1, -1):
            Q = Q + op.c[:, j, :, None] * op.c[:, j, None, :]
            Q = op.adjoint_transition(j, op.adjoint_transition(j, Q).mT)
        kept[:, k] = Q
    return kept
