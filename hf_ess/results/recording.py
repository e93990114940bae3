"""From a captured layer and its measurement to the rows that a result keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hf_ess.capturing import CapturedLayer
from hf_ess.errors import BadInput
from hf_ess.results import ESS_SCHEMA, noise
from hf_ess.spectra import metrics, reductions
from hf_ess.spectra.ess import Measurement

#: Reductions over the operators of a layer that are kept for ESS; other metrics keep their mean.
ESS_REDUCTIONS = ("mean", "sum_heads", "sum_channels", "min", "q10", "q50", "q90", "max")

#: Layers with more operators than this keep reductions only, unless units are asked for.
FEW_UNITS = 1024


@dataclass(frozen=True)
class Options:
    """What was asked for, and what a resumed run must have in common with the one before.

    Attributes:
        tolerances: absolute, or in units of each operator's largest singular value with relative.
        relative: see tolerances.
        entropy: whether entropy-ESS is computed.
        norms: whether sigma_1 and stable rank are computed for every operator.
        gate: entropy-ESS is null where sigma_1(H_i) is below this; 0 keeps all values.
        keep: "auto" (units of layers with few operators), "units" (of all layers), "reductions", or "spectra" (as
            "auto", and singular values).
        layers: numbers of the layers wanted, or None.
        positions: where singular values are kept, see hf_ess.text.positions; None where they are not.
        spectra_dtype: as what they are kept, or None.
    """

    tolerances: tuple[float, ...]
    relative: bool
    entropy: bool
    norms: bool
    gate: float
    keep: str
    layers: tuple[int, ...] | None
    positions: str | None = None
    spectra_dtype: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The options as plain JSON values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in self.__dict__.items()}

    @property
    def counted(self) -> tuple[float, ...]:
        """All tolerances to count at: those asked for, and the gate, since sigma_1 >= gate means a count >= 1."""
        return (*self.tolerances, *((self.gate,) if self.entropy and self.gate > 0 else ()))


def usable(tolerances: Sequence[float]) -> tuple[float, ...]:
    """Tolerances, each once.

    Raises:
        BadInput: there are none, or one is not finite or not above 0.
    """
    if isinstance(tolerances, int | float):
        tolerances = [tolerances]
    try:
        once = tuple(dict.fromkeys(float(t) for t in tolerances))
    except (TypeError, ValueError) as error:
        raise BadInput(f"tolerances must be numbers, got {tolerances!r}") from error
    bad = [t for t in once if not (math.isfinite(t) and t > 0)]
    if bad or not once:
        raise BadInput(f"tolerances must be finite and above 0, got {bad or 'none'}")
    return once


class Rows:
    """Columns of the ess table for one mixer call, filled metric by metric.

    Args:
        shared: prompt, layer, call, module and kind.
        few: whether there is a row per operator.
        length: number of tokens L, and
        positions: the cuts that values are given at, null at the others; default values at all cuts.
    """

    def __init__(
        self, shared: dict[str, Any], few: bool, length: int | None = None, positions: Tensor | None = None
    ) -> None:
        self.shared, self.few, self.length = shared, few, length
        self.at = None if positions is None else positions.numpy() - 1
        self.meta: list[tuple[int | None, str | None, str, float | None]] = []
        self.values: list[np.ndarray] = []

    def units(self, metric: str, tolerance: float | None, values: Tensor) -> None:
        """One row per operator; values: (operator, L-1), NaN for null."""
        if self.few:
            for unit, row in enumerate(values.double().numpy()):
                self._add(unit, None, metric, tolerance, row)

    def reduced(
        self, metric: str, tolerance: float | None, values: Tensor, multiplicity: int, names: Sequence[str] = ("mean",)
    ) -> dict[str, Tensor]:
        """One row per reduction over the operators; values: (operator, L-1)."""
        out = reductions.reduced(values.double(), multiplicity, names)
        for name, row in out.items():
            self._add(None, name, metric, tolerance, row.numpy())
        return out

    def _add(self, unit: int | None, reduction: str | None, metric: str, tol: float | None, row: np.ndarray) -> None:
        if self.at is not None and self.length is not None:
            everywhere = np.full(self.length - 1, np.nan)
            everywhere[self.at] = row
            row = everywhere
        self.meta.append((unit, reduction, metric, tol))
        self.values.append(row)

    def counts(
        self,
        info: dict[str, Any],
        tolerances: Sequence[float],
        counts: Tensor,
        resolved: Tensor,
        tss: Tensor,
        bound: Tensor,
    ) -> None:
        """Tolerance-ESS, utilisation and saturation, here and in the layer's summary.

        Args:
            info: row of summary.json; gets tss, ess, utilisation, saturation and unresolved.
            tolerances: as they were asked for.
            counts, resolved: (tolerance, operator, cut).
            tss, bound: (operator, cut).
        """
        times = info["multiplicity"]
        info |= {"tss": float(tss.mean()), "ess": [], "utilisation": [], "saturation": [], "unresolved": []}
        for k, tolerance in enumerate(tolerances):
            number, sure = counts[k].double(), resolved[k]
            self.units("tolerance", tolerance, torch.where(sure, number, torch.nan))
            mean = self.reduced("tolerance", tolerance, number, times, ESS_REDUCTIONS)["mean"]
            used = self.reduced("utilisation", tolerance, metrics.utilisation(number, tss), times)["mean"]
            full = self.reduced("saturation", tolerance, metrics.saturation(number, bound), times)["mean"]
            unresolved = (~sure).sum(0)
            if unresolved.any():
                self.reduced("unresolved", tolerance, (~sure).double(), 1, ("sum_heads",))
            info["ess"].append(float(mean.mean()))
            info["utilisation"].append(_mean(used))
            info["saturation"].append(_mean(full))
            info["unresolved"].append(int(unresolved.sum()))
        self.reduced("tss", None, tss, times, ("mean", "sum_channels"))
        self.reduced("bound", None, bound, times, ("mean", "sum_channels"))

    def table(self) -> pa.Table:
        """The rows as a table in ESS_SCHEMA; NaN becomes null."""
        flat = np.concatenate(self.values)
        offsets = np.cumsum([0, *(len(row) for row in self.values)])
        values = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.array(flat, pa.float64(), mask=np.isnan(flat))
        )
        columns = {name: [value] * len(self.meta) for name, value in self.shared.items()}
        for k, name in enumerate(("unit", "reduction", "metric", "tolerance")):
            columns[name] = [row[k] for row in self.meta]
        arrays = [values if f.name == "values" else pa.array(columns[f.name], f.type) for f in ESS_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=ESS_SCHEMA)


def describe(layer: CapturedLayer, prompt: int) -> dict[str, Any]:
    """The row of summary.json that every captured layer has, measured or not."""
    status = "verified" if layer.verified else "failed" if layer.finite else "not finite"
    return {
        "prompt": prompt,
        "layer": layer.layer,
        "call": layer.call,
        "module": layer.module,
        "class": layer.class_name,
        "kind": layer.kind,
        "operators": layer.operator.count,
        "multiplicity": layer.operator.multiplicity,
        "status": status,
        "error": layer.error if np.isfinite(layer.error) else None,
        "error_bound": layer.bound,
        "rounding": layer.rounding if np.isfinite(layer.rounding) else None,
    }


def verification(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a summary says of the verification of all layers, from their rows."""
    statuses = [info["status"] for info in infos]
    return {
        "largest_error": max((info["error"] for info in infos if info["error"] is not None), default=None),
        "failed": statuses.count("failed"),
        "not_finite": statuses.count("not finite"),
    }


