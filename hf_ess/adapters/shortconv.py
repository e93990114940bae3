"""The gated short convolution of lfm2, lfm2_moe and lfm3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import Gives, Hears, is_low, modules, no_operator, raised, run, twin
from hf_ess.operators import ConvolutionOperator


@register
class ShortConv:
    """Every module whose class name ends in ShortConv: y = C * conv(B * x) between its two projections."""

    kind = "shortconv"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        with ExitStack() as stack:
            for module in modules(watch.model, "ShortConv"):
                for handle in _hooks(module, watch):
                    stack.callback(handle.remove)
            yield


def _hooks(module: Any, watch: Watch) -> Iterator[Any]:
    features: list[Tensor] = []

    def projected(_: nn.Module, args: Any, output: Tensor) -> None:
        features[:] = [output]

    def mixed(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        output, BCx = args[0], features.pop()
        reason = no_operator(BCx.shape[0])
        if reason:
            watch.refuse(module, reason)
            return
        alone = module.conv.bias is None  # a bias does not depend on the input: it is not part of T
        reference = output if alone and not is_low(output) else _without_bias(module, raised(BCx))
        rounded = output if alone else _without_bias(module, BCx)
        operator, x = operator_of(BCx[0], module.conv.weight.detach())
        watch.record(
            MixerCall(
                module=module,
                kind=ShortConv.kind,
                operator=operator,
                inputs=x[..., None],
                reference=reference[0].mT[..., None],
                output=rounded[0].mT[..., None] if is_low(output) else None,
            )
        )

    yield module.in_proj.register_forward_hook(projected)
    yield module.out_proj.register_forward_pre_hook(mixed)


def _without_bias(module: Any, BCx: Tensor) -> Tensor:
    """What the layer's own code mixes of B, C and x in their dtype, the bias of the convolution left out."""
    heard, conv = Hears(), twin(module.conv)
    conv._parameters = {"weight": module.conv.weight.to(BCx.dtype), "bias": None}
    run(twin(module, in_proj=Gives(BCx), out_proj=heard, conv=conv), BCx)
    return heard.heard


def operator_of(BCx: Tensor, weight: Tensor) -> tuple[ConvolutionOperator, Tensor]:
    """The convolution between its two gates, of every channel, in float64, and its input.

    Args:
        BCx: (L, 3 channel), the three features side by side.
        weight: (channel, 1, K), oldest token first, as torch stores it.
    """
    B, C, x = BCx.mT.chunk(3)
    return ConvolutionOperator(weight[:, 0].flip(-1), B, C), x
