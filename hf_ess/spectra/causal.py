"""The two halves of a recurrence's memory: what the past writes into the state, and what the future reads of it.

H_i = O_i R_i with R_i the input-to-state map of the tokens before i and O_i the state-to-output map of the tokens from
i on.  The rank of R_i is the causal ESS (the smallest state that can be fixed without seeing the future; arXiv
2504.19561, section 2 and its discussion of realisations), that of O_i the anti-causal one; rank H_i is at most the
smaller of both.  Unlike H_i, both depend on the realisation: scaling a state scales a column of O_i and a row of R_i
against each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_ess.errors import NonFiniteOperator
from hf_ess.operators import StateSpaceOperator
from hf_ess.spectra.metrics import tolerance_ess

_ROOM = 2**23  # numbers of the factors of one block: 64 MB in float64


def input_to_state(op: StateSpaceOperator) -> Tensor:
    """Singular values of R_i at all cuts, (operator, L-1, n), descending: square roots of the controllability Gramian.

    R_{i+1} = [A_i R_i, b_i]; an n x n factor of R_i R_i^T is carried along by QR, which keeps small values exact.

    Raises:
        NonFiniteOperator: the operators hold NaN or Inf.
    """
    return _by_blocks(op, forward=True)


def state_to_output(op: StateSpaceOperator) -> Tensor:
    """Singular values of O_i at all cuts, (operator, L-1, n), descending: square roots of the observability Gramian.

    Raises:
        NonFiniteOperator: the operators hold NaN or Inf.
    """
    return _by_blocks(op, forward=False)


def causal_ess(op: StateSpaceOperator, tolerances: Sequence[float]) -> Tensor:
    """Number of singular values of R_i at or above each tolerance, (tolerance, operator, L-1)."""
    return tolerance_ess(input_to_state(op), tolerances)


def anticausal_ess(op: StateSpaceOperator, tolerances: Sequence[float]) -> Tensor:
    """Number of singular values of O_i at or above each tolerance, (tolerance, operator, L-1)."""
    return tolerance_ess(state_to_output(op), tolerances)


def _by_blocks(op: StateSpaceOperator, forward: bool) -> Tensor:
    if not op.is_finite():
        raise NonFiniteOperator("the operator is not finite: it holds NaN or Inf")
    size = max(1, _ROOM // (op.length * op.state**2))
    walk = _forward if forward else _backward
    return torch.cat([torch.linalg.svdvals(walk(some)) for _, some in op.blocks(size)])


def _forward(op: StateSpaceOperator) -> Tensor:
    """Factors F_i with F_i F_i^T = R_i R_i^T, (operator, L-1, n, n)."""
    x = op.recurrent()
    factor = x.b.new_zeros(x.count, x.state, x.state)
    out = x.b.new_empty(x.count, x.length - 1, x.state, x.state)
    for i in range(x.length - 1):
        written = x.b[:, i, :, None].expand(x.count, -1, -1)
        factor = _square(torch.cat([x.transition(i, factor), written], 2))
        out[:, i] = factor
    return out


def _backward(op: StateSpaceOperator) -> Tensor:
    """Factors G_i with G_i G_i^T = O_i^T O_i, (operator, L-1, n, n)."""
    x = op.recurrent()
    factor = x.b.new_zeros(x.count, x.state, x.state)
    out = x.b.new_empty(x.count, x.length - 1, x.state, x.state)
    for i in range(x.length - 1, 0, -1):
        read = x.c[:, i, :, None].expand(x.count, -1, -1)
        factor = x.adjoint_transition(i, _square(torch.cat([factor, read], 2)))
        out[:, i - 1] = factor
    return out


def _square(x: Tensor) -> Tensor:
    """Square F with F F^T = x x^T."""
    return torch.linalg.qr(x.mT, mode="r").R.mT
