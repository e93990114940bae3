"""One run of a probe: every prompt through the model, every layer measured or taken from an earlier run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hf_ess.capturing import CapturedLayer, SkippedLayer, capture
from hf_ess.errors import UnsupportedModel
from hf_ess.loading import LoadedModel
from hf_ess.loading.quieting import quiet
from hf_ess.results import SCHEMA_VERSION, TOKENS_SCHEMA, Result, noise
from hf_ess.results.provenance import provenance
from hf_ess.results.recording import Options, record, unmeasured
from hf_ess.results.stored import FOLDER, SpectraFolder
from hf_ess.results.totals import over_layers
from hf_ess.results.writing import PartialResult
from hf_ess.spectra.ess import Measurement, SpectraSink, measure
from hf_ess.text.tokens import Tokens

if TYPE_CHECKING:
    import torch

#: Called as progress(prompt, prompts, layers done, layers in the model, what just ended).
Progress = Callable[[int, int, int, int, str], None]


class ProbeRun:
    """One run over all prompts.

    Args:
        loaded: the model.
        prompts: the texts as tokens.
        options: what is to be computed and kept.
        progress: called after every layer, or None.
        found: token positions of each delimiter, for each prompt.
        cuts: where singular values are kept, for each prompt; empty where they are not.
        memory: bytes that the work on a block of operators may take; None: as the engines see fit.
        device: where operators are measured; None: where their layer is.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: list[Tokens],
        options: Options,
        progress: Progress | None,
        found: list[dict[str, list[int]]],
        cuts: list[list[int]],
        memory: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.loaded, self.prompts, self.options, self.progress = loaded, prompts, options, progress
        self.found, self.cuts, self.memory, self.device = found, cuts, memory, device
        self.spectra: SpectraFolder | None = None
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
            "cuts": self.cuts,
        }

    def result(self, partial: PartialResult | None, delimiters: list[str], notes: list[str]) -> Result:
        """Runs the model on every prompt; what earlier runs left in partial is not measured again."""
        if partial and self.options.spectra_dtype is not None:
            lengths = [len(p) for p in self.prompts]
            self.spectra = SpectraFolder(partial.folder / FOLDER, self.cuts, lengths, self.options.spectra_dtype)
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
        errors = [i["error"] for i in self.infos if i["error"] is not None]
        summary = {
            "schema_version": SCHEMA_VERSION,
            "provenance": provenance(self.loaded),
            "options": {**self.options.to_json(), "delimiters": delimiters, **self._where()},
            "prompts": [
                {
                    "tokens": len(p.ids),
                    "bos_added": p.bos_added,
                    "delimiters": {name: len(places) for name, places in found.items()},
                }
                for p, found in zip(self.prompts, self.found)
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
            "notes": [*notes, *noise.notes(self.infos, self.options.tolerances, self.loaded.dtype)],
            "reused_layers": self.reused,
        }
        if self.spectra is not None:
            summary["spectra"] = self.spectra.summary()
        return Result(summary, table, self._tokens())

    def _where(self) -> dict[str, Any]:
        """How the work was done, which a resumed run may do otherwise."""
        return {"memory": self.memory, "spectra_device": None if self.device is None else str(self.device)}

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
        spectra = self.spectra if layer.verified and self.cuts[number] else None
        if found and (spectra is None or spectra.has(number, layer.module, layer.call)):
            self.reused += 1
            return found
        if not layer.verified:
            info, table = unmeasured(layer, number, self.options)
        else:
            assert partial is not None or spectra is None
            with ExitStack() as stack:
                sink = None
                if spectra is not None and partial is not None:
                    stack.enter_context(partial.writing())
                    sink = stack.enter_context(spectra.shard(layer, number))
                measured = self._counted(layer, sink)
            info, table = record(layer, measured, number, self.options, self.loaded.dtype)
        if partial:
            partial.put(number, layer.module, layer.call, info, table)
        return info, table

    def _counted(self, layer: CapturedLayer, sink: SpectraSink | None) -> Measurement:
        operator = layer.operator if self.device is None else layer.operator.to(self.device)
        return measure(
            operator,
            self.options.counted,
            entropy=self.options.entropy,
            sigma_1=self.options.norms,
            relative=self.options.relative,
            memory=self.memory,
            sink=sink,
        )

    def _tokens(self) -> pa.Table:
        """The tokens table."""
        rows = []
        for number, (tokens, found) in enumerate(zip(self.prompts, self.found)):
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
        return pa.Table.from_pylist(rows, schema=TOKENS_SCHEMA)


def _named(skipped: SkippedLayer) -> dict[str, Any]:
    return {
        "layer": skipped.layer,
        "module": skipped.module,
        "class": skipped.class_name,
        "reason": skipped.reason,
    }
