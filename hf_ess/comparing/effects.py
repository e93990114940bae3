"""Effects of every layer: all runs of one comparison, joined place by place and prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hf_ess.comparing.modulation import BEFORE, CONFIDENCE, WINDOW, LogRatio, effect, level_before, log_ratio, lowest
from hf_ess.comparing.runs import Runs, Variant, where
from hf_ess.comparing.substituted import Settings
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


@dataclass(frozen=True)
class Fill:
    """A token to put in.

    Attributes:
        candidate: the token.
        role: "control", "second control" or "candidate".
    """

    candidate: Candidate
    role: str


class Substitutions:
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
        tokens = list(dict.fromkeys(fill.candidate.token for fill in fills))
        variants: list[dict[Hashable, Variant]] = [
            {token: Variant(made.filled(token), made.places) for token in tokens} for made in templates
        ]
        self.settings = settings
        self.runs = Runs(loaded, variants, settings, progress)

    def curves(self) -> pa.Table:
        return self.runs.curves({fill.candidate.name: fill.candidate.token for fill in self.fills})

    def effects(self) -> list[dict[str, Any]]:
        mixers, control = self.runs.mixers(), self.fills[0].candidate.token
        totals = {
            (prompt, fill.candidate.token): self.runs.totals(prompt, fill.candidate.token)
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
                            **where(key and mixers[key]),
                            **asdict(effect([log_ratio(lowest(a, p), lowest(b, p)) for a, b, p in pairs])),
                            **_dips(pairs),
                        }
                    )
        return rows

    def grouped(self) -> list[dict[str, Any]]:
        """Effects of heads and groups of channels; within a token and tolerance the most modulated first."""
        mixers, control = self.runs.mixers(), self.fills[0].candidate.token
        rows = []
        for fill in self.fills[1:]:
            for k, tolerance in enumerate(self.settings.tolerances):
                ranked = []
                for key, info in mixers.items():
                    spans = next((r[key].spans for by in self.runs.found for r in by.values() if key in r), [])
                    for g, (first, last) in enumerate(spans):
                        ratios: list[LogRatio] = []
                        for prompt, made in enumerate(self.templates):
                            if key in self.runs.usable(prompt):
                                mine = self.runs.found[prompt][fill.candidate.token][key].groups
                                other = self.runs.found[prompt][control][key].groups
                                if mine is not None and other is not None:
                                    a, b = (lowest(x[k, g], made.places) for x in (mine, other))
                                    ratios.append(log_ratio(a, b))
                        found = effect(ratios)
                        place = {**where(info), "first": first, "last": last}
                        ranked.append({**_named(fill), "tolerance": tolerance, **place, **asdict(found)})
                rows += sorted(ranked, key=_size, reverse=True)
        return rows

    def summary(self, options: dict[str, Any], notes: list[str]) -> dict[str, Any]:
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
            **self.runs.facts(),
            "notes": [*notes, *self.runs.notes()],
        }


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
