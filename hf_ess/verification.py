"""verify(): is the operator of every layer the one that the model used, and is the engine right on it?"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

import torch

from hf_ess.capturing import LARGEST_BOUND, CapturedLayer, SkippedLayer, capture
from hf_ess.errors import UnsupportedModel
from hf_ess.loading import LoadedModel, load
from hf_ess.loading.quieting import quiet
from hf_ess.operators import Operator
from hf_ess.spectra.ess import measure
from hf_ess.text.limits import check, check_memory, position_limit
from hf_ess.text.tokens import Tokens, from_ids, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCES = (1e-1, 1e-3, 1e-5)
TOKENS = 256


@dataclass
class VerifiedLayer:
    """What verify() found of one mixer call.

    Attributes:
        layer, call, module, class_name, kind: which mixer.
        operators: number of heads or channels.
        tss: largest theoretical state size over the cuts.
        error, bound: largest ||T u - y|| / ||y||, and what it may be.
        rounding: distance of the model's own output in its dtype from y.
        finite: whether T and y are finite.
        engine_error: largest relative difference of ||H_i||_F from that of the dense H_i.
        engine_wrong: number of counts that differ from those of the SVD.
        engine_compared: number of counts compared.
        notes: what this text could not exercise.
    """

    layer: int
    call: int
    module: str
    class_name: str
    kind: str
    operators: int
    tss: int
    error: float
    bound: float
    rounding: float
    finite: bool
    engine_error: float | None = None
    engine_wrong: int = 0
    engine_compared: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether the operator is the layer's own, and the engine right on it."""
        return self.finite and self.error <= self.bound <= LARGEST_BOUND and self.engine_wrong == 0

    def to_json(self) -> dict[str, Any]:
        """Plain values; null for what is not finite."""
        values = asdict(self)
        bad = [name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
        return {**values, **dict.fromkeys(bad), "passed": self.passed}


@dataclass
class Verification:
    """One row per mixer call, and what was not verified.

    Attributes:
        model: as the user named it.
        tokens: length of the text.
        layers: rows.
        skipped: mixers that ran and have no operator.
        not_called: mixers that did not run on this text.
        notes: warnings.
    """

    model: str
    tokens: int
    layers: list[VerifiedLayer]
    skipped: list[SkippedLayer]
    not_called: list[SkippedLayer]
    notes: list[str]

    @property
    def passed(self) -> bool:
        """Whether every mixer that has an operator passed."""
        return all(layer.passed for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """The verification as one JSON document."""
        return {
            "schema_version": 1,
            "model": self.model,
            "tokens": self.tokens,
            "passed": self.passed,
            "layers": [layer.to_json() for layer in self.layers],
            "skipped": [asdict(s) for s in self.skipped],
            "not_called": [asdict(s) for s in self.not_called],
            "notes": self.notes,
        }


def verify(
    model: str | PreTrainedModel | LoadedModel,
    text: str | list[int] | None = None,
    *,
    tokens: int = TOKENS,
    **loading: Any,
) -> Verification:
    """Checks the operator of every sequence mixer against the model, and the engine against dense SVDs.

    Args:
        model: as for hf_ess.probe.
        text: a text or token ids; default a text that ships with the package.
        tokens: at most so many tokens of it.
        loading: tokenizer, dtype, device_map, revision, gguf_file, trust_remote_code as for hf_ess.probe.

    Raises:
        BadInput, UnsupportedModel: the model or text cannot be used, or no layer has an operator.
    """
    loaded = model if isinstance(model, LoadedModel) else load(model, **loading)
    assert loaded.model is not None
    chosen = _tokens(loaded, text, tokens)
    notes = [*loaded.notes, *check(chosen, loaded.model)]
    check_memory(len(chosen), loaded.model)
    windows = {path: _window(module) for path, module in loaded.model.named_modules()}
    rows: list[VerifiedLayer] = []

    def on_layer(layer: CapturedLayer) -> None:
        rows.append(_verified(layer, windows.get(layer.module)))

    with quiet():
        skipped = capture(loaded.model, chosen.ids, on_layer)
    if not rows:
        reasons = "; ".join(dict.fromkeys(s.reason for s in skipped if s.called))
        raise UnsupportedModel(f"no layer of {loaded.name} has an operator to verify ({reasons or 'no mixer found'})")
    return Verification(
        model=loaded.name,
        tokens=len(chosen),
        layers=rows,
        skipped=[s for s in skipped if s.called],
        not_called=[s for s in skipped if not s.called],
        notes=notes,
    )


def shipped_text() -> str:
    """The text that verify() runs on: prose and code, about 700 tokens of a large vocabulary."""
    return resources.files("hf_ess").joinpath("data", "verify.txt").read_text(encoding="utf-8")


def _tokens(loaded: LoadedModel, text: str | list[int] | None, most: int) -> Tokens:
    limit = position_limit(loaded.model)
    most = most if limit is None else min(most, limit)
    if loaded.tokenizer is None and text is None:
        rows = loaded.model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]
        generator = torch.Generator().manual_seed(0)
        text = torch.randint(0, rows, (most,), generator=generator).tolist()
    if isinstance(text, list):
        return from_ids(loaded.tokenizer, text, max_tokens=most)
    assert loaded.tokenizer is not None
    return tokenize(loaded.tokenizer, text or shipped_text(), max_tokens=most)


def _window(module: torch.nn.Module) -> Any:
    """The window that a mixer is made for: its own attribute where it has one, else that of its configuration."""
    holder = module if hasattr(module, "sliding_window") else getattr(module, "config", None)
    return getattr(holder, "sliding_window", None)


def _verified(layer: CapturedLayer, window: Any) -> VerifiedLayer:
    operator = layer.operator
    row = VerifiedLayer(
        layer=layer.layer,
        call=layer.call,
        module=layer.module,
        class_name=layer.class_name,
        kind=layer.kind,
        operators=operator.count,
        tss=int(operator.tss().max()),
        error=layer.error,
        bound=layer.bound,
        rounding=layer.rounding,
        finite=layer.finite,
    )
    if layer.finite:
        row.engine_error, row.engine_wrong, row.engine_compared = compare_with_svd(operator)
    if isinstance(window, int) and window >= operator.length:
        row.notes.append(f"window of {window} not exercised by {operator.length} tokens")
    return row


def compare_with_svd(operator: Operator, operators: int = 3) -> tuple[float, int, int]:
    """The engine against dense float64 SVDs: the first, middle and last operator at five cuts.

    Returns:
        The largest relative difference of ||H_i||_F; the number of counts that differ at
        1e-1, 1e-3, 1e-5 (unresolved ones left out); the number of counts compared.
    """
    length = operator.length
    cuts = sorted({1, length // 4, length // 2, 3 * length // 4, length - 1} - {0})
    worst, wrong, compared = 0.0, 0, 0
    for index in sorted({0, operator.count // 2, operator.count - 1})[:operators]:
        one = operator[index : index + 1]
        T = one.dense()[0]
        measured = measure(one, TOLERANCES, entropy=False)
        for cut in cuts:
            block = T[cut:, :cut]
            sigma = torch.linalg.svdvals(block) if block.any() else block.new_zeros(1)
            norm = float(block.norm())
            if norm > 0:
                worst = max(worst, abs(float(measured.frobenius[0, cut - 1]) - norm) / norm)
            for k, tolerance in enumerate(TOLERANCES):
                if measured.resolved[k, 0, cut - 1]:
                    compared += 1
                    exact = int((sigma >= tolerance * (1 - 1e-9)).sum())
                    wrong += exact != int(measured.counts[k, 0, cut - 1])
    return worst, wrong, compared
