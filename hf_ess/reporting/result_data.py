"""What the page of a result holds: tokens, curves of every layer, the table of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hf_ess.plotting import labels
from hf_ess.plotting.data import Mixer, View
from hf_ess.reporting import header
from hf_ess.reporting.numbers import Pool, scalar, shown
from hf_ess.results import Result

#: A page holds so many values of curves at most: some 12 MB.  The first prompt is always whole.
MOST_VALUES = 2_000_000

#: Curves of single heads or channels are in the page where all of them together have no more values than this.
MOST_UNIT_VALUES = 600_000

#: The spread over the heads or channels (q10 .. q90) likewise.
MOST_SPREAD_VALUES = 400_000

Key = tuple[Any, ...]  # layer, module, call, metric, tolerance and, of a reduction, its name


def result_data(result: Result) -> dict[str, Any]:
    """The page's data, plain JSON values."""
    s = result.summary
    measures = _measures(result)
    prompts: list[dict[str, Any]] = []
    left = MOST_VALUES
    for number in range(len(s["prompts"])):
        made: dict[str, Any] = _Prompt(View(result, number), measures, left).data
        left -= sum(map(len, made["curves"]))
        if prompts and left < 0:
            break
        prompts.append(made)
    return {
        "document": "result",
        "header": _header(result, len(prompts)),
        "measures": [{k: v for k, v in m.items() if k != "row"} for m in measures],
        "middle": _middle(result),
        "prompts": prompts,
    }


def _measures(result: Result) -> list[dict[str, Any]]:
    """What can be shown: ESS at each tolerance, entropy-ESS, and the norms where they were asked for."""
    unit = " × σ₁" if result.summary["options"].get("relative") else ""
    out: list[dict[str, Any]] = [
        {
            "key": f"t{k}",
            "name": f"ESS at tolerance {labels.tolerance(t)}{unit}",
            "short": f"ESS {labels.tolerance(t)}",
            "size": True,
            "row": ("tolerance", t),
        }
        for k, t in enumerate(result.tolerances)
    ]
    kept = set(pc.unique(result.ess["metric"]).to_pylist())
    for metric in ("entropy", "stable_rank", "norm"):
        if metric in kept:
            name = labels.METRICS[metric]
            out.append(
                {
                    "key": metric,
                    "name": name,
                    "short": name.partition(" (")[0],
                    "size": metric == "entropy",
                    "row": (metric, None),
                }
            )
    return out


def _middle(result: Result) -> str:
    """The measure that the page begins with: the middle tolerance, as in the pictures."""
    return f"t{len(result.tolerances) // 2}"


