"""Read a checkpoint's weights, and refuse a model that they do not fill exactly.

transformers fills a tensor that is not in the files with random numbers and carries on; here that is an
error, and so are tensors of another shape. Tensors that the configuration has no place for are reported.
"""

from __future__ import annotations

import io
import logging
import pickle
import re
import tempfile
from collections import Counter
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ess.errors import BadInput
from hf_ess.loading import checkpoints
from hf_ess.loading.checkpoints import listing
from hf_ess.loading.configs import auto_class, first_line
from hf_ess.loading.hub import fetch_weights
from hf_ess.loading.sources import Source
from hf_ess.loading.spreading import spread

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ModelWithLMHead")
BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}


@dataclass
class Request:
    """What is to be read, and how.

    Attributes:
        source: where the checkpoint is.
        config: the configuration object.
        raw: config.json as it stands in the file; empty for GGUF.
        dtype: "auto" or a torch.dtype.
        device_map: as in transformers.
        offload_folder: for weights on disk that are not in safetensors files; None: a temporary folder.
        trust_remote_code: run code that is part of the checkpoint.
    """

    source: Source
    config: PretrainedConfig
    raw: dict[str, Any]
    dtype: Any = "auto"
    device_map: Any = None
    offload_folder: str | Path | None = None
    trust_remote_code: bool = False

    @property
    def own_code(self) -> bool:
        return self.trust_remote_code and bool(self.raw.get("auto_map"))


def read(request: Request) -> tuple[PreTrainedModel, list[Path], list[str]]:
    """Read the weights.

    Returns:
        The model in eval mode with eager attention, the files that were read, and warnings as sentences.

    Raises:
        BadInput: files are missing or damaged, or do not hold what the configuration asks for.
    """
    source, notes, stored = request.source, [], None
    if source.gguf is not None:
        files, format = [source.folder / source.gguf], {}
    else:
        if source.repository is not None:
            fetch_weights(source.repository)
        found = checkpoints.find_weights(source.folder, request.raw)
        stored = checkpoints.check_weights(found)
        files, format = found.files, {"use_safetensors": found.safetensors}
        notes += found.notes
    model, info = _from_pretrained(request, files, format)
    notes += _complete(request, model, info)
    notes += _settle(request, model)
    notes += _surprises(request, model, stored)
    return model.eval(), files, notes


def attention(config: Any) -> str:
    """The attention implementation to load with: eager, but for the one family that it makes another model.

    Falcon's eager code adds its ALiBi bias twice (transformers 5.24: logits differ from sdpa's, which are right).
    """
    return "sdpa" if config.model_type == "falcon" and getattr(config, "alibi", False) else "eager"


