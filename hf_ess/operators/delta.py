"""The gated delta rule, one operator per value head."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ess.operators.recurrent import RecurrentOperator
from hf_ess.operators.state_space import StateSpaceOperator


class DeltaRule(StateSpaceOperator):
    """The delta rule with decay, of every value head; queries and keys are shared and spelled out block by block.

    S_t = (I - beta_t k_t k_t^T) diag(e^{g_t}) S_{t-1} + beta_t k_t v_t^T, o_t = S_t^T q_t: the state decays before it
    is corrected.  One g per head is Gated DeltaNet (arXiv 2412.06464), one per key channel is Kimi delta
    attention (arXiv 2510.26692).

    Args:
        q: (key head, L, d); queries, normalised and scaled as the layer used them.
        k: (key head, L, d); keys, normalised as the layer used them.
        g: (head, L, 1) or (head, L, d); decay in log space, <= 0.
        beta: (head, L); how much of the old value is replaced.
        multiplicity: channels that share each head's operator (width of a value).
        groups: (head,) int64; the key head of each head.  Default: consecutive heads share, h // (head / key head).
    """

    def __init__(
        self, q: Tensor, k: Tensor, g: Tensor, beta: Tensor, multiplicity: int = 1, groups: Tensor | None = None
    ) -> None:
        heads, length = beta.shape
        if q.dim() != 3 or q.shape != k.shape or q.shape[1] != length or g.shape[:2] != beta.shape:
            shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, g, beta))
            raise ValueError(f"expected q and k (key head, L, d), g (head, L, 1 or d), beta (head, L), got {shapes}")
        if groups is None:
            if heads % q.shape[0]:
                raise ValueError(f"{heads} heads cannot share {q.shape[0]} key heads evenly")
            groups = torch.arange(heads, device=q.device) // (heads // q.shape[0])
        self.q, self.k, self.g, self.beta = q.double(), k.double(), g.double(), beta.double()
        self.groups = groups
        self._multiplicity = multiplicity

    @property
    def count(self) -> int:
        return self.beta.shape[0]

    @property
    def length(self) -> int:
        return self.beta.shape[1]

    @property
    def state(self) -> int:
        """Dimension d of a key: the state is d numbers per channel of the value."""
        return self.k.shape[2]

    @property
    def device(self) -> torch.device:
        return self.k.device

    @property
    def multiplicity(self) -> int:
        return self._multiplicity

    def recurrent(self) -> RecurrentOperator:
        a, k = torch.exp(self.g), self.k[self.groups]
        write = self.beta[:, :, None] * k
        return RecurrentOperator(a, write, self.q[self.groups], (write, a * k), self._multiplicity)

    def __getitem__(self, operators: slice) -> DeltaRule:
        return DeltaRule(
            self.q, self.k, self.g[operators], self.beta[operators], self._multiplicity, self.groups[operators]
        )

    def is_finite(self) -> bool:
        # A decay of exactly 0 (g = -inf) wipes the state and is as good as any other.
        decay = bool((self.g < torch.inf).all())
        return decay and all(bool(x.isfinite().all()) for x in (self.q, self.k, self.beta))
