"""Tiny checkpoints with random weights and a real tokenizer, made on the spot for the tests.

    tiny_checkpoint(tmp_path / "llama", "llama")     a folder as save_pretrained writes it
    tiny_model("mistral", sliding_window=4)          the model alone, in memory
    tiny_tokenizer()                                 byte-level BPE with merges such as ".\\n\\n" and " });"

The names are the model types in data/tiny_configs.json. All is seeded: the same call gives the same bytes.
"""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "tiny_configs.json").read_text(encoding="utf-8")
)
PAD, BOS, EOS, EOT = "<|pad|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot|>"  # ids 0, 1, 2, 3
VOCABULARY = 384

# The merges are learned from this text, so it holds delimiters that are glued to their neighbours.
TEXT = """The lamp was out. Nobody had paid. "Where is the keeper?" he said. He went home, and a ship came in.

The sea was high. The old man kept the light, and the light kept the ships. Nobody had seen him.

function lamp(a) { if (a > 1) { return { on: true }; } else { return { on: false }; } }
list.map(function (x) { return x > 2; });
for (const item of list) { lamp(item); }
}

<div><p>The lamp is out.</p><p>The light is on.</p></div>
"""


@lru_cache(maxsize=8)
def _tokenizer_json(add_bos: bool) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, EOS, EOT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_pattern(), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 1)]
        )
    return tokenizer.to_str()


def _pattern() -> Any:
    """The Llama-3 pre-tokenizer, which keeps punctuation and the newlines after it in one piece."""
    from tokenizers import Regex

    return Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def tiny_tokenizer(add_bos: bool = True) -> Any:
    """A byte-level BPE tokenizer of 384 tokens; ids 0..3 are PAD, BOS, EOS, EOT."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_tokenizer_json(add_bos)),
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
    )


def tiny_config(name: str, **overrides: Any) -> Any:
    """The configuration of one model type, with `tiny_tokenizer`'s vocabulary and room for 512 tokens."""
    from transformers import CONFIG_MAPPING, __version__

    arguments = {**CONFIGS[name]}  # a misspelt name fails here
    if name not in CONFIG_MAPPING:
        import pytest

        pytest.skip(f"transformers {__version__} has no {name}")
    for key, value in (("vocab_size", VOCABULARY), ("max_position_embeddings", 512), ("n_positions", 512)):
        if key in arguments:
            arguments[key] = value
    return CONFIG_MAPPING[name](**{**arguments, **overrides})


def tiny_model(name: str, *, seed: int = 0, gain: float = 2.0, **overrides: Any) -> Any:
    """A `*ForCausalLM` in eval mode and float32 with weights large enough for the layers to do something.

    The default standard deviation of 0.02 gives attention that is uniform and scans that forget nothing. Here
    every projection is drawn with `gain / sqrt(fan-in)`, so scores have a spread of some units.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(name, **overrides), attn_implementation="eager")
        for path, parameter in model.named_parameters():
            _redraw(path, parameter, gain)
        model.tie_weights()
    return model.float().eval()


def _redraw(path: str, parameter: Any, gain: float) -> None:
    import torch

    leaf = path.lower()
    if any(word in leaf for word in ("a_log", "dt_bias", "dt_proj", "conv")):
        return  # decays, step sizes and short convolutions start at a working size
    with torch.no_grad():
        if "sinks" in leaf or (parameter.ndim == 1 and leaf.endswith("bias")):
            parameter.normal_(std=0.5)
        elif "embed" in leaf or "wte" in leaf or "wpe" in leaf:
            parameter.normal_(std=1.0)
        elif parameter.ndim >= 2:
            parameter.normal_(std=gain / math.sqrt(min(parameter.shape[-2:])))


def tiny_checkpoint(
    path: str | Path,
    name: str = "llama",
    *,
    tokenizer: bool = True,
    add_bos: bool = True,
    dtype: str = "float32",
    shards: bool = False,
    seed: int = 0,
    gain: float = 2.0,
    **overrides: Any,
) -> Path:
    """Write a tiny model, and its tokenizer, to a folder and return the folder.

    `dtype` is the type of the stored weights, `shards=True` writes several weight files with an index, and
    further arguments go into the configuration (`num_hidden_layers=1`, `sliding_window=4`, ...).
    """
    import torch

    folder = Path(path)
    model = tiny_model(name, seed=seed, gain=gain, **overrides).to(getattr(torch, dtype))
    model.save_pretrained(folder, **({"max_shard_size": "40KB"} if shards else {}))
    if tokenizer:
        tiny_tokenizer(add_bos).save_pretrained(folder)
    return folder
