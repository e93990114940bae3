"""State-space realisations of an operator: the trivial one, the minimal one, and reductions of it.

Theorem 2.1 of arXiv 2504.19561: the smallest state that can carry the memory into token i has size rank H_i.  With
H_i = O_i R_i of that rank, s_i = R_i u_{<i} is such a state, and A_i, B_i, C_i, D_i follow from the factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_ess.errors import NonFiniteOperator


@dataclass
class Realization:
    """A linear time-varying system s_{i+1} = A_i s_i + B_i u_i, y_i = C_i s_i + D_i u_i with s_0 empty.

    Attributes:
        A: L matrices, (n_{i+1}, n_i), float64; n_L = 0.
        B: L matrices, (n_{i+1}, d).
        C: L matrices, (d, n_i).
        D: L matrices, (d, d).
    """

    A: list[Tensor]
    B: list[Tensor]
    C: list[Tensor]
    D: list[Tensor]

    @property
    def length(self) -> int:
        """Number of tokens L."""
        return len(self.A)

    def state_sizes(self) -> list[int]:
        """n_i at the cuts i = 1 .. L-1."""
        return [c.shape[1] for c in self.C[1:]]

    def apply(self, u: Tensor) -> Tensor:
        """T u by running the system; u: (L * d, channel), token-major -> the same shape."""
        width = self.D[0].shape[0]
        state = u.new_zeros(0, u.shape[1])
        out = []
        for a, b, c, d, now in zip(self.A, self.B, self.C, self.D, u.split(width)):
            out.append(c @ state + d @ now)
            state = a @ state + b @ now
        return torch.cat(out)

    def dense(self) -> Tensor:
        """T, (L * d, L * d), rebuilt by running the system on the identity."""
        return self.apply(torch.eye(self.length * self.D[0].shape[0], dtype=torch.float64, device=self.D[0].device))


def trivial(T: Tensor, block: int = 1) -> Realization:
    """The realisation that remembers all inputs, of size i d at cut i; that of an attention layer with its cache.

    Args:
        T: (L d, L d), causal.
        block: d, the channels flattened into T.

    Raises:
        NonFiniteOperator: T holds NaN or Inf.
    """
    T, length = _checked(T, block)
    A, B, C, D = [], [], [], []
    for i in range(length):
        past, last = i * block, i == length - 1
        grown = 0 if last else past + block
        eye = torch.eye(past + block, dtype=T.dtype, device=T.device)[:grown]
        A.append(eye[:, :past])
        B.append(eye[:, past:])
        C.append(T[past : past + block, :past])
        D.append(T[past : past + block, past : past + block])
    return Realization(A, B, C, D)


def minimal(T: Tensor, block: int = 1, tolerance: float | None = None) -> Realization:
    """The minimal realisation, or with a tolerance the one that keeps the singular values of H_i that reach it.

    With H_i = U_i S_i V_i^T, O_i = U_i and R_i = S_i V_i^T: C_i is the first block row of U_i, A_i = U_{i+1}^T U_i
    without that row, B_i = U_{i+1}^T T[i+1:, i].  O_i has orthonormal columns: no small singular value is divided by.

    Args:
        T: (L d, L d), causal.
        block: d, the channels flattened into T.
        tolerance: absolute; None keeps what exceeds 1e-12 of the largest singular value of all H_i.

    Returns:
        The realisation.  Truncation bounds the error of each H_i by the tolerance, not that of the chained system,
        which `error` measures.

    Raises:
        NonFiniteOperator: T holds NaN or Inf.
    """
    T, length = _checked(T, block)
    pairs = [torch.linalg.svd(T[i * block :, : i * block], full_matrices=False)[:2] for i in range(1, length)]
    if tolerance is None:
        top = max((float(s.max()) for _, s in pairs), default=0.0)
        kept = [u[:, s > 1e-12 * top] for u, s in pairs]
    else:
        kept = [u[:, s >= tolerance * (1 - 1e-9)] for u, s in pairs]
    nothing = T.new_zeros(0, 0)
    factors = [T.new_zeros(length * block, 0), *kept, nothing]  # O_0 has no columns, O_L no rows
    A, B, C, D = [], [], [], []
    for i in range(length):
        now, after = factors[i], factors[i + 1]
        here = slice(i * block, (i + 1) * block)
        C.append(now[:block])
        A.append(after.T @ now[block:])
        B.append(after.T @ T[(i + 1) * block :, here])
        D.append(T[here, here])
    return Realization(A, B, C, D)


def error(realization: Realization, T: Tensor) -> float:
    """||T' - T||_2 / ||T||_2 of a realisation T' of T; 0 where both are 0.

    Args:
        realization: any realisation.
        T: (L d, L d).
    """
    lower = torch.tril(T.double(), realization.D[0].shape[0] - 1)
    gap = torch.linalg.matrix_norm(realization.dense() - lower, 2)
    size = torch.linalg.matrix_norm(lower, 2)
    return float(gap / size) if size > 0 else float(gap)


def _checked(T: Tensor, block: int) -> tuple[Tensor, int]:
    if T.dim() != 2 or T.shape[0] != T.shape[1] or T.shape[0] % block or T.shape[0] < 2 * block:
        raise ValueError(f"expected a square matrix of at least two blocks of {block}, got shape {tuple(T.shape)}")
    T = T.double()
    if not T.isfinite().all():
        raise NonFiniteOperator("the operator is not finite: it holds NaN or Inf")
    return T, T.shape[0] // block
