"""Effects of every layer: all runs of one comparison, joined place by place and prompt by prompt."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hf_ess.capturing import SkippedLayer
from hf_ess.comparing.modulation import BEFORE, CONFIDENCE, WINDOW, LogRatio, effect, level_before, log_ratio, lowest
from hf_ess.comparing.substituted import Key, Measured, Settings, run
from hf_ess.errors import UnsupportedModel
from hf_ess.loading import LoadedModel
from hf_ess.probing import Progress
from hf_ess.results.provenance import provenance
from hf_ess.text.substitution import Candidate, Template
from hf_ess.text.tokens import from_ids

SCHEMA_VERSION = 1

CONVENTIONS = {
    "position": "cut i lies before token i: H_i = T[i:, :i]",
    "m": f"smallest total ESS over the cuts p .. p+{WINDOW - 1} of a place p",
    "reduction": "sum_channels: channels of a layer; sum_channels_layers: channels and layers (layer null)",
    "effect": "exp(mean over prompts of log(sum of m / sum of m under the control)) - 1",
    "interval": f"{CONFIDENCE:.0%} t interval over prompts; p_value: Wilcoxon signed rank, not corrected for many rows",
    "dip": f"the same for m against the mean over the cuts p-{BEFORE[0]} .. p-{BEFORE[1]} of the same curve",
}

CURVES_SCHEMA = pa.schema(
    [
        ("prompt", pa.int32()),
        ("replace", pa.string()),
        ("layer", pa.int32()),  # null: all layers together
        ("call", pa.int32()),
        ("module", pa.string()),
        ("kind", pa.string()),
        ("reduction", pa.string()),
        ("tolerance", pa.float64()),
        ("values", pa.list_(pa.float64())),  # cuts i = 1 .. L-1; null where not measured
    ]
)


@dataclass(frozen=True)
class Fill:
    """A token to put in.

    Attributes:
        candidate: the token.
        role: "control", "second control" or "candidate".
    """

    candidate: Candidate
    role: str


class Runs:
    """All runs of one comparison, and what is told of them."""

    def __init__(
        self,
        loaded: LoadedModel,
        templates: list[Template],
        fills: list[Fill],
        settings: Settings,
        progress: Progress | None,
    ) -> None:
        self.loaded, self.templates, self.fills = loaded, templates, fills
        self.settings, self.progress = settings, progress
        self.found: list[dict[int, dict[Key, Measured]]] = []  # per prompt, per token
        self.skipped: dict[str, SkippedLayer] = {}

    def run(self) -> None:
        tokens = list(dict.fromkeys(fill.candidate.token for fill in self.fills))
        runs, number = len(tokens) * len(self.templates), 0
        for prompt, made in enumerate(self.templates):
            self.found.append({})
            for token in tokens:
                done = 0

                def advance(module: str, number: int = number) -> None:
                    nonlocal done
                    done += 1
                    if self.progress:
                        self.progress(number, runs, done, self.loaded.layers or done, module)

                layers, skipped = run(self.loaded, made.filled(token), made.places, prompt, self.settings, advance)
                self.found[prompt][token] = layers
                for layer in skipped:
                    self.skipped.setdefault(layer.module, layer)
                number += 1
        if not self.mixers():
            called = [s for s in self.skipped.values() if s.called]
            reasons = "; ".join(dict.fromkeys(f"{s.class_name}: {s.reason}" for s in called))
            raise UnsupportedModel(
                f"no layer of {self.loaded.name} could be measured"
                + (f" ({reasons})" if reasons else ": it has no sequence mixer of a known kind in the layers asked for")
            )

    def mixers(self) -> dict[Key, dict[str, Any]]:
        """What is known of every mixer call, in order of execution."""
        out: dict[Key, dict[str, Any]] = {}
        for by_token in self.found:
            for layers in by_token.values():
                for key, measured in layers.items():
                    out.setdefault(key, measured.info)
        return out

    def usable(self, prompt: int) -> list[Key]:
        """Mixers that were verified under every token of this prompt: a sum over others would compare unlike sums."""
        runs = self.found[prompt].values()
        return [k for k in self.mixers() if all(k in layers and layers[k].total is not None for layers in runs)]

    def totals(self, prompt: int, token: int) -> dict[Key | None, np.ndarray]:
        """(tolerance, L-1) of every usable mixer, and of all together under None."""
        layers = self.found[prompt][token]
        curves = {key: total for key in self.usable(prompt) if (total := layers[key].total) is not None}
        return ({None: np.sum(list(curves.values()), axis=0)} if curves else {}) | curves

    def curves(self) -> pa.Table:
        rows, mixers = [], self.mixers()
        for prompt in range(len(self.templates)):
            for fill in self.fills:
                for key, total in self.totals(prompt, fill.candidate.token).items():
                    for tolerance, values in zip(self.settings.tolerances, total):
                        shared = {"prompt": prompt, "replace": fill.candidate.name, "tolerance": tolerance}
                        nulls = [None if math.isnan(v) else v for v in values.tolist()]
                        rows.append({**shared, **_where(key and mixers[key]), "values": nulls})
        return pa.Table.from_pylist(rows, schema=CURVES_SCHEMA)

    def effects(self) -> list[dict[str, Any]]:
        mixers, control = self.mixers(), self.fills[0].candidate.token
        totals = {
            (prompt, fill.candidate.token): self.totals(prompt, fill.candidate.token)
            for prompt in range(len(self.templates))
            for fill in self.fills
        }
        rows = []
        for fill in self.fills[1:]:
            for k, tolerance in enumerate(self.settings.tolerances):
                for key in (None, *mixers):
                    pairs = []
                    for prompt, made in enumerate(self.templates):
                        mine, other = (totals[prompt, t].get(key) for t in (fill.candidate.token, control))
                        if mine is not None and other is not None:
                            pairs.append((mine[k], other[k], made.places))
                    rows.append(
                        {
                            **_named(fill),
                            "tolerance": tolerance,
                            **_where(key and mixers[key]),
                            **asdict(effect([log_ratio(lowest(a, p), lowest(b, p)) for a, b, p in pairs])),
                            **_dips(pairs),
                        }
                    )
        return rows

    def grouped(self) -> list[dict[str, Any]]:
        """Effects of heads and groups of channels; within a token and tolerance the most modulated first."""
        mixers, control = self.mixers(), self.fills[0].candidate.token
        rows = []
        for fill in self.fills[1:]:
            for k, tolerance in enumerate(self.settings.tolerances):
                ranked = []
                for key, info in mixers.items():
                    spans = next((r[key].spans for by in self.found for r in by.values() if key in r), [])
                    for g, (first, last) in enumerate(spans):
                        ratios: list[LogRatio] = []
                        for prompt, made in enumerate(self.templates):
                            if key in self.usable(prompt):
                                mine = self.found[prompt][fill.candidate.token][key].groups
                                other = self.found[prompt][control][key].groups
                                if mine is not None and other is not None:
                                    a, b = (lowest(x[k, g], made.places) for x in (mine, other))
                                    ratios.append(log_ratio(a, b))
                        found = effect(ratios)
                        where = {**_where(info), "first": first, "last": last}
                        ranked.append({**_named(fill), "tolerance": tolerance, **where, **asdict(found)})
                rows += sorted(ranked, key=_size, reverse=True)
        return rows

    def summary(self, options: dict[str, Any], notes: list[str]) -> dict[str, Any]:
        measured = [m for by in self.found for layers in by.values() for m in layers.values()]
        statuses = [m.info["status"] for m in measured]
        errors = [m.info["error"] for m in measured if m.info["error"] is not None]
        unresolved = sum(m.unresolved for m in measured)
        if unresolved:
            notes = [*notes, f"{unresolved:,} counts are unresolved: float64 cannot tell them from the tolerance"]
        skipped = [{**asdict(s), "class": s.class_name} for s in self.skipped.values()]
        return {
            "schema_version": SCHEMA_VERSION,
            "document": "comparison",
            "provenance": provenance(self.loaded),
            "options": options,
            "conventions": CONVENTIONS,
            "candidates": [
                {"name": f.candidate.name, "role": f.role, "token": f.candidate.token, "text": f.candidate.text}
                for f in self.fills
            ],
            "prompts": [
                {
                    "tokens": len(made.ids),
                    "places": made.places,
                    "texts": from_ids(self.loaded.tokenizer, made.filled(self.fills[0].candidate.token)).texts,
                }
                for made in self.templates
            ],
            "effects": self.effects(),
            "groups": self.grouped(),
            "layers": [{k: info[k] for k in _LAYER} for info in self.mixers().values()],
            "skipped": [s for s in skipped if s["called"]],
            "not_called": [s for s in skipped if not s["called"]],
            "verification": {
                "largest_error": max(errors, default=None),
                "failed": statuses.count("failed"),
                "not_finite": statuses.count("not finite"),
            },
            "notes": notes,
        }


_LAYER = ("layer", "call", "module", "kind", "operators", "multiplicity")


def _where(info: dict[str, Any] | None) -> dict[str, Any]:
    if info is None:
        return dict.fromkeys(("layer", "call", "module", "kind")) | {"reduction": "sum_channels_layers"}
    return {name: info[name] for name in ("layer", "call", "module", "kind")} | {"reduction": "sum_channels"}


def _named(fill: Fill) -> dict[str, Any]:
    return {"replace": fill.candidate.name, "token": fill.candidate.token, "role": fill.role}


def _dips(pairs: list[tuple[np.ndarray, np.ndarray, list[int]]]) -> dict[str, float | None]:
    """How far each curve falls below its own level before the places: under the token, and under the control."""
    mine = effect([log_ratio(lowest(a, p), level_before(a, p)) for a, _, p in pairs])
    other = effect([log_ratio(lowest(b, p), level_before(b, p)) for _, b, p in pairs])
    return {"dip": mine.effect, "dip_low": mine.low, "dip_high": mine.high, "control_dip": other.effect}


def _size(row: dict[str, Any]) -> float:
    """|log(1 + effect)|: a halving and a doubling rank alike."""
    if row["effect"] is None:
        return -1.0
    return math.inf if row["effect"] <= -1 else abs(math.log1p(row["effect"]))
