"""Singular values of every H_i from Gramians, in large batches of torch operations, on any device.

H_i = O_i R_i with R_i = [A_{i-1} ... A_1 b_0, ..., b_{i-1}] and O_i the rows c_k^T A_k ... A_i, so that
sigma(H_i)^2 = eig(P_i Q_i) with P_i = R_i R_i^T and Q_i = O_i^T O_i:

    P_{i+1} = A_i P_i A_i^T + b_i b_i^T        Q_i = A_i^T (Q_{i+1} + c_i c_i^T) A_i
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_ess.operators import RecurrentOperator
from hf_ess.spectra.recurrent_scaling import UNDERFLOW

EPS = torch.finfo(torch.float64).eps
CUTS = 256  # Gramians of this many cuts exist at once; the recursions, which cost little, start again for the next


def singular_values(op: RecurrentOperator, cuts: Sequence[int]) -> Tensor:
    """Singular values of H_i at ascending cuts, (operator, cut, n), descending; NaN where the states overflow.

    Their squares are wrong by some EPS (sum_k sqrt(P_kk Q_kk))^2, so values below 1e-8 of the largest are noise.
    """
    return torch.cat([_at(op, cuts[k : k + CUTS]) for k in range(0, len(cuts), CUTS)], 1)


def _at(op: RecurrentOperator, cuts: Sequence[int]) -> Tensor:
    P, Q = _forward(op, cuts), _backward(op, cuts)
    d = P.diagonal(dim1=-2, dim2=-1).sqrt()
    # With unit diagonal the Cholesky factor is accurate in every coordinate, whatever the scales of the states.
    inverse = torch.where(d > UNDERFLOW, 1 / d, 0.0)
    P *= inverse[..., :, None] * inverse[..., None, :]
    Q *= d[..., :, None] * d[..., None, :]
    P.diagonal(dim1=-2, dim2=-1).add_((inverse == 0).double())
    finite = (P.isfinite() & Q.isfinite()).all(-1).all(-1)
    P[~finite], Q[~finite] = torch.eye(op.state, dtype=P.dtype, device=P.device), torch.nan
    F = _factor(P)
    product = F.mT @ Q @ F
    product[~finite] = 0.0  # LAPACK is never shown NaN: it may not come back
    sigma = torch.linalg.eigvalsh(product).clamp_min_(0).sqrt_().flip(-1)
    sigma[~finite] = torch.nan
    return sigma


def _factor(P: Tensor) -> Tensor:
    """F with F F^T = P to rounding: a Cholesky factor, or where P is too near to singular, from its eigenvectors."""
    P.diagonal(dim1=-2, dim2=-1).add_(P.shape[-1] * EPS)
    F, failed = torch.linalg.cholesky_ex(P)
    bad = failed != 0
    if bad.any():
        values, vectors = torch.linalg.eigh(P[bad])
        F[bad] = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return F


def _forward(op: RecurrentOperator, cuts: Sequence[int]) -> Tensor:
    """P_i at the cuts, (operator, cut, n, n)."""
    P = op.b.new_zeros(op.count, op.state, op.state)
    kept = P.new_empty(op.count, len(cuts), op.state, op.state)
    at = 0
    for k, i in enumerate(cuts):
        for j in range(at, i):
            P = op.transition(j, op.transition(j, P).mT) + op.b[:, j, :, None] * op.b[:, j, None, :]
        kept[:, k], at = P, i
    return kept


def _backward(op: RecurrentOperator, cuts: Sequence[int]) -> Tensor:
    """Q_i at the cuts, (operator, cut, n, n)."""
    Q = op.b.new_zeros(op.count, op.state, op.state)
    kept = Q.new_empty(op.count, len(cuts), op.state, op.state)
    at = op.length
    for k in range(len(cuts) - 1, -1, -1):
        for j in range(at - 1, cuts[k] - 1, -1):
            Q = Q + op.c[:, j, :, None] * op.c[:, j, None, :]
            Q = op.adjoint_transition(j, op.adjoint_transition(j, Q).mT)
        kept[:, k], at = Q, cuts[k]
    return kept
