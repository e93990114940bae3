"""Which operators a model will have, found by running its structure with zero weights on a few tokens.

No table of configuration names is consulted: the skeleton (see skeleton.py) goes through the same capture as a real
run, so that whatever the adapters can take is told by the adapters.  Layers that are alike (same classes, shapes,
settings and mask) run once, and their like are answered for by them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_ess.adapters.inventory import Inventory, layer_number
from hf_ess.capturing import CapturedLayer, SkippedLayer, capture
from hf_ess.loading.configs import first_line
from hf_ess.loading.quieting import quiet
from hf_ess.operators import ConvolutionOperator, Operator, StateSpaceOperator
from hf_ess.planning.skeleton import on_meta, zeroed
from hf_ess.planning.twins import LENGTH, Twins

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size", "local_window_size")


@dataclass(frozen=True)
class Size:
    """Theoretical state size at cut i: "all" i, "window" min(i, n-1), "chunk" i mod n, "state" n, "taps" min(i, n-1),
    all times `block`; "unknown" where it depends on the text or follows no such rule.
    """

    rule: str
    n: int = 0
    block: int = 1

    def at(self, i: int) -> int:
        """At one cut; where the rule is unknown, the most that it can be."""
        if self.rule == "state":
            return self.n
        value = {"all": i, "unknown": i, "chunk": i % max(1, self.n)}.get(self.rule, min(i, self.n - 1))
        return value * self.block

    def mean(self, length: int) -> float | None:
        """Mean over the cuts of a text of that length, as in a result."""
        i = torch.arange(1, length, dtype=torch.float64)
        if self.rule == "unknown":
            return None
        if self.rule == "state":
            return float(self.n)
        values = {"all": i, "chunk": i % max(1, self.n)}.get(self.rule, i.clamp_max(self.n - 1))
        return float(values.mean()) * self.block


@dataclass(frozen=True)
class PlannedLayer:
    """One mixer call of the run to come.

    Attributes:
        layer, call, module, class_name, kind: as in a result.
        operators: number of heads or channels.
        multiplicity: channels that share each.
        form: engine that will measure it: "dense", "state" or "convolution".
        state: dimension n of the state, number of taps, or 0.
        rank_one: whether the transition has a rank-one part (delta rule).
        tss: rule of the theoretical state size.
        per_token: numbers that the operator and its verification hold per token.
        per_pair: numbers that the operator holds per pair of tokens (a mask or bias).
    """

    layer: int
    call: int
    module: str
    class_name: str
    kind: str
    operators: int
    multiplicity: int
    form: str
    state: int
    rank_one: bool
    tss: Size
    per_token: int
    per_pair: int


@dataclass
class Survey:
    """What a model is made of.

    Attributes:
        layers: every mixer call, in order of execution.
        skipped: mixers that cannot be measured or never run, with the reason.
        parameters: number of parameters, each once.
        matmul: parameters that a token meets on its way (of experts only those that it is sent to), for the time.
        parameter_bytes: in the dtype of the model.
        itemsize: bytes of a number in the dtype of the model.
        vocabulary: rows of the output head.
        hidden: width of the residual stream.
        widest: largest number of activations that one token has in one module.
        attention: largest number of logit matrices (heads) that one layer holds at once, 0 without attention.
    """

    layers: list[PlannedLayer] = field(default_factory=list)
    skipped: list[SkippedLayer] = field(default_factory=list)
    parameters: int = 0
    matmul: int = 0
    parameter_bytes: int = 0
    itemsize: int = 4
    vocabulary: int = 0
    hidden: int = 0
    widest: int = 0
    attention: int = 0


def survey(config: PretrainedConfig, dtype: Any = "auto", trust_remote_code: bool = False) -> Survey:
    """Surveys the model of a configuration.

    Args:
        config: a configuration that a causal language model can be built from.
        dtype: "auto" or a torch.dtype, as for loading.
        trust_remote_code: as for loading.

    Raises:
        BadInput: the model cannot be built.
    """
    model = on_meta(config, dtype, trust_remote_code)
    found = _counted(model)
    short, windows = _with_short_windows(config)
    for attempt in ((short, windows, True), (short, windows, False), (config, {}, True), (config, {}, False)):
        try:
            layers, skipped, matmul, widest = _run(*attempt, trust_remote_code)
        except Exception as error:
            reason = f"its structure could not be run without weights: {first_line(error)}"
            continue
        found.layers, found.skipped, found.matmul, found.widest = layers, skipped, matmul, widest
        found.attention = max((x.operators for x in layers if x.form == "dense"), default=0)
        return found
    found.skipped = [
        SkippedLayer(layer_number(path), path, type(module).__name__, reason)
        for path, module in Inventory(model).mixers.items()
    ]
    found.matmul = found.parameters
    return found


def _counted(model: Any) -> Survey:
    """Numbers of parameters and widths, from the model on meta."""
    unique = {id(p): p for p in model.parameters()}.values()
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    text = model.config.get_text_config(decoder=True)
    return Survey(
        parameters=sum(p.numel() for p in unique),
        parameter_bytes=sum(p.numel() * p.element_size() for p in unique),
        itemsize=max((p.element_size() for p in unique if p.is_floating_point()), default=4),
        vocabulary=0 if weight is None else weight.shape[0],
        hidden=getattr(text, "hidden_size", 0) or 0,
    )


def _with_short_windows(config: Any) -> tuple[Any, dict[int, tuple[str, int]]]:
    """The configuration with windows that 23 tokens can fill, and short length -> (rule, real length)."""
    short, known = copy.deepcopy(config), {}
    text = short.get_text_config(decoder=True)
    for n, name in enumerate(_WINDOWS):
        value = getattr(text, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 4 + 2 * n:
            setattr(text, name, 4 + 2 * n)
            known[4 + 2 * n] = ("chunk" if "chunk" in name else "window", value)
    return short, known


def _run(
    config: Any, windows: dict[int, tuple[str, int]], once: bool, trust_remote_code: bool
) -> tuple[list[PlannedLayer], list[SkippedLayer], int, int]:
    """Layers, skipped mixers, parameters met by a token, and the widest activation."""
    model = zeroed(on_meta(config, torch.float32, trust_remote_code))
    run = Twins(model, once)
    rows = getattr(model.get_input_embeddings(), "num_embeddings", LENGTH + 4)
    ids = [3 + k % max(1, min(LENGTH, rows - 3)) for k in range(LENGTH)]
    with quiet(), run.watched():
        skipped = capture(model, ids, lambda layer: run.add(_planned(layer, windows)))
    return run.layers(), run.of_all(skipped), run.matmul, run.widest


def _planned(layer: CapturedLayer, windows: dict[int, tuple[str, int]]) -> PlannedLayer:
    operator = layer.operator
    form, state = "dense", 0
    if isinstance(operator, StateSpaceOperator):
        form, state = "state", operator.state
    elif isinstance(operator, ConvolutionOperator):
        form, state = "convolution", operator.width
    per_token, per_pair = _stored(operator)
    return PlannedLayer(
        layer=layer.layer,
        call=layer.call,
        module=layer.module,
        class_name=layer.class_name,
        kind=layer.kind,
        operators=operator.count,
        multiplicity=operator.multiplicity,
        form=form,
        state=state,
        rank_one=form == "state" and _one(operator).recurrent().rank_one is not None,
        tss=_size(operator, windows),
        per_token=per_token + layer.inputs.numel() // LENGTH,
        per_pair=per_pair,
    )


def _one(operator: Operator) -> Any:
    return operator[0:1]


def _size(operator: Operator, windows: dict[int, tuple[str, int]]) -> Size:
    """The rule that the theoretical state sizes of a short operator follow."""
    if isinstance(operator, StateSpaceOperator):
        return Size("state", operator.state)
    if isinstance(operator, ConvolutionOperator):
        return Size("taps", operator.width)
    sizes, block = operator.tss(), getattr(operator, "block", 1)
    i = torch.arange(1, operator.length, dtype=torch.float64)  # of patches of bytes there are fewer than 23
    if bool((sizes == i * block).all()):
        return Size("all", block=block)
    for short, (rule, real) in windows.items():
        expected = i % short if rule == "chunk" else i.clamp_max(short - 1)
        if bool((sizes == expected * block).all()):
            return Size(rule, real, block)
    largest = int(sizes.max()) // block
    if largest < LENGTH // 2 and bool((sizes == i.clamp_max(largest) * block).all()):
        return Size("window", largest + 1, block)  # so short that it fills within the 23 tokens
    return Size("unknown")


def _stored(operator: Operator) -> tuple[int, int]:
    """Numbers that an operator holds per token and per pair of tokens."""
    per_token = per_pair = 0
    for value in vars(operator).values():
        for x in value if isinstance(value, tuple | list) else [value]:
            if isinstance(x, Tensor):
                tokens = sum(size == LENGTH for size in x.shape)
                per_token += x.numel() // LENGTH if tokens == 1 else 0
                per_pair += x.numel() // LENGTH**2 if tokens >= 2 else 0
    return per_token, per_pair
