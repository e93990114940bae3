"""The token shift in RWKV's feed-forward network: a convolution over two tokens, all that it mixes along the text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import Hears, is_low, modules, no_operator, raised, run, twin
from hf_ess.operators import ConvolutionOperator


@register
class TokenShift:
    """Every module whose class name ends in RwkvFeedForward: what enters its `key` and its `receptance`."""

    kind = "token_shift_conv"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        with ExitStack() as stack:
            for module in modules(watch.model, "RwkvFeedForward"):
                for handle in _hooks(module, watch):
                    stack.callback(handle.remove)
            yield


def _hooks(module: Any, watch: Watch) -> Iterator[Any]:
    seen: list[Tensor] = []  # the input, then what enters key

    def entering(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, state = (*args, *kwargs.values(), None)[:2]
        reason = no_operator(x.shape[0], state)
        if reason:
            watch.refuse(module, reason)
        seen[:] = [] if reason else [x]

    def key(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.extend(args if seen else ())

    def receptance(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if not seen:
            return
        x, *mixed = (*seen, *args)
        exact = _in_float32(module, x) if is_low(x) else mixed
        watch.record(
            MixerCall(
                module=module,
                kind=TokenShift.kind,
                operator=operator_of(module.time_mix_key, module.time_mix_receptance, x.shape[1]),
                inputs=_per_channel(x, x),
                reference=_per_channel(*exact),
                output=_per_channel(*mixed) if is_low(x) else None,
            )
        )

    yield module.register_forward_pre_hook(entering, with_kwargs=True)
    yield module.key.register_forward_pre_hook(key)
    yield module.receptance.register_forward_pre_hook(receptance)


def _in_float32(module: Any, x: Tensor) -> list[Tensor]:
    """What the layer's own code gives its key and its receptance of the same input in float32."""
    key, receptance = Hears(), Hears()
    run(twin(module, key=key, value=Hears(), receptance=receptance), raised(x))
    return [key.heard, receptance.heard]


def _per_channel(*inputs: Tensor) -> Tensor:
    return torch.cat(inputs, -1)[0].mT[..., None]


def operator_of(key: Tensor, receptance: Tensor, length: int) -> ConvolutionOperator:
    """mu x_i + (1 - mu) x_{i-1} of every channel of the key and then of the receptance (arXiv 2305.13048, eq. 14, 15).

    Args:
        key, receptance: (1, 1, channel), mu.
        length: number of tokens.
    """
    mu = torch.cat([key, receptance], -1).detach().flatten().double()
    ones = torch.ones(len(mu), length, dtype=torch.float64, device=mu.device)
    return ConvolutionOperator(torch.stack([mu, 1 - mu], -1), ones, ones)
