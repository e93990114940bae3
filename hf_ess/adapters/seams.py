"""What adapters share: a function of the modelling file replaced for one run, and a layer run again in float32."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_ess.adapters.base import Watch

Function = Callable[..., Any]
_ROUNDOFF = 2.0**-24  # of float32


@contextmanager
def observing(watch: Watch, name: str, observed: Callable[[Function, Watch], Function]) -> Iterator[None]:
    """Replaces the function `name` in every modelling file of the model that has one.

    Whatever the name is bound to (torch, a kernel package, a hub kernel) is what observed gets to call.
    """
    with ExitStack() as stack:
        for file in sorted({type(m).__module__ for m in watch.model.modules()}):
            function = getattr(sys.modules.get(file), name, None)
            if function is not None:
                stack.enter_context(replaced(sys.modules[file], name, observed(function, watch)))
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute, and back."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def modules(model: nn.Module, class_name: str) -> list[nn.Module]:
    """The modules whose class name ends so, each once."""
    return [m for m in model.modules() if type(m).__name__.endswith(class_name)]


def raised(x: Any) -> Any:
    """Half-precision tensors in float32; everything else as it is."""
    return x.float() if is_low(x) else x


def is_low(x: Any) -> bool:
    """Whether x is a tensor of less than float32."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype not in (torch.float32, torch.float64)


def no_operator(batch: int, state: Any = None) -> str | None:
    """Why a call of a recurrence has no operator on this text alone, or None."""
    if batch != 1:
        return f"it ran on a batch of {batch} sequences where one was given"
    if state is not None:
        return "it continued from a state of earlier tokens, which its operator on these tokens does not hold"
    return None


def lost_in_chunks(log_decay: Tensor, chunk: int) -> float:
    """What float32 loses, relatively, where decays are differences of sums over a chunk: u |sum| e^{log_decay}.

    After a reset (one very strong decay) the sums stay large while the decays between later tokens are mild.
    Measured on Mamba-2 with such tokens: 2 to 5 times the loss; without them all is within the usual bound.

    Args:
        log_decay: (operator, L) or (operator, L, n), <= 0.
        chunk: tokens per chunk.
    """
    worst = 0.0
    for part in log_decay.double().split(chunk, 1):
        reach = part.cumsum(1).abs() * part.exp()
        worst = max(worst, float(reach.nan_to_num().max()))  # what is not finite is reported as such elsewhere
    return _ROUNDOFF * worst


def twin(module: nn.Module, **replacements: nn.Module) -> Any:
    """A copy of a layer with its own parameters and buffers in float32 and some submodules replaced.

    The layer's own code can so be run once more, on features that are given to it and in float32, where its
    recurrence is not a function of its own. The layer itself is not touched; hooks are not taken along, neither
    those of torch nor that of accelerate (which would move weights).
    """
    other = copy.copy(module)
    for name in ("_hf_hook", "_old_forward", "forward"):
        other.__dict__.pop(name, None)
    for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        setattr(other, kind, {})
    other._parameters = {name: raised(value) for name, value in module._parameters.items()}
    other._buffers = {name: raised(value) for name, value in module._buffers.items()}
    other._modules = {**module._modules, **replacements}
    return other


def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of a module's class, whatever wraps that of the object (accelerate moves weights there)."""
    return type(module).forward(module, *args, **kwargs)


class Gives(nn.Module):
    """Stands for a submodule of a twin and returns what it is told to."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.value


class Hears(nn.Module):
    """Stands for a submodule of a twin, keeps its input and returns it."""

    heard: Tensor

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        self.heard = x
        return x
