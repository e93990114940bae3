"""probe(): run a model on texts, measure every operator, and give back a Result."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hf_ess.capturing import CapturedLayer, SkippedLayer, capture
from hf_ess.errors import BadInput, HfEssError, UnsupportedModel
from hf_ess.loading import LoadedModel, load
from hf_ess.loading.quieting import quiet
from hf_ess.results import SCHEMA_VERSION, TOKENS_SCHEMA, Result
from hf_ess.results.provenance import provenance
from hf_ess.results.recording import Options, record, unmeasured
from hf_ess.results.totals import over_layers
from hf_ess.results.writing import PartialResult
from hf_ess.spectra.ess import measure
from hf_ess.text import delimiters as delims
from hf_ess.text.limits import check, check_memory
from hf_ess.text.tokens import Tokens, from_ids, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT_TOLERANCES = (1e-1, 1e-3, 1e-5)

#: Called as progress(prompt, prompts, layers done, layers in the model, what just ended).
Progress = Callable[[int, int, int, int, str], None]


def probe(
    model: str | PreTrainedModel | LoadedModel,
    text: str | Sequence[str] | Sequence[int],
    *,
    tolerances: Sequence[float] = DEFAULT_TOLERANCES,
    relative: bool = False,
    entropy: bool = True,
    norms: bool = False,
    gate: float | None = None,
    delimiters: Sequence[str] = delims.DEFAULT,
    keep: str = "auto",
    layers: Iterable[int] | None = None,
    max_tokens: int | None = None,
    parse_special: bool = True,
    tokenizer: Any = None,
    dtype: str = "auto",
    device_map: Any = None,
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    plots: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Measures the effective state-size of every sequence mixer of a causal language model on a text.

    Args:
        model: Hub id, path, "demo:falcon-mamba", "demo:llama", or a loaded model (then give tokenizer=).
        text: one text, several texts, or token ids.
        tolerances: absolute, > 0; a singular value counts where it is at least the tolerance.
        relative: tolerances are in units of each operator's largest singular value over all cuts.
        entropy: compute entropy-ESS.
        norms: compute sigma_1 and the stable rank of every H_i (slow for attention).
        gate: entropy-ESS is null where sigma_1(H_i) is below it; default the smallest tolerance; 0 for none.
        delimiters: marked in the result: "eos", the text of a special token, "id:N", or characters such as ".".
        keep: "auto" keeps heads and channels of layers with at most 1,024 of them, "units" of all layers,
            "reductions" of none.
        layers: numbers of the layers to measure; default all.
        max_tokens: measure the first max_tokens tokens of each text.
        parse_special: special tokens typed in the text become those tokens.
        tokenizer: id, path or object; default the model's own.
        dtype, device_map, revision, gguf_file, trust_remote_code: as in transformers' from_pretrained.
        output: directory for the result; it is written layer by layer and resumed if the run dies.
        overwrite: replace an existing result there.
        plots: draw the standard pictures into output/plots.
        progress: called after every layer.

    Returns:
        The result; layers that failed their verification or are not finite are in it with null values.

    Raises:
        BadInput, UnsupportedModel: the model, text or an option cannot be used, or no layer can be measured.
    """
    options = _options(tolerances, relative, entropy, norms, gate, keep, layers)
    texts, ids = _items(text)
    if isinstance(model, LoadedModel):
        loaded = model
    else:
        loaded = load(
            model,
            tokenizer=tokenizer,
            dtype=dtype,
            device_map=device_map,
            revision=revision,
            gguf_file=gguf_file,
            trust_remote_code=trust_remote_code,
            with_tokenizer=ids is None,
        )
    if ids is not None:
        prompts = [from_ids(loaded.tokenizer, ids, max_tokens=max_tokens)]
    else:
        prompts = [
            tokenize(loaded.tokenizer, item, max_tokens=max_tokens, parse_special=parse_special) for item in texts
        ]
    warnings = [note for p in prompts for note in (*p.notes, *check(p, loaded.model))]
    notes = list(dict.fromkeys([*loaded.notes, *warnings]))
    check_memory(max(len(p) for p in prompts), loaded.model)
    run = _Probe(loaded, prompts, options, progress)
    partial = None
    if output is not None:
        partial = PartialResult(Path(output), run.key(), overwrite)
    try:
        with partial or nullcontext():
            result = run.result(partial, list(delimiters), notes)
            if partial is not None:
                if plots:
                    _draw(result, partial.folder / "plots")
                partial.publish(result)
    except MemoryError as error:
        raise HfEssError("the machine ran out of memory; shorten the text with --max-tokens") from error
    return result


