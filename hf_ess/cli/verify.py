"""hf-ess verify: is every operator the one that the model used?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_ess.cli import ending
from hf_ess.tables import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from hf_ess.verification import Verification


def command(
    model: Annotated[str, typer.Argument(help="Hub id, folder, .gguf file, demo:falcon-mamba or demo:llama.")],
    text: Annotated[Path | None, typer.Option("--text", help="File with a text; default one that ships.")] = None,
    encoding: Annotated[str, typer.Option("--encoding", help="Encoding of the text file.")] = "utf-8",
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Use the first N tokens.")] = 256,
    tokenizer: Annotated[str | None, typer.Option("--tokenizer", help="Tokenizer id or folder.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Dtype of the model.")] = "auto",
    device_map: Annotated[str | None, typer.Option("--device-map", help="Where the model goes.")] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit on the Hub.")] = None,
    gguf_file: Annotated[str | None, typer.Option("--gguf-file", help="GGUF file in the folder.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run modelling code that comes with the checkpoint.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Check the operator of every layer against the model itself, and the engine against dense SVDs."""
    from hf_ess.text.reading import read_text
    from hf_ess.verification import verify

    done = verify(
        model,
        None if text is None else read_text(text, encoding),
        tokens=max_tokens,
        tokenizer=tokenizer,
        dtype=dtype,
        device_map=device_map,
        revision=revision,
        gguf_file=gguf_file,
        trust_remote_code=trust_remote_code,
    )
    if as_json:
        ending.document(done.to_json())
    else:
        show(done)
    raise typer.Exit(0 if done.passed else 3)


def show(done: Verification) -> None:
    """Prints the table on stdout, notes on stderr."""
    failed = sum(not layer.passed for layer in done.layers)
    lines = [
        f"{done.model}: {done.tokens} tokens, {len(done.layers)} mixer calls: "
        f"{len(done.layers) - failed} passed, {failed} failed, {len(done.skipped)} skipped",
        "  error: largest ||T u - y|| / ||y||, y by the model itself; rounding: what its own dtype adds",
        "  engine: counts that equal those of dense SVDs, of those compared",
    ]
    terminal.show(lines, _table(done))
    for skipped in done.skipped:
        sys.stderr.write(f"note: skipped {skipped.module} ({skipped.class_name}): {skipped.reason}\n")
    if done.not_called:
        sys.stderr.write(f"note: {len(done.not_called)} mixers were not called on this text\n")
    for note in done.notes:
        sys.stderr.write(f"note: {note}\n")


def _table(done: Verification) -> Table:
    columns = ("layer", "kind", "ops", "TSS", "error", "allowed", "rounding", "engine", "")
    table = terminal.new_table(columns, left=("layer", "kind", ""))
    for layer in done.layers:
        state = [] if layer.passed else ["FAILED" if layer.finite else "not finite"]
        table.add_row(
            f"{layer.layer}" + (f".{layer.call}" if layer.call else ""),
            layer.kind,
            str(layer.operators),
            str(layer.tss),
            f"{layer.error:.0e}",
            f"{layer.bound:.0e}",
            f"{layer.rounding:.0e}" if layer.rounding else "0",
            f"{layer.engine_compared - layer.engine_wrong}/{layer.engine_compared}",
            "; ".join([*state, *layer.notes]),
        )
    return table
