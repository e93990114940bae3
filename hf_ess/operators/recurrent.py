"""Operators with a finite state: s_i = A_i s_{i-1} + b_i u_i, y_i = c_i . s_i."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ess.operators.state_space import StateSpaceOperator


class RecurrentOperator(StateSpaceOperator):
    """Linear time-varying recurrences with one input and one output: T_ij = c_i^T A_i ... A_{j+1} b_j.

    The transition is A_i = diag(a_i) - p_i q_i^T, whose special cases are the identity (a None), a scalar
    (a of width 1), diagonal, and diagonal plus rank one (the delta rule: a_i (I - beta_i k_i k_i^T)).

    Args:
        a: (operator, L, n), (operator, L, 1) or None; decay, already exponentiated.
        b: (operator or 1, L, n); input map.
        c: (operator or 1, L, n); output map.
        rank_one: None, or the pair p, q, each (operator, L, n).
        multiplicity: channels that share each operator.
        diagonal: (operator or 1, L); T_ii where it is not c_i . b_i (the bonus of RWKV), or None.  It never
            enters H_i = T[i:, :i].
    """

    def __init__(
        self,
        a: Tensor | None,
        b: Tensor,
        c: Tensor,
        rank_one: tuple[Tensor, Tensor] | None = None,
        multiplicity: int = 1,
        diagonal: Tensor | None = None,
    ) -> None:
        named = {"a": a, "b": b, "c": c} | dict(zip(("p", "q"), rank_one or ()))
        parts = {name: x for name, x in named.items() if x is not None}
        if any(x.dim() != 3 for x in parts.values()):
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in parts.items())
            raise ValueError(f"expected three dimensions (operator, L, n), got {shapes}")
        self._count = max(x.shape[0] for x in parts.values())
        self._multiplicity = multiplicity
        _, length, n = b.shape
        for name, x in parts.items():
            widths = (1, n) if name == "a" else (n,)
            if x.shape[0] not in (1, self._count) or x.shape[1] != length or x.shape[2] not in widths:
                raise ValueError(f"expected {name} of shape ({self._count}, {length}, {n}), got {tuple(x.shape)}")
        self.a = None if a is None else a.double()
        self.b, self.c = b.double(), c.double()
        self.rank_one = None if rank_one is None else (rank_one[0].double(), rank_one[1].double())
        self.diagonal = None if diagonal is None else diagonal.double()

    @property
    def count(self) -> int:
        return self._count

    @property
    def length(self) -> int:
        return self.b.shape[1]

    @property
    def state(self) -> int:
        """Dimension n of the state."""
        return self.b.shape[2]

    @property
    def device(self) -> torch.device:
        return self.b.device

    @property
    def multiplicity(self) -> int:
        return self._multiplicity

    def recurrent(self) -> RecurrentOperator:
        return self

    def transition(self, i: int, s: Tensor) -> Tensor:
        """A_i s for states s: (operator, n, channel)."""
        out = s if self.a is None else self.a[:, i, :, None] * s
        if self.rank_one is not None:
            p, q = (x[:, i, :, None] for x in self.rank_one)
            out = out - p * (q * s).sum(1, keepdim=True)
        return out

    def adjoint_transition(self, i: int, s: Tensor) -> Tensor:
        """A_i^T s for s: (operator, n, channel)."""
        out = s if self.a is None else self.a[:, i, :, None] * s
        if self.rank_one is not None:
            p, q = (x[:, i, :, None] for x in self.rank_one)
            out = out - q * (p * s).sum(1, keepdim=True)
        return out

    def apply(self, u: Tensor) -> Tensor:
        """T u by running the recurrence; u: (operator, L, channel) -> the same shape, float64."""
        u = u.double()
        s = u.new_zeros(self.count, self.state, u.shape[2])
        y = torch.empty_like(u)
        for i in range(self.length):
            carried = self.transition(i, s)
            s = carried + self.b[:, i, :, None] * u[:, None, i]
            if self.diagonal is None:
                y[:, i] = (self.c[:, i, :, None] * s).sum(1)
            else:
                y[:, i] = (self.c[:, i, :, None] * carried).sum(1) + self.diagonal[:, i, None] * u[:, i]
        return y

    def dense(self) -> Tensor:
        """T by products of A, never quotients: decay cannot divide by 0.

        In chunks of m tokens the recurrence carries only the identity and the chunk's own inputs; what came before
        enters by one product, T[chunk, before] = (c_i A_i ... A_start) S with S the states that each earlier input
        leaves at the chunk's start.  8 heads of n = 64 at L = 1024: 0.1 s; the recurrence on all inputs took 1 to 2 s.
        """
        n, m = self.state, 32
        T = self.b.new_zeros(self.count, self.length, self.length)
        before = self.b.new_zeros(self.count, n, 0)
        for start in range(0, self.length, m):
            tokens = range(start, min(start + m, self.length))
            s = self.b.new_zeros(self.count, n, n + len(tokens))
            s[:, :, :n] = torch.eye(n, dtype=s.dtype, device=s.device)
            rows = []
            for k, i in enumerate(tokens):
                s = self.transition(i, s)
                s[:, :, n + k] += self.b[:, i]
                rows.append((self.c[:, i, :, None] * s).sum(1))
            read = torch.stack(rows, 1)
            T[:, start : tokens.stop, :start] = read[:, :, :n] @ before
            T[:, start : tokens.stop, start : tokens.stop] = read[:, :, n:]
            before = torch.cat([s[:, :, :n] @ before, s[:, :, n:]], 2)
        if self.diagonal is not None:
            T.diagonal(dim1=1, dim2=2).copy_(self.diagonal)
        return T

    def __getitem__(self, operators: slice) -> RecurrentOperator:
        def part(x: Tensor) -> Tensor:
            return x if x.shape[0] == 1 and self._count > 1 else x[operators]

        rank_one = None if self.rank_one is None else (part(self.rank_one[0]), part(self.rank_one[1]))
        a = None if self.a is None else part(self.a)
        diagonal = None if self.diagonal is None else part(self.diagonal)
        block = RecurrentOperator(a, part(self.b), part(self.c), rank_one, self._multiplicity, diagonal)
        block._count = len(range(*operators.indices(self._count)))
        return block

    def is_finite(self) -> bool:
        parts = [x for x in (self.a, self.b, self.c, *(self.rank_one or ()), self.diagonal) if x is not None]
        return all(bool(x.isfinite().all()) for x in parts)


class SelectiveScan(StateSpaceOperator):
    """The Mamba-1 scan (S6) of every channel, discretised block by block: 8,192 channels never exist at once.

    Channel c has a_i = exp(dt_ci A_c), b_i = dt_ci B_i, c_i = C_i (arXiv 2312.00752, eq. 4 with the simplified
    input map that all implementations use).

    Args:
        dt: (channel, L); step size after bias and softplus.
        A: (channel, n); negative.
        B: (L, n); input map shared by the channels.
        C: (L, n); output map shared by the channels.
    """

    def __init__(self, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> None:
        if dt.shape != (A.shape[0], B.shape[0]) or B.shape != C.shape or A.shape[1] != B.shape[1]:
            shapes = ", ".join(str(tuple(x.shape)) for x in (dt, A, B, C))
            raise ValueError(f"expected dt (channel, L), A (channel, n), B and C (L, n), got {shapes}")
        self.dt, self.A, self.B, self.C = dt.double(), A.double(), B.double(), C.double()

    @property
    def count(self) -> int:
        return self.dt.shape[0]

    @property
    def length(self) -> int:
        return self.dt.shape[1]

    @property
    def state(self) -> int:
        """Dimension n of each channel's state."""
        return self.A.shape[1]

    @property
    def device(self) -> torch.device:
        return self.dt.device

    @property
    def multiplicity(self) -> int:
        return 1

    def recurrent(self) -> RecurrentOperator:
        a = torch.exp(self.dt[:, :, None] * self.A[:, None])
        return RecurrentOperator(a, self.dt[:, :, None] * self.B, self.C[None])

    def __getitem__(self, operators: slice) -> SelectiveScan:
        return SelectiveScan(self.dt[operators], self.A[operators], self.B, self.C)

    def is_finite(self) -> bool:
        return all(bool(x.isfinite().all()) for x in (self.dt, self.A, self.B, self.C))
