"""compare_models(): several models on one text, by relative depth, since layers and tokenizers differ."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_ess.errors import BadInput
from hf_ess.loading import LoadedModel
from hf_ess.probing import DEFAULT_TOLERANCES, Progress, probe
from hf_ess.processes import require_one
from hf_ess.results import Result
from hf_ess.results.files import refuse_existing, whole_directory, write_json

SCHEMA_VERSION = 1

CONVENTIONS = {
    "ess": "ESS per channel: mean over the channels of a layer, the cuts i = 1 .. L-1 and the prompts",
    "utilisation": "mean of ESS / TSS over the same; saturation: of ESS / min(TSS, i, L-i)",
    "depth": "(k + 1/2) / K for the k-th of K measured mixers, in order of execution",
    "reduction": "mean",
    "position": "cut i lies before token i: H_i = T[i:, :i]",
}

#: Rows of a model's profile along its depth.
BANDS = 4


class ModelComparison:
    """ESS per channel and utilisation of several models on the same text.

    Attributes:
        summary: what summary.json holds: models, rows, profile, notes.
        results: the Result of each model, in the order given.
    """

    def __init__(self, summary: dict[str, Any], results: list[Result]) -> None:
        self.summary, self.results = summary, results

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per model, mixer and tolerance: model, layer, module, kind, depth, tolerance, ess, utilisation ..."""
        return self.summary["rows"]

    @property
    def profile(self) -> list[dict[str, Any]]:
        """One per model, tolerance and band of relative depth (None: the whole model); channels count alike."""
        return self.summary["profile"]

    def to_json(self) -> dict[str, Any]:
        """The summary as plain JSON values."""
        return self.summary

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Writes summary.json and one result directory per model (model-0, model-1 ...), whole or not there.

        Raises:
            BadInput: the path exists (and overwrite is False), or cannot be written.
            HfEssError: the disk is full.
        """
        target = Path(path)
        with whole_directory(target, overwrite, "the comparison") as folder:
            for number, result in enumerate(self.results):
                result.save(folder / f"model-{number}", overwrite=True)
            write_json(self.summary, folder / "summary.json")
        return target


def compare_models(
    models: Sequence[Any],
    text: str | Sequence[str],
    *,
    tolerances: Sequence[float] = DEFAULT_TOLERANCES,
    relative: bool = False,
    max_tokens: int | None = None,
    parse_special: bool = True,
    dtype: str = "auto",
    device_map: Any = None,
    trust_remote_code: bool = False,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ModelComparison:
    """Measures several models on the same text, one after the other.

    Args:
        models: at least two Hub ids, paths or demonstrations; or LoadedModel objects.
        text: one text or several; each model splits them with its own tokenizer.
        tolerances, relative, max_tokens, parse_special, dtype, device_map, trust_remote_code: as in probe().
        output, overwrite: directory to save to, and whether to replace one.
        progress: called after every layer, of each model in turn.

    Raises:
        BadInput, UnsupportedModel: a model, the text or an option cannot be used.
    """
    require_one("a comparison of models")
    if isinstance(models, str) or len(models) < 2:
        raise BadInput("give at least two models to compare")
    if output is not None:
        refuse_existing(Path(output), overwrite)  # before anything slow
    results = []
    for model in models:
        if not isinstance(model, str | os.PathLike | LoadedModel):
            raise BadInput("give models by id or path, or as loaded by hf_ess.loading.load(model, tokenizer=tokenizer)")
        results.append(
            probe(
                model if isinstance(model, LoadedModel) else str(model),
                text,
                tolerances=tolerances,
                relative=relative,
                entropy=False,
                keep="reductions",
                max_tokens=max_tokens,
                parse_special=parse_special,
                dtype=dtype,
                device_map=device_map,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
        )
    compared = ModelComparison(_summary(results), results)
    if output is not None:
        compared.save(output, overwrite)
    return compared


def _summary(results: list[Result]) -> dict[str, Any]:
    names = _names([str(r.summary["provenance"]["model"]) for r in results])
    rows = [row for name, result in zip(names, results) for row in _layers(name, result)]
    tokens = [[p["tokens"] for p in r.summary["prompts"]] for r in results]
    notes = [f"{name}: {note}" for name, r in zip(names, results) for note in r.summary["notes"]]
    for name, result in zip(names, results):
        if result.skipped:
            notes.append(f"{name}: {len(result.skipped)} mixers could not be measured and are not in its means")
    return {
        "schema_version": SCHEMA_VERSION,
        "document": "model comparison",
        "conventions": CONVENTIONS,
        "options": results[0].summary["options"],
        "models": [
            {"name": name, "tokens": count, "provenance": r.summary["provenance"], "skipped": r.skipped}
            for name, count, r in zip(names, tokens, results)
        ],
        "rows": rows,
        "profile": [row for name in names for row in _profile(name, [r for r in rows if r["model"] == name])],
        "verification": {key: sum(r.summary["verification"][key] for r in results) for key in ("failed", "not_finite")},
        "notes": notes,
    }


def _names(names: list[str]) -> list[str]:
    """Each name once: a model that is given twice is counted."""
    return [name if names.count(name) == 1 else f"{name} #{names[:k].count(name) + 1}" for k, name in enumerate(names)]


def _layers(model: str, result: Result) -> list[dict[str, Any]]:
    """One row per mixer and tolerance; means over the prompts weighted by their cuts."""
    infos: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for info in result.layers:
        infos.setdefault((info["module"], info["call"]), []).append(info)
    cuts = [p["tokens"] - 1 for p in result.summary["prompts"]]
    rows = []
    for k, ((module, call), of) in enumerate(infos.items()):
        first = of[0]
        for t, tolerance in enumerate(result.tolerances):
            rows.append(
                {
                    "model": model,
                    "layer": first["layer"],
                    "call": call,
                    "module": module,
                    "kind": first["kind"],
                    "channels": first["operators"] * first["multiplicity"],
                    "depth": (k + 0.5) / len(infos),
                    "tolerance": tolerance,
                    **{
                        name: _mean([(i[name][t], cuts[i["prompt"]]) for i in of if name in i])
                        for name in ("ess", "utilisation", "saturation")
                    },
                    "tss": _mean([(i["tss"], cuts[i["prompt"]]) for i in of if "tss" in i]),
                }
            )
    return rows


def _profile(model: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for tolerance in dict.fromkeys(row["tolerance"] for row in rows):
        for band in (None, *range(BANDS)):
            mine = [r for r in rows if r["tolerance"] == tolerance and band in (None, int(r["depth"] * BANDS))]
            out.append(
                {
                    "model": model,
                    "tolerance": tolerance,
                    "band": None if band is None else [band / BANDS, (band + 1) / BANDS],
                    "layers": sum(r["ess"] is not None for r in mine),
                    **{
                        name: _mean([(r[name], r["channels"]) for r in mine])
                        for name in ("ess", "utilisation", "saturation")
                    },
                }
            )
    return out


def _mean(weighted: list[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
