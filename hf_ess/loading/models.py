"""From a user's words to a model and a tokenizer, with one sentence for everything that can be wrong.

    loaded = load("owner/name")                      # the Hub, or its cache
    loaded = load("runs/my-model")                   # a folder
    loaded = load("model.gguf")                      # a GGUF file
    loaded = load("demo:llama")                      # a checkpoint that ships with the package
    loaded = load(model, tokenizer=tokenizer)        # a model in memory

Order: config.json is judged, the tokenizer is loaded, and only then are weights read. Attention is always
"eager", because the other implementations never hold the attention matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ess.errors import BadInput, UnsupportedModel
from hf_ess.loading import checkpoints, configs, hashing, weights
from hf_ess.loading.configs import first_line
from hf_ess.loading.devices import check_device, parse_device_map
from hf_ess.loading.quieting import quiet
from hf_ess.loading.sources import Source, find_source

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {
    "float64": "float64", "fp64": "float64", "double": "float64",
    "float32": "float32", "fp32": "float32", "float": "float32",
    "bfloat16": "bfloat16", "bf16": "bfloat16",
    "float16": "float16", "fp16": "float16", "half": "float16",
}  # fmt: skip


@dataclass
class LoadedModel:
    """A model that can be measured, and where it came from.

    Attributes:
        name: the model as the user named it.
        source: the local folder or GGUF file; for a model in memory its class.
        config: the configuration object.
        config_hash: sha256 of config.json (of the configuration as JSON for GGUF and models in memory).
        tokenizer: the tokenizer; None where none was asked for or given.
        model: the model in eval mode; None until `read_weights` where that was put off.
        revision: the commit hash on the Hub; None for local files.
        weights_hash: fingerprint of the weights, see `hf_ess.loading.hashing`; None until they are read.
        dtype: the floating-point type that most parameters have, as read back from the model.
        files: names of the weight files that were read.
        devices: where the parameters are.
        notes: warnings, a sentence each.
    """

    name: str
    source: str
    config: PretrainedConfig
    config_hash: str
    tokenizer: PreTrainedTokenizerBase | None = None
    model: PreTrainedModel | None = None
    revision: str | None = None
    weights_hash: str | None = None
    dtype: str | None = None
    files: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _request: weights.Request | None = field(default=None, repr=False)

    @property
    def device(self) -> str:
        return ", ".join(self.devices)

    @property
    def geometry(self) -> dict[str, int]:
        """Layers, heads, head_dim ... by the configuration; no check of the files tells if they are wrong."""
        return configs.geometry(self.config)

    @property
    def layers(self) -> int | None:
        return self.geometry.get("num_hidden_layers")

    @property
    def generation_config(self) -> Any:
        return getattr(self.model, "generation_config", None)

    def read_weights(self) -> LoadedModel:
        """Read the weights that `load(..., with_model=False)` left for later, and return self.

        Raises:
            BadInput: a file is missing or damaged, or does not hold what the configuration asks for.
        """
        if self._request is None:
            return self
        with quiet():
            self.model, paths, notes = weights.read(self._request)
            self.weights_hash = hashing.hash_files(paths)
        self._request = None
        self.model.config._name_or_path = self.name
        self.config = self.model.config
        self.files = [path.name for path in paths]
        self.dtype, self.devices = weights.main_dtype(self.model), weights.devices(self.model)
        self.notes += notes
        return self


def load(
    model: str | Path | PreTrainedModel,
    *,
    tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
    dtype: Any = "auto",
    device_map: Any = None,
    offload_folder: str | Path | None = None,
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    with_model: bool = True,
    with_tokenizer: bool = True,
    config_only: bool = False,
) -> LoadedModel:
    """Load a model and its tokenizer.

    Args:
        model: a folder, a Hub id, a .gguf file, "demo:NAME", or a model in memory (taken at its word).
        tokenizer: a folder, Hub id, tokenizer.json or tokenizer in place of the model's own.
        dtype: "auto" (as the checkpoint says), or a floating-point torch.dtype or its name.
        device_map: as in transformers ("auto", "cuda:0", a dict), a dict as JSON, or a JSON file; None: the CPU.
        offload_folder: for weights that the device map puts on disk and that cannot stay in the checkpoint's own
            safetensors files; default a folder that is removed again.
        revision: a branch, tag or commit on the Hub.
        gguf_file: the GGUF file in the folder or repository.
        trust_remote_code: run code that is part of the checkpoint; never asked for on the terminal.
        with_model: False puts the weights off until `read_weights`, and judges all that can be judged
        without them. with_tokenizer: False for a run on token ids.
        config_only: with with_model=False, a folder need not hold any weights.

    Raises:
        BadInput: mistyped, missing, gated, damaged, incomplete ...: what, where, and what to do.
        UnsupportedModel: a real model without causal operators (encoder, encoder-decoder ...).
    """
    if not isinstance(model, str | Path):
        return _from_memory(model, tokenizer)
    dtype, device_map = parse_dtype(dtype), parse_device_map(device_map)
    with quiet():
        source = find_source(model, revision=revision, gguf_file=gguf_file)
        raw: dict[str, Any] = {}
        if source.gguf is None:
            raw = configs.read_config(source.folder, source.name)
            configs.judge(raw, source.name, trust_remote_code=trust_remote_code)
            if source.repository is None and not config_only:
                checkpoints.find_weights(source.folder, raw)  # nothing to read is said before anything slow
        else:
            checkpoints.check_gguf(source.folder / source.gguf)
        config = configs.build_config(source.location, source.name, trust_remote_code=trust_remote_code, **source.where)
    request = weights.Request(source, config, raw, dtype, device_map, offload_folder, trust_remote_code)
    loaded = LoadedModel(
        name=source.name,
        source=str(source.folder / (source.gguf or "")),
        config=config,
        config_hash=hashing.hash_config(source.folder, config),
        revision=source.revision,
        notes=[source.repository.note] if source.repository and source.repository.note else [],
        _request=request,
    )
    if with_tokenizer and tokenizer is None:
        loaded.tokenizer = _own_tokenizer(source, config, trust_remote_code)
        if source.gguf is not None:
            loaded.notes.append(
                f"the tokenizer was rebuilt from {source.gguf} and may split a text otherwise than the original: "
                "to be sure, give that with --tokenizer"
            )
    elif with_tokenizer:
        loaded.tokenizer = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    return loaded.read_weights() if with_model else loaded


def _from_memory(model: Any, tokenizer: Any) -> LoadedModel:
    import torch

    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise BadInput(f"a model must be a folder, a Hub id or a transformers model, got {type(model).__name__}")
    kind = type(model).__name__
    if kind == "OptimizedModule":
        raise BadInput("a compiled model hides its layers: give the model as it was before torch.compile")
    config: Any = model.config
    if "mps" in {parameter.device.type for parameter in model.parameters()}:
        check_device("mps")
    if getattr(config, "is_encoder_decoder", False) and not kind.endswith("ForCausalLM"):
        raise UnsupportedModel(configs.encoder_decoder(kind, config.to_dict()))
    return LoadedModel(
        name=getattr(config, "_name_or_path", "") or kind,
        source=f"{kind} in memory",
        config=config,
        config_hash=hashing.hash_config(None, config),
        tokenizer=None if tokenizer is None else load_tokenizer(tokenizer),
        model=model,
        weights_hash=hashing.hash_model(model),
        dtype=weights.main_dtype(model),
        devices=weights.devices(model),
    )


def load_tokenizer(
    tokenizer: str | Path | PreTrainedTokenizerBase,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder, a Hub id, a tokenizer.json or a GGUF file; a tokenizer is returned as
    it is.

    Raises:
        BadInput: there is none, or its files are damaged; the sentence names the file.
    """
    if not isinstance(tokenizer, str | Path):
        if not callable(tokenizer):
            raise BadInput(f"a tokenizer must be a folder, a Hub id or a tokenizer, got {type(tokenizer).__name__}")
        return tokenizer
    if Path(tokenizer).is_file() and Path(tokenizer).suffix == ".json":
        from transformers import PreTrainedTokenizerFast

        configs.read_json(Path(tokenizer))
        return _guard(lambda: PreTrainedTokenizerFast(tokenizer_file=str(tokenizer)), str(tokenizer), None)
    with quiet():
        source = find_source(tokenizer, revision=revision, gguf_file=gguf_file, tokenizer_only=True)
    return _own_tokenizer(source, None, trust_remote_code)


