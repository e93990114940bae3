"""The real-gated linear recurrent unit (RG-LRU) of recurrent_gemma."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import Function, modules, no_operator, raised, replaced, run, twin
from hf_ess.operators import RecurrentOperator

# The module computes sqrt(1 - a^2) by that subtraction; in float32 and for a near 1 it loses 3e-5 and more.
BOUND = 1e-4
_ROUNDOFF = 2.0**-24  # of float32


@register
class RGLRU:
    """Every module whose class name ends in Rglru.

    Its gates are locals of `forward`, so they are computed once more from its input and its parameters. That
    happens where it calls its `_rnn_scan`: there the parameters are in place also when they are offloaded.
    """

    kind = "rglru"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        found = modules(watch.model, "Rglru")
        kinds: set[Any] = {type(module) for module in found}
        arguments: dict[int, tuple[Tensor, Tensor]] = {}

        def entering(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            arguments[id(module)] = (*args, *kwargs.values())[:2]

        with ExitStack() as stack:
            for module in found:
                handle = module.register_forward_pre_hook(entering, with_kwargs=True)
                stack.callback(handle.remove)
            for kind in kinds:
                stack.enter_context(replaced(kind, "_rnn_scan", _observed(kind._rnn_scan, arguments, watch)))
            yield


def _observed(scan: Function, arguments: dict[int, tuple[Tensor, Tensor]], watch: Watch) -> Function:
    """The scan of a module whose arguments are known, which its twin's are not."""

    def observed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = scan(module, *args, **kwargs)
        if id(module) not in arguments:
            return result
        x, positions = arguments.pop(id(module))
        reason = no_operator(x.shape[0], kwargs.get("recurrent_states"))
        if reason:
            watch.refuse(module, reason)
            return result
        other = twin(module)
        reference = run(other, raised(x), positions)
        output = result[0]
        operator, lost = operator_of(module, x[0], positions[0] == 0)
        watch.record(
            MixerCall(
                module=module,
                kind=RGLRU.kind,
                operator=operator,
                inputs=x[0].mT[..., None],
                reference=reference[0].mT[..., None],
                output=None if output.dtype == reference.dtype else output[0].mT[..., None],
                bound=max(BOUND, lost),
            )
        )
        return result

    return observed


def operator_of(module: nn.Module, x: Tensor, reset: Tensor) -> tuple[RecurrentOperator, float]:
    """The recurrence h_i = a_i h_{i-1} + sqrt(1 - a_i^2) g_i x_i of every channel, in float64 (arXiv 2402.19427, 2.4).

    Args:
        module: whose parameters make the gates.
        x: (L, channel), the input.
        reset: (L,) bool; where the state is wiped, and the input is taken as it is: a = 0 and sqrt(1 - a^2) = 1.

    Returns:
        The operators, and what float32 loses in sqrt(1 - a^2).
    """
    p: dict[str, Tensor] = {name: value.detach().double() for name, value in module.named_parameters()}
    heads = x.double().unflatten(-1, (-1, p["input_gate_weight"].shape[-1])).transpose(0, 1)

    def gate(name: str) -> Tensor:
        z = heads @ p[f"{name}_gate_weight"] + p[f"{name}_gate_bias"][:, None]
        return torch.sigmoid(z.transpose(0, 1).flatten(1))

    log_a = -8.0 * gate("recurrent") * F.softplus(p["recurrent_param"])
    m = torch.sqrt(-torch.expm1(2 * log_a))
    lost = (_ROUNDOFF / m.clamp_min(_ROUNDOFF**0.5)).norm(dim=0) / (2 * m.norm(dim=0).clamp_min(_ROUNDOFF))
    a = torch.exp(log_a).masked_fill(reset[:, None], 0.0)
    b = m.masked_fill(reset[:, None], 1.0) * gate("input")
    operator = RecurrentOperator(a.mT[..., None], b.mT[..., None], torch.ones_like(b[None, :, :1]))
    return operator, float(lost.max().nan_to_num())
