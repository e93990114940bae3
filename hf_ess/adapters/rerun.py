"""One forward of a layer remembered, so that its own code can run again in float32 on the same features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from hf_ess.adapters.seams import is_low, raised, run, twin


class Forward:
    """One forward of a layer: its arguments and, where they are in half precision, what its projections returned.

    The projections (submodules with parameters and without submodules) are not computed again: queries, keys and
    values stay those that the layer used, and no weight is needed a second time (it may have been moved away).

    Args:
        module: the layer.
        args, kwargs: what its forward was called with.
    """

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module, self.args, self.kwargs = module, args, kwargs
        first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()), None)
        self.low = is_low(first)
        self.projected: dict[str, list[Any]] = {name: [] for name, _ in projections(module)}

    def twin(self, **replacements: nn.Module) -> Any:
        """The layer in float32 with its projections replayed; to be made while its weights are in place."""
        replays = {name: Replays(outputs) for name, outputs in self.projected.items()}
        return twin(self.module, **{**replays, **replacements})

    def again(self, other: nn.Module) -> Any:
        """Runs a twin on the arguments of this forward, raised to float32; after the forward, or at its end."""
        return run(other, *_all_raised(self.args), **_all_raised(self.kwargs))


class Replays(nn.Module):
    """Stands for a projection and returns, in float32 and in order, what that returned."""

    def __init__(self, outputs: list[Any]) -> None:
        super().__init__()
        self.outputs, self.calls = outputs, 0

    def forward(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        return _all_raised(self.outputs[self.calls - 1])


def projections(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The submodules that can be replayed: those with parameters and without submodules."""
    return [(name, m) for name, m in module.named_children() if m._parameters and not m._modules]


def can_run_again(module: nn.Module) -> bool:
    """Whether everything with parameters in a layer is its own or is replayed."""
    replayed = {name for name, _ in projections(module)}
    return all(name in replayed or next(m.parameters(), None) is None for name, m in module.named_children())


@contextmanager
def remembering(layers: list[nn.Module], leave: Callable[[Forward], None]) -> Iterator[list[Forward]]:
    """Keeps the forwards of some layers that are running, the innermost last; leave gets each when it is over."""
    running: list[Forward] = []

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        running.append(Forward(module, args, kwargs))

    def exit_(module: nn.Module, *_: Any) -> None:
        leave(running.pop())

    def hears(module: nn.Module, name: str) -> Callable[..., None]:
        def heard(_: nn.Module, __: Any, output: Any) -> None:
            if running and running[-1].module is module and running[-1].low:
                running[-1].projected[name].append(output)

        return heard

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(exit_).remove)
            for name, projection in projections(layer):
                stack.callback(projection.register_forward_hook(hears(layer, name)).remove)
        yield running


def _all_raised(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return [_all_raised(y) for y in x] if isinstance(x, list) else tuple(_all_raised(y) for y in x)
    if hasattr(x, "get_seq_length"):
        return None  # a cache, which the layer has filled: it would be filled once more
    if isinstance(x, dict):
        return {name: _all_raised(y) for name, y in x.items()}
    return raised(x)
