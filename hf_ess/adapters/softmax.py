"""Softmax attention that goes through transformers' AttentionInterface."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import is_low, raised
from hf_ess.operators import SoftmaxAttention

_FLOAT32_EPS = 2.0**-23


@register
class Softmax:
    """Every mixer whose modelling file asks `AttentionInterface.get_interface` for its attention function.

    The model runs with attention "eager", so the mask is always there and holds the whole truth (window, chunks,
    sparse choices); the function that the file would have used is called as it is, and its arguments are T.
    """

    kind = "softmax"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        with observed_interface(lambda call: _record(call, watch)):
            yield


@dataclass
class InterfaceCall:
    """One call of an attention function that a modelling file got from AttentionInterface.

    Attributes:
        module: the mixer that called it.
        query, key, value: (1, head, L, d), (1, key head, L, d), (1, key head, L, d_v).
        mask: (1, 1 or head, L, L) additive, or None.
        features: all arguments by name.
        output: (1, L, head, d_v), what the function returned.
        reference: the same in float32 or better: the function called again where output is in half precision.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    features: dict[str, Any]
    output: Tensor
    reference: Callable[[], Tensor]

    def operator(self) -> SoftmaxAttention:
        """T of every query head."""
        return operator_of(self.module, self.query, self.key, self.value, self.mask, self.features)

    def values(self) -> Tensor:
        """u, (query head, L, d_v)."""
        return _per_head(self.value[0], self.query.shape[1])

    def no_operator(self) -> str | None:
        """Why it has no square T on one sequence, or None."""
        return _no_operator(self.query, self.key)


@contextmanager
def observed_interface(see: Callable[[InterfaceCall], None]) -> Iterator[None]:
    """Hands every call of an eager attention function to see, after the function has run as it is."""
    from transformers.modeling_utils import AttentionInterface

    original = AttentionInterface.get_interface

    def get_interface(interface: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        chosen = original(interface, name, default)
        return chosen if name != "eager" else _observed(chosen, see)

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = original


def _observed(attention: Callable[..., Any], see: Callable[[InterfaceCall], None]) -> Callable[..., Any]:
    signature = inspect.signature(attention)

    @functools.wraps(attention)
    def observed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = attention(module, *args, **kwargs)
        bound = signature.bind(module, *args, **kwargs)
        bound.apply_defaults()
        names = list(bound.arguments)
        features = {**bound.arguments.pop("kwargs", {}), **bound.arguments}
        query, key, value, mask = (features[name] for name in names[1:5])

        def reference() -> Tensor:
            if not is_low(result[0]):
                return result[0]
            return attention(module, *map(raised, args), **{k: raised(v) for k, v in kwargs.items()})[0]

        see(InterfaceCall(module, query, key, value, mask, features, result[0], reference))
        return result

    return observed


def is_differential(module: nn.Module) -> bool:
    """Whether a layer subtracts one half of its heads from the other: T of the function alone is not its operator."""
    return all(hasattr(module, name) for name in ("lambda_q1", "lambda_k1", "lambda_init", "groupnorm"))


def _record(call: InterfaceCall, watch: Watch) -> None:
    if is_differential(call.module):
        return
    reason = call.no_operator()
    if reason:
        watch.refuse(call.module, reason)
        return
    operator = call.operator()
    reference = call.reference()
    watch.record(
        MixerCall(
            module=call.module,
            kind=Softmax.kind,
            operator=operator,
            inputs=call.values(),
            reference=reference[0].transpose(0, 1),
            output=None if reference is call.output else call.output[0].transpose(0, 1),
            bound=error_bound(operator),
        )
    )


def operator_of(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, features: dict[str, Any]
) -> SoftmaxAttention:
    """The operator that the sixteen eager functions of transformers share, from their arguments.

    Args:
        module: the mixer, for what some files take from it: head_dim for the scale, sinks.
        query, key, value: (1, head, L, d), (1, key head, L, d), (1, key head, L, d_v).
        mask: (1, 1 or head, L, L) additive, or None.
        features: all other arguments by name: scaling, softcap, position_bias, sinks, s_aux.
    """
    scaling = features.get("scaling")
    if scaling is None:
        scaling = getattr(module, "head_dim", query.shape[-1]) ** -0.5
    sinks = features.get("sinks")
    if sinks is not None:  # one logit per token: (1, head, L, 1)
        sinks = sinks[0, ..., 0].detach()
    else:
        sinks = features.get("s_aux")
        sinks = getattr(module, "sinks", None) if sinks is None else sinks
        sinks = None if sinks is None else sinks.detach().reshape(-1, 1)
    bias = features.get("position_bias")
    return SoftmaxAttention(
        query[0],
        key[0],
        float(scaling),
        mask=None if mask is None else mask[0, ..., : key.shape[2]],
        softcap=features.get("softcap"),
        position_bias=None if bias is None else bias[0],
        sinks=sinks,
        multiplicity=value.shape[-1],
    )


def error_bound(operator: SoftmaxAttention) -> float:
    """1e-5, or what float32 itself loses: the layer rounds logits of size x by up to eps x / 2 before exp."""
    reach = operator.q.double().norm(dim=-1).amax() * operator.k.double().norm(dim=-1).amax() * abs(operator.scaling)
    if operator.softcap is not None:
        reach = reach.clamp_max(operator.softcap)
    return max(1e-5, _FLOAT32_EPS * float(reach.nan_to_num()))


def _no_operator(query: Tensor, key: Tensor) -> str | None:
    if query.shape[0] != 1:
        return f"it ran on a batch of {query.shape[0]} sequences where one was given"
    if query.shape[2] != key.shape[2]:
        return f"its operator is not square: {query.shape[2]} queries over {key.shape[2]} keys"
    return None


def _per_head(value: Tensor, heads: int) -> Tensor:
    return value if value.shape[0] == heads else value.repeat_interleave(heads // value.shape[0], 0)
