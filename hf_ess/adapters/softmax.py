"""Softmax attention that goes through transformers' AttentionInterface."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
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
        from transformers.modeling_utils import AttentionInterface

        original = AttentionInterface.get_interface

        def get_interface(interface: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
            chosen = original(interface, name, default)
            return chosen if name != "eager" else _observed(chosen, watch)

        AttentionInterface.get_interface = get_interface
        try:
            yield
        finally:
            AttentionInterface.get_interface = original


def _observed(attention: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """The file's own attention function, with its arguments and result handed to the watch."""
    signature = inspect.signature(attention)

    def observed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = attention(module, *args, **kwargs)
        bound = signature.bind(module, *args, **kwargs)
        bound.apply_defaults()
        names = list(bound.arguments)
        features = {**bound.arguments.pop("kwargs", {}), **bound.arguments}
        query, key, value, mask = (features[name] for name in names[1:5])
        reason = _no_operator(query, key)
        if reason:
            watch.refuse(module, reason)
            return result
        output = result[0]
        operator = operator_of(module, query, key, value, mask, features)
        reference = output
        if output.dtype not in (torch.float32, torch.float64):
            raised = signature.bind(module, *map(_raised, args), **{k: _raised(v) for k, v in kwargs.items()})
            reference = attention(*raised.args, **raised.kwargs)[0]
        heads = operator.count
        u = value[0] if value.shape[1] == heads else value[0].repeat_interleave(heads // value.shape[1], 0)
        watch.record(
            MixerCall(
                module=module,
                kind=Softmax.kind,
                operator=operator,
                inputs=u,
                reference=reference[0].transpose(0, 1),
                output=None if reference is output else output[0].transpose(0, 1),
                bound=error_bound(operator),
            )
        )
        return result

    return observed


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


def _raised(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
