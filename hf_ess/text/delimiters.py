"""Where the delimiters are: tokens that complete an occurrence of a delimiter in the text.

A delimiter often hides in a larger token (".\\n\\n", " });"), so it is looked for in the text and not among
the tokens: position p is marked if token p holds the last character of an occurrence. Special tokens are found
by id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_ess.errors import BadInput

if TYPE_CHECKING:
    from hf_ess.text.tokens import Tokens

DEFAULT = ("eos", ".", ">", "}", "\n")


def find(
    tokens: Tokens, tokenizer: Any = None, config: Any = None, delimiters: Sequence[str] = DEFAULT
) -> dict[str, list[int]]:
    """Token positions of each delimiter, ascending; an empty list for one that does not occur.

    Args:
        tokens: the tokenised text.
        tokenizer: tells which strings are special tokens, and one of the end-of-text ids; may be None.
        config: the model, or its configuration; tells the other end-of-text ids.
        delimiters: "eos" for any end-of-text token, "id:N" for a token id, the text of a special token, or
            any other string, in which \\n, \\t and \\r stand for those characters.

    Raises:
        BadInput: an empty delimiter, or "id:" without a number.
    """
    return {name: _positions(tokens, tokenizer, config, name) for name in dict.fromkeys(delimiters)}


def _positions(tokens: Tokens, tokenizer: Any, config: Any, name: str) -> list[int]:
    if not name:
        raise BadInput("a delimiter must not be empty")
    if name == "eos":
        ids = {i for found in eos_ids(tokenizer, config).values() for i in found}
    elif name.startswith("id:"):
        if not name[3:].isdecimal():
            raise BadInput(f"{name!r} is not a token id: write id:2")
        ids = {int(name[3:])}
    elif (special := special_id(tokenizer, name)) is not None:
        ids = {special}
    else:
        return _occurrences(tokens, unescape(name), special_ids(tokenizer))
    return [position for position, i in enumerate(tokens.ids) if i in ids]


def _occurrences(tokens: Tokens, delimiter: str, special: set[int]) -> list[int]:
    """Positions of the tokens that hold the last character of an occurrence ("</s>" holds no ">")."""
    last: dict[int, int] = {}  # the last token that covers a character
    for position, span in enumerate(tokens.spans):
        if span is not None and tokens.ids[position] not in special:
            last.update(dict.fromkeys(range(*span), position))
    starts = (found.start() for found in re.finditer(f"(?={re.escape(delimiter)})", tokens.text))
    ends = (start + len(delimiter) - 1 for start in starts)
    return sorted({last[end] for end in ends if end in last})


def unescape(name: str) -> str:
    """Turn \\n, \\t, \\r and \\\\ as typed on a command line into the characters they stand for."""
    return re.sub(r"\\([ntr\\])", lambda found: {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}[found[1]], name)


def special_id(tokenizer: Any, name: str) -> int | None:
    """The id of a special token by its text, None where that text is not one."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return next((i for i in sorted(special_ids(tokenizer)) if str(added[i]) == name), None)


def special_ids(tokenizer: Any) -> set[int]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {int(i) for i, token in added.items() if getattr(token, "special", True)}


def eos_ids(tokenizer: Any = None, config: Any = None) -> dict[str, list[int]]:
    """End-of-text ids by who names them: tokenizer, config, generation_config. Each may name several or none.

    Args:
        tokenizer: a tokenizer or None.
        config: a model, a configuration or None.
    """
    generation = getattr(config, "generation_config", None)
    config = getattr(config, "config", config)
    if getattr(config, "eos_token_id", None) is None and hasattr(config, "get_text_config"):
        config = config.get_text_config(decoder=True)
    sources = {"tokenizer": tokenizer, "config": config, "generation_config": generation}
    out = {}
    for source, owner in sources.items():
        value = getattr(owner, "eos_token_id", None)
        values = value if isinstance(value, list | tuple) else [value]
        out[source] = sorted({int(i) for i in values if i is not None and int(i) >= 0})
    return out
