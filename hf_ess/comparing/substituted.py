"""Curves of total ESS of one filled prompt: one run of the model, every layer reduced as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hf_ess.capturing import CapturedLayer, SkippedLayer, capture
from hf_ess.comparing.modulation import BEFORE, WINDOW
from hf_ess.loading import LoadedModel
from hf_ess.loading.quieting import quiet
from hf_ess.results.recording import describe
from hf_ess.spectra.ess import measure
from hf_ess.spectra.horizon import horizon_counts
from hf_ess.spectra.metrics import bound as bounds

Key = tuple[str, int]  # module, call


@dataclass(frozen=True)
class Settings:
    """What is measured in every run.

    Attributes:
        tolerances: absolute, or in units of each operator's largest singular value with relative.
        relative: see tolerances.
        layers: numbers of the layers wanted, or None.
        groups: at most this many groups of heads or neighbouring channels per layer are kept; 0 for none.
        horizon: H_i with its first h rows only, at the cuts that the statistics need; None for all rows.
    """

    tolerances: tuple[float, ...]
    relative: bool = False
    layers: tuple[int, ...] | None = None
    groups: int = 0
    horizon: int | None = None


@dataclass(frozen=True)
class Measured:
    """One mixer call of one run.

    Attributes:
        info: layer, call, module, kind, operators, multiplicity, status, error ... as in a result's summary.
        total: (tolerance, L-1) float64, `sum_channels`; None where the layer failed its verification.
        bound: (L-1,) float64, what total can be at most at each cut: the sum of min(TSS, i, L-i).
        groups: (tolerance, group, L-1) the same of each group; None where none were asked for.
        spans: (first, last) operator of each group.
        unresolved: counts that float64 cannot tell from the tolerance.
    """

    info: dict[str, Any]
    total: np.ndarray | None
    bound: np.ndarray | None
    groups: np.ndarray | None
    spans: list[tuple[int, int]]
    unresolved: int


def run(
    loaded: LoadedModel,
    ids: Sequence[int],
    places: Sequence[int],
    prompt: int,
    settings: Settings,
    on_layer: Callable[[str], None],
) -> tuple[dict[Key, Measured], list[SkippedLayer]]:
    """Runs the model once and gives each layer's curves, and the mixers that have none.

    Args:
        loaded: the model.
        ids: L token ids.
        places: positions of the places, where a horizon is measured.
        prompt: its number, for the summary.
        settings: what to measure.
        on_layer: called with the module's path after every layer.
    """
    found: dict[Key, Measured] = {}

    def keep(layer: CapturedLayer) -> None:
        found[layer.module, layer.call] = _measured(layer, places, prompt, settings)
        on_layer(layer.module)

    wanted = None if settings.layers is None else set(settings.layers)
    assert loaded.model is not None
    with quiet():
        skipped = capture(loaded.model, list(ids), keep, layers=wanted)
    return found, skipped


def _measured(layer: CapturedLayer, places: Sequence[int], prompt: int, settings: Settings) -> Measured:
    info = describe(layer, prompt)
    operator = layer.operator
    if not layer.verified:
        return Measured(info, None, None, None, [], 0)
    unresolved = 0
    if settings.horizon is None:
        found = measure(operator, settings.tolerances, entropy=False, relative=settings.relative)
        counts, unresolved = found.counts.double(), int((~found.resolved).sum())
    else:
        cuts = _cuts(places, operator.length)
        at = [i - 1 for i in cuts]
        counts = torch.full((len(settings.tolerances), operator.count, operator.length - 1), torch.nan).double()
        counts[..., at] = horizon_counts(operator, settings.tolerances, cuts, settings.horizon).double()
    counts *= operator.multiplicity
    spans = _spans(operator.count, settings.groups)
    groups = np.stack([counts[:, a : b + 1].sum(1).numpy() for a, b in spans], 1) if spans else None
    bound = bounds(operator.tss().cpu(), operator.length).sum(0).numpy() * operator.multiplicity
    return Measured(info, counts.sum(1).numpy(), bound, groups, spans, unresolved)


def _cuts(places: Sequence[int], length: int) -> list[int]:
    """The cuts that the statistics read: p-12 .. p-3 and p .. p+2."""
    near = [p + k for p in places for k in (*range(-BEFORE[0], 1 - BEFORE[1]), *range(WINDOW))]
    near += [1 for p in places if p == 0]
    return sorted({i for i in near if 1 <= i < length})


def _spans(count: int, groups: int) -> list[tuple[int, int]]:
    """First and last operator of each of at most `groups` groups of neighbours, as equal as they can be."""
    if groups == 0:
        return []
    return [(int(part[0]), int(part[-1])) for part in np.array_split(np.arange(count), min(groups, count))]
