"""hf-ess compare: what a delimiter does to a model's memory, beside a neutral token at the same places."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hf_ess.cli import ending, options

EXAMPLES = """
Examples:

  hf-ess compare demo:llama --dataset examples/separators.jsonl --at "<sep>" --replace eos --replace . --control " and"

  hf-ess compare gpt2 --text a.txt --text b.txt --at "<sep>" --replace eos --replace "\\n" --control " and"
"""


def command(
    model: options.Model,
    text: options.Text = None,
    prompt: options.Prompt = None,
    dataset: options.Dataset = None,
    split: options.Split = "train",
    field: options.Field = "text",
    limit: options.Limit = None,
    encoding: options.Encoding = "utf-8",
    at: Annotated[str, typer.Option("--at", help="Placeholder in the texts: the places to fill.")] = "<sep>",
    replace: Annotated[
        list[str] | None,
        typer.Option("--replace", help="Token to put there: eos, a special token, id:N, or one token. Repeatable."),
    ] = None,
    control: Annotated[
        str | None, typer.Option("--control", help='Neutral token to compare with, such as " and".')
    ] = None,
    second_control: Annotated[
        str | None, typer.Option("--second-control", help="Another one: what mere identity of the token does.")
    ] = None,
    continuation: Annotated[
        str, typer.Option("--continuation", help="Text added to every prompt, to keep its end from the places.")
    ] = "",
    horizon: Annotated[
        int | None, typer.Option("--horizon", min=1, help="Count what the next N tokens read, not all (slow).")
    ] = None,
    tokenizer: options.Tokenizer = None,
    special: options.Special = True,
    tol: options.Tol = None,
    relative: options.Relative = False,
    layers: options.Layers = None,
    max_tokens: options.MaxTokens = None,
    dtype: options.Dtype = "auto",
    device_map: options.DeviceMap = None,
    revision: options.Revision = None,
    gguf_file: options.GgufFile = None,
    trust_remote_code: options.TrustRemoteCode = False,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Also a row per layer.")] = False,
    groups: Annotated[
        int,
        typer.Option("--groups", min=0, help="Rank heads, or groups of neighbouring channels, at most N a layer."),
    ] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the comparison: summary, curves, plots.")
    ] = None,
    overwrite: options.Overwrite = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Whether to draw plots into it.")] = True,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Compare what tokens do to a model's memory at the same places of the same texts."""
    from hf_ess.cli import progress
    from hf_ess.comparing.comparison import compare
    from hf_ess.probing import DEFAULT_TOLERANCES
    from hf_ess.processes import processes
    from hf_ess.tables import terminal
    from hf_ess.tables.comparison import effect_table, group_table, heading, notes

    chosen = options.layer_numbers(layers)
    if output is not None:
        from hf_ess.results.files import refuse_existing

        refuse_existing(output, overwrite)
    prompts = options.texts(text, prompt, dataset, split, field, limit, encoding)
    with progress.bar(quiet) as advance:
        result = compare(
            model,
            prompts,
            at=at,
            replace=replace or (),
            control=control,
            second_control=second_control,
            tolerances=tol or DEFAULT_TOLERANCES,
            relative=relative,
            layers=chosen,
            groups=groups,
            horizon=horizon,
            continuation=continuation,
            max_tokens=max_tokens,
            parse_special=special,
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
    status = ending.status(result.summary)
    if not processes().first:
        raise typer.Exit(status)  # the first process speaks for all
    if as_json:
        ending.document(result.to_json())
    elif not quiet:
        terminal.show(heading(result), effect_table(result, per_layer))
        if groups:
            sys.stdout.write("\n")
            terminal.show(["  most modulated heads or groups of channels"], group_table(result))
    if not quiet:
        ending.notes(notes(result), "comparison", output)
    sys.stdout.flush()
    raise typer.Exit(status)


command.__doc__ = f"{command.__doc__}\n{EXAMPLES}"
