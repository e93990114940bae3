"""One run of a probe: every prompt through the model, every layer measured or taken from an earlier run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from hf_ess.capturing import CapturedLayer, SkippedLayer, capture
from hf_ess.errors import UnsupportedModel
from hf_ess.loading import LoadedModel
from hf_ess.loading.quieting import quiet
from hf_ess.results import SCHEMA_VERSION, TOKENS_SCHEMA, Result
from hf_ess.results.provenance import provenance
from hf_ess.results.recording import Options, record, unmeasured
from hf_ess.results.totals import over_layers
from hf_ess.results.writing import PartialResult
from hf_ess.spectra.ess import measure
from hf_ess.text import delimiters as delims
from hf_ess.text.tokens import Tokens

#: Called as progress(prompt, prompts, layers done, layers in the model, what just ended).
Progress = Callable[[int, int, int, int, str], None]


class ProbeRun:
    """One run over all prompts.

    Args:
        loaded: the model.
        prompts: the texts as tokens.
        options: what is to be computed and kept.
        progress: called after every layer, or None.
    """

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
