"""One token in the place of another: prompts with placeholders, and candidates that are exactly one token each.

Tokenising "... the end.<sep> Giraffes" anew for every candidate would merge "." with its neighbours here and split a
newline there, and the curves of two candidates would no longer share an axis.  So the pieces of text between the
placeholders are tokenised once, without the candidate, and a candidate is put between them as an id:

* the first piece as the tokenizer takes the beginning of any text, with the special tokens that it puts there itself
  (BOS) and, after the last piece, those that it puts at an end;
* a further piece as it goes on after other text: behind a short anchor, whose tokens are then taken off. A leading
  space stays with the piece (" Giraffes"), and a SentencePiece tokenizer does not put its dummy space before it. Only
  anchors that no token straddles are used;
* a candidate likewise, so that "." is "." and not "▁" and ".".

The sequences of all candidates are then equal but at the places, for every tokenizer; align() checks it once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_ess.errors import BadInput, HfEssError
from hf_ess.text.delimiters import eos_ids, special_id, unescape
from hf_ess.text.spans import visible
from hf_ess.text.tokens import tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: What a piece is tokenised behind, one character each; the first that no token straddles.
ANCHORS = (".", "\n", "0", "a")


@dataclass(frozen=True)
class Template:
    """A prompt with places to fill.

    Attributes:
        ids: L token ids, -1 at the places.
        places: positions of the places, ascending.
        notes: warnings, a sentence each.
    """

    ids: list[int]
    places: list[int]
    notes: list[str]

    def filled(self, token: int) -> list[int]:
        """The ids with one token at all places."""
        return [token if i < 0 else i for i in self.ids]


@dataclass(frozen=True)
class Candidate:
    """What a place is filled with.

    Attributes:
        name: as it was asked for: "eos", ".", "\\n", "id:2".
        token: its id.
        text: what the token stands for.
        notes: warnings, a sentence each.
    """

    name: str
    token: int
    text: str
    notes: tuple[str, ...] = ()


def template(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    at: str,
    *,
    max_tokens: int | None = None,
    parse_special: bool = True,
) -> Template:
    """Tokenises a prompt with placeholders.

    Args:
        tokenizer: a transformers tokenizer, fast or slow.
        text: the prompt.
        at: the placeholder, such as "<sep>", taken literally; every occurrence is a place.
        max_tokens: keep the first max_tokens tokens.
        parse_special: special tokens written out in the text become those tokens.

    Raises:
        BadInput: no tokenizer, an empty placeholder, none in the text or in what is kept of it.
    """
    if tokenizer is None:
        raise BadInput("there is no tokenizer to read the text with: give tokenizer=")
    if not at:
        raise BadInput("the placeholder must not be empty: give at, such as <sep>")
    first, *rest = text.split(at)
    if not rest:
        raise BadInput(
            f"the text has no placeholder {at!r} ({_opening(text)}): write it where the tokens are to be put, right "
            f'after the last word or full stop of a sentence, as in "One.{at} Two.{at} Three."'
        )
    before, after = own_tokens(tokenizer)
    ids, notes = list(before), []
    if first:
        opening = tokenize(tokenizer, first, parse_special=parse_special)
        ids, notes = opening.ids[: len(opening) - len(after)], list(opening.notes)
    for piece in rest:
        ids += [-1, *_continued(tokenizer, piece, parse_special)]
    ids += after
    if max_tokens is not None and len(ids) > max_tokens:
        notes.append(f"the text was cut from {len(ids)} to {max_tokens} tokens")
        ids = ids[:max_tokens]
    places = [position for position, i in enumerate(ids) if i < 0]
    if not places:
        raise BadInput(f"no placeholder {at!r} is left in the first {max_tokens} tokens: raise --max-tokens")
    return Template(ids, places, notes)


def candidate(tokenizer: PreTrainedTokenizerBase, config: Any, name: str) -> Candidate:
    """The one token that a name stands for.

    Args:
        tokenizer: a transformers tokenizer.
        config: the model or its configuration: tells end-of-text ids that the tokenizer does not.
        name: "eos", the text of a special token, "id:N", or a string that is one token in the middle of a text, in
            which \\n, \\t and \\r stand for those characters; a leading space counts (" and").

    Raises:
        BadInput: not one token of this tokenizer (with its tokenisation), or the model has no end-of-text token.
    """
    if not name:
        raise BadInput("a token to put in must not be empty")
    if name == "eos":
        return _eos(tokenizer, config)
    if name.startswith("id:"):
        if not name[3:].isdecimal():
            raise BadInput(f"{name!r} is not a token id: write id:2")
        return Candidate(name, int(name[3:]), _label(tokenizer, int(name[3:])))
    special = special_id(tokenizer, name)
    if special is not None:
        return Candidate(name, special, name)
    text = unescape(name)
    ways = [pairs for anchor in ANCHORS if (pairs := _behind(tokenizer, anchor, text, True)) is not None]
    ways = ways or [[(i, _label(tokenizer, i)) for i in _alone(tokenizer, text, True)]]
    single = next((pairs for pairs in ways if len(pairs) == 1), None)
    if single is None:
        alone = min(ways, key=len)
        pieces = ", ".join(f'"{label}"' for _, label in alone)
        raise BadInput(
            f'"{visible(text)}" is {len(alone)} tokens of this tokenizer ({pieces}), and one token has to take the '
            "place of one token: choose a single token, or name one by its id as id:N"
        )
    return Candidate(name, single[0][0], text)


def align(sequences: Sequence[Sequence[int]], places: Sequence[int]) -> None:
    """Checks that sequences of token ids differ at the places alone.

    Raises:
        HfEssError: they do not, or are not of one length.
    """
    first, *others = sequences
    for other in others:
        if len(other) != len(first):
            raise HfEssError(f"the prompts to compare have {len(first)} and {len(other)} tokens, so no common axis")
        apart = [n for n, (a, b) in enumerate(zip(first, other)) if a != b and n not in places]
        if apart:
            raise HfEssError(f"the prompts to compare differ at token {apart[0]}, which is none of the places to fill")


def own_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text by itself."""
    whole = [int(i) for i in tokenizer("a")["input_ids"]]
    plain = [int(i) for i in tokenizer("a", add_special_tokens=False)["input_ids"]]
    for before in range(len(whole) - len(plain) + 1):
        if whole[before : before + len(plain)] == plain:
            return whole[:before], whole[before + len(plain) :]
    return [], []


