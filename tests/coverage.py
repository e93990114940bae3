"""Which causal model types of transformers are covered: each is built small, run once, and every mixer looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from hf_ess.adapters.inventory import Inventory
from hf_ess.capturing import CapturedLayer, SkippedLayer, capture
from tests.adapters.contract import token_ids
from tests.tiny import tiny_model

LENGTH = 32
PLACE = 10  # of the token that is exchanged

# What cannot be built or run as a language model on token ids, with part of the error it gives.
CANNOT_RUN = {
    "gemma3n": (
        "requires the timm library",
        "its image tower needs the package timm, which is not installed here; its text model is `gemma3n_text`",
    ),
    "gemma4_assistant": (
        "shared_kv_states cannot be None",
        "it drafts for another model and reads that model's keys and values: it does not run on token ids alone",
    ),
    "gemma4_unified_assistant": (
        "shared_kv_states cannot be None",
        "it drafts for another model and reads that model's keys and values: it does not run on token ids alone",
    ),
    "musicgen": (
        "'MusicgenConfig' object has no attribute",
        "AutoModelForCausalLM cannot build it: it hands the whole configuration to a class that takes the decoder's",
    ),
    "musicgen_melody": (
        "'MusicgenMelodyConfig' object has no attribute",
        "AutoModelForCausalLM cannot build it: it hands the whole configuration to a class that takes the decoder's",
    ),
}


@dataclass
class Coverage:
    """What one run of one model type gave.

    Attributes:
        model_type: as in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.
        measured: (class, kind) -> calls whose operator is verified.
        error: the largest relative error of those.
        reasons: why it is not covered, a sentence each; empty where every mixer that ran is verified and nothing
            else mixes.
        idle: classes of mixers that never ran on this text.
    """

    model_type: str
    measured: Counter[tuple[str, str]] = field(default_factory=Counter)
    error: float = 0.0
    reasons: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    @property
    def covered(self) -> bool:
        return not self.reasons


def model_types() -> list[str]:
    """Every type that AutoModelForCausalLM knows."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def survey(model_type: str) -> Coverage:
    """Builds a model with random weights, captures 32 tokens in float32, and judges what came."""
    found = Coverage(model_type)
    layers: list[CapturedLayer] = []
    try:
        model = tiny_model(model_type)
        ids = token_ids(model, LENGTH)
        skipped = capture(model, ids, layers.append)
    except Exception as error:
        found.reasons.append(_cannot_run(model_type, error))
        return found
    for layer in layers:
        if layer.verified:
            found.measured[layer.class_name, layer.kind] += 1
            found.error = max(found.error, layer.error)
    found.idle = sorted({s.class_name for s in skipped if not s.called})
    found.reasons = [*_refused(skipped), *_wrong(layers)]
    if not layers and not found.reasons:
        found.reasons.append("no sequence mixer was found")
    if not found.reasons and looks_ahead(model, ids):
        found.reasons.append("its logits depend on later tokens")
    if not found.reasons and something_else_mixes(model, ids, {layer.module for layer in layers}):
        found.reasons.append("something else than the measured mixers mixes along the text")
    return found


def _cannot_run(model_type: str, error: Exception) -> str:
    message = " ".join(str(error).split())
    expected, sentence = CANNOT_RUN.get(model_type, ("", ""))
    return sentence if expected and expected in message else f"{type(error).__name__}: {message[:200]}"


def _refused(skipped: list[SkippedLayer]) -> list[str]:
    return list(dict.fromkeys(f"{s.class_name}: {s.reason}" for s in skipped if s.called))


def _wrong(layers: list[CapturedLayer]) -> list[str]:
    out = []
    for layer in layers:
        if not layer.verified:
            out.append(f"{layer.class_name}: error {layer.error:.0e}, allowed {layer.bound:.0e}")
        elif float(layer.operator.dense().tril(-1).abs().max()) < 1e-3:
            out.append(f"{layer.class_name}: its operator carries nothing in this model, so nothing was tested")
    return list(dict.fromkeys(out))


