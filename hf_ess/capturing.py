"""Run a model once and hand over the operator of every sequence mixer as it comes; keep nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.inventory import Inventory, is_mixer, layer_number, mixes_along_the_text
from hf_ess.adapters.registry import adapters
from hf_ess.agreement import relative_error, rounding
from hf_ess.errors import BadInput, NonFiniteOperator, UnsupportedModel, VerificationFailed
from hf_ess.operators import DenseOperator, Operator, SoftmaxAttention

#: Where float32 itself may lose more than this of the output, no comparison with it verifies anything: a wrong operator
#: is wrong by about 1.
LARGEST_BOUND = 0.1

#: One capture at a time: adapters watch functions that all models of a process share.
_turn = threading.RLock()
_busy = False


@dataclass
class CapturedLayer:
    """One call of one sequence mixer, verified.

    Attributes:
        layer: number of the layer in the model.
        call: how many times this module had been called before in this run.
        module: its path.
        class_name: its class.
        kind: family, such as "softmax" or "mamba".
        operator: T of every head or channel.
        error: largest ||T u - y|| / ||y|| over the operators; y from the model's own function in float32.
        bound: what error may be at most.
        rounding: distance of the model's own output in its dtype from y; 0 for a float32 model.
        finite: whether T and the layer's own output have no NaN or Inf.
        inputs: u, (operator, L, channel).
    """

    layer: int
    call: int
    module: str
    class_name: str
    kind: str
    operator: Operator
    error: float
    bound: float
    rounding: float
    finite: bool
    inputs: Tensor

    @property
    def verified(self) -> bool:
        """Whether T is finite and reproduces the layer within the bound, and the bound says anything."""
        return self.finite and self.error <= self.bound <= LARGEST_BOUND


@dataclass(frozen=True)
class SkippedLayer:
    """A sequence mixer without a measured operator, and why.

    Attributes:
        layer: number of the layer in the model; None where the path has none.
        module: its path.
        class_name: its class.
        reason: one sentence.
        called: whether it ran on this text.
    """

    layer: int | None
    module: str
    class_name: str
    reason: str
    called: bool = True


def nothing_measured(name: str, skipped: Iterable[SkippedLayer]) -> UnsupportedModel:
    """The error of a model of which no layer could be measured, with the reasons."""
    reasons = "; ".join(dict.fromkeys(f"{s.class_name}: {s.reason}" for s in skipped if s.called))
    return UnsupportedModel(
        f"no layer of {name} could be measured"
        + (f" ({reasons})" if reasons else ": it has no sequence mixer of a known kind in the layers asked for")
    )


def capture(
    model: nn.Module,
    input_ids: Tensor | list[int],
    on_layer: Callable[[CapturedLayer], None],
    *,
    layers: set[int] | None = None,
    strict: bool = False,
) -> list[SkippedLayer]:
    """Runs the model once on one sequence; on_layer gets each mixer's operators while the model runs.

    The model is left as it was found, also after an error: attention implementation, hooks, train mode, RNG.

    Args:
        model: a causal language model of transformers.
        input_ids: (L,) or (1, L) token ids, L >= 2, no padding.
        on_layer: called once per mixer call, in order of execution; what it does not keep is freed.
        layers: numbers of the layers wanted; default all.
        strict: raise where an operator fails its verification or is not finite.

    Returns:
        The mixers that ran and were not measured, and those that never ran (called is False).

    Raises:
        BadInput: the input is not one sequence of at least 2 tokens, or the model was compiled.
        VerificationFailed, NonFiniteOperator: with strict.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"capture takes a loaded model of transformers, got {type(model).__name__}")
    ids = torch.as_tensor(input_ids)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or ids.shape[0] != 1 or ids.shape[1] < 2:
        raise BadInput(f"capture takes one sequence of at least 2 token ids, got shape {tuple(ids.shape)}")
    if hasattr(model, "_orig_mod"):
        raise BadInput("the model was compiled with torch.compile; pass the original module (model._orig_mod)")
    run = _Run(model, on_layer, layers, strict)
    with ExitStack() as stack:
        stack.enter_context(_alone())
        stack.enter_context(torch.no_grad())
        stack.enter_context(_as_found(model))
        stack.enter_context(_eager_attention(model))
        stack.enter_context(run.hooks())
        for adapter in adapters():
            stack.enter_context(adapter.watch(run.watch))
        model(input_ids=ids.to(_input_device(model)), use_cache=False)
    return run.skipped()


@contextmanager
def _alone() -> Iterator[None]:
    """Threads wait for each other; a callback that captures again would never end."""
    global _busy
    with _turn:
        if _busy:
            raise BadInput("a model cannot be captured from within the callback of another capture")
        _busy = True
        try:
            yield
        finally:
            _busy = False