def _from_pretrained(request: Request, files: list[Path], format: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    source = request.source
    # A repository's own code is found by its id; else the folder is enough, and nothing more is asked of the Hub.
    location, where = (source.location, source.where) if request.own_code else (str(source.folder), {})
    if source.gguf is not None:
        where = {**where, "gguf_file": source.gguf}
    offload = None
    if request.device_map is not None:
        offload = _offload_folder(request)
        where = {**where, "device_map": _spread(request), "offload_folder": getattr(offload, "name", offload)}
    report = _Report()
    # The GGUF reader draws a progress bar that none of the usual switches turns off.
    hush = redirect_stderr(io.StringIO()) if source.gguf is not None else nullcontext()
    try:
        with report, hush:
            model, info = auto_class(request.config).from_pretrained(
                location,
                config=request.config,
                dtype=request.dtype,
                attn_implementation=attention(request.config),
                trust_remote_code=request.trust_remote_code,
                ignore_mismatched_sizes=True,  # so that both shapes come back and can be named
                output_loading_info=True,
                **where,
                **format,
            )
    except Exception as error:
        raise BadInput(_reason(error, request, files, report.unmerged)) from error
    model._hf_ess_offload = offload  # weights that were put on disk live as long as the model
    return model, info


def _offload_folder(request: Request) -> Any:
    if request.offload_folder is None:
        return tempfile.TemporaryDirectory(prefix="hf-ess-offload-")
    try:
        Path(request.offload_folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot keep weights in {request.offload_folder}: {error.strerror}") from error
    return str(request.offload_folder)


def _spread(request: Request) -> Any:
    """The device map, entry by entry, for which the structure of the model is built without weights."""
    if not isinstance(request.device_map, dict) or set(request.device_map) == {""}:
        return request.device_map
    from accelerate import init_empty_weights

    named = {"trust_remote_code": True} if request.trust_remote_code else {}
    with init_empty_weights():
        return spread(request.device_map, auto_class(request.config).from_config(request.config, **named))


class _Report(logging.Handler):
    """Which tensors could not be put together (experts of a mixture, q with k and v ...), from transformers' load
    report: its exception only points to that report, which is a table for stderr.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unmerged: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.unmerged += re.findall(r"^(\S+) *\| *CONVERSION", record.getMessage(), re.MULTILINE)

    def __enter__(self) -> _Report:
        self.logger = logging.getLogger("transformers.modeling_utils")
        self.before = self.logger.level, self.logger.propagate
        self.logger.setLevel(logging.WARNING)
        self.logger.propagate = False
        self.logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self)
        self.logger.setLevel(self.before[0])
        self.logger.propagate = self.before[1]


def _reason(error: Exception, request: Request, files: list[Path], unmerged: list[str]) -> str:
    """One sentence for whatever transformers raised while it read the weights."""
    import torch

    name, quantization = request.source.name, request.raw.get("quantization_config")
    if isinstance(error, pickle.UnpicklingError):
        return (
            f"{files[0]} holds more than tensors, and reading it would run code that came with it: use a "
            "safetensors version of this checkpoint"
        )
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        gigabytes = sum(path.stat().st_size for path in files) / 1e9
        return (
            f"{name} does not fit into memory (its files hold {gigabytes:.1f} GB): try --dtype bfloat16, or "
            "--device-map auto"
        )
    if unmerged:
        return (
            f"the weights of {name} do not fit its config.json: {listing(unmerged)} cannot be put together from "
            "the tensors in its files (one is missing, or has another shape)"
        )
    if isinstance(quantization, dict):
        method = quantization.get("quant_method") or "bitsandbytes"
        return f"{name} is quantised ({method}) and cannot be read here: {first_line(error)}"
    if isinstance(error, ImportError):
        return f"{name} needs a package that is not installed: {first_line(error)}"
    return f"could not load {name}: {first_line(error)}"


def _complete(request: Request, model: Any, info: dict[str, Any]) -> list[str]:
    """Refuse missing and misshapen tensors; return notes about unused ones."""
    name, notes = request.source.name, []
    if mismatched := sorted(info.get("mismatched_keys", ())):
        key, file_shape, model_shape = mismatched[0]
        more = f" (and {len(mismatched) - 1} more)" if len(mismatched) > 1 else ""
        raise BadInput(
            f"the weights of {name} do not fit its config.json: {key} has shape {tuple(file_shape)} in the "
            f"file and {tuple(model_shape)} by the configuration{more}"
        )
    if missing := sorted(info.get("missing_keys", ())):
        if not _head_alone(request, model, missing):
            raise BadInput(
                f"the weight files of {name} lack {len(missing)} of the tensors that its configuration asks for, "
                f"and random numbers would stand in for them: {listing(missing)}"
            )
        notes.append(
            f"{name} has no output head ({', '.join(request.raw['architectures'])}): its logits are random, "
            "which no operator depends on"
        )
    if unexpected := sorted(info.get("unexpected_keys", ())):
        notes.append(
            f"tensors in the weight files of {name} are unused, because its configuration has no place for "
            f"them{_dropped_layers(request.config, unexpected)}: {listing(unexpected)}"
        )
    if errors := info.get("error_msgs"):
        raise BadInput(f"could not load {name}: {str(errors[0]).strip().splitlines()[0]}")
    return notes


def _head_alone(request: Request, model: Any, missing: list[str]) -> bool:
    """Whether a checkpoint that says it has no language-model head lacks nothing else."""
    names = request.raw.get("architectures") or []
    head = model.get_output_embeddings()
    if head is None or not names or any(str(name).endswith(HEADS) for name in names):
        return False
    prefix = next((path for path, module in model.named_modules() if module is head), None)
    return prefix is not None and all(key.startswith(f"{prefix}.") for key in missing)


def _dropped_layers(config: PretrainedConfig, keys: list[str]) -> str:
    count = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    numbers = [int(found[1]) for key in keys if (found := re.search(r"\.(?:layers|h|blocks)\.(\d+)\.", key))]
    if count is None or not numbers or min(numbers) < count:
        return ""
    return f" (it has {count} layers, the files have {max(numbers) + 1})"


def _settle(request: Request, model: Any) -> list[str]:
    """Make sure of the dtype and the attention that were asked for; both have been lost on some paths."""
    notes = []
    if request.dtype != "auto" and main_dtype(model) != str(request.dtype).removeprefix("torch."):
        if getattr(model, "is_quantized", False):
            notes.append(f"{request.source.name} is quantised and was not converted to {request.dtype}")
        else:
            model.to(request.dtype)
    wanted = attention(request.config)
    if getattr(model.config, "_attn_implementation", wanted) != wanted:
        try:
            model.set_attn_implementation(wanted)
        except Exception as error:
            notes.append(f"{request.source.name} does not switch to {wanted} attention: {first_line(error)}")
    return notes


def _surprises(request: Request, model: Any, stored: str | None) -> list[str]:
    """What transformers decides without a word: rounded weights, and another class than config.json names."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    name, notes = request.source.name, []
    got = main_dtype(model)
    if request.dtype == "auto" and BITS.get(stored or "", 0) > BITS.get(got or "", 64):
        notes.append(
            f"the weights of {name} are stored in {stored} and were rounded to {got}, because its config.json "
            f"says so: --dtype {stored} keeps them"
        )
    named, kind = (request.raw.get("architectures") or [None])[0], type(model).__name__
    elsewhere = [key for key, value in CLASSES.items() if value == named]
    if elsewhere and named != kind and not request.own_code and request.raw.get("model_type") not in elsewhere:
        notes.append(f"config.json of {name} names {named}, but by its model_type it was loaded as {kind}")
    return notes


def main_dtype(model: Any) -> str | None:
    """The floating-point type that most of the parameters have, without "torch."."""
    counts: Counter[str] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else None


def devices(model: Any) -> list[str]:
    """Where the parameters are; offloaded ones by the device map."""
    mapped = {str(device) for device in (getattr(model, "hf_device_map", None) or {}).values()}
    names = {f"cuda:{name}" if name.isdigit() else name for name in mapped}
    return sorted(names or {str(parameter.device) for parameter in model.parameters()})
