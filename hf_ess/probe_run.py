"""One run of a probe: every prompt through the model, every layer measured or taken from an earlier run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hf_ess.capturing import CapturedLayer, SkippedLayer, capture, nothing_measured
from hf_ess.loading import LoadedModel
from hf_ess.loading.quieting import quiet
from hf_ess.processes import Processes
from hf_ess.results import SCHEMA_VERSION, TOKENS_SCHEMA, Result, noise
from hf_ess.results.provenance import identity, provenance
from hf_ess.results.recording import Options, record, unmeasured, verification
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
        processes: those that share the prompts.
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
        processes: Processes | None = None,
    ) -> None:
        self.loaded, self.prompts, self.options, self.progress = loaded, prompts, options, progress
        self.found, self.cuts, self.memory, self.device = found, cuts, memory, device
        self.processes = processes or Processes()
        self.spectra: SpectraFolder | None = None
        self.infos: list[dict[str, Any]] = []
        self.tables: list[pa.Table] = []
        self.skipped: dict[str, SkippedLayer] = {}
        self.reused = 0

    def key(self) -> dict[str, Any]:
        """What makes two runs the same run."""
        return {
            **identity(self.loaded),
            "ids": [p.ids for p in self.prompts],
            "options": self.options.to_json(),
            "cuts": self.cuts,
        }

    def run(self, partial: PartialResult | None) -> None:
        """Runs the model on every prompt; what earlier runs left in partial is not measured again.

        Of several processes each runs its own prompts; the first then reads what all of them left.
        """
        if partial and self.options.spectra_dtype is not None:
            lengths = [len(p) for p in self.prompts]
            folder, rank = partial.folder / FOLDER, self.processes.rank
            self.spectra = SpectraFolder(folder, self.cuts, lengths, self.options.spectra_dtype, rank)
        for number, tokens in enumerate(self.prompts):
            if self.processes.mine(number):
                self._run(number, tokens, partial)
        if not self.processes.alone:
            self.processes.wait()
            if self.processes.first:
                self._gather(partial)

    def _gather(self, partial: PartialResult | None) -> None:
        """Starts again from the pieces of all processes, in the order that one process would have."""
        self.infos, self.tables, self.skipped, self.reused = [], [], {}, 0
        for number, tokens in enumerate(self.prompts):
            self._run(number, tokens, partial)

    def result(self, delimiters: list[str], notes: list[str]) -> Result:
        """What was found, after run().

        Raises:
            UnsupportedModel: no layer could be measured.
        """
        skipped = [s for s in self.skipped.values() if s.called]
        if not self.infos:
            raise nothing_measured(self.loaded.name, skipped)
        totals, table = over_layers(pa.concat_tables(self.tables))
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
            "verification": verification(self.infos),
            "notes": [*notes, *self._absent(), *noise.notes(self.infos, self.options.tolerances, self.loaded.dtype)],
            "reused_layers": self.reused,
        }
        if self.spectra is not None:
            summary["spectra"] = self.spectra.summary()
        return Result(summary, table, self._tokens())

    def _absent(self) -> list[str]:
        """A note on the layers that were asked for and do not exist."""
        there = {info["layer"] for info in self.infos} | {s.layer for s in self.skipped.values()}
        absent = sorted(set(self.options.layers or ()) - there)
        return [f"there is no layer {', '.join(map(str, absent))} with a sequence mixer"] if absent else []

    def _where(self) -> dict[str, Any]:
        """How the work was done, which a resumed run may do otherwise."""
        return {"memory": self.memory, "spectra_device": None if self.device is None else str(self.device)}

    def _run(self, number: int, tokens: Tokens, partial: PartialResult | None) -> None:
        done = 0

        def add(module: str, info: dict[str, Any], table: pa.Table) -> None:
            nonlocal done
            done += 1
            self.infos.append(info)
            self.tables.append(table)
            if self.progress:
                self.progress(number, len(self.prompts), done, self.loaded.layers or done, module)

        layers: list[tuple[str, int]] = []

        def on_layer(layer: CapturedLayer) -> None:
            layers.append((layer.module, layer.call))
            add(layer.module, *self._measured(number, layer, partial))

        kept = partial and self._kept(number, partial)
        if kept:
            skipped, found = kept
            for module, call, info, table in found:
                self.reused += partial is not None and partial.old(number, module, call)
                add(module, info, table)
        else:
            wanted = None if self.options.layers is None else set(self.options.layers)
            assert self.loaded.model is not None
            with quiet():  # transformers explains at length that it runs without CUDA kernels
                skipped = capture(self.loaded.model, tokens.ids, on_layer, layers=wanted)
            if partial and layers:
                partial.finish(number, layers, [asdict(layer) for layer in skipped])
        for layer in skipped:
            self.skipped.setdefault(layer.module, layer)

    def _kept(
        self, number: int, partial: PartialResult
    ) -> tuple[list[SkippedLayer], list[tuple[str, int, dict[str, Any], pa.Table]]] | None:
        """A prompt that is finished, so that the model need not run on it; None where any of it is missing."""
        listed = partial.prompt(number)
        if listed is None:
            return None
        layers, skipped = listed
        found = []
        for module, call in layers:
            piece = partial.get(number, module, call)
            if piece is None or not self._has_spectra(number, module, call, piece[0]):
                return None
            found.append((module, call, *piece))
        return [SkippedLayer(**row) for row in skipped], found

    def _has_spectra(self, number: int, module: str, call: int, info: dict[str, Any]) -> bool:
        """Whether the stored spectra of a layer are there, where it should have some."""
        wanted = self.spectra is not None and info["status"] == "verified" and bool(self.cuts[number])
        return not wanted or (self.spectra is not None and self.spectra.has(number, module, call))

    def _measured(
        self, number: int, layer: CapturedLayer, partial: PartialResult | None
    ) -> tuple[dict[str, Any], pa.Table]:
        found = partial and partial.get(number, layer.module, layer.call)
        spectra = self.spectra if layer.verified and self.cuts[number] else None
        if found and self._has_spectra(number, layer.module, layer.call, found[0]):
            self.reused += partial is not None and partial.old(number, layer.module, layer.call)
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