def _options(
    tolerances: Sequence[float],
    relative: bool,
    entropy: bool,
    norms: bool,
    gate: float | None,
    keep: str,
    layers: Iterable[int] | None,
) -> Options:
    tolerances = tuple(dict.fromkeys(float(t) for t in tolerances))
    bad = [t for t in tolerances if not (math.isfinite(t) and t > 0)]
    if bad or not tolerances:
        raise BadInput(f"tolerances must be finite and above 0, got {bad or 'none'}")
    gate = min(tolerances) if gate is None else float(gate)
    if not (math.isfinite(gate) and gate >= 0):
        raise BadInput(f"the entropy gate must be finite and at least 0, got {gate}")
    if keep not in ("auto", "units", "reductions"):
        raise BadInput(f'keep must be "auto", "units" or "reductions", got {keep!r}')
    chosen = None if layers is None else tuple(sorted(set(layers)))
    return Options(tolerances, relative, entropy, norms, gate, keep, chosen)


def _items(text: str | Sequence[str] | Sequence[int]) -> tuple[list[str], list[int] | None]:
    """What was given as text: texts, or the token ids of one text."""
    if getattr(text, "ndim", 1) == 2 and len(text) == 1:  # ids as a tokenizer returns them
        text = text[0]  # type: ignore[assignment]
    if text is None:
        raise BadInput("there is no text to measure")
    items: list[Any] = [text] if isinstance(text, str) else text.tolist() if hasattr(text, "tolist") else list(text)
    if not items:
        raise BadInput("there is no text to measure")
    if all(isinstance(item, int) for item in items):
        return [], items
    if not all(isinstance(item, str) for item in items):
        raise BadInput("text must be a string, a list of strings, or a list of token ids")
    return items, None


def _draw(result: Result, folder: Path) -> None:
    """Draws the standard pictures; what goes wrong there becomes a note, because the measurement is done."""
    try:
        from hf_ess.plots import save_all

        save_all(result, folder)
    except Exception as error:
        first = str(error).partition("\n")[0]
        result.summary["notes"].append(f"the pictures could not be drawn ({first}); hf-ess plot DIR tries again")