class _Prompt:
    """One prompt: its tokens, and all curves that the page can show of it."""

    def __init__(self, view: View, measures: list[dict[str, Any]], room: int) -> None:
        self.view, self.measures, self.pool = view, measures, Pool()
        table = view.result.ess
        self.table = table.filter(pc.equal(table["prompt"], view.prompt))
        self.rows = _indexed(self.table)
        layers = len(view.mixers)
        values = layers * len(measures) * (view.length - 1)
        units = sum(m.operators for m in view.mixers) * len(measures) * (view.length - 1)
        self.spread = 2 * values <= min(MOST_SPREAD_VALUES, room)
        self.single = units <= min(MOST_UNIT_VALUES, room)
        self.units = _units(self.table) if self.single else {}
        infos = [i for i in view.result.layers if i["prompt"] == view.prompt]
        self.data: dict[str, Any] = {
            "tokens": view.length,
            "shown": [shown(text) or f"<id {i}>" for text, i in zip(view.texts, view.ids)],
            "ids": view.ids,
            "breaks": [k for k in range(len(view.texts)) if self._breaks(k)],
            "delimiters": [[shown(name), view.delimiters[name]] for name in self._names()],
            "total": self._total(),
            "layers": [self._layer(mixer, info) for mixer, info in zip(view.mixers, infos)],
            "units": bool(self.units),
            "curves": self.pool.curves,
        }

    def _names(self) -> list[str]:
        """Delimiters that occur, in the order asked for."""
        asked = [str(name) for name in self.view.result.summary["options"].get("delimiters") or []]
        return [name for name in dict.fromkeys([*asked, *self.view.delimiters]) if name in self.view.delimiters]

    def _breaks(self, k: int) -> bool:
        r"""Whether a line of the text ends in this token: its label has a \n that stands for one character."""
        text, (start, end) = self.view.texts[k], self.view.spans[k]
        if "\n" in text:
            return True
        return "\\n" in text and start is not None and len(text) > end - start

    def _add(self, mixer: Mixer | None, metric: str, tolerance: float | None, reduction: str) -> int | None:
        where = (None, None, None) if mixer is None else (mixer.layer, mixer.module, mixer.call)
        return self.pool.add(self.rows.get((*where, metric, tolerance, reduction)))

    def _total(self) -> dict[str, Any]:
        """Sums over the channels of all layers."""
        name = "sum_channels_layers"
        return {
            "ess": {m["key"]: self._add(None, m["row"][0], m["row"][1], name) for m in self.measures},
            "tss": self._add(None, "tss", None, name),
            "bound": self._add(None, "bound", None, name),
        }

    def _layer(self, mixer: Mixer, info: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {
            "label": mixer.label,
            "kind": shown(mixer.kind),
            "family": mixer.family,
            "module": shown(mixer.module),
            "unit": mixer.unit,
            "operators": mixer.operators,
            "multiplicity": mixer.multiplicity,
            "status": mixer.status,
            "tssMean": scalar(info.get("tss")),
            "essMean": [scalar(v) for v in info.get("ess") or []],
            "share": [scalar(v) for v in info.get("utilisation") or []],
            "entropyMean": scalar(info.get("entropy")),
            "unresolved": sum(info.get("unresolved") or []),
            "error": header.error(info["error"]),
            "errorBound": header.error(info.get("error_bound")),
            "tss": self._add(mixer, "tss", None, "mean"),
            "bound": self._add(mixer, "bound", None, "mean"),
            "ess": {},
            "ratios": {"tss": {}, "bound": {}},
            "low": {},
            "high": {},
            "units": {},
        }
        for measure in self.measures:
            key, (metric, tolerance) = measure["key"], measure["row"]
            out["ess"][key] = self._add(mixer, metric, tolerance, "mean")
            if metric == "tolerance":
                for limit, name in (("tss", "utilisation"), ("bound", "saturation")):
                    ratio = self._ratio(mixer, tolerance, limit, name)
                    if ratio is not None:
                        out["ratios"][limit][key] = ratio
            if self.spread and mixer.operators > 1:
                out["low"][key] = self._add(mixer, metric, tolerance, "q10")
                out["high"][key] = self._add(mixer, metric, tolerance, "q90")
            found = self.units.get((mixer.layer, mixer.module, mixer.call, metric, tolerance))
            if found:
                out["units"][key] = [self.pool.add(curve) for _, curve in sorted(found, key=lambda u: u[0])]
        return out

    def _ratio(self, mixer: Mixer, tolerance: float | None, limit: str, name: str) -> int | None:
        """Mean of ESS / TSS; not kept where the page can divide itself: all operators of the layer have one TSS."""
        where = (mixer.layer, mixer.module, mixer.call)
        kept = self.rows.get((*where, name, tolerance, "mean"))
        mean = self.rows.get((*where, "tolerance", tolerance, "mean"))
        size = self.rows.get((*where, limit, None, "mean"))
        if kept is None or mean is None or size is None:
            return self.pool.add(kept)
        divided = np.divide(mean, size, out=np.full_like(mean, np.nan), where=size > 0)
        same = np.allclose(divided, kept, rtol=1e-6, atol=1e-9, equal_nan=True)
        return None if same else self.pool.add(kept)


def _indexed(table: pa.Table) -> dict[Key, np.ndarray]:
    """Curves of all reductions of one prompt."""
    kept = table.filter(pc.and_(pc.is_valid(table["reduction"]), pc.is_valid(table["values"])))
    names = ("layer", "module", "call", "metric", "tolerance", "reduction")
    keys = zip(*(kept[name].to_pylist() for name in names))
    return {key: _curve(values) for key, values in zip(keys, kept["values"])}


def _units(table: pa.Table) -> dict[Key, list[tuple[int, np.ndarray]]]:
    """Curves of single heads or channels by layer, module, call, metric and tolerance."""
    kept = table.filter(pc.and_(pc.is_valid(table["unit"]), pc.is_valid(table["values"])))
    names = ("layer", "module", "call", "metric", "tolerance")
    out: dict[Key, list[tuple[int, np.ndarray]]] = {}
    for *key, unit, values in zip(
        *(kept[name].to_pylist() for name in names), kept["unit"].to_pylist(), kept["values"]
    ):
        out.setdefault(tuple(key), []).append((unit, _curve(values)))
    return out


def _curve(values: pa.ListScalar) -> np.ndarray:
    return np.asarray(values.values.to_numpy(zero_copy_only=False), dtype=float)


def _header(result: Result, embedded: int) -> dict[str, Any]:
    s = result.summary
    lengths = [int(p["tokens"]) for p in s["prompts"]]
    first = [i for i in result.layers if i["prompt"] == 0]
    bounds = [i["error_bound"] for i in result.layers if i.get("error_bound") is not None]
    tss = [i["tss"] for i in result.layers if i.get("tss") is not None]
    relative = " × the operator's largest singular value" if s["options"].get("relative") else ""
    left = []
    if embedded < len(lengths):
        left.append(
            f"This page holds prompts 0 to {embedded - 1} of {len(lengths)}, to keep its size reasonable; "
            "all of them are in ess.parquet."
        )
    return {
        "eyebrow": "Effective state-size report",
        "model": shown(str(s["provenance"]["model"])),
        "facts": [
            ["Layers", header.kinds(first)],
            [
                "Tokens",
                header.sizes([float(n) for n in lengths]) + (f" in {len(lengths)} prompts" * (len(lengths) > 1)),
            ],
            ["TSS, mean over the text", header.sizes(tss)],
            ["Tolerances", ", ".join(map(labels.tolerance, result.tolerances)) + relative],
            ["Computed in", " → ".join(filter(None, (s["provenance"].get("model_dtype"), "float64")))],
            ["Measured", str(s["provenance"].get("created") or "-").replace("T", " ").partition("+")[0]],
        ],
        "verification": header.verification(s, max(bounds, default=None)),
        "missing": header.missing(s),
        "notes": header.notes(s) + left,
        "provenance": header.provenance(s),
    }
