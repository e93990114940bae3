"""What a checkpoint's config.json says about it, judged before any weight is read.

`read_config` finds and parses the file, `judge` refuses what has no causal operator or cannot be loaded
here, and `build_config` makes the configuration object, with eager attention whatever the file asks for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hf_ess.errors import BadInput, UnsupportedModel

CONFIG = "config.json"
ADAPTER = "adapter_config.json"


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, with its type where the message is but a name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    bare = isinstance(error, LookupError | AttributeError | TypeError)
    return f"{type(error).__name__}: {lines[0]}" if bare else lines[0].rstrip(".")


def read_json(path: Path) -> Any:
    """Parse a JSON file of a checkpoint.

    Raises:
        BadInput: the file is not JSON in UTF-8; the sentence names the file.
    """
    data = path.read_bytes()
    if data.startswith(b"version https://git-lfs"):
        raise BadInput(f"{path} is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'")
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not JSON: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadInput(f"{path} is not valid JSON: {error.msg} at {where} (cut off or damaged?)") from error


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """The parsed config.json of a checkpoint folder.

    Raises:
        BadInput: there is none, it is not a JSON object, or the folder holds an adapter without its base
        model.
    """
    path = folder / CONFIG
    if not path.is_file():
        if (folder / ADAPTER).is_file():
            raise BadInput(adapter_message(name, read_json(folder / ADAPTER)))
        nested = sorted(child.parent.name for child in folder.glob(f"*/{CONFIG}"))
        hint = f"; there is one in {', '.join(nested[:5])}" if nested else ""
        raise BadInput(f"there is no config.json in {folder}, so it is not a transformers checkpoint{hint}")
    config = read_json(path)
    if not isinstance(config, dict):
        raise BadInput(f"{path} holds a JSON {type(config).__name__}, not an object")
    return config


def adapter_message(name: str, adapter: Any) -> str:
    base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
    return (
        f"{name} is an adapter{f' for {base}' if base else ''}, not a whole model: give the base model, or "
        "merge the adapter into it (peft: merge_and_unload, save_pretrained) and give that"
    )


def judge(config: dict[str, Any], name: str, *, trust_remote_code: bool = False) -> None:
    """Refuse a checkpoint whose config.json shows that it cannot be measured.

    Raises:
        UnsupportedModel: encoder-decoder, not causal, or of a kind that this transformers does not know.
        BadInput: no model_type, code of its own without trust_remote_code, or an unknown quantisation.
    """
    if "peft_type" in config:
        raise BadInput(adapter_message(name, config))
    if config.get("is_encoder_decoder"):
        raise UnsupportedModel(encoder_decoder(name, config))
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            _refuse_bidirectional(part, name)
    _judge_model_type(config, name, trust_remote_code)
    _judge_quantization(config, name)
    if isinstance(text := config.get("text_config", config), dict) and text.get("num_hidden_layers") == 0:
        raise BadInput(f"{name} has no layers: its config.json says num_hidden_layers 0")


def _architectures(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return ", ".join(str(entry) for entry in names)
    return f"model_type {config.get('model_type')}"


def encoder_decoder(name: str, config: dict[str, Any]) -> str:
    return (
        f"{name} is an encoder-decoder ({_architectures(config)}): its encoder sees the whole text at once, "
        "so it has no causal operator over the text; hf-ess measures decoder-only models"
    )


def _refuse_bidirectional(config: dict[str, Any], name: str) -> None:
    for key, values in (("is_causal", (False,)), ("use_bidirectional_attention", (True, "all"))):
        if key in config and config[key] in values:
            raise UnsupportedModel(
                f"{name} is not causal: its config.json says {key}: {json.dumps(config[key])}, so every "
                "position sees the whole text and there is no effective state-size to measure"
            )


def _judge_model_type(config: dict[str, Any], name: str, trust_remote_code: bool) -> None:
    from transformers import CONFIG_MAPPING
    from transformers import __version__ as version

    model_type = config.get("model_type")
    own_code = isinstance(config.get("auto_map"), dict) and bool(config["auto_map"])
    if model_type in CONFIG_MAPPING or (own_code and trust_remote_code):
        return
    if own_code:
        raise BadInput(
            f"{name} needs code of its own (model_type {model_type}) that is part of the checkpoint: read "
            "that code, and if you trust it, give --trust-remote-code (trust_remote_code=True)"
        )
    if model_type:
        raise UnsupportedModel(
            f"{name} is of the kind {model_type!r} (model_type in its config.json), which the installed "
            f"transformers {version} does not know; a newer version may"
        )
    if "d_model" in config and "n_layer" in config:
        raise BadInput(
            f"{name} is in the format of the mamba_ssm package, not of transformers (its config.json has no "
            "model_type): give the converted checkpoint, whose id usually ends in '-hf'"
        )
    raise BadInput(f"the config.json of {name} has no model_type, so its kind of model is not known")


def _judge_quantization(config: dict[str, Any], name: str) -> None:
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    if quantization.get("load_in_4bit") or quantization.get("load_in_8bit"):
        return  # bitsandbytes: its absence is found when the model is built, before any weight is read
    method = quantization.get("quant_method")
    if method is None:
        raise BadInput(f"the quantization_config of {name} names no quant_method, so its weights cannot be read")
    if method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        raise BadInput(
            f"{name} is quantised with {method!r} (quant_method in its config.json), which the installed "
            "transformers does not know, so its weights cannot be read"
        )


def build_config(source: str, name: str, *, trust_remote_code: bool = False, **where: Any) -> Any:
    """The configuration object of a checkpoint, set to eager attention and to plain outputs.

    A config.json may ask for flash attention, or for sdpa together with output_attentions; both fail on
    load, and neither is a property of the model. `where` is passed on (revision, local_files_only,
    gguf_file).

    Raises:
        UnsupportedModel: an encoder or encoder-decoder by the defaults of its class.
        BadInput: transformers refuses the values.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            source,
            trust_remote_code=trust_remote_code,
            attn_implementation="eager",
            output_attentions=False,
            output_hidden_states=False,
            return_dict=True,
            **where,
        )
    except (KeyError, TypeError, AttributeError, ValueError, ImportError) as error:
        raise BadInput(f"transformers cannot use the configuration of {name}: {_reason(error)}") from error
    except Exception as error:
        if "Validation" not in type(error).__name__:  # huggingface_hub's StrictDataclass...ValidationError
            raise
        raise BadInput(f"the config.json of {name} is not valid: {_reason(error)}") from error
    judge_built(config, name)
    return config


