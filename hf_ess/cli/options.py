"""Options that several commands share, and what they mean."""

from __future__ import annotations

from typing import Annotated

import typer

from hf_ess.errors import BadInput

Model = Annotated[str, typer.Argument(help="Hub id, folder, .gguf file, demo:falcon-mamba or demo:llama.")]
Text = Annotated[
    list[str] | None, typer.Option("--text", help="File with the text; - reads standard input. Repeatable.")
]
Prompt = Annotated[list[str] | None, typer.Option("--prompt", help="The text itself. Repeatable.")]
Dataset = Annotated[str | None, typer.Option("--dataset", help="Source for datasets: Hub id, file or folder.")]
Split = Annotated[str, typer.Option("--split", help="Split of the dataset.")]
Field = Annotated[str, typer.Option("--field", help="Field of the dataset that holds the text.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Number of rows of the dataset.")]
Encoding = Annotated[str, typer.Option("--encoding", help="Encoding of text files.")]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Tokenizer id or folder, if not the model's.")]
Special = Annotated[
    bool, typer.Option("--special/--literal", help="Whether special tokens typed in the text become those tokens.")
]
Tol = Annotated[list[float] | None, typer.Option("--tol", help="Tolerance; repeatable. Default 1e-1, 1e-3, 1e-5.")]
Relative = Annotated[
    bool, typer.Option("--relative", help="Tolerances in units of each operator's largest singular value.")
]
Layers = Annotated[str | None, typer.Option("--layers", help="Layers to measure, such as 0,4,8-12.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=2, help="Measure the first N tokens of each text.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Dtype of the model: auto, float32, bfloat16, float16.")]
DeviceMap = Annotated[
    str | None,
    typer.Option("--device-map", help='auto, cpu, cuda:1 ..., a JSON file, or {"": "cpu", "model.layers.2": "disk"}.'),
]
OffloadFolder = Annotated[
    str | None, typer.Option("--offload-folder", help="For weights that --device-map puts on disk; default temporary.")
]
Memory = Annotated[
    str | None, typer.Option("--memory", help="For the heads or channels measured at once, such as 2GiB.")
]
SpectraDevice = Annotated[
    str, typer.Option("--spectra-device", help="Where operators are measured: layer (where it is), cpu, cuda ...")
]
Revision = Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit on the Hub.")]
GgufFile = Annotated[str | None, typer.Option("--gguf-file", help="GGUF file in the folder or repository.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run modelling code that comes with the checkpoint.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON document.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]


def texts(
    files: list[str] | None,
    prompts: list[str] | None,
    dataset: str | None,
    split: str,
    field: str,
    limit: int | None,
    encoding: str,
) -> list[str]:
    """The texts to measure, from the one source that was given.

    Raises:
        BadInput: no source or several, or one that cannot be read.
    """
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


def layer_numbers(text: str | None) -> list[int] | None:
    """Layer numbers from "0,4,8-12".

    Raises:
        BadInput: not such a list, or an empty one.
    """
    if text is None:
        return None
    chosen: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            if dash and int(last) - int(first) > 100_000:
                raise ValueError
            chosen += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise BadInput(f"--layers takes numbers and ranges such as 0,4,8-12, got {text!r}") from None
    if not chosen:
        raise BadInput(f"--layers {text!r} names no layer")
    return chosen


def unescaped(text: str) -> str:
    r"""Text as typed in a shell: \n and \t are the characters they name."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"an argument is not text in the encoding of this shell: {text!a}") from error
    return text.replace("\\n", "\n").replace("\\t", "\t")