def _own_tokenizer(source: Source, config: Any, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint; given its configuration, config.json is not read (and judged) again."""
    from transformers import AutoTokenizer

    if source.gguf is None and source.repository is None:
        checkpoints.check_tokenizer_files(source.folder, source.name)
    known = {"config": config} if config is not None and source.gguf is None else {}
    with quiet():
        return _guard(
            lambda: AutoTokenizer.from_pretrained(
                source.location, trust_remote_code=trust_remote_code, **source.where, **known
            ),
            source.name,
            None if source.gguf is not None or source.folder == Path() else source.folder,
        )


def _guard(make: Callable[[], Any], name: str, folder: Path | None) -> Any:
    """Make a tokenizer, and turn what may go wrong into a sentence."""
    try:
        tokenizer = make()
    except Exception as error:
        if folder is not None:
            checkpoints.check_tokenizer_files(folder, name)
        if "trust_remote_code" in str(error):
            message = f"the tokenizer of {name} needs code of its own: if you trust it, give --trust-remote-code"
        elif "backend tokenizer" in str(error):
            message = f"there is no usable tokenizer in {name}: give one with --tokenizer, or token ids"
        else:
            message = f"could not load the tokenizer of {name}: {first_line(error)}"
        raise BadInput(message) from error
    if len(tokenizer) == 0:
        raise BadInput(f"the tokenizer of {name} is empty: give another one with --tokenizer")
    return tokenizer


def parse_dtype(dtype: Any) -> Any:
    """Turn a dtype or its name into "auto" or a torch.dtype.

    Raises:
        BadInput: not a floating-point type.
    """
    import torch

    if dtype is None or dtype == "auto":
        return "auto"
    if isinstance(dtype, str):
        dtype = getattr(torch, DTYPES.get(dtype.removeprefix("torch.").lower(), "?"), dtype)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise BadInput(f"{dtype!r} is not a dtype to load in: choose auto, float32, bfloat16, float16 or float64")
    return dtype
