"""Differential attention of diffllama: one softmax map minus a learned multiple of another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.rerun import Forward, remembering
from hf_ess.adapters.seams import Hears
from hf_ess.adapters.softmax import InterfaceCall, error_bound, is_differential, observed_interface
from hf_ess.operators import DenseOperator


@register
class Differential:
    """Every attention that subtracts one half of its heads, times lambda, from the other half.

    It calls its attention function twice, on the same queries and keys and on one half of the values each; what
    enters its group norm is the effective operator applied to both halves.
    """

    kind = "differential"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        calls: list[InterfaceCall] = []
        layers: list[Any] = [m for m in watch.model.modules() if is_differential(m)]

        def see(call: InterfaceCall) -> None:
            if is_differential(call.module):
                calls.append(call)

        with ExitStack() as stack:
            if layers:
                stack.enter_context(observed_interface(see))
            forwards = stack.enter_context(remembering(layers, leave=lambda forward: calls.clear()))

            def mixed(_: nn.Module, args: tuple[Tensor, ...]) -> None:
                _record(forwards[-1], args[0], calls, watch)

            for layer in layers:
                stack.callback(layer.groupnorm.register_forward_pre_hook(mixed).remove)
            yield


def _record(forward: Forward, output: Tensor, calls: list[InterfaceCall], watch: Watch) -> None:
    reason = next(filter(None, (call.no_operator() for call in calls)), None)
    if reason:
        watch.refuse(forward.module, reason)
        return
    reference = output
    if forward.low:
        calls.clear()
        heard = Hears()
        forward.again(forward.twin(groupnorm=heard, o_proj=Hears()))  # hands its own two calls over
        reference = heard.heard
    first, second = calls
    half = first.query.shape[1] // 2
    values = torch.cat([first.values(), second.values()], -1)
    watch.record(
        MixerCall(
            module=forward.module,
            kind=Differential.kind,
            operator=operator_of(forward.module, first, multiplicity=values.shape[-1]),
            inputs=values[:half],
            reference=reference[0].transpose(0, 1),
            output=None if reference is output else output[0].transpose(0, 1),
            bound=error_bound(first.operator()),
        )
    )


def operator_of(module: Any, call: InterfaceCall, multiplicity: int = 1) -> DenseOperator:
    """T_h - lambda T_{h + H/2} of every effective head h < H/2, in float64 (arXiv 2410.05258, eq. 1).

    Args:
        module: the layer, for lambda = exp(q1 . k1) - exp(q2 . k2) + lambda_init.
        call: one of its two calls; the maps of both are the same.
        multiplicity: width of a value, both halves together.
    """
    q1, k1, q2, k2 = (getattr(module, f"lambda_{name}").detach().double() for name in ("q1", "k1", "q2", "k2"))
    factor = torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + module.lambda_init
    maps = call.operator()
    plus, minus = maps.dense().chunk(2)
    return DenseOperator(plus - factor * minus, multiplicity, state_size=maps.tss()[: len(plus)])
