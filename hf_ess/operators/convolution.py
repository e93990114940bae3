"""Short causal convolutions with a gate before and a gate after them."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ess.operators.base import Operator


class ConvolutionOperator(Operator):
    """T_ij = C_i w_{i-j} B_j for 0 <= i-j < K: one operator per channel.

    Args:
        taps: (channel, K); w, the newest token first.
        before: (channel, L); B, what the input is multiplied by.
        after: (channel, L); C, what the output is multiplied by.
    """

    def __init__(self, taps: Tensor, before: Tensor, after: Tensor) -> None:
        if before.shape != after.shape or before.dim() != 2 or taps.shape[:-1] != before.shape[:1]:
            shapes = ", ".join(str(tuple(x.shape)) for x in (taps, before, after))
            raise ValueError(f"expected taps (channel, K), before and after (channel, L), got {shapes}")
        self.taps, self.before, self.after = taps.double(), before.double(), after.double()

    @property
    def count(self) -> int:
        return self.before.shape[0]

    @property
    def length(self) -> int:
        return self.before.shape[1]

    @property
    def width(self) -> int:
        """Number of taps K."""
        return self.taps.shape[1]

    @property
    def multiplicity(self) -> int:
        return 1

    def apply(self, u: Tensor) -> Tensor:
        x = self.before[..., None] * u.double()
        y = torch.zeros_like(x)
        for lag in range(min(self.width, self.length)):
            y[:, lag:] += self.taps[:, lag, None, None] * x[:, : self.length - lag]
        return self.after[..., None] * y

    def dense(self) -> Tensor:
        T = self.before.new_zeros(self.count, self.length, self.length)
        for lag in range(min(self.width, self.length)):
            band = self.after[:, lag:] * self.taps[:, lag, None] * self.before[:, : self.length - lag]
            T.diagonal(-lag, 1, 2).copy_(band)
        return T

    def tss(self) -> Tensor:
        """min(i, K-1): the inputs that a later output still looks at."""
        i = torch.arange(1, self.length, dtype=torch.float64, device=self.before.device)
        return i.clamp_max(self.width - 1).expand(self.count, -1)

    def __getitem__(self, operators: slice) -> ConvolutionOperator:
        return ConvolutionOperator(self.taps[operators], self.before[operators], self.after[operators])

    def is_finite(self) -> bool:
        return all(bool(x.isfinite().all()) for x in (self.taps, self.before, self.after))
