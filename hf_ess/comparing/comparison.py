"""compare(): what a delimiter does to a model's memory, beside a neutral token at the same places."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_ess.comparing.effects import SCHEMA_VERSION
from hf_ess.comparing.kept import KeptRuns
from hf_ess.comparing.preparing import Plan, measured_as
from hf_ess.errors import BadInput
from hf_ess.loading import LoadedModel, load
from hf_ess.plotting.attempt import attempt
from hf_ess.probing import DEFAULT_TOLERANCES, Progress
from hf_ess.processes import meeting_place, processes
from hf_ess.results.files import refuse_existing, whole_directory, write_json, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel


class Comparison:
    """Delimiters at the same places of the same prompts, and what they do to ESS.

    Attributes:
        summary: what summary.json holds: provenance, options, conventions, candidates, prompts, effects, notes.
        curves: pyarrow table in CURVES_SCHEMA: total ESS of every layer, and of all, under every token.
    """

    def __init__(self, summary: dict[str, Any], curves: pa.Table) -> None:
        self.summary, self.curves = summary, curves

    @property
    def effects(self) -> list[dict[str, Any]]:
        """One row per token, tolerance and layer (None: all layers), against the control.

        Keys: replace, token, role ("candidate" or "second control"), tolerance, layer, call, module, kind, reduction,
        effect, low, high, p_value, prompts, places, left_out, emptied, dip, dip_low, dip_high, control_dip.
        """
        return self.summary["effects"]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Rows of single heads or groups of neighbouring channels (first .. last), the most modulated first."""
        return self.summary["groups"]

    @property
    def tolerances(self) -> list[float]:
        """The tolerances asked for, in the order given."""
        return self.summary["options"]["tolerances"]

    def to_json(self) -> dict[str, Any]:
        """The summary as plain JSON values."""
        return self.summary

    def plot(self, kind: str = "curves", **options: Any) -> Figure:
        """A matplotlib figure, never shown: "curves", "layers", "difference", "groups" (see hf_ess.plotting)."""
        from hf_ess.plotting import comparison

        return comparison.draw(self, kind, **options)

    def report(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes one self-contained HTML page (see hf_ess.report); needs plotly."""
        from hf_ess.reporting import report

        return report(self, path, overwrite=overwrite)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False, plots: bool = False) -> Path:
        """Writes summary.json and curves.parquet as a directory that is either whole or not there.

        Raises:
            BadInput: the path exists (and overwrite is False), or cannot be written.
            HfEssError: the disk is full.
        """
        target = Path(path)
        with whole_directory(target, overwrite, "the comparison") as folder:
            self.write(folder, plots)
        return target

    def write(self, folder: Path, plots: bool = False) -> None:
        """Writes the files of a comparison into an existing folder."""
        write_table(self.curves, folder / "curves.parquet")
        if plots:
            attempt(lambda: self._draw(folder / "plots"), self.summary["notes"])
        write_json(self.summary, folder / "summary.json")

    def _draw(self, folder: Path) -> None:
        from hf_ess.plotting import comparison

        comparison.save_all(self, folder)

    def __repr__(self) -> str:
        s = self.summary
        names = ", ".join(repr(c["name"]) for c in s["candidates"])
        return f"<hf_ess.Comparison of {s['provenance']['model']}: {names}; {len(s['prompts'])} prompts>"


def load_comparison(path: str | os.PathLike[str]) -> Comparison:
    """Reads a directory that Comparison.save() wrote.

    Raises:
        BadInput: it is none, is incomplete, or was written by a newer schema.
    """
    folder = Path(path)
    for name in ("summary.json", "curves.parquet"):
        if not (folder / name).is_file():
            raise BadInput(f"{folder} is not a comparison of hf-ess: it has no {name}")
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        version = summary["schema_version"]
        curves = pq.read_table(folder / "curves.parquet")
    except (ValueError, KeyError, OSError) as error:
        raise BadInput(f"{folder} cannot be read as a comparison of hf-ess: {error}") from error
    if version > SCHEMA_VERSION:
        raise BadInput(f"{folder} has schema version {version}; this hf-ess reads up to {SCHEMA_VERSION}")
    return Comparison(summary, curves)


def compare(
    model: str | PreTrainedModel | LoadedModel,
    text: str | Sequence[str],
    *,
    at: str = "<sep>",
    replace: Sequence[str] = (),
    control: str | None = None,
    second_control: str | None = None,
    tolerances: Sequence[float] = DEFAULT_TOLERANCES,
    relative: bool = False,
    layers: Iterable[int] | None = None,
    groups: int = 0,
    horizon: int | None = None,
    continuation: str = "",
    max_tokens: int | None = None,
    parse_special: bool = True,
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
) -> Comparison:
    """Puts one token after the other at the same places of prompts and compares the memory carried past them.

    Args:
        model: Hub id, path, "demo:falcon-mamba", "demo:llama", or a loaded model (then give tokenizer=).
        text: one prompt or several, each with placeholders.
        at: the placeholder, taken literally.
        replace: tokens to put in: "eos", the text of a special token, "id:N", or a string that is one token.
        control: the neutral token to compare with, such as " and".
        second_control: another neutral one: its effect is what mere identity of the token does.
        tolerances: absolute, > 0.
        relative: tolerances are in units of each operator's largest singular value over all cuts.
        layers: numbers of the layers to measure; default all.
        groups: also rank heads, or groups of neighbouring channels, at most this many per layer.
        horizon: count in T[i:i+h, :i], what the next h tokens read of the past, in place of H_i (slow).
        continuation: text added to every prompt, so that its end is far from the last place.
        max_tokens: measure the first max_tokens tokens of each prompt.
        parse_special: special tokens typed in the text become those tokens.
        tokenizer, dtype, device_map, revision, gguf_file, trust_remote_code: as in probe().
        output, overwrite, plots: directory to save the comparison to, whether to replace one, and to draw pictures.
        progress: called as progress(run, runs, layers done, layers in the model, module).

    Raises:
        BadInput, UnsupportedModel: the model, text or an option cannot be used, or no layer can be measured.
    """
    settings = measured_as(tolerances, relative, layers, groups, horizon)
    if output is not None:
        refuse_existing(Path(output), overwrite)  # before anything slow
    prompts = [text] if isinstance(text, str) else list(text)
    plan = Plan(prompts, at, replace, control, second_control, continuation, max_tokens, parse_special, settings)
    loaded, shared = model, processes()
    if not isinstance(loaded, LoadedModel):
        loaded = load(
            loaded,
            tokenizer=tokenizer,
            dtype=dtype,
            device_map=shared.device_map(device_map),
            revision=revision,
            gguf_file=gguf_file,
            trust_remote_code=trust_remote_code,
        )
    prepared = plan.prepared(loaded, progress if shared.first else None)
    with meeting_place(output, shared) as target:
        if target is None:
            prepared.runs.run()
            return Comparison(prepared.summary(), prepared.curves())
        with KeptRuns.of(shared, target, prepared.runs.key(), overwrite) as kept:
            prepared.runs.run(kept, shared)
            if shared.first:
                result = Comparison(prepared.summary(kept.reused), prepared.curves())
                kept.publish_by(lambda folder: result.write(folder, plots))
            shared.wait()
        return result if shared.first else load_comparison(target)