def _reason(error: BaseException) -> str:
    """A validation error's message ends with the line that matters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    validation = "Validation" in type(error).__name__ and len(lines) > 1
    return lines[-1].split("Error: ", 1)[-1].rstrip(".") if validation else first_line(error)


def judge_built(config: Any, name: str) -> None:
    """Refuse what only the defaults of the configuration class reveal.

    Raises:
        UnsupportedModel: an encoder, an encoder-decoder, or a kind without a causal language model.
    """
    raw = config.to_dict()
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(encoder_decoder(name, raw))
    if two_sided(config):
        switch = ", is_decoder not set" if hasattr(config, "is_decoder") else ""
        raise UnsupportedModel(
            f"{name} is an encoder ({_architectures(raw)}{switch}): every position sees the whole text, so it "
            "has no causal operator; hf-ess measures decoder-only models"
        )
    if auto_class(config) is None:
        from transformers import __version__ as version

        raise UnsupportedModel(
            f"{name} is not a causal language model ({_architectures(raw)}): transformers {version} has none "
            f"for model_type {config.model_type!r}"
        )


def two_sided(config: Any) -> bool:
    """Whether this configuration attends to later positions, though a language-model class may load it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if config.model_type == "xlnet":
        return True  # its permutation mask is only given in training
    # Families with a masked-LM class (BERT and its relatives) become causal by is_decoder (XLM: causal)
    # alone.
    encoder_family = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or config.model_type == "bert-generation"
    return encoder_family and not (getattr(config, "is_decoder", False) or getattr(config, "causal", False))


def auto_class(config: Any) -> Any:
    """The transformers Auto class that loads this configuration with a causal text model inside, or None."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    own_code = getattr(config, "auto_map", None) or {}
    for candidate in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if candidate.__name__ in own_code or type(config) in candidate._model_mapping:
            return candidate
    return None


def geometry(config: Any) -> dict[str, int]:
    """The sizes that a reader needs to judge an operator: layers, heads, head_dim, state size, window ..."""
    text = config.get_text_config(decoder=True)
    keys = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "sliding_window",
        "state_size",
        "vocab_size",
        "max_position_embeddings",
    )
    found = {key: getattr(text, key, None) for key in keys}
    if found["head_dim"] is None and found["num_attention_heads"] and found["hidden_size"]:
        found["head_dim"] = found["hidden_size"] // found["num_attention_heads"]
    return {key: value for key, value in found.items() if isinstance(value, int)}
