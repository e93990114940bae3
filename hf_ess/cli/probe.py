"""hf-ess probe: ESS of every layer of a model on a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_ess.cli import ending, options

EXAMPLES = """
Examples:

  hf-ess probe demo:falcon-mamba --text file.txt

  hf-ess probe tiiuae/falcon-mamba-7b --text file.txt --tol 1e-1 --tol 1e-3 -o result

  hf-ess probe ./checkpoint --prompt "One sentence. Another one." --json

  hf-ess probe gpt2 --text file.txt --keep spectra --positions every:8 -o result

  hf-ess probe ./checkpoint --max-tokens 4096 --dry-run

  hf-ess probe gpt2 --dataset wikitext.jsonl --split train --field text --limit 8
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
    tokenizer: options.Tokenizer = None,
    special: options.Special = True,
    tol: options.Tol = None,
    relative: options.Relative = False,
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
    layers: options.Layers = None,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            help="auto: heads and channels of layers with at most 1,024; units (or heads, channels): all; "
            "reductions: none; spectra: auto, and singular values in DIR/spectra, for hf-ess retol.",
        ),
    ] = "auto",
    positions: Annotated[
        str | None,
        typer.Option(
            "--positions", help="Where --keep spectra stores them: delimiters (default), all, every:N, 5,10-20."
        ),
    ] = None,
    spectra_dtype: Annotated[
        str, typer.Option("--spectra-dtype", help="As what they are stored: bfloat16 or float32.")
    ] = "bfloat16",
    max_tokens: options.MaxTokens = None,
    dtype: options.Dtype = "auto",
    device_map: options.DeviceMap = None,
    offload_folder: options.OffloadFolder = None,
    spectra_device: options.SpectraDevice = "layer",
    memory: options.Memory = None,
    revision: options.Revision = None,
    gguf_file: options.GgufFile = None,
    trust_remote_code: options.TrustRemoteCode = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the result: tables, summary, plots.")
    ] = None,
    overwrite: options.Overwrite = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Whether to draw plots into the result.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be measured, and its memory, disk and time; load nothing.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Measure the effective state-size of every layer of a model on a text."""
    from hf_ess.cli import progress
    from hf_ess.probing import DEFAULT_TOLERANCES, probe
    from hf_ess.processes import processes
    from hf_ess.tables import result as table
    from hf_ess.text.delimiters import DEFAULT

    if output is not None:
        from hf_ess.results.files import refuse_existing

        refuse_existing(output, overwrite)  # before anything slow
    chosen = options.layer_numbers(layers)
    delimiters = DEFAULT if delimiter is None else [options.unescaped(d) for d in delimiter]
    asked: dict[str, Any] = {
        "tolerances": tol or DEFAULT_TOLERANCES,
        "relative": relative,
        "entropy": entropy,
        "norms": norms,
        "gate": gate,
        "delimiters": delimiters,
        "keep": keep,
        "positions": positions,
        "spectra_dtype": spectra_dtype,
        "layers": chosen,
        "max_tokens": max_tokens,
        "parse_special": special,
        "tokenizer": tokenizer,
        "dtype": dtype,
        "device_map": device_map,
        "memory": memory,
        "revision": revision,
        "gguf_file": gguf_file,
        "trust_remote_code": trust_remote_code,
        "output": output,
        "plots": plots,
    }
    source = (text, prompt, dataset, split, field, limit, encoding)
    if dry_run:
        from hf_ess.cli import planned

        texts = options.texts(*source) if text or prompt or dataset else None
        raise typer.Exit(planned.run(as_json, quiet, model, texts, **asked))
    prompts = options.texts(*source)
    with progress.bar(quiet) as advance:
        result = probe(
            model,
            prompts,
            **asked,
            offload_folder=offload_folder,
            spectra_device=spectra_device,
            overwrite=overwrite,
            progress=advance,
            announce=None if quiet else lambda line: ending.notes([line]),
        )
    if not processes().first:
        raise typer.Exit(ending.status(result.summary))  # the first process speaks for all
    if as_json:
        ending.document(result.summary)
    elif not quiet:
        table.show(result)
    if not quiet:
        ending.notes([*result.summary["notes"], *table.notes(result)], "result", output)
    sys.stdout.flush()
    raise typer.Exit(ending.status(result.summary))


command.__doc__ = f"{command.__doc__}\n{EXAMPLES}"