class _Run:
    """What is known while the model runs: where it is, what was recorded, what was refused."""

    def __init__(
        self,
        model: nn.Module,
        on_layer: Callable[[CapturedLayer], None],
        layers: set[int] | None,
        strict: bool,
    ) -> None:
        self.inventory = Inventory(model)
        self.on_layer, self.layers, self.strict = on_layer, layers, strict
        self.watch = Watch(model, self.record, self.refuse)
        self.calls: Counter[str] = Counter()
        self.called: set[str] = set()
        self.done: set[str] = set()
        self.refused: dict[str, SkippedLayer] = {}

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Keeps the stack of layers and mixers that are running."""
        watched = {id(m): m for m in (*self.inventory.mixers.values(), *self.inventory.layers.values())}
        for path, module in self.watch.model.named_modules():
            if is_mixer(path, module):
                watched[id(module)] = module

        def enter(module: nn.Module, *_: Any) -> None:
            self.watch.running.append(module)
            self.called.add(self.inventory.path(module, self.watch.running))

        def leave(module: nn.Module, *_: Any) -> None:
            self.watch.running.pop()

        handles = []
        try:
            for module in watched.values():
                handles.append(module.register_forward_pre_hook(enter))
                handles.append(module.register_forward_hook(leave))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.watch.running.clear()

    def record(self, seen: MixerCall) -> None:
        path = self.inventory.path(seen.module, self.watch.running)
        layer = self._layer(path)
        call = self.calls[path]
        self.calls[path] += 1
        if self.layers is not None and layer not in self.layers:
            self.done.add(path)
            return
        finite = seen.operator.is_finite() and bool(seen.reference.isfinite().all())
        if finite:
            reason = _not_causal(seen.operator)
            if reason:
                self.refuse(seen.module, reason)
                return
        self.done.add(path)
        error = relative_error(seen.operator, seen.inputs, seen.reference) if finite else float("inf")
        lost = 0.0 if seen.output is None else rounding(seen.output, seen.reference)
        captured = CapturedLayer(
            layer=layer,
            call=call,
            module=path,
            class_name=type(seen.module).__name__,
            kind=seen.kind,
            operator=seen.operator,
            error=error,
            bound=seen.bound,
            rounding=lost,
            finite=finite,
            inputs=seen.inputs,
        )
        if self.strict and not finite:
            raise NonFiniteOperator(f"the operator of {path} (layer {layer}) is not finite: it holds NaN or Inf")
        if self.strict and not captured.verified:
            raise VerificationFailed(
                f"the operator of {path} (layer {layer}) does not reproduce the layer: "
                f"relative error {error:.1e}, allowed {seen.bound:.1e}"
            )
        self.on_layer(captured)

    def refuse(self, module: nn.Module, reason: str) -> None:
        if not mixes_along_the_text(module):
            return
        path = self.inventory.path(module, self.watch.running)
        self.refused[path] = SkippedLayer(self._layer(path), path, type(module).__name__, reason)

    def _layer(self, path: str) -> int:
        number = layer_number(path)
        return len(self.done) if number is None else number

    def skipped(self) -> list[SkippedLayer]:
        """Refused mixers, mixers that nobody recorded, and layers in which no mixer is known at all."""
        out = dict(self.refused)
        accounted = self.done | set(self.refused)
        for path, module in self.inventory.mixers.items():
            if not _related(path, accounted):
                ran = any(p == path or p.startswith(path + ".") for p in self.called)
                reason = _unknown(module) if ran else "it was not called on this text"
                out[path] = SkippedLayer(layer_number(path), path, type(module).__name__, reason, ran)
        for path, module in self.inventory.layers.items():
            if path in self.called and not _related(path, accounted | set(out)):
                reason = "no sequence mixer of a known kind was found in this layer"
                out[path] = SkippedLayer(layer_number(path), path, type(module).__name__, reason)
        listed = [x for x in out.values() if self.layers is None or x.layer is None or x.layer in self.layers]
        return sorted(listed, key=lambda x: (x.layer is None, x.layer, x.module))


def _related(path: str, others: set[str]) -> bool:
    """Whether a path, one above it, or one below it is among the others."""
    return any(p == path or p.startswith(path + ".") or path.startswith(p + ".") for p in others)


def _unknown(module: nn.Module) -> str:
    return f"no adapter for {type(module).__name__}: this kind of sequence mixer is not supported yet"


def _not_causal(operator: Operator) -> str | None:
    """Checks the upper triangle of T where T is made of a mask; a recurrence is causal by its form."""
    if isinstance(operator, SoftmaxAttention):
        visible = operator.visible()
        if not visible.triu(1).any():
            return None
    elif not isinstance(operator, DenseOperator):
        return None
    largest = max(float(block.dense().triu(1).abs().max()) for _, block in operator.blocks(8))
    return f"its operator is not causal: |T_ij| up to {largest:.3g} above the diagonal" if largest > 0 else None


def _input_device(model: nn.Module) -> torch.device:
    """Where the embedding lives: a model may be spread over devices, or its weights be on meta until they run."""
    device = getattr(model, "device", torch.device("cpu"))
    return torch.device("cpu") if device.type == "meta" else device


@contextmanager
def _as_found(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; train mode of every module and the RNG state as before outside."""
    training = [m for m in model.modules() if m.training]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        model.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True


@contextmanager
def _eager_attention(model: nn.Module) -> Iterator[None]:
    """Attention "eager" inside, in the model and in every part with a configuration of its own."""
    name = "_attn_implementation_internal"
    configs = {id(c): c for m in model.modules() if hasattr(c := getattr(m, "config", None), name)}
    before = [(config, getattr(config, name)) for config in configs.values()]
    switch: Any = getattr(model, "set_attn_implementation", None)
    try:
        if switch is not None and any(value != "eager" for _, value in before):
            switch("eager")
        yield
    finally:
        for config, value in before:
            setattr(config, name, value)
