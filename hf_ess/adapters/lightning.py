"""Lightning attention of minimax: linear attention with one fixed decay per head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import Gives, Hears, is_low, modules, no_operator, run, twin
from hf_ess.operators import RecurrentOperator


@register
class Lightning:
    """Every module whose class name ends in LightningAttention.

    Queries, keys and values are locals of `forward`: they are what comes out of its activation function, and what
    enters its norm is the mixing of them.
    """

    kind = "lightning"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        with ExitStack() as stack:
            for module in modules(watch.model, "LightningAttention"):
                for handle in _hooks(module, watch):
                    stack.callback(handle.remove)
            yield


def _hooks(module: Any, watch: Watch) -> Iterator[Any]:
    features: list[Tensor] = []

    def activated(_: nn.Module, args: Any, output: Tensor) -> None:
        features[:] = [output]

    def mixed(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        output, qkv = args[0], features.pop()
        reason = no_operator(qkv.shape[0])
        if reason:
            watch.refuse(module, reason)
            return
        reference = _in_float32(module, qkv) if is_low(output) else output
        width = module.head_dim
        value = _split(module, qkv[0])[2]

        def per_head(y: Tensor) -> Tensor:
            return y[0].unflatten(-1, (-1, width)).transpose(0, 1)

        watch.record(
            MixerCall(
                module=module,
                kind=Lightning.kind,
                operator=operator_of(module, qkv[0]),
                inputs=value,
                reference=per_head(reference),
                output=None if reference is output else per_head(output),
            )
        )

    yield module.act_fn.register_forward_hook(activated)
    yield module.norm.register_forward_pre_hook(mixed)


def _in_float32(module: Any, qkv: Tensor) -> Tensor:
    """What the layer's own code mixes of the same queries, keys and values in float32."""
    heard = Hears()
    other = twin(
        module,
        qkv_proj=Gives(None),
        act_fn=Gives(qkv.float()),
        norm=heard,
        output_gate=Gives(qkv.new_zeros(())),
        out_proj=Hears(),
    )
    # These buffers follow from the slopes, and in half precision each of them is rounded on its own.
    other.query_decay, other.key_decay, other.diagonal_decay = other.decay_factors(other.slope_rate)
    run(other, qkv.float(), None, None)
    return heard.heard


def _split(module: Any, qkv: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values, each (head, L, d), from (L, head * 3 d): the three lie together in each head."""
    return qkv.unflatten(-1, (module.num_attention_heads, -1)).transpose(0, 1).split(module.head_dim, -1)


def operator_of(module: Any, qkv: Tensor) -> RecurrentOperator:
    """T_ij = e^{-slope (i-j)} q_i . k_j of every head, in float64 (arXiv 2501.08313).

    Args:
        module: the layer, for its slopes and its number of heads.
        qkv: (L, head * 3 d), after the activation function.
    """
    query, key, _ = _split(module, qkv)
    decay = torch.exp(-module.slope_rate.double()).expand(-1, len(qkv), 1)
    return RecurrentOperator(decay, key, query, multiplicity=module.head_dim)
