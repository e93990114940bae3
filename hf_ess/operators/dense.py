"""Operators that exist as matrices: softmax attention, and whatever was materialised."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ess.operators.base import Operator


class DenseOperator(Operator):
    """Causal operators given as matrices.

    Args:
        matrix: (operator, L * block, L * block), floating point; T with its diagonal.  Raised to float64.
        multiplicity: channels that share each operator.
        block: d, the number of channels flattened into T (token-major: row i * d + c is channel c of token i),
            as in the paper's listing (arXiv 2504.19561, C.1.1), where H_i = T[i d:, :i d].
        state_size: (operator or 1, L-1) theoretical state size at the cuts 1 .. L-1; default i * block, the
            size of the trivial realisation, which remembers all inputs.
    """

    def __init__(self, matrix: Tensor, multiplicity: int = 1, block: int = 1, state_size: Tensor | None = None) -> None:
        if matrix.dim() == 2:
            matrix = matrix[None]
        if matrix.dim() != 3 or matrix.shape[1] != matrix.shape[2]:
            raise ValueError(f"expected square matrices (operator, L, L), got shape {tuple(matrix.shape)}")
        if matrix.shape[1] % block:
            raise ValueError(f"a {matrix.shape[1]} x {matrix.shape[1]} matrix has no whole blocks of {block}")
        self.matrix = matrix.double()
        self.block = block
        self._multiplicity = multiplicity
        if state_size is None:
            state_size = torch.arange(1, self.length, dtype=torch.float64, device=matrix.device)[None] * block
        self._state_size = state_size

    @property
    def count(self) -> int:
        return self.matrix.shape[0]

    @property
    def length(self) -> int:
        return self.matrix.shape[1] // self.block

    @property
    def multiplicity(self) -> int:
        return self._multiplicity

    def apply(self, u: Tensor) -> Tensor:
        """T u; u: (operator, L * block, channel) -> the same shape, float64."""
        return self.matrix @ u.double()

    def dense(self) -> Tensor:
        return self.matrix

    def tss(self) -> Tensor:
        return self._state_size.expand(self.count, -1)

    def __getitem__(self, operators: slice) -> DenseOperator:
        size = self._state_size if self._state_size.shape[0] == 1 else self._state_size[operators]
        return DenseOperator(self.matrix[operators], self._multiplicity, self.block, size)

    def is_finite(self) -> bool:
        return all(bool(T.isfinite().all()) for T in self.matrix)  # of all at once isfinite makes a second copy
