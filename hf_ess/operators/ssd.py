"""The scan of Mamba-2, one operator per head."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ess.operators.recurrent import RecurrentOperator
from hf_ess.operators.state_space import StateSpaceOperator


class SSDScan(StateSpaceOperator):
    """The Mamba-2 scan (SSD) of every head; B and C are shared by groups and spelled out block by block.

    Head h has the scalar decay a_i = exp(dt_hi A_h), b_i = dt_hi B_i, c_i = C_i (arXiv 2405.21060, section 2).

    Args:
        dt: (head, L); step size after bias, softplus and clamp.
        A: (head,); negative.
        B: (group, L, n); input map.
        C: (group, L, n); output map.
        multiplicity: channels that share each head's operator (head_dim).
        groups: (head,) int64; the group of each head.  Default: consecutive heads share, h // (head / group).
    """

    def __init__(
        self, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, multiplicity: int = 1, groups: Tensor | None = None
    ) -> None:
        heads = dt.shape[0]
        if A.shape != (heads,) or B.dim() != 3 or B.shape != C.shape or B.shape[1] != dt.shape[1]:
            shapes = ", ".join(str(tuple(x.shape)) for x in (dt, A, B, C))
            raise ValueError(f"expected dt (head, L), A (head,), B and C (group, L, n), got {shapes}")
        if groups is None:
            if heads % B.shape[0]:
                raise ValueError(f"{heads} heads cannot share {B.shape[0]} groups evenly")
            groups = torch.arange(heads, device=dt.device) // (heads // B.shape[0])
        self.dt, self.A, self.B, self.C = dt.double(), A.double(), B.double(), C.double()
        self.groups = groups
        self._multiplicity = multiplicity

    @property
    def count(self) -> int:
        return self.dt.shape[0]

    @property
    def length(self) -> int:
        return self.dt.shape[1]

    @property
    def state(self) -> int:
        """Dimension n of each channel's state."""
        return self.B.shape[2]

    @property
    def device(self) -> torch.device:
        return self.dt.device

    @property
    def multiplicity(self) -> int:
        return self._multiplicity

    def recurrent(self) -> RecurrentOperator:
        dt = self.dt[:, :, None]
        a = torch.exp(dt * self.A[:, None, None])
        return RecurrentOperator(a, dt * self.B[self.groups], self.C[self.groups], multiplicity=self._multiplicity)

    def __getitem__(self, operators: slice) -> SSDScan:
        return SSDScan(
            self.dt[operators], self.A[operators], self.B, self.C, self._multiplicity, self.groups[operators]
        )

    def is_finite(self) -> bool:
        return all(bool(x.isfinite().all()) for x in (self.dt, self.A, self.B, self.C))
