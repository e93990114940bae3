"""hf-ess compare-models: ESS per channel and utilisation of several models on one text, by relative depth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_ess.cli import ending, options
from hf_ess.plotting.labels import count, number, tolerance, visible
from hf_ess.tables import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from hf_ess.comparing.model_comparison import ModelComparison

EXAMPLES = """
Example:

  hf-ess compare-models demo:falcon-mamba demo:llama --text file.txt
"""


def command(
    models: Annotated[list[str], typer.Argument(help="Hub ids, folders, demo:falcon-mamba or demo:llama; at least 2.")],
    text: options.Text = None,
    prompt: options.Prompt = None,
    dataset: options.Dataset = None,
    split: options.Split = "train",
    field: options.Field = "text",
    limit: options.Limit = None,
    encoding: options.Encoding = "utf-8",
    special: options.Special = True,
    tol: options.Tol = None,
    relative: options.Relative = False,
    max_tokens: options.MaxTokens = None,
    dtype: options.Dtype = "auto",
    device_map: options.DeviceMap = None,
    trust_remote_code: options.TrustRemoteCode = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the comparison and the models' results.")
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Compare how much of their memory several models use on the same text."""
    from hf_ess.cli import progress
    from hf_ess.comparing.model_comparison import compare_models
    from hf_ess.probing import DEFAULT_TOLERANCES

    texts = options.texts(text, prompt, dataset, split, field, limit, encoding)
    with progress.bar(quiet) as advance:
        result = compare_models(
            models,
            texts,
            tolerances=tol or DEFAULT_TOLERANCES,
            relative=relative,
            max_tokens=max_tokens,
            parse_special=special,
            dtype=dtype,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            output=output,
            overwrite=overwrite,
            progress=advance,
        )
    if as_json:
        ending.document(result.to_json())
    elif not quiet:
        terminal.show(heading(result), profile_table(result))
    if not quiet:
        ending.notes(map(visible, result.summary["notes"]), "comparison", output)
    sys.stdout.flush()
    raise typer.Exit(ending.status(result.summary))


def heading(result: ModelComparison) -> list[str]:
    """What was compared, and what the columns mean."""
    layers = {row["model"]: row["layers"] for row in result.profile if row["band"] is None}
    models = [
        f"{visible(m['name'])}: {count(sum(m['tokens']), 'token')}, {count(layers[m['name']], 'layer')}"
        for m in result.summary["models"]
    ]
    lines = [
        "  ".join(models),
        "  ESS: per channel, mean over channels, cuts and prompts; use: mean of ESS / TSS; full: of ESS / bound",
        "  0-25% ...: utilisation in that part of the model's depth (layers and tokenizers differ)",
    ]
    if result.summary["options"]["relative"]:
        lines.insert(1, "  tolerances: in units of each operator's largest singular value")
    return lines


def profile_table(result: ModelComparison) -> Table:
    """A row per model and tolerance."""
    from rich.text import Text

    bands = list(dict.fromkeys(tuple(row["band"]) for row in result.profile if row["band"]))
    names = [f"{100 * a:.0f}-{100 * b:.0f}%" for a, b in bands]
    table = terminal.new_table(["tol", "model", "ESS", "use", "full", *names], left=("model",))
    for tol in dict.fromkeys(row["tolerance"] for row in result.profile):
        for model in dict.fromkeys(row["model"] for row in result.profile):
            rows = [r for r in result.profile if (r["model"], r["tolerance"]) == (model, tol)]
            whole: dict[str, Any] = next(r for r in rows if r["band"] is None)
            cells = [tolerance(tol), visible(model), number(whole["ess"])]
            cells += [_share(whole["utilisation"]), _share(whole["saturation"])]
            cells += [_share(r["utilisation"]) for r in rows if r["band"] is not None]
            table.add_row(*map(Text, cells))
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


command.__doc__ = f"{command.__doc__}\n{EXAMPLES}"
