"""study(): run a study on a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ess.comparing.comparison import Comparison
from hf_ess.comparing.kept import KeptRuns
from hf_ess.comparing.preparing import Plan, measured_as
from hf_ess.comparing.runs import Runs, Variant
from hf_ess.errors import BadInput
from hf_ess.loading import LoadedModel, load
from hf_ess.probing import DEFAULT_TOLERANCES, Progress
from hf_ess.processes import require_one
from hf_ess.results.files import refuse_existing
from hf_ess.results.provenance import provenance
from hf_ess.studying import classes, shots
from hf_ess.studying.catalog import Study, find
from hf_ess.studying.outcome import SCHEMA_VERSION, StudyOutcome, plain
from hf_ess.text.limits import check, check_memory
from hf_ess.text.reading import read_dataset, read_rows, read_text
from hf_ess.text.tokens import from_ids, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def study(
    name: str,
    model: str | PreTrainedModel | LoadedModel | None = None,
    *,
    preset: str | None = None,
    tolerances: Sequence[float] | None = None,
    layers: Iterable[int] | None = None,
    replace: Sequence[str] | None = None,
    limit: int | None = None,
    dataset: str | None = None,
    split: str | None = None,
    tokenizer: Any = None,
    dtype: str = "auto",
    device_map: Any = None,
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    plots: bool = False,
    progress: Progress | None = None,
) -> StudyOutcome:
    """Runs a study: fixed inputs, a claim, and what this model says to it.

    Args:
        name: of a study that comes with hf-ess ("separators", "code", "tokens", "shots"), or a folder of one's own.
        model: Hub id, path, "demo:falcon-mamba", "demo:llama", or a loaded model (then give tokenizer=); default that
            of the preset.
        preset: a figure of the paper by its number, such as "6a": its model, tolerances, delimiters and reduction.
        tolerances: absolute, > 0; default those of the study.
        layers: numbers of the layers to measure; default all.
        replace: (separators) tokens to put in, in place of the study's.
        limit: use the first so many prompts, texts or questions.
        dataset: (shots) questions in MMLU's form in place of the study's own: Hub id, file or folder; (others) texts.
        split: of the dataset; default "test" for questions.
        tokenizer, dtype, device_map, revision, gguf_file, trust_remote_code: as in probe().
        output, overwrite, plots: directory to save the outcome to, whether to replace one, and to draw pictures.
        progress: called as progress(run, runs, layers done, layers in the model, module).

    Raises:
        BadInput, UnsupportedModel: the study, model or an option cannot be used, or no layer can be measured.
    """
    chosen = find(name)
    settings = chosen.settings(preset)
    if output is not None:
        refuse_existing(Path(output), overwrite)  # before anything slow
    if limit is not None and limit < 1:
        raise BadInput(f"the number of prompts must be at least 1, got {limit}")
    model = settings.get("model") if model is None else model
    if model is None:
        raise BadInput(f"name the model to study, or a preset that has one: {', '.join(chosen.presets) or 'none'}")
    if replace and "replace" not in settings:
        raise BadInput(f"the study {chosen.name} puts no tokens in, so replace does not go with it")
    require_one("a study")
    settings |= {"replace": list(replace)} if replace else {}
    dataset = settings.get("dataset") if dataset is None else dataset
    if not isinstance(model, LoadedModel):
        model = load(
            model,
            tokenizer=tokenizer,
            dtype=dtype,
            device_map=device_map,
            revision=revision,
            gguf_file=gguf_file,
            trust_remote_code=trust_remote_code,
        )
    tolerances = tolerances or settings.get("tolerances", DEFAULT_TOLERANCES)
    run = _Run(chosen, settings, model, tuple(tolerances), layers, progress)
    runs, finish = _KINDS[chosen.kind](run, _Source(dataset, split, limit))
    key = {**runs.key(), "study": chosen.name, "preset": preset}
    with KeptRuns(Path(output), key, overwrite) if output is not None else nullcontext() as kept:
        runs.run(kept)
        done = finish()
        done.summary["study"] = {
            **{key: getattr(chosen, key) for key in ("name", "kind", "title", "claim")},
            "preset": preset,
            "reduction": settings.get("reduction", "sum_channels_layers"),
        }
        done.summary["reused_runs"] = kept.reused if kept else 0
        if kept is not None:
            kept.publish_by(lambda folder: done.write(folder, plots))
    return done


@dataclass(frozen=True)
class _Source:
    """Where texts or questions come from in place of the study's own, and how many of them."""

    dataset: str | None
    split: str | None
    limit: int | None


@dataclass(frozen=True)
class _Run:
    """One study of one model, with everything settled."""

    study: Study
    settings: dict[str, Any]
    loaded: LoadedModel
    tolerances: tuple[float, ...]
    layers: Iterable[int] | None
    progress: Progress | None

    def path(self, key: str) -> str:
        return str(self.study.folder / self.setting(key))

    def setting(self, key: str) -> Any:
        if key not in self.settings:
            raise BadInput(f"{self.study.folder / 'study.toml'} has no {key}")
        return self.settings[key]

    def runs(self, prompts: Sequence[Mapping[Hashable, Variant]]) -> tuple[Runs, list[str]]:
        """What is to be run for total ESS along every variant, and warnings."""
        loaded = self.loaded
        notes = list(loaded.notes)
        longest = max((v.ids for by in prompts for v in by.values()), key=len)
        notes += check(from_ids(loaded.tokenizer, longest), loaded.model)
        check_memory(len(longest), loaded.model)
        settings = measured_as(self.tolerances, False, self.layers, 0, None)
        return Runs(loaded, prompts, settings, self.progress), notes

    def summary(self, runs: Runs, notes: list[str], **found: Any) -> dict[str, Any]:
        return plain(
            {
                "schema_version": SCHEMA_VERSION,
                "document": "study",
                "provenance": provenance(self.loaded),
                "options": asdict(runs.settings),
                **found,
                **runs.facts(),
                "notes": list(dict.fromkeys([*notes, *runs.notes()])),
            }
        )


