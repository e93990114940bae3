"""retol(): tolerance-ESS at other tolerances, from the singular values that a probe stored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from hf_ess import bytesizes
from hf_ess.plotting.labels import count, tolerance
from hf_ess.results import Result, load_result, noise
from hf_ess.results.provenance import made
from hf_ess.results.recording import Rows, few_units, nulls, usable
from hf_ess.results.shards import DTYPES, Shard
from hf_ess.results.totals import over_layers
from hf_ess.spectra.metrics import TIE

#: What the row of a layer says of the layer itself, whatever was counted in it.
_SAME: tuple[str, ...] = ("prompt", "layer", "call", "module", "class", "kind", "operators", "multiplicity", "status")
_SAME += ("error", "error_bound", "rounding")


def retol(result: Result | str | os.PathLike[str], tolerances: Sequence[float], *, memory: int | str = 2**28) -> Result:
    """Counts the stored singular values of a result at other tolerances; the model is not run again.

    A stored value is the rounded one, and rounding keeps the order: a value above the rounded tolerance was above the
    tolerance, one below it below.  Only values that were rounded to the same number as the tolerance itself can be on
    either side, and they are counted apart: a count is exact where `uncertain` is 0, and wrong by at most `uncertain`
    elsewhere.  A singular value on the wrong side is within a relative 2^-8 (bfloat16) or 2^-24 (float32) of the
    tolerance.

    Args:
        result: a result with stored spectra (keep="spectra"), or its directory.
        tolerances: > 0; absolute, or relative where those of the result are.
        memory: bytes, or such as "2GiB", for the heads or channels counted at once.

    Returns:
        A result with curves of these tolerances at the stored positions, null elsewhere; means are over the stored
        positions.  Rows of the metric "uncertain" hold the number of singular values that may be on either side.

    Raises:
        BadInput: there are no spectra, or a tolerance makes no sense.
    """
    tolerances, room = usable(tolerances), bytesizes.parsed(memory)
    whole = result if isinstance(result, Result) else load_result(result)
    stored = whole.spectra
    entries = {(e["prompt"], e["module"], e["call"]): e for e in stored.entries}
    infos, tables = [], []
    for before in whole.layers:
        info = {name: before[name] for name in _SAME}
        entry = entries.get((info["prompt"], info["module"], info["call"]))
        shared = {name: info[name] for name in ("prompt", "layer", "call", "module", "kind")}
        if entry is None:
            tables.append(nulls(shared, tolerances))
        else:
            length = whole.summary["prompts"][info["prompt"]]["tokens"]
            few = few_units(whole.summary["options"]["keep"], info["operators"])
            shard = stored.open(entry)
            rows = Rows(shared, few, length, shard.positions)
            _count(shard, rows, info, tolerances, length, room, whole.summary["provenance"]["model_dtype"])
            tables.append(rows.table())
        infos.append(info)
    totals, table = over_layers(pa.concat_tables(tables))
    options = {**whole.summary["options"], "tolerances": list(tolerances), "entropy": False, "norms": False}
    summary = {
        **{name: value for name, value in whole.summary.items() if name != "spectra"},
        "provenance": {**whole.summary["provenance"], **made()},
        "options": options,
        "layers": infos,
        "totals": totals,
        "retol": {
            "result": str(whole.path),
            "created": whole.summary["provenance"]["created"],
            "dtype": stored.dtype,
            "rounding": noise.ROUNDING[stored.dtype],
            "positions": whole.summary["spectra"]["positions"],
            "uncertain": [_sum(infos, "uncertain", k) for k in range(len(tolerances))],
            "uncertain_counts": [_sum(infos, "uncertain_counts", k) for k in range(len(tolerances))],
        },
    }
    summary["notes"] = _notes(whole, infos, tolerances, stored.dtype)
    return Result(summary, table, whole.tokens)


def _count(
    shard: Shard,
    rows: Rows,
    info: dict[str, Any],
    tolerances: Sequence[float],
    length: int,
    memory: int,
    model_dtype: str | None,
) -> None:
    """Counts of one mixer call, into its rows and its summary."""
    places, kind = len(shard.positions), DTYPES[shard.dtype]
    counts = torch.zeros(len(tolerances), shard.operators, places, dtype=torch.int64)
    uncertain = torch.zeros_like(counts)
    frobenius = torch.zeros(shard.operators, places, dtype=torch.float64)
    absolute = torch.tensor(tolerances, dtype=torch.float64)[:, None] * shard.unit
    for part, values in shard.blocks(memory):
        frobenius[part] = _per_position(values.square(), shard.offsets, torch.float64).sqrt()
        for k in range(len(tolerances)):
            tol, error = (absolute[k, part] * (1 - TIE))[:, None], shard.error[part, None]
            low, high = ((tol + shift).to(kind).double() for shift in (-error, error))
            counts[k, part] = _per_position(values >= tol, shard.offsets, torch.int32)
            uncertain[k, part] = _per_position((values >= low) & (values <= high), shard.offsets, torch.int32)
    tss = shard.tss.double().expand(shard.operators, -1)
    i = shard.positions.double()
    bound = torch.minimum(tss, torch.minimum(i, length - i))
    rows.counts(info, tolerances, counts, torch.ones_like(counts, dtype=torch.bool), tss, bound)
    for k, tol in enumerate(tolerances):
        rows.units("uncertain", tol, uncertain[k])
        rows.reduced("uncertain", tol, uncertain[k], 1, ("sum_heads",))
    info |= {
        "counts": shard.operators * places,
        "uncertain": uncertain.sum((1, 2)).tolist(),
        "uncertain_counts": (uncertain > 0).sum((1, 2)).tolist(),
        **noise.described(noise.floors(frobenius, model_dtype), absolute),
    }


def _per_position(values: Tensor, offsets: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums over the values of each position, (operator, P); values: (operator, offsets[P])."""
    sums = torch.zeros(values.shape[0], values.shape[1] + 1, dtype=dtype)
    torch.cumsum(values, 1, dtype=dtype, out=sums[:, 1:])
    return sums[:, offsets[1:]] - sums[:, offsets[:-1]]


def _sum(infos: list[dict[str, Any]], name: str, k: int) -> int:
    return sum(info[name][k] for info in infos if name in info)


def _notes(whole: Result, infos: list[dict[str, Any]], tolerances: Sequence[float], dtype: str) -> list[str]:
    places = sum(whole.summary["spectra"]["positions"])
    cuts = sum(p["tokens"] - 1 for p in whole.summary["prompts"])
    out = [f"counted from singular values stored as {dtype} at {places:,} of {cuts:,} positions; means are over these"]
    total = sum(info.get("counts", 0) for info in infos)
    for k, tol in enumerate(tolerances):
        hit, values = _sum(infos, "uncertain_counts", k), _sum(infos, "uncertain", k)
        out.append(
            f"tolerance {tolerance(tol)}: {hit:,} of {total:,} counts uncertain, by {count(values, 'singular value')} "
            f"that {dtype} cannot tell from the tolerance"
            if hit
            else f"tolerance {tolerance(tol)}: all {total:,} counts are certain"
        )
    return [*out, *noise.notes(infos, tolerances, whole.summary["provenance"]["model_dtype"])]
