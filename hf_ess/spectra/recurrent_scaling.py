"""Recurrences brought to order 1, and what their rounding errors are relative to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_ess.errors import NonFiniteOperator
from hf_ess.operators import RecurrentOperator, StateSpaceOperator

UNDERFLOW = 1e-140  # in units of the scale: squares of what is smaller may underflow


@dataclass
class Scaled:
    """T = scale T', with b and c of T' at most 1 and b of order 1 in every state: squares neither over- nor underflow.

    Attributes:
        op: T'.
        scale: (operator,), powers of two, so that nothing was rounded.
    """

    op: RecurrentOperator
    scale: Tensor

    def cpu(self) -> Scaled:
        """The same on the CPU."""
        a, b, c, p, q = (None if x is None else x.cpu() for x in _parts(self.op))
        return Scaled(_operator(a, b, c, p, q), self.scale.cpu())

    def __getitem__(self, operators: slice) -> Scaled:
        return Scaled(self.op[operators], self.scale[operators])


def scaled(operator: StateSpaceOperator, first: int = 0) -> Scaled:
    """The operators spelled out, in units of their scale; first is the number of the first one, for messages.

    Raises:
        NonFiniteOperator: NaN or Inf.
    """
    op = operator.recurrent()
    a, b, c, p, q = (None if x is None else x.detach() for x in _parts(op))
    assert b is not None and c is not None
    largest = {name: _largest(x) for name, x in zip("abcpq", (a, b, c, p, q)) if x is not None}
    finite = torch.stack([x.isfinite().all(2).expand(op.count, 1) for x in largest.values()])
    require_finite(finite.all(0)[:, 0], first, "hold NaN or Inf")
    state = _exponent(largest["b"])
    if p is not None and q is not None:  # it mixes the states, so that one scale must do for all of them
        state = state.amax(2, keepdim=True)
        half = torch.round((_exponent(q.abs().amax(2, keepdim=True)) - _exponent(p.abs().amax(2, keepdim=True))) / 2)
        p, q = torch.ldexp(p, half), torch.ldexp(q, -half)
    whole = (_exponent(largest["c"]) + state).amax(2, keepdim=True)
    unit = _operator(a, torch.ldexp(b, -state), torch.ldexp(c, state - whole), p, q)
    scale = torch.ldexp(torch.ones_like(whole), whole)[:, 0, 0]
    return Scaled(unit, scale.expand(op.count))


def require_finite(finite: Tensor, first: int, what: str) -> None:
    """NonFiniteOperator unless all of finite (operator,) are True; first is the number of the first operator."""
    if not finite.all():
        bad = (~finite).nonzero()[:, 0]
        raise NonFiniteOperator(
            f"{len(bad)} of {len(finite)} recurrences {what}, the first is number {first + int(bad[0])}"
        )


def size(x: Scaled) -> Tensor:
    """What the rounding errors of H_i are relative to, (operator, L-1): sum_k sqrt(P_kk Q_kk).

    It bounds ||H_i||_F before any cancellation between states.  A rank-one part of the transition can also cancel
    what a state holds: then the norms before it count, for as long as the decay lets them.
    """
    if x.op.rank_one is None:
        whole = _sum_over_states(x.op)
    else:
        whole = _norms(x.op, forward=True) * _norms(x.op, forward=False)
    # Not below what times EPS is UNDERFLOW: that much is lost where squares underflow.
    return x.scale[:, None] * whole.clamp_min(UNDERFLOW / torch.finfo(torch.float64).eps)


def _sum_over_states(op: RecurrentOperator) -> Tensor:
    left = op.b.new_zeros(op.count, op.length, op.state)  # sqrt(P_kk) at cut i
    p = left[:, 0].clone()
    q = p.clone()
    for i in range(op.length - 1):
        p = (p if op.a is None else p * op.a[:, i] ** 2) + op.b[:, i] ** 2
        left[:, i + 1] = p.sqrt()
    for i in range(op.length - 1, 0, -1):
        q = q + op.c[:, i] ** 2
        q = q if op.a is None else q * op.a[:, i] ** 2
        left[:, i] *= q.sqrt()
    return left[:, 1:].sum(2)


def _norms(op: RecurrentOperator, forward: bool) -> Tensor:
    """sqrt(tr P_i) or sqrt(tr Q_i), (operator, L-1), before cancellations."""
    assert op.rank_one is not None
    (p, q), v = (op.rank_one, op.b) if forward else (op.rank_one[::-1], op.c)
    a, p, q, v = (x.expand(op.count, -1, -1) for x in (torch.ones_like(v[..., :1]) if op.a is None else op.a, p, q, v))
    decay, norm = a.abs().amax(2), a.new_zeros(op.count)
    norms = a.new_zeros(op.count, op.length + 1)
    gramian = a.new_zeros(op.count, op.state, op.state)
    for i in range(op.length) if forward else range(op.length - 1, 0, -1):
        ai, pi, qi, vi = (x[:, i, :, None] for x in (a, p, q, v))
        if not forward:
            gramian = torch.baddbmm(gramian, vi, vi.mT)
        product = gramian @ qi
        removed = (qi.mT @ product).clamp_min(0)
        held = gramian.diagonal(dim1=1, dim2=2).sum(1).sqrt()
        before = decay[:, i] * held + pi.norm(dim=1)[:, 0] * removed[:, 0, 0].sqrt()
        # A G A^T = D G D - (D G q) p^T - p (D G q)^T + (q^T G q) p p^T for A = D - p q^T
        product = ai * product
        gramian = gramian * (ai * ai if ai.shape[1] == 1 else ai * ai.mT)
        left, right = torch.cat([product, pi], 2), torch.cat([pi, product - removed * pi], 2)
        gramian = torch.baddbmm(gramian, left, right.mT, alpha=-1)
        if forward:
            gramian = torch.baddbmm(gramian, vi, vi.mT)
            before = before + vi.norm(dim=1)[:, 0]
        norm = torch.maximum(decay[:, i] * norm, before)
        norms[:, i + 1 if forward else i] = norm
    return norms[:, 1 : op.length]


def _parts(op: RecurrentOperator) -> tuple[Tensor | None, ...]:
    return (op.a, op.b, op.c, *(op.rank_one or (None, None)))


def _operator(
    a: Tensor | None, b: Tensor | None, c: Tensor | None, p: Tensor | None, q: Tensor | None
) -> RecurrentOperator:
    assert b is not None and c is not None
    return RecurrentOperator(a, b, c, None if p is None or q is None else (p, q))


def _largest(x: Tensor) -> Tensor:
    """max |x_i| over the tokens, (operator, 1, n); NaN if there is one, and 6 times faster than abs and isfinite."""
    return torch.maximum(x.amax(1, keepdim=True), x.amin(1, keepdim=True).neg())


def _exponent(x: Tensor) -> Tensor:
    """e with x = m 2^e, 1/2 <= m < 1 (0 for x = 0), as float64, within what ldexp can undo."""
    return torch.frexp(x).exponent.clamp(-1000, 1000).double()
