"""The top and the foot of a page: what was measured, whether it was verified, what is missing, where it comes from."""

from __future__ import annotations

import json
from typing import Any

import hf_ess
from hf_ess.plotting.labels import count, number, plain, ranges, visible
from hf_ess.reporting.numbers import shown


def provenance(summary: dict[str, Any]) -> list[list[str]]:
    """Name and value of everything that is known of the origin, and of the options."""
    rows = []
    for part in ("provenance", "options"):
        for name, value in summary.get(part, {}).items():
            if value is not None and value != []:
                rows.append([name.replace("_", " "), _plain(value)])
    return [*rows, ["page written by", f"hf-ess {hf_ess.__version__}"]]


def verification(summary: dict[str, Any], bound: float | None = None) -> dict[str, Any]:
    """The verdict in a sentence.

    Args:
        summary: of a result or a comparison.
        bound: what the error may be at most, where that is known.
    """
    checks = summary["verification"]
    failed, infinite = checks.get("failed", 0), checks.get("not_finite", 0)
    largest = checks.get("largest_error")
    if largest is None:
        known = [i["error"] for i in summary["layers"] if i.get("error") is not None]
        largest = max(known, default=None)
    if failed or infinite:
        parts = [f"{failed} failed"] * bool(failed) + [f"{infinite} not finite"] * bool(infinite)
        verdict = f"Not verified throughout: {' and '.join(parts)}."
    else:
        verdict = "Verified: every operator gives the layer's own output."
    words = [] if largest is None else [f"Largest error ‖Tu − y‖ / ‖y‖: {error(largest)}"]
    words += [] if largest is None or bound is None else [f"allowed: {error(bound)}"]
    return {"good": not (failed or infinite), "verdict": verdict, "detail": ", ".join(words)}


def missing(summary: dict[str, Any]) -> list[str]:
    """A sentence for every kind of layer that has no values, with the reason."""
    out = []
    for status, reason in (
        ("failed", "failed verification: T u differs from the layer's own output; values are null"),
        ("not finite", "not finite: the operator or the output holds NaN or Inf; values are null"),
    ):
        bad = [i for i in summary["layers"] if i.get("status") == status]
        if bad:
            worst = max((i["error"] for i in bad if i.get("error") is not None), default=None)
            most = "" if worst is None else f" (error up to {error(worst)})"
            out.append(f"Layer {ranges(i['layer'] for i in bad)} {reason}{most}.")
    checks = summary["verification"]
    bad_runs = checks.get("failed", 0) + checks.get("not_finite", 0)
    if bad_runs and not out:  # a comparison: its layers are verified in every run
        out.append(
            f"{count(bad_runs, 'layer run')} failed verification or were not finite: "
            "their layers are left out of that prompt."
        )
    for key, what in (("skipped", "ran and could not be measured"), ("not_called", "did not run on this text")):
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for one in summary.get(key, []):
            groups.setdefault((one["class"], one["reason"]), []).append(one)
        for (name, reason), members in groups.items():
            numbers = [m["layer"] for m in members if m["layer"] is not None]
            where = f" (layer {ranges(numbers)})" if numbers else ""
            out.append(visible(f"Skipped: {len(members)} × {name}{where} {what}: {reason}."))
    return out


def notes(summary: dict[str, Any]) -> list[str]:
    """Warnings of the run, each a sentence."""
    return [shown(str(note)) for note in summary["notes"]]


def kinds(layers: list[dict[str, Any]]) -> str:
    """8 mamba layers + 2 softmax layers."""
    names = list(dict.fromkeys(layer["kind"] for layer in layers))
    return " + ".join(count(sum(layer["kind"] == k for layer in layers), f"{visible(k)} layer") for k in names)


def sizes(values: list[float]) -> str:
    """16, or 16 to 439."""
    if not values:
        return "-"
    low, high = min(values), max(values)
    return plain(low) if low == high else f"{plain(low)} to {plain(high)}"


def error(value: float | None) -> str:
    """An error to one digit: 7e-7."""
    return number(value) if value is None or value == 0 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


def _plain(value: Any) -> str:
    """A value on one line; strings without quotes."""
    return shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