def unmeasured(layer: CapturedLayer, prompt: int, options: Options) -> tuple[dict[str, Any], pa.Table]:
    """Summary and rows of a layer that failed its verification: the rows are there, their values null."""
    return describe(layer, prompt), nulls(_shared(layer, prompt), options.tolerances, options.entropy)


def nulls(shared: dict[str, Any], tolerances: Sequence[float], entropy: bool = False) -> pa.Table:
    """The rows of a mixer call that has no values."""
    metric_tolerances: list[tuple[str, float | None]] = [("tolerance", tol) for tol in tolerances]
    metric_tolerances += [("entropy", None)] if entropy else []
    rows = [
        {**shared, "reduction": "mean", "metric": metric, "tolerance": tol, "values": None}
        for metric, tol in metric_tolerances
    ]
    return pa.Table.from_pylist(rows, schema=ESS_SCHEMA)


def record(
    layer: CapturedLayer, measured: Measurement, prompt: int, options: Options, dtype: str | None = None
) -> tuple[dict[str, Any], pa.Table]:
    """Summary and rows of a measured layer; dtype is the model's, for the noise floor."""
    operator, times = layer.operator, layer.operator.multiplicity
    rows = Rows(_shared(layer, prompt), few_units(options.keep, operator.count))
    tss = operator.tss().cpu()
    info = describe(layer, prompt)
    rows.counts(info, options.tolerances, measured.counts, measured.resolved, tss, metrics.bound(tss, operator.length))
    asked = len(options.tolerances)
    info |= noise.described(noise.floors(measured.frobenius, dtype), measured.tolerances[:asked])
    if measured.entropy is not None and measured.entropy_error is not None:
        # counted holds the gate last: a count of 0 there says sigma_1 is below it
        quiet = measured.counts[-1] == 0 if options.gate > 0 else torch.zeros_like(measured.entropy, dtype=torch.bool)
        entropy = torch.where(quiet, torch.nan, measured.entropy)
        rows.units("entropy", None, entropy)
        info["entropy"] = _mean(rows.reduced("entropy", None, entropy, times, ESS_REDUCTIONS)["mean"])
        info["entropy_error"] = float(torch.where(quiet, 0.0, measured.entropy_error).max())
        info["entropy_gated"] = int(quiet.sum())
    rows.reduced("frobenius", None, measured.frobenius, times, ("mean", "max"))
    if options.norms and measured.sigma_1 is not None:
        rows.units("norm", None, measured.sigma_1)
        rows.reduced("norm", None, measured.sigma_1, times, ("mean", "min", "max"))
        rank = (measured.frobenius / measured.sigma_1).square()
        rows.units("stable_rank", None, rank)
        rows.reduced("stable_rank", None, rank, times)
    return info, rows.table()


def few_units(keep: str, operators: int) -> bool:
    """Whether a layer's rows are kept for every head or channel."""
    return keep == "units" or (keep in ("auto", "spectra") and operators <= FEW_UNITS)


def _shared(layer: CapturedLayer, prompt: int) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "layer": layer.layer,
        "call": layer.call,
        "module": layer.module,
        "kind": layer.kind,
    }


def _mean(values: Tensor) -> float | None:
    mean = float(values.nanmean())
    return mean if np.isfinite(mean) else None
