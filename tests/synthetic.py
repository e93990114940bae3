"""Results made up for the tests of plots and tables: plausible curves, no model."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from hf_ess.results import TOKENS_SCHEMA, Result, ess_table

TEXT = "Call me Ishmael. Some years ago - never mind how long - having little money.<eos>The sea was high.\n"


@dataclass
class Layer:
    """One mixer: kind, TSS of a recurrence or window of an attention (0: all tokens), operators, what went wrong."""

    kind: str = "softmax"
    size: int = 0
    operators: int = 4
    status: str = "verified"
    layer: int | None = None
    call: int = 0
    module: str = ""


@dataclass
class Prompt:
    """Tokens of one prompt, and which delimiter names each holds."""

    texts: list[str]
    delimiters: dict[str, list[int]] = field(default_factory=dict)


def prompt(length: int) -> Prompt:
    """Words and punctuation, with an end of text every 29 tokens."""
    words = [w for piece in TEXT.split(" ") for w in (f" {piece}", ".")]
    texts = [words[k % len(words)] for k in range(length)]
    marks: dict[str, list[int]] = {}
    for k in range(length):
        if k % 29 == 28:
            texts[k] = "<|endoftext|>"
            marks.setdefault("eos", []).append(k)
        elif texts[k] == ".":
            marks.setdefault(".", []).append(k)
    return Prompt(texts, marks)


def result(
    layers: list[Layer],
    prompts: list[Prompt],
    tolerances: tuple[float, ...] = (1e-1, 1e-3, 1e-5),
    model: str = "demo:falcon-mamba",
    **summary: Any,
) -> Result:
    """A whole Result; ESS is a share of the bound that dips where an end of text wipes the memory."""
    rng = np.random.default_rng(0)
    infos: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(prompts):
        for depth, layer in enumerate(layers):
            info, table = _layer(rng, number, text, depth, len(layers), layer, tolerances)
            infos.append(info)
            rows += table
    tokens = [
        {
            "prompt": number,
            "position": k,
            "id": 100 + k,
            "text": token,
            "start": start,
            "end": start + len(token),
            "delimiter": [name for name, places in text.delimiters.items() if k in places],
        }
        for number, text in enumerate(prompts)
        for k, (token, start) in enumerate(zip(text.texts, accumulate(map(len, text.texts), initial=0)))
    ]
    rows += _totals(rows, len(prompts))
    whole = {
        "schema_version": 1,
        "provenance": {"model": model, "model_dtype": "float32"},
        "options": {"tolerances": list(tolerances), "relative": False, "delimiters": ["eos", ".", "}"]},
        "prompts": [{"tokens": len(text.texts), "delimiters": {}} for text in prompts],
        "layers": infos,
        "totals": [],
        "skipped": [],
        "not_called": [],
        "verification": {
            "failed": sum(i["status"] == "failed" for i in infos),
            "not_finite": sum(i["status"] == "not finite" for i in infos),
        },
        "notes": [],
        **summary,
    }
    return Result(whole, ess_table(rows), pa.Table.from_pylist(tokens, schema=TOKENS_SCHEMA))


def _layer(
    rng: Any, number: int, text: Prompt, depth: int, deepest: int, layer: Layer, tolerances: tuple[float, ...]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    length = len(text.texts)
    i = np.arange(1, length)
    tss = np.full(length - 1, float(layer.size)) if layer.kind != "softmax" else i.astype(float)
    if layer.kind == "softmax" and layer.size:
        tss = np.minimum(tss, layer.size - 1.0)
    bound = np.minimum(tss, np.minimum(i, length - i))
    layer_number = depth if layer.layer is None else layer.layer
    shared = {
        "prompt": number,
        "layer": layer_number,
        "call": layer.call,
        "module": layer.module or f"model.layers.{layer_number}.mixer",
        "kind": layer.kind,
    }
    info: dict[str, Any] = {
        **shared,
        "class": "Mixer",
        "operators": layer.operators,
        "multiplicity": _width(layer),
        "status": layer.status,
        "error": 3.1e-7 if layer.status == "verified" else 0.25 if layer.status == "failed" else None,
        "error_bound": 1e-5,
    }
    if layer.status != "verified":
        empty = [("tolerance", t) for t in tolerances] + [("entropy", None)]
        return info, [{**shared, "reduction": "mean", "metric": m, "tolerance": t, "values": None} for m, t in empty]
    wiped = np.ones(length - 1)
    for place in text.delimiters.get("eos", []):
        wiped *= 1 - 0.8 * np.exp(-np.clip(i - place, 0, None) / 6.0) * (i >= place)
    rows: list[dict[str, Any]] = []

    def add(metric: str, tolerance: float | None, reduction: str | None, values: Any, unit: int | None = None) -> None:
        keys = {"unit": unit, "reduction": reduction, "metric": metric, "tolerance": tolerance}
        rows.append({**shared, **keys, "values": [None if np.isnan(v) else float(v) for v in values]})

    info |= {"tss": float(tss.mean()), "ess": [], "utilisation": [], "saturation": [], "unresolved": []}
    for k, tolerance in enumerate(tolerances):
        share = np.linspace(0.25, 0.9, len(tolerances) + 1)[k] * (0.6 + 0.4 * depth / max(1, deepest - 1))
        wave = 1 + 0.15 * np.sin(i / 7 + depth) + 0.1 * rng.standard_normal((layer.operators, length - 1))
        units = np.clip(np.round(bound * np.clip(share * wave * wiped, 0, 1)), 0, bound)
        for unit, values in enumerate(units):
            add("tolerance", tolerance, None, values, unit)
        for name, values in _reduced(units, _width(layer)).items():
            add("tolerance", tolerance, name, values)
        used = np.divide(units, tss, out=np.full_like(units, np.nan), where=tss > 0)
        add("utilisation", tolerance, "mean", used.mean(0))
        add("saturation", tolerance, "mean", (units / np.maximum(bound, 1)).mean(0))
        info["ess"].append(float(units.mean()))
        info["utilisation"].append(float(np.nanmean(used)) if np.isfinite(used).any() else None)
        info["saturation"].append(0.5)
        info["unresolved"].append(0)
    entropy = np.where(wiped < 0.3, np.nan, 0.7 * bound * wiped)
    add("entropy", None, "mean", entropy)
    info["entropy"] = float(np.nanmean(entropy)) if np.isfinite(entropy).any() else None
    for name, curve in (("tss", tss), ("bound", bound)):
        add(name, None, "mean", curve)
        add(name, None, "sum_channels", curve * layer.operators * _width(layer))
    return info, rows


def _width(layer: Layer) -> int:
    """Channels that share an operator."""
    return 8 if layer.kind == "softmax" else 1


def _reduced(units: np.ndarray, multiplicity: int) -> dict[str, np.ndarray]:
    return {
        "mean": units.mean(0),
        "sum_heads": units.sum(0),
        "sum_channels": units.sum(0) * multiplicity,
        "min": units.min(0),
        "q10": np.quantile(units, 0.1, axis=0),
        "q50": np.quantile(units, 0.5, axis=0),
        "q90": np.quantile(units, 0.9, axis=0),
        "max": units.max(0),
    }


def _totals(rows: list[dict[str, Any]], prompts: int) -> list[dict[str, Any]]:
    groups: dict[tuple[int, str, float | None], list[list[float]]] = {}
    for row in rows:
        if row["reduction"] == "sum_channels":
            groups.setdefault((row["prompt"], row["metric"], row["tolerance"]), []).append(row["values"])
    return [
        {"prompt": p, "reduction": "sum_channels_layers", "metric": m, "tolerance": t, "values": np.sum(v, 0).tolist()}
        for (p, m, t), v in groups.items()
    ]