def _separators(run: _Run, source: _Source) -> tuple[Runs, Callable[[], StudyOutcome]]:
    """Delimiters put in, one token in the place of another."""
    plan = Plan(
        read_dataset(source.dataset or run.path("prompts"), source.split, None, source.limit),
        at=run.setting("at"),
        replace=run.setting("replace"),
        control=run.setting("control"),
        second_control=run.settings.get("second_control"),
        continuation=run.settings.get("continuation", ""),
        max_tokens=None,
        parse_special=True,
        settings=measured_as(run.tolerances, False, run.layers, run.settings.get("groups", 0), None),
    )
    prepared = plan.prepared(run.loaded, run.progress)

    def finish() -> StudyOutcome:
        done = Comparison(prepared.summary(), prepared.curves())
        return StudyOutcome(done.summary, done.curves, done)

    return prepared.runs, finish


def _classes(run: _Run, source: _Source) -> tuple[Runs, Callable[[], StudyOutcome]]:
    """The tokens of whole texts, by class."""
    if source.dataset:
        names, texts = None, read_dataset(source.dataset, source.split, None, source.limit)
    else:
        files = sorted(run.study.folder.glob(run.setting("texts")))[: source.limit]
        if not files:
            raise BadInput(f"{run.study.folder} has no {run.setting('texts')}")
        names, texts = [file.name for file in files], [read_text(file) for file in files]
    tokenizer = run.loaded.tokenizer
    made = classes.token_classes(run.setting("class"))
    tokens = [tokenize(tokenizer, text) for text in texts]
    found = [classes.classified(t, tokenizer, made, bool(run.settings.get("exclusive", True))) for t in tokens]
    runs, notes = run.runs([{"": Variant(t.ids)} for t in tokens])
    short = sum(not any(classes.away_from_the_ends(p, len(t)) for p in by.values()) for t, by in zip(tokens, found))
    if short:
        notes.append(f"{short} of {len(texts)} texts are too short to have a token away from both ends")

    def finish() -> StudyOutcome:
        summary = run.summary(
            runs,
            notes,
            conventions=classes.CONVENTIONS,
            prompts=[
                {"name": name, "tokens": len(t), "texts": t.texts, "classes": by}
                for name, t, by in zip(names or map(str, range(len(texts))), tokens, found)
            ],
            effects=classes.effects(runs, found),
        )
        return StudyOutcome(summary, runs.curves({"": ""}))

    return runs, finish


def _shots(run: _Run, source: _Source) -> tuple[Runs, Callable[[], StudyOutcome]]:
    """Questions behind examples."""
    where = source.dataset or run.path("questions")
    if source.dataset and not Path(source.dataset).is_file():  # MMLU's splits: the examples are in dev
        examples = read_rows(source.dataset, "dev")
        asked = read_rows(source.dataset, source.split or "test", source.limit)
    else:
        rows = read_rows(where, source.split)
        examples = [row for row in rows if row.get("use") == "example"]
        asked = [row for row in rows if row.get("use") != "example"][: source.limit]
    counts = run.setting("shots")
    before, questions = (
        [shots.from_row(row, number, where) for number, row in enumerate(part)] for part in (examples, asked)
    )
    prompts = [shots.asked(run.loaded.tokenizer, before, question, counts) for question in questions]
    runs, notes = run.runs([p.variants for p in prompts])

    def finish() -> StudyOutcome:
        right = [shots.answers(run.loaded, question, p.variants) for question, p in zip(questions, prompts)]
        known = [r for r in right if r is not None]
        if len(known) < len(right):
            notes.append(
                f"{len(right) - len(known)} questions have letters that are not one token: not in the accuracy"
            )
        summary = run.summary(
            runs,
            notes,
            conventions=shots.CONVENTIONS,
            shots=list(counts),
            prompts=[
                {
                    "question": question.text,
                    "tokens": {name: len(v.ids) for name, v in p.variants.items()},
                    "first": {name: v.places[0] for name, v in p.variants.items()},
                    "examples": p.starts,
                    "right": answered,
                }
                for question, p, answered in zip(questions, prompts, right)
            ],
            accuracy={str(n): sum(r[str(n)] for r in known) / len(known) if known else None for n in counts},
            chance=sum(1 / len(question.choices) for question in questions) / len(questions),
            segments=shots.segments(runs, prompts, counts),
            effects=shots.effects(runs, counts),
        )
        return StudyOutcome(summary, runs.curves({str(n): str(n) for n in counts}))

    return runs, finish


_KINDS: dict[str, Callable[[_Run, _Source], tuple[Runs, Callable[[], StudyOutcome]]]] = {
    "separators": _separators,
    "classes": _classes,
    "shots": _shots,
}
