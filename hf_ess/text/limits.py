"""Whether a model can take these tokens: at least two, in its vocabulary, not more than its positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_ess.errors import BadInput

if TYPE_CHECKING:
    from hf_ess.text.tokens import Tokens

# Names that modelling files give to a table with one learned (or precomputed) row per position.
TABLES = (
    "wpe",
    "embed_positions",
    "position_embeddings",
    "position_embedding",
    "positions_embed",
    "pos_encoding",
)
# Where such a table belongs to images or sound and not to the text.
ELSEWHERE = ("vision", "visual", "image", "audio", "patch", "encoder.")


def check(tokens: Tokens, model: Any) -> list[str]:
    """Refuse tokens that the model cannot take, before it runs; return warnings as sentences.

    Args:
        tokens: the tokenised text.
        model: the model; or its configuration alone, which does not tell learned position tables.

    Raises:
        BadInput: fewer than two tokens, an id beyond the embedding, or more tokens than learned positions.
    """
    length = len(tokens.ids)
    if length < 2:
        raise BadInput(
            f"the text has {length} token{'' if length == 1 else 's'}: at least 2 are needed, because memory "
            "is measured between tokens"
        )
    config = getattr(model, "config", model)
    rows = _embedding_rows(model, config)
    beyond = [n for n, i in enumerate(tokens.ids) if rows is not None and i >= rows]
    if beyond:
        n = beyond[0]
        more = f" (and {len(beyond) - 1} more)" if len(beyond) > 1 else ""
        raise BadInput(
            f"token {n} {tokens.texts[n]!r} has id {tokens.ids[n]}, but the model's embedding has {rows} "
            f"rows{more}: does the tokenizer belong to this model?"
        )
    limit = position_limit(model)
    if limit is not None and length > limit:
        raise BadInput(
            f"the text has {length} tokens, but the model has learned only {limit} positions: shorten it "
            f"with --max-tokens {limit}"
        )
    trained = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if limit is None and isinstance(trained, int) and 0 < trained < length:
        return [
            f"the text has {length} tokens, more than the {trained} positions that the model was made for "
            "(max_position_embeddings): it is measured beyond its trained range"
        ]
    return []


def _embedding_rows(model: Any, config: Any) -> int | None:
    if model is config:
        rows = getattr(config.get_text_config(decoder=True), "vocab_size", None)
        return rows if isinstance(rows, int) else None
    try:
        embedding = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    rows = getattr(embedding, "num_embeddings", None)
    return rows if isinstance(rows, int) else None


def position_limit(model: Any) -> int | None:
    """How many positions a model with a table of them has, None for rotary, ALiBi and recurrent models.

    Tables are found by the names of modules and buffers, in whatever module they are. A table may begin with
    rows that no position uses: an offset (OPT: 2) or the padding row and those before it (RoBERTa).
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        return None
    limits = []
    for path, module in model.named_modules():
        if any(word in path.lower() for word in ELSEWHERE):
            continue
        name = path.rpartition(".")[2]
        if name in TABLES and isinstance(module, torch.nn.Embedding):
            padding = -1 if module.padding_idx is None else module.padding_idx
            unused = getattr(module, "offset", padding + 1)
            limits.append(module.num_embeddings - unused)
        for table in TABLES:  # precomputed sinusoids: GPT-J, CodeGen, CTRL
            value = module.__dict__.get(table, module._buffers.get(table))
            if isinstance(value, torch.Tensor) and value.ndim == 2:
                limits.append(value.shape[0])
    return min(limits) if limits else None


def check_memory(length: int, model: Any, available: int | None = None) -> None:
    """Refuse, before the run, a text that cannot be measured in the memory that is there.

    Args:
        length: number of tokens.
        model: the model, loaded.
        available: bytes that are free; default what the system says.

    Raises:
        BadInput: it cannot fit; with the length that would.
    """
    from hf_ess.planning.guard import refuse

    refuse(length, model, available)


def attention_heads(model: Any) -> int:
    """About how many attention heads a model has in all layers, by its configuration and the names of its mixers."""
    from hf_ess.adapters.inventory import Inventory

    layers = sum("attention" in type(mixer).__name__.lower() for mixer in Inventory(model).mixers.values())
    return layers * (getattr(model.config.get_text_config(decoder=True), "num_attention_heads", None) or 1)
