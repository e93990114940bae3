"""probe(): run a model on texts, measure every operator, and give back a Result."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hf_ess import bytesizes
from hf_ess.errors import BadInput, HfEssError
from hf_ess.loading import LoadedModel, load
from hf_ess.loading.devices import spectra_device as check_spectra_device
from hf_ess.planning.guard import foresee
from hf_ess.plotting.attempt import attempt
from hf_ess.probe_run import ProbeRun, Progress
from hf_ess.processes import meeting_place, processes
from hf_ess.results import Result, load_result
from hf_ess.results.recording import Options, usable
from hf_ess.results.shards import DTYPES
from hf_ess.results.writing import PartialResult
from hf_ess.spectra import svd_cost
from hf_ess.text import delimiters as delims
from hf_ess.text.limits import attention_heads, check
from hf_ess.text.positions import DELIMITERS
from hf_ess.text.positions import cuts as cuts_of
from hf_ess.text.positions import parsed as parsed_positions
from hf_ess.text.tokens import Tokens, from_ids, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT_TOLERANCES = (1e-1, 1e-3, 1e-5)


def probe(
    model: str | PreTrainedModel | LoadedModel,
    text: str | Sequence[str] | Sequence[int],
    *,
    tolerances: Sequence[float] = DEFAULT_TOLERANCES,
    relative: bool = False,
    entropy: bool = True,
    norms: bool = False,
    gate: float | None = None,
    delimiters: Sequence[str] = delims.DEFAULT,
    keep: str = "auto",
    positions: str | Sequence[int] | None = None,
    spectra_dtype: str = "bfloat16",
    layers: Iterable[int] | None = None,
    max_tokens: int | None = None,
    parse_special: bool = True,
    tokenizer: Any = None,
    dtype: str = "auto",
    device_map: Any = None,
    offload_folder: str | Path | None = None,
    spectra_device: str | None = None,
    memory: int | str | None = None,
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    plots: bool = False,
    progress: Progress | None = None,
    announce: Callable[[str], object] | None = None,
) -> Result:
    """Measures the effective state-size of every sequence mixer of a causal language model on a text.

    Args:
        model: Hub id, path, "demo:falcon-mamba", "demo:llama", or a loaded model (then give tokenizer=).
        text: one text, several texts, or token ids.
        tolerances: absolute, > 0; a singular value counts where it is at least the tolerance.
        relative: tolerances are in units of each operator's largest singular value over all cuts.
        entropy: compute entropy-ESS.
        norms: compute sigma_1 and the stable rank of every H_i (slow for attention).
        gate: entropy-ESS is null where sigma_1(H_i) is below it; default the smallest tolerance; 0 for none.
        delimiters: marked in the result: "eos", the text of a special token, "id:N", or characters such as ".".
        keep: "auto" keeps heads and channels of layers with at most 1,024 of them, "units" (or "heads", "channels") of
            all layers, "reductions" of none; "spectra" is "auto" and stores singular values in output/spectra, from
            which `hf_ess.retol` counts at other tolerances.
        positions: the cuts i at which singular values are stored: "delimiters" (p .. p+2 for each delimiter p; the
            default), "all", "every:N", or a list of numbers or such as "5,10-20".
        spectra_dtype: as what they are stored: "bfloat16" (rounded to nearest, off by a relative 2^-8 at most) or
            "float32".
        layers: numbers of the layers to measure; default all.
        max_tokens: measure the first max_tokens tokens of each text.
        parse_special: special tokens typed in the text become those tokens.
        tokenizer: id, path or object; default the model's own.
        dtype, revision, gguf_file, trust_remote_code: as in transformers' from_pretrained.
        device_map: likewise; also JSON, or the path of a JSON file.  Inner entries win over outer ones.
        offload_folder: for weights that the map puts on disk and that have to be written anew; default temporary.
        spectra_device: where operators are measured, "cpu", "cuda:1" ...; default where their layer is.
        memory: bytes, or such as "2GiB", that the work on a block of heads or channels may take beside the model; what
            one of them needs is taken in any case.  Default some 1 GiB, and a quarter of what is free.
        output: directory for the result; it is written layer by layer and resumed if the run dies.
        overwrite: replace an existing result there.
        plots: draw the standard pictures into output/plots.
        progress: called after every layer.
        announce: called with a sentence before anything that may take long.

    Returns:
        The result; layers that failed their verification or are not finite are in it with null values.

    Raises:
        BadInput, UnsupportedModel: the model, text or an option cannot be used, or no layer can be measured.
    """
    options = _options(tolerances, relative, entropy, norms, gate, keep, positions, spectra_dtype, layers)
    if options.positions is not None and output is None:
        raise BadInput('keep "spectra" writes singular values into a directory: name it with output (-o DIR)')
    if layers is not None and options.layers is not None and any(n < 0 for n in options.layers):
        raise BadInput(f"layer numbers start at 0, got {min(options.layers)}")
    room, device = _room(memory), check_spectra_device(spectra_device)
    shared = processes()
    if not shared.first:
        progress = announce = None
    texts, ids = _items(text)
    if isinstance(model, LoadedModel):
        loaded = model
    else:
        loaded = load(
            model,
            tokenizer=tokenizer,
            dtype=dtype,
            device_map=shared.device_map(device_map),
            offload_folder=offload_folder,
            revision=revision,
            gguf_file=gguf_file,
            trust_remote_code=trust_remote_code,
            with_model=False,
            with_tokenizer=ids is None,
        )
    prompts = _prompts(loaded, texts, ids, max_tokens, parse_special)
    foresee(loaded, [len(p) for p in prompts], options, room, output, plots, announce)
    loaded.read_weights()
    warnings = [note for p in prompts for note in (*p.notes, *check(p, loaded.model))]
    notes = list(dict.fromkeys([*loaded.notes, *warnings]))
    found = [delims.find(p, loaded.tokenizer, loaded.model, list(delimiters)) for p in prompts]
    if tuple(delimiters) != tuple(delims.DEFAULT):
        absent = [name for name in delimiters if not any(by[name] for by in found)]
        notes += [f"the delimiter {name!r} does not occur in the text" for name in absent]
    cuts: list[list[int]] = [[] for _ in prompts]
    if options.positions is not None:
        lengths = [len(p) for p in prompts]
        cuts = cuts_of(options.positions, lengths, found)
        notes += [f"prompt {n} has no position to store spectra at" for n, at in enumerate(cuts) if not at]
        if announce is not None:
            _announce(announce, loaded.model, lengths, cuts)
    run = ProbeRun(loaded, prompts, options, progress, found, cuts, room, device, shared)
    try:
        with meeting_place(output, shared) as target:
            return _finished(run, target, overwrite, plots, list(delimiters), notes)
    except MemoryError as error:
        raise HfEssError("the machine ran out of memory; shorten the text with --max-tokens") from error


def _finished(
    run: ProbeRun, target: Path | None, overwrite: bool, plots: bool, delimiters: list[str], notes: list[str]
) -> Result:
    """Runs everything, and gives the result in every process."""
    if target is None:
        run.run(None)
        return run.result(delimiters, notes)
    shared, key = run.processes, run.key()
    with PartialResult.of(shared, target, key, overwrite) as partial:
        run.run(partial)
        if shared.first:
            result = run.result(delimiters, notes)
            if plots:
                attempt(
                    lambda: _draw(result, partial.folder / "plots"),
                    result.summary["notes"],
                    "; hf-ess plot DIR tries again",
                )
            partial.publish(result)
            result.path = partial.target
        shared.wait()
    return result if shared.first else load_result(target)


def _options(
    tolerances: Sequence[float],
    relative: bool,
    entropy: bool,
    norms: bool,
    gate: float | None,
    keep: str,
    positions: str | Sequence[int] | None,
    spectra_dtype: str,
    layers: Iterable[int] | None,
) -> Options:
    tolerances = usable(tolerances)
    gate = min(tolerances) if gate is None else float(gate)
    if not (math.isfinite(gate) and gate >= 0):
        raise BadInput(f"the entropy gate must be finite and at least 0, got {gate}")
    keep = "units" if keep in ("heads", "channels") else keep
    if keep not in ("auto", "units", "reductions", "spectra"):
        raise BadInput(f'keep must be "auto", "units" (heads, channels), "reductions" or "spectra", got {keep!r}')
    if keep != "spectra" and positions is not None:
        raise BadInput(f'positions say where spectra are kept, which keep "{keep}" does not: ask for keep "spectra"')
    if spectra_dtype not in DTYPES:
        raise BadInput(f"spectra are stored as {' or '.join(DTYPES)}, got {spectra_dtype!r}")
    if isinstance(layers, str) or (layers is not None and not hasattr(layers, "__iter__")):
        raise BadInput(f"layers must be a list of numbers, got {layers!r}")
    chosen = None if layers is None else tuple(sorted(set(layers)))
    if keep != "spectra":
        return Options(tolerances, relative, entropy, norms, gate, keep, chosen)
    where = parsed_positions(DELIMITERS if positions is None else positions)
    return Options(tolerances, relative, entropy, norms, gate, keep, chosen, where, spectra_dtype)


def _room(memory: int | str | None) -> int | None:
    """Bytes for a block of operators; None: what the engines take by themselves, where there is plenty."""
    if memory is not None:
        return bytesizes.parsed(memory)
    import psutil

    quarter = psutil.virtual_memory().available // 4
    return None if quarter > 2**30 else quarter


def _announce(announce: Callable[[str], object], model: Any, lengths: list[int], cuts: list[list[int]]) -> None:
    """Says how long the SVDs of attention will take, where that is more than a minute."""
    heads = attention_heads(model)
    seconds = sum(svd_cost.seconds(length, at, heads) for length, at in zip(lengths, cuts)) if heads else 0.0
    if seconds > 60:
        time = f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
        announce(
            f"singular values of {heads:,} attention heads at {sum(map(len, cuts)):,} positions take about {time} on "
            "the CPU of this machine; fewer positions take less (--positions every:N or a list)"
        )


def _prompts(
    loaded: LoadedModel, texts: list[str], ids: list[int] | None, max_tokens: int | None, parse_special: bool
) -> list[Tokens]:
    """The texts, or the ids of one text, as tokens."""
    if ids is not None:
        return [from_ids(loaded.tokenizer, ids, max_tokens=max_tokens)]
    return [tokenize(loaded.tokenizer, item, max_tokens=max_tokens, parse_special=parse_special) for item in texts]


def _items(text: str | Sequence[str] | Sequence[int]) -> tuple[list[str], list[int] | None]:
    """What was given as text: texts, or the token ids of one text."""
    if isinstance(text, Mapping):  # all that a tokenizer returns
        if "input_ids" not in text:
            raise BadInput("text must be a string, a list of strings, or a list of token ids, got a mapping")
        text = cast("Any", text)["input_ids"]
    if isinstance(text, bytes | bytearray):
        raise BadInput("text must be a string, a list of strings, or a list of token ids, got bytes: decode them")
    if not hasattr(text, "__iter__") and text is not None:
        raise BadInput(f"text must be a string, a list of strings, or a list of token ids, got {type(text).__name__}")
    if getattr(text, "ndim", 1) == 2 and len(text) == 1:  # ids as a tokenizer returns them
        text = text[0]  # type: ignore[assignment]
    if text is None:
        raise BadInput("there is no text to measure")
    items: list[Any] = [text] if isinstance(text, str) else text.tolist() if hasattr(text, "tolist") else list(text)
    if not items:
        raise BadInput("there is no text to measure")
    if all(isinstance(item, int) for item in items):
        return [], items
    if not all(isinstance(item, str) for item in items):
        raise BadInput("text must be a string, a list of strings, or a list of token ids")
    return items, None


def _draw(result: Result, folder: Path) -> None:
    """Draws the standard pictures."""
    from hf_ess.plots import save_all

    save_all(result, folder)
