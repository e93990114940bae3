"""hf-ess study: fixed inputs, a claim, and what a model says to it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_ess.cli import ending, options

if TYPE_CHECKING:
    from hf_ess.studying.outcome import StudyOutcome

EXAMPLES = """
Examples:

  hf-ess study

  hf-ess study separators demo:llama

  hf-ess study separators --preset 6a -o falcon-mamba

  hf-ess study shots microsoft/phi-2 --dataset cais/mmlu:elementary_mathematics --limit 50
"""


def command(
    name: Annotated[str | None, typer.Argument(help="Study, or a folder of your own; none lists them.")] = None,
    model: Annotated[
        str | None,
        typer.Argument(help="Hub id, folder, .gguf file, demo:falcon-mamba or demo:llama; default the preset's."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="Figure of the paper by its number: its model and settings.")
    ] = None,
    replace: Annotated[
        list[str] | None, typer.Option("--replace", help="Token to put in, in place of the study's. Repeatable.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Texts, or questions in MMLU's form, in place of the study's own.")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="Split of the dataset.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Use the first N prompts.")] = None,
    tokenizer: options.Tokenizer = None,
    tol: Annotated[
        list[float] | None, typer.Option("--tol", help="Tolerance; repeatable. Default the study's.")
    ] = None,
    layers: options.Layers = None,
    dtype: options.Dtype = "auto",
    device_map: options.DeviceMap = None,
    revision: options.Revision = None,
    gguf_file: options.GgufFile = None,
    trust_remote_code: options.TrustRemoteCode = False,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Also a row per layer.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the outcome: page, summary, curves, plots.")
    ] = None,
    overwrite: options.Overwrite = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Whether to draw plots into it.")] = True,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Run a study of the paper, or of your own, on a model."""
    if name is None:
        _list()
        return
    from hf_ess.cli import progress
    from hf_ess.studying.running import study

    chosen = options.layer_numbers(layers)
    with progress.bar(quiet) as advance:
        outcome = study(
            name,
            model,
            preset=preset,
            tolerances=tol,
            layers=chosen,
            replace=replace,
            limit=limit,
            dataset=dataset,
            split=split,
            tokenizer=tokenizer,
            dtype=dtype,
            device_map=device_map,
            revision=revision,
            gguf_file=gguf_file,
            trust_remote_code=trust_remote_code,
            output=output,
            overwrite=overwrite,
            plots=plots,
            progress=advance,
        )
    _show(outcome, output, per_layer, as_json, quiet)
    raise typer.Exit(ending.status(outcome.summary))


def _list() -> None:
    from hf_ess.studying import catalog
    from hf_ess.tables import terminal

    table = terminal.new_table(["study", "what", "presets"], left=("study", "what", "presets"))
    for name in catalog.names():
        found = catalog.find(name)
        table.add_row(name, found.title, " ".join(found.presets))
    terminal.show(
        ["studies: hf-ess study NAME MODEL; a preset has the model and settings of a figure of the paper"], table
    )


def _show(outcome: StudyOutcome, output: Path | None, per_layer: bool, as_json: bool, quiet: bool) -> None:
    from hf_ess.plotting.labels import visible
    from hf_ess.tables import terminal
    from hf_ess.tables.study import blocks

    if as_json:
        ending.document(outcome.to_json())
    elif not quiet:
        for lines, table in blocks(outcome, per_layer):
            terminal.show(lines, table)
    if not quiet:
        skipped = [f"skipped {s['module']} ({s['class']}): {s['reason']}" for s in outcome.summary["skipped"]]
        ending.notes(map(visible, [*outcome.summary["notes"], *skipped]), "outcome", output)
    sys.stdout.flush()


command.__doc__ = f"{command.__doc__}\n{EXAMPLES}"
