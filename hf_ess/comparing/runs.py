"""Runs of one model over many sequences, in which the same prompt comes in several variants."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hf_ess.capturing import SkippedLayer, nothing_measured
from hf_ess.comparing.kept import KeptRuns
from hf_ess.comparing.substituted import Key, Measured, Settings, run
from hf_ess.errors import HfEssError
from hf_ess.loading import LoadedModel
from hf_ess.probing import Progress
from hf_ess.processes import Processes
from hf_ess.results.provenance import identity
from hf_ess.results.recording import verification

CURVES_SCHEMA = pa.schema(
    [
        ("prompt", pa.int32()),
        ("replace", pa.string()),  # the variant: what the places were filled with, or the number of examples
        ("layer", pa.int32()),  # null: all layers together
        ("call", pa.int32()),
        ("module", pa.string()),
        ("kind", pa.string()),
        ("reduction", pa.string()),
        ("tolerance", pa.float64()),
        ("values", pa.list_(pa.float64())),  # cuts i = 1 .. L-1; null where not measured
    ]
)

_LAYER = ("layer", "call", "module", "kind", "operators", "multiplicity")


@dataclass(frozen=True)
class Variant:
    """One sequence to run.

    Attributes:
        ids: L token ids.
        places: positions of the tokens in question; a horizon is measured near them alone.
    """

    ids: list[int]
    places: Sequence[int] = ()


class Runs:
    """Total ESS of every layer along every variant of every prompt.

    Args:
        loaded: the model.
        prompts: of each prompt its variants, by whatever tells them apart.
        settings: what to measure.
        progress: called as progress(run, runs, layers done, layers in the model, module).
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: Sequence[Mapping[Hashable, Variant]],
        settings: Settings,
        progress: Progress | None = None,
    ) -> None:
        self.loaded, self.prompts = loaded, prompts
        self.settings, self.progress = settings, progress
        self.found: list[dict[Hashable, dict[Key, Measured]]] = []
        self.skipped: dict[str, SkippedLayer] = {}

    def key(self) -> dict[str, Any]:
        """What makes two of these the same, whatever they are made for."""
        return {
            **identity(self.loaded),
            "ids": [[v.ids for v in variants.values()] for variants in self.prompts],
            "places": [[list(v.places) for v in variants.values()] for variants in self.prompts],
            "settings": asdict(self.settings),
        }

    def run(self, kept: KeptRuns | None = None, shared: Processes | None = None) -> Runs:
        """Runs everything that is not finished yet.

        Args:
            kept: where finished runs are, and are put.
            shared: processes that share the prompts; the first then reads what all of them left.

        Raises:
            UnsupportedModel: no layer could be measured.
            HfEssError: the machine ran out of memory.
        """
        shared = shared or Processes()
        try:
            self._run(kept, shared)
            shared.wait()
            if not shared.first:
                return self
            if not shared.alone and kept is not None:
                self.found, self.skipped, kept.reused = [], {}, 0
                self._run(kept, Processes())
        except MemoryError as error:
            raise HfEssError("the machine ran out of memory; shorten the text with --max-tokens") from error
        if not self.mixers():
            raise nothing_measured(self.loaded.name, self.skipped.values())
        return self

    def _run(self, kept: KeptRuns | None, shared: Processes) -> None:
        runs, number = sum(len(variants) for variants in self.prompts), 0
        for prompt, variants in enumerate(self.prompts):
            self.found.append({})
            if not shared.mine(prompt):
                number += len(variants)
                continue
            for at, (label, variant) in enumerate(variants.items()):
                done = 0

                def advance(module: str, number: int = number) -> None:
                    nonlocal done
                    done += 1
                    if self.progress:
                        self.progress(number, runs, done, self.loaded.layers or done, module)

                found = kept and kept.get(prompt, at)
                if not found:
                    found = run(self.loaded, variant.ids, variant.places, prompt, self.settings, advance)
                    if kept:
                        kept.put(prompt, at, *found)
                layers, skipped = found
                self.found[prompt][label] = layers
                for layer in skipped:
                    self.skipped.setdefault(layer.module, layer)
                number += 1

    def mixers(self) -> dict[Key, dict[str, Any]]:
        """What is known of every mixer call, in order of execution."""
        out: dict[Key, dict[str, Any]] = {}
        for by_label in self.found:
            for layers in by_label.values():
                for key, measured in layers.items():
                    out.setdefault(key, measured.info)
        return out

    def usable(self, prompt: int) -> list[Key]:
        """Mixers that were verified in every variant of this prompt: a sum over others would compare unlike sums."""
        runs = self.found[prompt].values()
        return [k for k in self.mixers() if all(k in layers and layers[k].total is not None for layers in runs)]

    def totals(self, prompt: int, label: Hashable) -> dict[Key | None, np.ndarray]:
        """(tolerance, L-1) of every usable mixer, and of all together under None."""
        layers = self.found[prompt][label]
        curves = {key: total for key in self.usable(prompt) if (total := layers[key].total) is not None}
        return ({None: np.sum(list(curves.values()), axis=0)} if curves else {}) | curves

    def bounds(self, prompt: int, label: Hashable) -> dict[Key | None, np.ndarray]:
        """(L-1,) what the totals can be at most, by the same keys."""
        layers = self.found[prompt][label]
        curves = {key: bound for key in self.usable(prompt) if (bound := layers[key].bound) is not None}
        return ({None: np.sum(list(curves.values()), axis=0)} if curves else {}) | curves

    def curves(self, names: Mapping[str, Hashable]) -> pa.Table:
        """All curves in CURVES_SCHEMA; names: of each name to write, the variant that it is."""
        rows, mixers = [], self.mixers()
        for prompt, variants in enumerate(self.prompts):
            for name, label in names.items():
                if label not in variants:
                    continue
                for key, total in self.totals(prompt, label).items():
                    for tolerance, values in zip(self.settings.tolerances, total):
                        shared = {"prompt": prompt, "replace": name, "tolerance": tolerance}
                        nulls = [None if math.isnan(v) else v for v in values.tolist()]
                        rows.append({**shared, **where(key and mixers[key]), "values": nulls})
        return pa.Table.from_pylist(rows, schema=CURVES_SCHEMA)

    def facts(self) -> dict[str, Any]:
        """What a summary tells of the runs: layers, skipped and not called mixers, verification."""
        measured = [m for by in self.found for layers in by.values() for m in layers.values()]
        skipped = [{**asdict(s), "class": s.class_name} for s in self.skipped.values()]
        return {
            "layers": [{k: info[k] for k in _LAYER} for info in self.mixers().values()],
            "skipped": [s for s in skipped if s["called"]],
            "not_called": [s for s in skipped if not s["called"]],
            "verification": verification([m.info for m in measured]),
        }

    def notes(self) -> list[str]:
        """What is not exact about the counts."""
        unresolved = sum(m.unresolved for by in self.found for layers in by.values() for m in layers.values())
        if not unresolved:
            return []
        return [f"{unresolved:,} counts are unresolved: float64 cannot tell them from the tolerance"]


def where(info: dict[str, Any] | None) -> dict[str, Any]:
    """The columns that name a layer; None is all layers together."""
    if info is None:
        return dict.fromkeys(("layer", "call", "module", "kind")) | {"reduction": "sum_channels_layers"}
    return {name: info[name] for name in ("layer", "call", "module", "kind")} | {"reduction": "sum_channels"}