def _continued(tokenizer: Any, piece: str, parse_special: bool) -> list[int]:
    """The tokens of a piece of text that goes on after other text."""
    if not piece:
        return []
    for anchor in ANCHORS:
        pairs = _behind(tokenizer, anchor, piece, parse_special)
        if pairs is not None:
            return [i for i, _ in pairs]
    return _alone(tokenizer, piece, parse_special)


def _alone(tokenizer: Any, text: str, parse_special: bool) -> list[int]:
    options = {} if parse_special else {"split_special_tokens": True}
    return [int(i) for i in tokenizer(text, add_special_tokens=False, **options)["input_ids"]]


def _behind(tokenizer: Any, anchor: str, text: str, parse_special: bool) -> list[tuple[int, str]] | None:
    """Ids and labels of the text behind an anchor; None where a token straddles the two or cannot be located."""
    _, after = own_tokens(tokenizer)
    tokens = tokenize(tokenizer, anchor + text, parse_special=parse_special)
    stop = len(tokens) - len(after)
    # the anchor is one character, so a token that straddles leaves none that ends with it
    head = [n for n, span in enumerate(tokens.spans[:stop]) if span is not None and span[1] <= 1]
    if not head:
        return None
    own = slice(head[-1] + 1, stop)
    return list(zip(tokens.ids[own], tokens.texts[own])) or None


def _eos(tokenizer: Any, config: Any) -> Candidate:
    named = eos_ids(tokenizer, config)
    ids = list(dict.fromkeys(i for found in named.values() for i in found))  # the tokenizer's own first
    if not ids:
        raise BadInput(
            "this model has no end-of-text token (neither its tokenizer nor its configuration names one): name a token "
            "by its text or as id:N"
        )
    text = _label(tokenizer, ids[0])
    others = ", ".join(f"{_label(tokenizer, i)} (id:{i})" for i in ids[1:])
    more = (f"the model names several end-of-text tokens; eos is {text} (id:{ids[0]}), not {others}",) if others else ()
    return Candidate("eos", ids[0], text, more)


def _label(tokenizer: Any, token: int) -> str:
    """What a token stands for, visible."""
    from hf_ess.text.tokens import from_ids

    return from_ids(tokenizer, [token]).texts[0]


def _opening(text: str) -> str:
    return f'it begins with "{visible(text[:40])}"' if text else "it is empty"