class _Probe:
    """One run over all prompts."""

    def __init__(self, loaded: LoadedModel, prompts: list[Tokens], options: Options, progress: Progress | None) -> None:
        self.loaded, self.prompts, self.options, self.progress = loaded, prompts, options, progress
        self.infos: list[dict[str, Any]] = []
        self.tables: list[pa.Table] = []
        self.skipped: dict[str, SkippedLayer] = {}
        self.reused = 0

    def key(self) -> dict[str, Any]:
        """What makes two runs the same run."""
        origin = provenance(self.loaded)
        names = ("model_class", "weights_hash", "config_hash", "model_dtype", "versions")
        return {
            **{name: origin[name] for name in names},
            "ids": [p.ids for p in self.prompts],
            "options": self.options.to_json(),
        }

    def result(self, partial: PartialResult | None, delimiters: list[str], notes: list[str]) -> Result:
        for number, tokens in enumerate(self.prompts):
            self._run(number, tokens, partial)
        skipped = [s for s in self.skipped.values() if s.called]
        if not self.infos:
            reasons = "; ".join(dict.fromkeys(f"{s.class_name}: {s.reason}" for s in skipped))
            raise UnsupportedModel(
                f"no layer of {self.loaded.name} could be measured"
                + (f" ({reasons})" if reasons else ": it has no sequence mixer of a known kind in the layers asked for")
            )
        totals, table = over_layers(pa.concat_tables(self.tables))
        marks, tokens_table = self._tokens(delimiters)
        errors = [i["error"] for i in self.infos if i["error"] is not None]
        summary = {
            "schema_version": SCHEMA_VERSION,
            "provenance": provenance(self.loaded),
            "options": {**self.options.to_json(), "delimiters": delimiters},
            "prompts": [
                {"tokens": len(p.ids), "bos_added": p.bos_added, "delimiters": found}
                for p, found in zip(self.prompts, marks)
            ],
            "layers": self.infos,
            "totals": totals,
            "skipped": [_named(s) for s in skipped],
            "not_called": [_named(s) for s in self.skipped.values() if not s.called],
            "verification": {
                "largest_error": max(errors, default=None),
                "failed": sum(i["status"] == "failed" for i in self.infos),
                "not_finite": sum(i["status"] == "not finite" for i in self.infos),
            },
            "notes": notes,
            "reused_layers": self.reused,
        }
        return Result(summary, table, tokens_table)

    def _run(self, number: int, tokens: Tokens, partial: PartialResult | None) -> None:
        done = 0

        def on_layer(layer: CapturedLayer) -> None:
            nonlocal done
            done += 1
            info, table = self._measured(number, layer, partial)
            self.infos.append(info)
            self.tables.append(table)
            if self.progress:
                self.progress(number, len(self.prompts), done, self.loaded.layers or done, layer.module)

        wanted = None if self.options.layers is None else set(self.options.layers)
        assert self.loaded.model is not None
        with quiet():  # transformers explains at length that it runs without CUDA kernels
            skipped = capture(self.loaded.model, tokens.ids, on_layer, layers=wanted)
        for layer in skipped:
            self.skipped.setdefault(layer.module, layer)

    def _measured(
        self, number: int, layer: CapturedLayer, partial: PartialResult | None
    ) -> tuple[dict[str, Any], pa.Table]:
        found = partial and partial.get(number, layer.module, layer.call)
        if found:
            self.reused += 1
            return found
        if not layer.verified:
            info, table = unmeasured(layer, number, self.options)
        else:
            measured = measure(
                layer.operator,
                self.options.counted,
                entropy=self.options.entropy,
                sigma_1=self.options.norms,
                relative=self.options.relative,
            )
            info, table = record(layer, measured, number, self.options)
        if partial:
            partial.put(number, layer.module, layer.call, info, table)
        return info, table

    def _tokens(self, delimiters: list[str]) -> tuple[list[dict[str, int]], pa.Table]:
        """How often each delimiter occurs, per prompt, and the tokens table."""
        rows, marks = [], []
        for number, tokens in enumerate(self.prompts):
            found = delims.find(tokens, self.loaded.tokenizer, self.loaded.model, delimiters)
            marks.append({name: len(places) for name, places in found.items()})
            for position, (token, text, span) in enumerate(zip(tokens.ids, tokens.texts, tokens.spans)):
                start, end = span if span is not None else (None, None)
                rows.append(
                    {
                        "prompt": number,
                        "position": position,
                        "id": token,
                        "text": text,
                        "start": start,
                        "end": end,
                        "delimiter": [name for name, places in found.items() if position in places],
                    }
                )
        return marks, pa.Table.from_pylist(rows, schema=TOKENS_SCHEMA)


def _named(skipped: SkippedLayer) -> dict[str, Any]:
    return {
        "layer": skipped.layer,
        "module": skipped.module,
        "class": skipped.class_name,
        "reason": skipped.reason,
    }
