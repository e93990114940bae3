"""Operators with a finite state, whatever they are made of: what the recurrent engine needs to know of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_ess.operators.base import Operator

if TYPE_CHECKING:
    from hf_ess.operators.recurrent import RecurrentOperator

_ROOM = 2**24  # numbers of one spelled-out map that exist at once: 128 MB in float64


class StateSpaceOperator(Operator):
    """Recurrences s_i = A_i s_{i-1} + b_i u_i, y_i = c_i . s_i that can be spelled out as a RecurrentOperator.

    A layer's own quantities (step sizes, keys, decays) are much smaller than a, b and c of every head, so those
    exist for one block of operators at a time.
    """

    @property
    @abstractmethod
    def state(self) -> int:
        """Dimension n of the state."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the numbers are."""

    @abstractmethod
    def recurrent(self) -> RecurrentOperator:
        """The same operators with a, b, c spelled out: some 16 n L bytes each, so take a block first."""

    @abstractmethod
    def __getitem__(self, operators: slice) -> StateSpaceOperator: ...

    def apply(self, u: Tensor) -> Tensor:
        size = max(1, _ROOM // (self.length * self.state))
        return torch.cat([some.recurrent().apply(u[part]) for part, some in self.blocks(size)])

    def dense(self) -> Tensor:
        return self.recurrent().dense()

    def tss(self) -> Tensor:
        """n at every cut (arXiv 2504.19561: the state size of the given realisation)."""
        n = torch.full((1, self.length - 1), float(self.state), dtype=torch.float64, device=self.device)
        return n.expand(self.count, -1)