def looks_ahead(model: Any, ids: torch.Tensor) -> bool:
    """Whether exchanging a token changes the logits of tokens before it."""
    with torch.no_grad():
        one, other = (model(input_ids=x[None], use_cache=False).logits[0] for x in (ids, _exchanged(ids)))
    return bool((one - other)[:PLACE].abs().max() > 1e-5)


def something_else_mixes(model: Any, ids: torch.Tensor, mixers: set[str]) -> bool:
    """Whether a token reaches others otherwise than through these mixers.

    One token is exchanged, and every mixer's output is put back to what it was at all other places. Then neither the
    next mixers' inputs nor the logits may differ at those places.

    Args:
        model: the model.
        ids: (L,) token ids.
        mixers: paths of modules; where such a module is part of a larger mixer, that is meant.
    """
    whole = Inventory(model).mixers.items()
    modules = {id(m): m for path, m in whole if any(x == path or x.startswith(path + ".") for x in mixers)}.values()
    inputs: list[Any] = []
    outputs: list[Any] = []
    gaps: list[float] = []

    def keep_input(module: Any, args: Any, kwargs: Any) -> None:
        inputs.append((args, tuple(kwargs.values())))

    def keep_output(module: Any, args: Any, output: Any) -> None:
        outputs.append(output)

    def compare(module: Any, args: Any, kwargs: Any) -> None:
        gaps.extend(_elsewhere((args, tuple(kwargs.values())), inputs.pop(0), len(ids)))

    def put_back(module: Any, args: Any, output: Any) -> Any:
        return _held(output, outputs.pop(0), len(ids))

    logits = []
    for x, before, after in ((ids, keep_input, keep_output), (_exchanged(ids), compare, put_back)):
        handles = [m.register_forward_pre_hook(before, with_kwargs=True) for m in modules]
        handles += [m.register_forward_hook(after) for m in modules]
        try:
            with torch.no_grad():
                logits.append(model(input_ids=x[None], use_cache=False).logits[0])
        finally:
            for handle in handles:
                handle.remove()
    gap = (logits[0] - logits[1]).abs().amax(-1)
    assert gap[PLACE] > 1e-2, f"exchanging a token of {type(model).__name__} changes nothing at all"
    return max([*gaps, *_elsewhere(logits[0], logits[1], len(ids))]) > 1e-4


def _exchanged(ids: torch.Tensor) -> torch.Tensor:
    others = ids.clone()
    others[PLACE] = (ids[PLACE] + 7) % 200 + 4
    return others


def _held(new: Any, old: Any, length: int) -> Any:
    """What a module gave before, but at the exchanged token."""
    if isinstance(new, tuple | list):
        return type(new)(_held(x, y, length) for x, y in zip(new, old, strict=True))
    axis = _axis(new, length)
    if axis is None:
        return new
    place = torch.tensor([PLACE])
    return old.index_copy(axis, place, new.index_select(axis, place))


def _elsewhere(new: Any, old: Any, length: int) -> list[float]:
    """How far tensors over the tokens differ at others than the exchanged one."""
    if isinstance(new, tuple | list):
        return [gap for x, y in zip(new, old, strict=True) for gap in _elsewhere(x, y, length)]
    axis = _axis(new, length)
    if axis is None or not new.is_floating_point():
        return []
    others = [i for i in range(length) if i != PLACE]
    gap = (new - old).index_select(axis, torch.tensor(others)).abs().max()
    return [float(gap.nan_to_num())]  # inf - inf of a mask


def _axis(x: Any, length: int) -> int | None:
    """Where the tokens are in a tensor; None where there are none, as in a state after the last of them."""
    sizes = x.shape if isinstance(x, torch.Tensor) else ()
    return next((axis for axis, size in enumerate(sizes) if size == length), None)
