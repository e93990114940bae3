"""From text to token ids, with what each token covers of the text, and what the tokenizer added by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hf_ess.errors import BadInput
from hf_ess.text.spans import Pieces, Span

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Tokens:
    """A text as the model sees it.

    Attributes:
        ids: L token ids.
        texts: L labels to show: what the token covers of the text, control characters escaped. A token that
        is only a
            part of a character shows that character and its own bytes: "灯<E7 81>".
        spans: L pairs of character offsets into `text`, None for tokens without text (such as an added BOS).
        text: the text that was tokenised, whole.
        bos_added: the tokenizer put a special token before the text.
        double_bos: two BOS tokens at the start.
        notes: warnings, a sentence each.
    """

    ids: list[int]
    texts: list[str]
    spans: list[Span]
    text: str = ""
    bos_added: bool = False
    double_bos: bool = False
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


def tokenize(
    tokenizer: PreTrainedTokenizerBase, text: str, *, max_tokens: int | None = None, parse_special: bool = True
) -> Tokens:
    """Tokenise one text the way the tokenizer does it by default, BOS included, never cut by the tokenizer
    itself.

    Args:
        tokenizer: a transformers tokenizer, fast or slow.
        text: the text; not changed in any way.
        max_tokens: keep the first max_tokens tokens.
        parse_special: special tokens written out in the text become those tokens; False takes them as plain
        text.

    Raises:
        BadInput: the text is empty or not Unicode, or no tokenizer is given.
    """
    if tokenizer is None:
        raise BadInput("there is no tokenizer to read the text with: give tokenizer=, or token ids")
    if not isinstance(text, str):
        raise BadInput(f"a text must be a string, got {type(text).__name__}")
    if not text:
        raise BadInput("the text is empty")
    _check_max(max_tokens)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the text is not Unicode: character {error.start} is a lone surrogate (0x{ord(text[error.start]):x})"
        ) from error
    options: dict[str, Any] = {"verbose": False} | ({} if parse_special else {"split_special_tokens": True})
    fast = getattr(tokenizer, "is_fast", False)
    encoding = tokenizer(text, **options, **({"return_offsets_mapping": True} if fast else {}))
    ids = [int(i) for i in encoding["input_ids"]]
    if not ids:
        raise BadInput("the tokenizer makes no token of this text")
    offsets = [tuple(pair) for pair in encoding["offset_mapping"]] if fast else None
    before, after = _without_text(tokenizer, text, ids, offsets, options)
    spans, labels = Pieces(tokenizer, ids, text, before, after, offsets).located()
    tokens = Tokens(ids, labels, spans, text, bos_added=before > 0)
    bos = getattr(tokenizer, "bos_token_id", None)
    tokens.double_bos = bos is not None and ids[:2] == [bos, bos]
    if tokens.double_bos and before:
        tokens.notes.append("the text begins with BOS and the tokenizer adds another: there are two")
    return _cut(tokens, max_tokens)


def _without_text(
    tokenizer: Any, text: str, ids: list[int], offsets: Sequence[tuple[int, ...]] | None, options: dict[str, Any]
) -> tuple[int, int]:
    """How many tokens at the two ends are the tokenizer's own."""
    special = set(getattr(tokenizer, "all_special_ids", ()))
    if offsets is not None:
        own = [i in special and start == end for i, (start, end) in zip(ids, offsets, strict=True)]
        before = next((n for n, flag in enumerate(own) if not flag), len(own))
        return before, next((n for n, flag in enumerate(reversed(own[before:])) if not flag), 0)
    plain = [int(i) for i in tokenizer(text, add_special_tokens=False, **options)["input_ids"]]
    extra = len(ids) - len(plain)
    for before in range(extra + 1):
        if ids[before : before + len(plain)] == plain:
            return before, extra - before
    return 0, 0


def from_ids(tokenizer: PreTrainedTokenizerBase | None, ids: Iterable[int], *, max_tokens: int | None = None) -> Tokens:
    """Take token ids as they are; a tokenizer only serves to label them and to make the text they stand for.

    Args:
        tokenizer: may be None: then the labels are the ids.
        ids: L integers: a list, or a tensor of shape (L,) or (1, L).
        max_tokens: keep the first max_tokens of them.

    Raises:
        BadInput: not a flat list of integers from 0 on.
    """
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if len(values) == 1 and isinstance(values[0], list | tuple):
        values = list(values[0])
    if any(not isinstance(i, int) or isinstance(i, bool) for i in values):
        raise BadInput("token ids must be one flat list of integers")
    if any(i < 0 for i in values):
        raise BadInput(f"token ids must not be negative, got {min(values)}")
    _check_max(max_tokens)
    if tokenizer is None or not values:
        return _cut(Tokens(values, [f"<id {i}>" for i in values], [None] * len(values)), max_tokens)
    bos = getattr(tokenizer, "bos_token_id", None)
    before = int(bos is not None and values[0] == bos)
    known = [i for i in values[before:] if i < len(tokenizer)]
    text = str(tokenizer.decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    spans, labels = Pieces(tokenizer, values, text, before).located()
    tokens = Tokens(values, labels, spans, text, bos_added=before > 0)
    tokens.double_bos = bos is not None and values[:2] == [bos, bos]
    if tokens.double_bos:
        tokens.notes.append("the token ids begin with two BOS tokens")
    return _cut(tokens, max_tokens)


def _check_max(max_tokens: int | None) -> None:
    if max_tokens is not None and max_tokens < 2:
        raise BadInput(f"the largest number of tokens must be at least 2, got {max_tokens}")


def _cut(tokens: Tokens, max_tokens: int | None) -> Tokens:
    if max_tokens is None or len(tokens) <= max_tokens:
        return tokens
    tokens.notes.append(f"the text was cut from {len(tokens)} to {max_tokens} tokens")
    tokens.ids = tokens.ids[:max_tokens]
    tokens.texts = tokens.texts[:max_tokens]
    tokens.spans = tokens.spans[:max_tokens]
    return tokens
