"""Rows over all layers together: what the paper calls the total ESS of a model, named for what it sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from hf_ess.results import ESS_SCHEMA


def over_layers(table: pa.Table) -> tuple[list[dict[str, Any]], pa.Table]:
    """Adds the rows `sum_channels_layers` and `sum_channels_mean_layers` of ESS, TSS and bound.

    The paper's figures 6a and 31-37 sum over channels and average over layers, its figures 38-42 sum over both
    (arXiv 2504.19561, section 3.1 and captions).  Layers without values are left out, and counted.

    Args:
        table: rows of single mixer calls, in ESS_SCHEMA.

    Returns:
        One row per prompt, metric, tolerance and reduction with the mean over positions, and the longer table.
    """
    rows = table.filter(_equal(table, "reduction", "sum_channels")).to_pylist()
    groups: dict[tuple[int, str, float | None], list[np.ndarray]] = {}
    for row in rows:
        if row["values"] is not None:
            key = (row["prompt"], row["metric"], row["tolerance"])
            groups.setdefault(key, []).append(np.array(row["values"], dtype=float))
    totals, added = [], []
    for (prompt, metric, tolerance), curves in sorted(groups.items(), key=lambda item: str(item[0])):
        if metric == "entropy":  # null where a layer is gated out: a sum over the rest would jump
            continue
        total = np.sum(curves, axis=0)
        for reduction, values in (
            ("sum_channels_layers", total),
            ("sum_channels_mean_layers", total / len(curves)),
        ):
            shared = {"prompt": prompt, "reduction": reduction, "metric": metric, "tolerance": tolerance}
            known = values[~np.isnan(values)]
            mean = float(known.mean()) if len(known) else None
            totals.append({**shared, "layers": len(curves), "mean": mean})
            added.append({**shared, "values": [None if np.isnan(v) else v for v in values.tolist()]})
    return totals, pa.concat_tables([table, pa.Table.from_pylist(added, schema=ESS_SCHEMA)])


def _equal(table: pa.Table, column: str, value: str) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.fill_null(pc.equal(table[column], value), False)
