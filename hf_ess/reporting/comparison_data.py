"""What the page of a comparison holds: effects with intervals, curves under every token, the ranking of heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from hf_ess.comparing.comparison import Comparison
from hf_ess.plotting import comparison as pictures
from hf_ess.plotting import labels
from hf_ess.plotting.data import layer_labels
from hf_ess.reporting import header
from hf_ess.reporting.numbers import Pool, scalar, shown
from hf_ess.reporting.result_data import MOST_VALUES

#: Heads or groups of channels ranked in the page, per token and tolerance.
MOST_GROUPS = 40

NUMBERS = ("effect", "low", "high", "p_value", "dip", "control_dip")


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """The page's data, plain JSON values."""
    s = comparison.summary
    candidates = _candidates(comparison)
    numbers = {c["name"]: k for k, c in enumerate(s["candidates"])}
    mixers = [(i["layer"], i["module"], i["call"]) for i in s["layers"]]
    prompts = _prompts(comparison, numbers, mixers)
    return {
        "document": "comparison",
        "header": _header(comparison, len(prompts)),
        "tolerances": [labels.tolerance(t) for t in comparison.tolerances],
        "unit": " × σ₁" if s["options"]["relative"] else "",
        "window": s["options"]["window"],
        "candidates": candidates,
        "layers": [
            {
                "label": label,
                "kind": shown(info["kind"]),
                "module": shown(info["module"]),
                "unit": "head" if info["multiplicity"] > 1 else "channel",
            }
            for label, info in zip(layer_labels([m[0] for m in mixers]), s["layers"])
        ],
        "effects": [_effect(row, comparison, numbers, mixers) for row in comparison.effects],
        "groups": _groups(comparison, numbers, mixers),
        "prompts": prompts,
    }


def _candidates(comparison: Comparison) -> list[dict[str, Any]]:
    looks = pictures.shown_tokens(comparison, None, with_control=True)
    return [
        {
            "label": shown(looks[c["name"]]["label"]),
            "text": shown(c["text"]),
            "id": c["token"],
            "role": c["role"],
            "colour": looks[c["name"]]["colour"],
        }
        for c in comparison.summary["candidates"]
    ]


def _effect(
    row: dict[str, Any], comparison: Comparison, numbers: dict[str, int], mixers: list[tuple]
) -> dict[str, Any]:
    """One row against the control; layer -1 is all layers together."""
    where = (row["layer"], row["module"], row["call"])
    return {
        "candidate": numbers[row["replace"]],
        "tolerance": comparison.tolerances.index(row["tolerance"]),
        "layer": mixers.index(where) if where in mixers else -1,
        **{name: scalar(row.get(name)) for name in NUMBERS},
        **{name: row[name] for name in ("prompts", "places", "left_out", "emptied")},
    }


def _groups(comparison: Comparison, numbers: dict[str, int], mixers: list[tuple]) -> list[dict[str, Any]]:
    """The most modulated of every token and tolerance, in order."""
    out, seen = [], dict[tuple[str, float], int]()
    for row in comparison.groups:
        key = (row["replace"], row["tolerance"])
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= MOST_GROUPS and row["effect"] is not None:
            out.append(_effect(row, comparison, numbers, mixers) | {"first": row["first"], "last": row["last"]})
    return out


def _prompts(comparison: Comparison, numbers: dict[str, int], mixers: list[tuple]) -> list[dict[str, Any]]:
    """Tokens, places and curves of as many prompts as the page has room for."""
    s = comparison.summary
    where = {m: k for k, m in enumerate(mixers)}
    table = comparison.curves
    names = ("prompt", "replace", "tolerance", "layer", "module", "call")
    rows: dict[int, list[tuple]] = {}
    for prompt, *key, values in zip(*(table[name].to_pylist() for name in names), table["values"]):
        rows.setdefault(prompt, []).append((*key, values))
    out: list[dict[str, Any]] = []
    left = MOST_VALUES
    for number, prompt in enumerate(s["prompts"]):
        pool = Pool()
        # candidate, tolerance, layer + 1 (0: all layers together) -> number of a curve
        index = [[[None] * (len(mixers) + 1) for _ in comparison.tolerances] for _ in numbers]  # type: list[Any]
        for replace, tolerance, layer, module, call, values in rows.get(number, []):
            at = 0 if layer is None else where[layer, module, call] + 1
            curve = np.asarray(values.values.to_numpy(zero_copy_only=False), dtype=float)
            index[numbers[replace]][comparison.tolerances.index(tolerance)][at] = pool.add(curve)
        left -= sum(map(len, pool.curves))
        if out and left < 0:
            break
        texts = prompt["texts"]
        out.append(
            {
                "tokens": prompt["tokens"],
                "places": prompt["places"],
                "shown": [shown(text) or "<>" for text in texts],
                "breaks": [k for k, text in enumerate(texts) if text.endswith("\\n")],
                "index": index,
                "curves": pool.curves,
            }
        )
    return out


def _header(comparison: Comparison, embedded: int) -> dict[str, Any]:
    s = comparison.summary
    lengths = [float(p["tokens"]) for p in s["prompts"]]
    places = sum(len(p["places"]) for p in s["prompts"])
    control = next(c for c in s["candidates"] if c["role"] == "control")
    facts = [
        ["Layers", header.kinds(s["layers"])],
        ["Prompts", f"{len(lengths)} of {header.sizes(lengths)} tokens, {labels.count(places, 'place')}"],
        ["Control", f'"{labels.visible(control["name"])}"'],
        ["Tolerances", ", ".join(map(labels.tolerance, comparison.tolerances))],
    ]
    if s["options"]["relative"]:
        facts[-1][1] += " × the operator's largest singular value"
    if s["options"]["horizon"]:
        facts.append(["Horizon", f"{s['options']['horizon']} tokens: H_i with its first rows only"])
    facts.append(["Measured", str(s["provenance"].get("created") or "-").replace("T", " ").partition("+")[0]])
    left = []
    if embedded < len(lengths):
        left.append(
            f"This page holds the curves of prompts 0 to {embedded - 1} of {len(lengths)}, to keep its size "
            "reasonable; the effects are over all prompts, and all curves are in curves.parquet."
        )
    return {
        "eyebrow": shown(s.get("study", {}).get("title") or "Delimiters compared: effective state-size"),
        "model": shown(str(s["provenance"]["model"])),
        "facts": facts,
        "verification": header.verification(s),
        "missing": header.missing(s),
        "notes": header.notes(s) + left,
        "provenance": header.provenance(s),
    }
