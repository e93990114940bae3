"""Softmax attention as an operator: T = softmax(q k^T) row by row, one per query head."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ess.operators.base import Operator

_ROOM = 2**25  # numbers of T that exist at once: 256 MB in float64


class SoftmaxAttention(Operator):
    """Causal softmax attention, one operator per query head, formed in float64 only when asked for.

    T = softmax(cap tanh(scaling q k^T / cap) + position_bias + mask), with one more logit per row (the sink)
    that takes probability and gives nothing, where the layer has one.

    Args:
        q: (head, L, d); queries as the layer used them (rotary embedding and norms applied).
        k: (key head, L, d); query head h attends with key head h // (head / key head).
        scaling: factor on q k^T.
        mask: (head or 1, L, L) additive in floating point, or bool (True: visible), or None (all visible).
        softcap: cap of the logits, or None.
        position_bias: (head or 1, L, L) added to the logits, or None.
        sinks: (head, L or 1) extra logit, or None.
        multiplicity: channels per head (the width of a value).
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        scaling: float,
        mask: Tensor | None = None,
        softcap: float | None = None,
        position_bias: Tensor | None = None,
        sinks: Tensor | None = None,
        multiplicity: int = 1,
    ) -> None:
        if q.dim() != 3 or k.dim() != 3 or q.shape[1:] != k.shape[1:] or q.shape[0] % k.shape[0]:
            raise ValueError(f"expected q (head, L, d), k (key head, L, d), got {tuple(q.shape)}, {tuple(k.shape)}")
        self.q = q
        self.k = k if k.shape[0] == q.shape[0] else k.repeat_interleave(q.shape[0] // k.shape[0], 0)
        self.scaling, self.softcap = scaling, softcap
        self.mask, self.position_bias, self.sinks = mask, position_bias, sinks
        self._multiplicity = multiplicity

    @property
    def count(self) -> int:
        return self.q.shape[0]

    @property
    def length(self) -> int:
        return self.q.shape[1]

    @property
    def multiplicity(self) -> int:
        return self._multiplicity

    def logits(self) -> Tensor:
        """The logits before mask and sink, (head, L, L), float64."""
        x = self.q.double() @ self.k.double().mT * self.scaling
        if self.softcap is not None:
            x = self.softcap * torch.tanh(x / self.softcap)
        if self.position_bias is not None:
            x = x + self.position_bias.double()
        return x

    def dense(self) -> Tensor:
        x = self.logits()
        if self.mask is not None:
            hidden = ~self.visible()
            if self.mask.dtype != torch.bool:
                x = x + self.mask.double()
            # A row that sees nothing has no softmax over -inf; the layer's own finite mask decides there.
            x = x.masked_fill(hidden & ~hidden.all(-1, keepdim=True), -torch.inf)
        if self.sinks is None:
            return x.softmax(-1)
        sink = self.sinks.double()[..., None].expand(-1, self.length, 1)
        return torch.cat([x, sink], -1).softmax(-1)[..., :-1]

    def visible(self) -> Tensor:
        """Which key each query may attend to, bool, (head or 1, L, L)."""
        if self.mask is None:
            return torch.ones(1, self.length, self.length, dtype=torch.bool, device=self.q.device)
        if self.mask.dtype == torch.bool:
            return self.mask
        return self.mask > torch.finfo(self.mask.dtype).min / 2

    def apply(self, u: Tensor) -> Tensor:
        size = max(1, _ROOM // self.length**2)
        return torch.cat([block.dense() @ u[part].double() for part, block in self.blocks(size)])

    def tss(self) -> Tensor:
        """Keys before i that a query from i on may still see: i for full attention, min(i, w-1) in a window of w."""
        visible = self.visible()
        row = torch.arange(self.length, device=visible.device)
        last = torch.where(visible, row[:, None], -1).amax(1)  # (head or 1, L): the last query that sees key j
        cut = row[1:, None]
        live = (last[:, None] >= cut) & (row < cut)
        return live.sum(-1).double().expand(self.count, -1)

    def __getitem__(self, operators: slice) -> SoftmaxAttention:
        def part(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[0] == 1 else x[operators]

        sinks = None if self.sinks is None else self.sinks[operators]
        return SoftmaxAttention(
            self.q[operators],
            self.k[operators],
            self.scaling,
            part(self.mask),
            self.softcap,
            part(self.position_bias),
            sinks,
            self._multiplicity,
        )

    def is_finite(self) -> bool:
        # In float64 finite features cannot overflow: products of float32 numbers stay below 1e80.
        features = all(bool(x.isfinite().all()) for x in (self.q, self.k, self.sinks) if x is not None)
        added = (x for x in (self.mask, self.position_bias) if x is not None and x.dtype != torch.bool)
        return features and not any(bool((x.isnan() | (x == torch.inf)).any()) for x in added)
