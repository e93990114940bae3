"""Short convolutions that stand in a layer by themselves: after the attention and the MLP of inkling and inkling2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.inventory import Inventory
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import Function, is_low, no_operator, observing, raised
from hf_ess.operators import ConvolutionOperator


@register
class Convolution:
    """Every module whose class name ends in ShortConvolution, unless it is part of another mixer.

    Those on the way to keys and values are part of what the attention is given, as the convolutions of Mamba are.
    The module adds its input to the convolution: that lies on the diagonal and is not in T.
    """

    kind = "convolution"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        mixers = Inventory(watch.model).mixers.values()
        alone = {id(m) for m in mixers if type(m).__name__.endswith("ShortConvolution")}
        if not alone:
            yield
            return

        def observe(convolve: Function, watch: Watch) -> Function:
            return _observed(convolve, alone, watch)

        with observing(watch, "causal_conv1d_fn", observe):
            yield


def _observed(convolve: Function, alone: set[int], watch: Watch) -> Function:
    def observed(x: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        result = convolve(x, weight, bias, *args, **kwargs)
        module = watch.running[-1]
        if id(module) not in alone:
            return result
        reason = no_operator(x.shape[0])
        if reason or bias is not None:
            watch.refuse(module, reason or "its convolution adds a bias, which does not depend on the text")
            return result
        reference = convolve(raised(x), raised(weight), None, *args, **kwargs) if is_low(weight) else result
        watch.record(
            MixerCall(
                module=module,
                kind=Convolution.kind,
                operator=operator_of(weight.detach(), x.shape[-1]),
                inputs=x[0][..., None],
                reference=reference[0][..., None],
                output=None if reference is result else result[0][..., None],
            )
        )
        return result

    return observed


def operator_of(weight: Tensor, length: int) -> ConvolutionOperator:
    """T_ij = w_{i-j} of every channel, in float64.

    Args:
        weight: (channel, K), oldest token first, as torch stores it.
        length: number of tokens.
    """
    ones = torch.ones(weight.shape[0], length, dtype=torch.float64, device=weight.device)
    return ConvolutionOperator(weight.flip(-1), ones, ones)
