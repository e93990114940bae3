"""Layers that are alike: one of each sort runs, and answers for the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hf_ess.adapters.inventory import Inventory, layer_number
from hf_ess.capturing import SkippedLayer

if TYPE_CHECKING:
    from hf_ess.planning.survey import PlannedLayer

LENGTH = 23  # tokens: a number that is no usual size, so that a dimension of 23 is the tokens
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k")
_NUMBER = re.compile(r"(layer|block)_?(idx|id|index|number|num)$|^(idx|layer|depth|layer_number)$")


class Twins:
    """Runs one layer of each sort, and lets it answer for those that are like it.

    Attributes:
        matmul: parameters that a token meets.
        widest: largest number of activations of one token.
    """

    def __init__(self, model: nn.Module, once: bool) -> None:
        self.model, self.once = model, once
        self.inventory = Inventory(model)
        self.first: dict[Any, _LayerCall] = {}
        self.calls: list[_LayerCall] = []
        self.running: _LayerCall | None = None
        self.matmul = self.widest = 0
        text = model.config.get_text_config(decoder=True)  # type: ignore[union-attr, operator]
        of_experts = (getattr(text, name, None) for name in _CHOSEN)
        self.chosen = next((n for n in of_experts if isinstance(n, int)), 1)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Puts itself before the forward of every layer, and counts what the linear maps do."""
        # A layer that is itself the mixer is what an adapter intercepts: it runs.
        alone = [m for path, m in self.inventory.layers.items() if path not in self.inventory.mixers]
        layers = {id(m): m for m in alone} if self.once else {}
        handles = [m.register_forward_hook(self._count) for m in self.model.modules()]
        for module in layers.values():
            module.forward = self._instead(module, module.forward)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module in layers.values():
                module.__dict__.pop("forward", None)

    def _count(self, module: nn.Module, args: Any, output: Any) -> None:
        into = self.running or self
        if not isinstance(module, nn.Embedding):
            for p in module._parameters.values():
                if p is not None and p.dim() in (2, 3):  # three dimensions: experts
                    into.matmul += p.numel() if p.dim() == 2 else int(p.numel() * self.chosen / p.shape[0])
        for x in output if isinstance(output, tuple) else [output]:
            if isinstance(x, Tensor):
                into.widest = max(into.widest, x.numel() // LENGTH)

    def _instead(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        alike = like(module)

        def once(*args: Any, **kwargs: Any) -> Any:
            key = (alike, _argument(args), _argument(kwargs))
            path = next(p for p, m in self.inventory.layers.items() if m is module and not self._taken(p))
            call = _LayerCall(path)
            self.calls.append(call)
            if key in self.first:
                call.twin = self.first[key]
                return call.twin.output
            self.running = self.first[key] = call
            call.output = forward(*args, **kwargs)
            self.running = None
            return call.output

        return once

    def _taken(self, path: str) -> bool:
        """Whether a module that stands at several paths was met at this one before, and is yet to be at another."""
        paths = self.inventory.paths[id(self.inventory.layers[path])]
        met = Counter(c.path for c in self.calls)
        return len(paths) > 1 and met[path] > min(met[p] for p in paths if p in self.inventory.layers)

    def add(self, layer: PlannedLayer) -> None:
        """Keeps a captured mixer call with the layer that is running."""
        if self.running is None:
            self.calls.append(_LayerCall("", [layer]))
        else:
            self.running.layers.append(layer)

    def layers(self) -> list[PlannedLayer]:
        """The mixer calls of all layers."""
        out, called = [], Counter[str]()
        for call in self.calls:
            source = call.twin or call
            self.matmul += source.matmul
            self.widest = max(self.widest, source.widest)
            for layer in source.layers:
                path = _moved(layer.module, source.path, call.path)
                number = layer_number(path)
                number = layer.layer if number is None else number
                out.append(replace(layer, module=path, layer=number, call=called[path]))
                called[path] += 1
        return out

    def of_all(self, skipped: list[SkippedLayer]) -> list[SkippedLayer]:
        """The skipped mixers of all layers: those of a twin are those of the layer that answers for it."""
        twins = {c.path: c.twin.path for c in self.calls if c.twin is not None and c.twin.path != c.path}
        own = [s for s in skipped if not _inside(s.module, twins)]
        out = list(own)
        for path, source in twins.items():
            for s in own:
                if s.module == source or s.module.startswith(source + "."):
                    there = _moved(s.module, source, path)
                    out.append(replace(s, module=there, layer=layer_number(there)))
        return sorted(out, key=lambda s: (s.layer is None, s.layer, s.module))


@dataclass
class _LayerCall:
    """One call of one layer: its own mixer calls, or the call of a layer like it."""

    path: str
    layers: list[PlannedLayer] = field(default_factory=list)
    twin: _LayerCall | None = None
    output: Any = None
    matmul: int = 0
    widest: int = 0


def _moved(path: str, source: str, target: str) -> str:
    return target + path[len(source) :] if path.startswith(source + ".") or path == source else path


def _inside(path: str, layers: Any) -> bool:
    return any(path == p or path.startswith(p + ".") for p in layers)


def like(layer: nn.Module) -> Any:
    """What two layers must share to give the same operators: classes, shapes and settings of all modules in them."""
    out = []
    for path, module in layer.named_modules():
        shapes = [
            (n, tuple(x.shape)) for n, x in (*module._parameters.items(), *module._buffers.items()) if x is not None
        ]
        plain = (bool, int, float, str, type(None))
        settings = [
            (n, v)
            for n, v in sorted(vars(module).items())
            if type(v) in plain and not n.startswith("_") and not _NUMBER.search(n)
        ]
        out.append((path, type(module).__qualname__, tuple(shapes), tuple(settings)))
    return tuple(out)


def _argument(value: Any) -> Any:
    """What matters of an argument: of a mask all of it, of other tensors the shape."""
    if isinstance(value, Tensor):
        pairs = value.dim() >= 2 and value.shape[-2:] == (LENGTH, LENGTH)
        return (tuple(value.shape), value.dtype, tuple(value.flatten().tolist()) if pairs else None)
    if isinstance(value, tuple | list):
        return tuple(map(_argument, value))
    if isinstance(value, dict):
        return tuple((k, _argument(v)) for k, v in value.items() if not _NUMBER.search(str(k)))
    return value if isinstance(value, bool | str | type(None)) else type(value).__name__
