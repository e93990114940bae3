"""plan(): what a probe will measure and what it will cost, before a weight is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ess.bytesizes import written
from hf_ess.errors import BadInput
from hf_ess.loading import LoadedModel, checkpoints, load
from hf_ess.planning import disk, memory
from hf_ess.planning.disk import Disk
from hf_ess.planning.forward import forward_bytes
from hf_ess.planning.memory import Memory
from hf_ess.planning.survey import PlannedLayer, Survey, survey
from hf_ess.processes import processes
from hf_ess.results.recording import Options
from hf_ess.text import delimiters as delims

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from hf_ess.capturing import SkippedLayer
    from hf_ess.planning.timing import Time


@dataclass(frozen=True)
class Plan:
    """What a probe will measure, and what it will take.

    Attributes:
        model: as the user named it.
        parameters: how many the model has.
        dtype: that it will be loaded in.
        tokens: of each prompt.
        layers: mixer calls that will be measured, in order.
        skipped: mixers that will not be, with the reason.
        memory: where the peak comes from; memory.peak is that of the whole process.
        disk: of the result.
        time: None where it was not asked for.
        fits_tokens: the longest text that fits into memory, where this one does not; else None.
        notes: what is not known, a sentence each.
        survey: parameters and widths of the model.
    """

    model: str
    parameters: int
    dtype: str
    tokens: list[int]
    layers: list[PlannedLayer]
    skipped: list[SkippedLayer]
    memory: Memory
    disk: Disk
    time: Time | None
    fits_tokens: int | None
    notes: list[str]
    survey: Survey

    @property
    def cuts(self) -> int:
        """Cuts of all prompts: positions at which every operator is measured."""
        return sum(length - 1 for length in self.tokens)

    @property
    def refusals(self) -> list[str]:
        """Why the run cannot be, a sentence each; empty if it fits."""
        out, needed = [], self.memory
        if needed.available is not None and needed.peak > needed.available:
            if self.fits_tokens:
                advice = f"about {self.fits_tokens} tokens would fit: shorten it with --max-tokens {self.fits_tokens}"
            elif needed.process + needed.weights > needed.available:
                advice = (
                    f"its weights alone take {written(needed.weights)} in {self.dtype}: try --dtype bfloat16, or "
                    "--device-map with an --offload-folder"
                )
            else:
                advice = "no text would fit"
            out.append(
                f"{self.model} on {max(self.tokens):,} tokens needs about {written(needed.peak)} of memory "
                f"({written(needed.run)} of it for {needed.largest}), and {written(needed.available)} are there; "
                f"{advice}"
            )
        if self.disk.free is not None and self.disk.building > self.disk.free:
            out.append(
                f"the result takes about {written(self.disk.building)} of disk while it is built, and "
                f"{written(self.disk.free)} are free: --keep reductions, fewer positions or another -o take less"
            )
        return out

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        longest = max(self.tokens)
        layers = [
            {**asdict(layer), "tss_rule": layer.tss.rule, "tss_n": layer.tss.n, "tss": layer.tss.mean(longest)}
            for layer in self.layers
        ]
        return {
            "model": self.model,
            "parameters": self.parameters,
            "dtype": self.dtype,
            "tokens": self.tokens,
            "cuts": self.cuts,
            "operators": sum(layer.operators for layer in self.layers),
            "layers": layers,
            "skipped": [asdict(s) for s in self.skipped],
            "memory": {"peak": self.memory.peak, **asdict(self.memory)},
            "disk": {"result": self.disk.result, **asdict(self.disk)},
            "time": None if self.time is None else {"total": self.time.total, **asdict(self.time)},
            "fits": not self.refusals,
            "refusals": self.refusals,
            "fits_tokens": self.fits_tokens,
            "notes": self.notes,
        }


def plan(
    model: str | PreTrainedModel | LoadedModel,
    text: str | Sequence[str] | Sequence[int] | None = None,
    *,
    tokens: int | Sequence[int] | None = None,
    tolerances: Sequence[float] | None = None,
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
    memory: int | str | None = None,
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    output: str | os.PathLike[str] | None = None,
    plots: bool = False,
    time: bool = True,
) -> Plan:
    """Tells what `probe` will measure with the same arguments, and the memory, disk and time that it takes.

    Args:
        model: as in probe(); of a name only the configuration (and tokenizer) is read.
        text: one text, several, or token ids; or None, and then
        tokens: the number of tokens, or of each text.
        time: time the engines for a second or two on this machine.
        tolerances, relative, entropy, norms, gate, delimiters, keep, positions, spectra_dtype, layers, max_tokens,
            parse_special, tokenizer, dtype, device_map, memory, revision, gguf_file, trust_remote_code, output, plots:
            as in probe().

    Raises:
        BadInput, UnsupportedModel: the model, text or an option cannot be used.
    """
    from hf_ess import probing
    from hf_ess.text.limits import check
    from hf_ess.text.positions import cuts as cuts_of

    options = probing._options(
        probing.DEFAULT_TOLERANCES if tolerances is None else tolerances,
        relative, entropy, norms, gate, keep, positions, spectra_dtype, layers,
    )  # fmt: skip
    room = probing._room(memory)
    if (text is None) == (tokens is None):
        raise BadInput("a plan is of a text or of a number of tokens: give one of them")
    texts, ids = probing._items(text) if text is not None else ([], [])
    loaded = model
    if not isinstance(loaded, LoadedModel):
        loaded = load(
            loaded,
            tokenizer=tokenizer,
            dtype=dtype,
            device_map=device_map,
            revision=revision,
            gguf_file=gguf_file,
            trust_remote_code=trust_remote_code,
            with_model=False,
            config_only=True,
            with_tokenizer=bool(texts) or (text is not None and tokenizer is not None),
        )
    cuts: list[list[int]] | None = [[]]
    if text is not None:
        prompts = probing._prompts(loaded, texts, ids, max_tokens, parse_special)
        lengths = [len(p) for p in prompts]
        for prompt in prompts:
            check(prompt, loaded.config)
        found = [delims.find(p, loaded.tokenizer, loaded.model, list(delimiters)) for p in prompts]
        cuts = [[] for _ in prompts] if options.positions is None else cuts_of(options.positions, lengths, found)
    else:
        lengths = [tokens] if isinstance(tokens, int) else list(tokens or [])
        lengths = [n if max_tokens is None else min(n, max_tokens) for n in lengths]
        if not lengths or min(lengths) < 2:
            raise BadInput("at least 2 tokens are needed, because memory is measured between tokens")
        if options.positions is not None:
            known = options.positions != "delimiters"
            cuts = cuts_of(options.positions, lengths, [{} for _ in lengths]) if known else None
        else:
            cuts = [[] for _ in lengths]
    return planned(loaded, lengths, cuts, options, room, None if output is None else Path(output), plots, time)


def planned(
    loaded: LoadedModel,
    lengths: Sequence[int],
    cuts: Sequence[Sequence[int]] | None,
    options: Options,
    room: int | None = None,
    output: Path | None = None,
    plots: bool = False,
    time: bool = False,
) -> Plan:
    """The plan of a model whose weights may be still to be read.

    Args:
        loaded: the model, or what is known of it.
        lengths: tokens of each prompt.
        cuts: where spectra are stored, for each prompt; None where that is not known.
        options: what is computed and kept.
        room: bytes for a block of operators, or None.
        output: the result's directory to be, or None.
        plots: whether pictures are drawn.
        time: whether to time the engines.
    """
    dtype, trusted = stored_dtype(loaded)
    found = survey(loaded.config, dtype, trusted)
    layers = [x for x in found.layers if options.layers is None or x.layer in options.layers]
    notes = list(loaded.notes)
    if not layers:
        notes.append("no layer is known to be measurable: see the reasons of those that are not")
    if getattr(loaded.config, "quantization_config", None):
        notes.append(f"{loaded.name} is quantised: its weights take less than is said here")
    elsewhere = bool(places(loaded) - {"cpu"})
    if elsewhere:
        notes.append(
            "memory is told of all devices together: whether each part fits where the device map puts it is not"
        )
    if cuts is None:
        notes.append("how many spectra are stored depends on the delimiters in the text: give the text")
    shared = processes()
    if not shared.alone:
        notes.append(f"{shared.count} processes share the prompts: memory and time are those of one of them")
    held, fits = _memory(loaded, found, layers, lengths, options, room, dtype, trusted)
    if held.unknown:
        notes.append(held.unknown)
    needed = disk.estimated(layers, lengths, cuts, options, plots and output is not None, output)
    took = None
    if time and elsewhere:
        notes.append("time is told for the CPU alone")
    elif time:
        from hf_ess.planning import timing

        pictures = plots and output is not None
        mine = [number for number in range(len(lengths)) if shared.mine(number)]
        own, at = [lengths[n] for n in mine], None if cuts is None else [cuts[n] for n in mine]
        took = timing.estimated(found, layers, own, at, options, torch_dtype(loaded, dtype), pictures)
    name = str(torch_dtype(loaded, dtype)).removeprefix("torch.")
    return Plan(
        loaded.name,
        found.parameters,
        name,
        list(lengths),
        layers,
        found.skipped,
        held,
        needed,
        took,
        fits,
        notes,
        found,
    )


def _memory(
    loaded: LoadedModel,
    found: Survey,
    layers: Sequence[PlannedLayer],
    lengths: Sequence[int],
    options: Options,
    room: int | None,
    dtype: Any,
    trusted: bool,
) -> tuple[Memory, int | None]:
    """Peak memory, and the longest text that would fit where this one does not."""
    longest = max(lengths)
    forward = forward_bytes(loaded.config, dtype, longest, trusted)
    run, name = memory.largest(found, longest, options, room, forward)
    _, rows = disk.curves(layers, lengths, options)
    weights = found.parameter_bytes if loaded.model is None else 0  # those of a loaded model the process holds
    unknown = None
    if forward is None:
        unknown = "what the forward pass takes is not in the memory: it depends on the text"
    available = memory.available_bytes(places(loaded))
    held = Memory(memory.process_bytes(), weights, run, name, int(rows), available, unknown)
    if held.available is None or held.peak <= held.available:
        return held, None

    def need(length: int) -> float:
        size, _ = memory.largest(found, length, options, room, forward)
        return held.process + held.weights + size + rows * min(1.0, length / longest)

    return held, memory.longest(need, held.available, longest)


def stored_dtype(loaded: LoadedModel) -> tuple[Any, bool]:
    """The dtype that the weights will have, "auto" where the configuration says it, and whether code is trusted."""
    request = loaded._request
    if request is None:
        return (next(loaded.model.parameters()).dtype if loaded.model is not None else "auto"), False
    if request.dtype != "auto" or getattr(loaded.config, "dtype", None) is not None or request.source.gguf is not None:
        return request.dtype, request.trust_remote_code
    if request.source.repository is None:  # transformers then goes by the files
        import torch

        try:
            stored = checkpoints.check_weights(checkpoints.find_weights(request.source.folder, request.raw))
        except BadInput:  # a plan can be made of config.json alone
            stored = None
        return getattr(torch, stored or "", "auto"), request.trust_remote_code
    return "auto", request.trust_remote_code


def torch_dtype(loaded: LoadedModel, dtype: Any) -> torch.dtype:
    """The dtype in which most of the model computes."""
    import torch

    return (getattr(loaded.config, "dtype", None) or torch.float32) if dtype == "auto" else dtype


def places(loaded: LoadedModel) -> set[str]:
    """Where the model is, or is asked to be: "cpu", "auto", "disk", "cuda:0" ..."""
    if loaded.model is not None:
        return set(loaded.devices)
    asked = None if loaded._request is None else loaded._request.device_map
    return {str(place) for place in (asked.values() if isinstance(asked, dict) else [asked or "cpu"])}
