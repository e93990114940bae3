"""hf-ess compare: what a delimiter does to a model's memory, beside a neutral token at the same places."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_ess.cli import options, terminal
from hf_ess.plotting.labels import count, tolerance, visible

if TYPE_CHECKING:
    from rich.table import Table

    from hf_ess.comparing.comparison import Comparison

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
    if as_json:
        sys.stdout.write(json.dumps(result.to_json(), ensure_ascii=False, allow_nan=False) + "\n")
    elif not quiet:
        terminal.show(heading(result), effect_table(result, per_layer))
        if groups:
            sys.stdout.write("\n")
            terminal.show(["  most modulated heads or groups of channels"], group_table(result))
    if not quiet:
        for line in notes(result):
            sys.stderr.write(f"note: {line}\n")
        if output is not None:
            sys.stderr.write(f"comparison written to {output}\n")
    sys.stdout.flush()
    checks = result.summary["verification"]
    raise typer.Exit(3 if checks["failed"] or checks["not_finite"] else 0)


def heading(result: Comparison) -> list[str]:
    """What was compared with what, and by which conventions."""
    s = result.summary
    lengths = [p["tokens"] for p in s["prompts"]]
    places = sum(len(p["places"]) for p in s["prompts"])
    text = f"{count(len(lengths), 'prompt')} of {min(lengths)} to {max(lengths)} tokens, {count(places, 'place')}"
    control, *others = (_token(c) for c in s["candidates"] if "control" in c["role"])
    horizon = s["options"]["horizon"]
    lines = [
        f"{visible(str(s['provenance']['model']))}: {text}",
        f"  effect: change of m against {control} in its place; 95 % t interval over prompts",
        "  m: smallest total ESS over the cuts p .. p+2 at a place p",
        "  cut i lies before token i: H_i = T[i:, :i]",
        "  all: sum_channels_layers, over channels and layers; a layer: sum_channels",
        "  p: Wilcoxon signed rank, not corrected for the number of rows",
        "  dip: m against the same curve at p-12 .. p-3; of the control in brackets",
    ]
    if others:
        lines.insert(2, f"  {others[0]} is the second control: what mere identity of the token does")
    if s["options"]["relative"]:
        lines.insert(1, "  tolerances: in units of each operator's largest singular value")
    if horizon is not None:
        lines.insert(1, f"  horizon: H_i with its first {horizon} rows only")
    return lines


def effect_table(result: Comparison, per_layer: bool = False) -> Table:
    """A row per token and tolerance for all layers together, and per layer if asked for."""
    left_out = any(row["left_out"] for row in result.effects)
    columns = ["token", "tol", "layer", "effect", "95 % interval", "p", "dip, %", "prompts"]
    table = terminal.new_table(columns + ["places", "left out"] * left_out, left=("token", "layer"))
    tokens = {c["name"]: c for c in result.summary["candidates"]}
    for row in result.effects:
        if row["layer"] is not None and not per_layer:
            continue
        cells = [_token(tokens[row["replace"]]), tolerance(row["tolerance"]), layer_name(row), *numbers(row)]
        dips = (percent(row[name]).removesuffix(" %") for name in ("dip", "control_dip"))
        cells += ["{} ({})".format(*dips), str(row["prompts"])]
        table.add_row(*_literal(cells + [str(row["places"]), str(row["left_out"])] * left_out))
    return table


def group_table(result: Comparison, most: int = 8) -> Table:
    """The most modulated heads or groups of channels of each token and tolerance."""
    table = terminal.new_table(
        ["token", "tol", "layer", "operators", "effect", "95 % interval", "p", "prompts"], left=("token", "layer")
    )
    tokens = {c["name"]: c for c in result.summary["candidates"]}
    shown: dict[tuple[str, float], int] = {}
    for row in result.groups:
        key = (row["replace"], row["tolerance"])
        shown[key] = shown.get(key, 0) + 1
        if shown[key] <= most and row["effect"] is not None:
            first, last = row["first"], row["last"]
            where = str(first) if first == last else f"{first}-{last}"
            cells = [_token(tokens[row["replace"]]), tolerance(row["tolerance"]), layer_name(row), where, *numbers(row)]
            table.add_row(*_literal([*cells, str(row["prompts"])]))
    return table


def notes(result: Comparison) -> list[str]:
    """What the table does not say."""
    s = result.summary
    out = [visible(note) for note in s["notes"]]
    if any(row["emptied"] for row in result.effects):
        out.append("an effect of -100 %: in some prompt m is 0 at every place; such rows have no interval")
    checks = s["verification"]
    if checks["failed"] or checks["not_finite"]:
        bad = checks["failed"] + checks["not_finite"]
        out.append(f"{bad} layer runs failed verification or were not finite: their layers are left out of that prompt")
    for skipped in s["skipped"]:
        out.append(visible(f"skipped {skipped['module']} ({skipped['class']}): {skipped['reason']}"))
    return out


def percent(value: float | None) -> str:
    """A change: -12.3 %; "-" where there is none."""
    return "-" if value is None else f"{100 * value + 0.0:+.1f} %"


def numbers(row: dict[str, Any]) -> list[str]:
    interval = "-" if row["low"] is None else f"{100 * row['low']:+.1f} .. {100 * row['high']:+.1f}"
    p = row["p_value"]
    return [percent(row["effect"]), interval, "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"]


def layer_name(row: dict[str, Any]) -> str:
    return "all" if row["layer"] is None else f"{row['layer']} {row['kind']}"


def _token(candidate: dict[str, Any]) -> str:
    r"""A token as it was named, a newline as \n; blanks are kept visible by quotes."""
    name = visible(candidate["name"])
    return f'"{name}"' if name != name.strip() or not name[:1].isalpha() else name


def _literal(cells: list[str]) -> list[Any]:
    from rich.text import Text

    return [Text(cell) for cell in cells]  # square brackets in a token are no markup


command.__doc__ = f"{command.__doc__}\n{EXAMPLES}"
