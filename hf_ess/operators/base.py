"""The causal linear operator of a sequence mixer, as data: y = T u."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self, cast

import torch
from torch import Tensor


class Operator(ABC):
    """A batch of causal operators T of one layer, one per head or channel.

    Token i (0-based) writes u_i and reads y_i = sum_{j <= i} T_ij u_j.  The memory carried into token i is
    H_i = T[i:, :i], for the cuts i = 1 .. L-1 (arXiv 2504.19561, section 2).
    """

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of operators (heads or channels)."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of tokens L."""

    @property
    @abstractmethod
    def multiplicity(self) -> int:
        """How many channels share each operator (head_dim for attention, 1 for Mamba-1)."""

    @abstractmethod
    def apply(self, u: Tensor) -> Tensor:
        """T u, without forming T where that is possible; u: (operator, L, channel), float64 -> the same shape."""

    @abstractmethod
    def dense(self) -> Tensor:
        """T with its diagonal, (operator, L, L), float64."""

    @abstractmethod
    def tss(self) -> Tensor:
        """Theoretical state size at the cuts i = 1 .. L-1, (operator, L-1), float64 (whole numbers)."""

    @abstractmethod
    def __getitem__(self, operators: slice) -> Operator:
        """The operators of a contiguous range; tensors are shared, not copied."""

    @abstractmethod
    def is_finite(self) -> bool:
        """Whether every number that defines the operators is finite."""

    def to(self, device: torch.device | str) -> Self:
        """The same operators with their numbers on a device."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            setattr(moved, name, _moved(value, device))
        return moved

    def blocks(self, size: int) -> Iterator[tuple[slice, Self]]:
        """The operators in consecutive ranges of at most size, with the range of each."""
        for start in range(0, self.count, size):
            part = slice(start, min(start + size, self.count))
            yield part, cast(Self, self[part])


def _moved(value: Any, device: torch.device | str) -> Any:
    """A tensor or operator on the device, also in a tuple; anything else as it is."""
    if isinstance(value, Tensor | Operator):
        return value.to(device)
    return tuple(_moved(part, device) for part in value) if isinstance(value, tuple) else value
