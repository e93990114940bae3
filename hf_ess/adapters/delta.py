"""The gated delta rule: Gated DeltaNet (Qwen3-Next, Qwen3.5, OLMo hybrid ...) and Kimi delta attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import Function, is_low, lost_in_chunks, no_operator, observing, raised
from hf_ess.operators import DeltaRule

# What the chunked solvers of the modelling files lose in float32 themselves: measured up to 2e-5 on random features,
# more where decays are strong (lost_in_chunks) or keys repeat and the triangular systems are badly conditioned.
BOUND = 1e-4
CHUNK = 64  # tokens per chunk in transformers and in fla
EPS = 1e-6  # of the normalisation inside the kernels


@register
class GatedDeltaNet:
    """Every mixer whose modelling file calls its own `torch_chunk_gated_delta_rule` (one decay per head)."""

    kind = "gated_deltanet"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        with observing(watch, "torch_chunk_gated_delta_rule", _observed(self.kind)):
            yield


@register
class KimiDeltaAttention:
    """Every mixer whose modelling file calls its own `chunk_kimi_delta_attention` (one decay per key channel)."""

    kind = "kimi_delta"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        with observing(watch, "chunk_kimi_delta_attention", _observed(self.kind)):
            yield


def _observed(kind: str) -> Any:
    def observe(rule: Function, watch: Watch) -> Function:
        """The chunked rule, with its arguments and result handed to the watch."""

        def observed(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            result = rule(query, key, value, *args, **kwargs)
            reason = no_operator(value.shape[0], kwargs.get("initial_state"))
            if reason:
                watch.refuse(watch.running[-1], reason)
                return result
            output = result[0]
            reference = output
            if is_low(output):
                arguments = map(raised, (query, key, value, *args))
                reference = rule(*arguments, **{name: raised(x) for name, x in kwargs.items()})[0]
            named = {**dict(zip(("g", "beta"), args)), **kwargs}
            watch.record(
                MixerCall(
                    module=watch.running[-1],
                    kind=kind,
                    operator=operator_of(
                        query[0],
                        key[0],
                        named["g"][0],
                        named["beta"][0],
                        normalise=named.get("use_qk_l2norm_in_kernel", False),
                        multiplicity=value.shape[-1],
                    ),
                    inputs=value[0].transpose(0, 1),
                    reference=reference[0].transpose(0, 1),
                    output=None if reference is output else output[0].transpose(0, 1),
                    bound=max(BOUND, lost_in_chunks(named["g"][0].transpose(0, 1), CHUNK)),
                )
            )
            return result

        return observed

    return observe


def operator_of(
    query: Tensor, key: Tensor, g: Tensor, beta: Tensor, normalise: bool, multiplicity: int = 1
) -> DeltaRule:
    """The delta rule of every value head from the arguments of the chunked functions, in float64.

    Args:
        query, key: (L, key head, d).
        g: (L, head) or (L, head, d), decay in log space.
        beta: (L, head).
        normalise: whether queries and keys are brought to length 1 first.
        multiplicity: width of a value.
    """
    q, k = query.double().transpose(0, 1), key.double().transpose(0, 1)
    if normalise:
        q, k = (x / (x.square().sum(-1, keepdim=True) + EPS).sqrt() for x in (q, k))
    g = g[..., None] if g.dim() == 2 else g
    return DeltaRule(q * q.shape[-1] ** -0.5, k, g.transpose(0, 1), beta.mT, multiplicity)
