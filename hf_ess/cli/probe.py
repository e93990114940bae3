"""hf-ess probe: ESS of every layer of a model on a text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_ess.errors import BadInput

if TYPE_CHECKING:
    from hf_ess.results import Result

EXAMPLES = """
Examples:

  hf-ess probe demo:falcon-mamba --text file.txt

  hf-ess probe tiiuae/falcon-mamba-7b --text file.txt --tol 1e-1 --tol 1e-3 -o result

  hf-ess probe ./checkpoint --prompt "One sentence. Another one." --json

  hf-ess probe gpt2 --dataset wikitext.jsonl --split train --field text --limit 8
"""


def command(
    model: Annotated[str, typer.Argument(help="Hub id, folder, .gguf file, demo:falcon-mamba or demo:llama.")],
    text: Annotated[
        list[str] | None, typer.Option("--text", help="File with the text; - reads standard input. Repeatable.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="The text itself. Repeatable.")] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Source for datasets: Hub id, file or folder.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Split of the dataset.")] = "train",
    field: Annotated[str, typer.Option("--field", help="Field of the dataset that holds the text.")] = "text",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Number of rows of the dataset.")] = None,
    encoding: Annotated[str, typer.Option("--encoding", help="Encoding of text files.")] = "utf-8",
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Tokenizer id or folder, if not the model's.")
    ] = None,
    special: Annotated[
        bool, typer.Option("--special/--literal", help="Whether special tokens typed in the text become those tokens.")
    ] = True,
    tol: Annotated[
        list[float] | None, typer.Option("--tol", help="Tolerance; repeatable. Default 1e-1, 1e-3, 1e-5.")
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="Tolerances in units of each operator's largest singular value.")
    ] = False,
    entropy: Annotated[bool, typer.Option("--entropy/--no-entropy", help="Whether to compute entropy-ESS.")] = True,
    norms: Annotated[
        bool, typer.Option("--norms", help="Also sigma_1 and stable rank at every position (slow for attention).")
    ] = False,
    gate: Annotated[
        float | None,
        typer.Option("--gate", help="Entropy-ESS is null where sigma_1 is below; default the smallest --tol."),
    ] = None,
    delimiter: Annotated[
        list[str] | None,
        typer.Option("--delimiter", help="Mark these: eos, a special token, id:N, or characters. Repeatable."),
    ] = None,
    layers: Annotated[str | None, typer.Option("--layers", help="Layers to measure, such as 0,4,8-12.")] = None,
    keep: Annotated[
        str,
        typer.Option(
            "--keep", help="auto: heads and channels of layers with at most 1,024; units: all; reductions: none."
        ),
    ] = "auto",
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=2, help="Measure the first N tokens of each text.")
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="Dtype of the model: auto, float32, bfloat16, float16.")
    ] = "auto",
    device_map: Annotated[
        str | None, typer.Option("--device-map", help="Where the model goes: auto, cpu, cuda, cuda:1 ...")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit on the Hub.")] = None,
    gguf_file: Annotated[str | None, typer.Option("--gguf-file", help="GGUF file in the folder or repository.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run modelling code that comes with the checkpoint.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the result: tables, summary, plots.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing result.")] = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Whether to draw plots into the result.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Measure the effective state-size of every layer of a model on a text."""
    from hf_ess.cli import progress, table
    from hf_ess.probing import DEFAULT_TOLERANCES, probe

    if output is not None:
        from hf_ess.results.files import refuse_existing

        refuse_existing(output, overwrite)  # before anything slow
    chosen = _layers(layers)
    prompts = _texts(text, prompt, dataset, split, field, limit, encoding)
    extra = {} if delimiter is None else {"delimiters": [_unescaped(d) for d in delimiter]}
    with progress.bar(quiet) as advance:
        result = probe(
            model,
            prompts,
            tolerances=tol or DEFAULT_TOLERANCES,
            relative=relative,
            entropy=entropy,
            norms=norms,
            gate=gate,
            keep=keep,
            layers=chosen,
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
            **extra,
        )
    if as_json:
        sys.stdout.write(json.dumps(result.summary, ensure_ascii=False, allow_nan=False) + "\n")
    elif not quiet:
        table.show(result)
    if not quiet:
        for line in [*result.summary["notes"], *table.notes(result)]:
            sys.stderr.write(f"note: {line}\n")
        if output is not None:
            sys.stderr.write(f"result written to {output}\n")
    sys.stdout.flush()
    raise typer.Exit(status(result))


def status(result: Result) -> int:
    """0, or 3 where a layer failed its verification or was not finite (its values are null)."""
    checks = result.summary["verification"]
    return 3 if checks["failed"] or checks["not_finite"] else 0


def _texts(
    files: list[str] | None,
    prompts: list[str] | None,
    dataset: str | None,
    split: str,
    field: str,
    limit: int | None,
    encoding: str,
) -> list[str]:
    from hf_ess.text.reading import read_dataset, read_text

    if sum(bool(source) for source in (files, prompts, dataset)) != 1:
        raise BadInput("give the text one way: --text FILE (or - for standard input), --prompt STRING, or --dataset ID")
    if files:
        return [read_text(name, encoding) for name in files]
    if prompts:
        if any(not p for p in prompts):
            raise BadInput("the prompt is empty: there is nothing to measure")
        return prompts
    assert dataset is not None
    return read_dataset(dataset, split, field, limit)


def _layers(text: str | None) -> list[int] | None:
    """Layer numbers from "0,4,8-12"."""
    if text is None:
        return None
    chosen: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            chosen += range(int(first), int(last or first) + 1) if dash else [int(first)]
    except ValueError:
        raise BadInput(f"--layers takes numbers and ranges such as 0,4,8-12, got {text!r}") from None
    if not chosen:
        raise BadInput(f"--layers {text!r} names no layer")
    return chosen


def _unescaped(delimiter: str) -> str:
    r"""A delimiter as typed in a shell: \n and \t are the characters they name."""
    return delimiter.replace("\\n", "\n").replace("\\t", "\t")


command.__doc__ = f"{command.__doc__}\n{EXAMPLES}"
