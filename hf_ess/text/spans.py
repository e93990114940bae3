"""Which characters of the text each token covers, and a readable label for it.

Tokenizers answer this badly: offsets may leave out white space, the pieces of one character all show as
U+FFFD, and slow tokenizers have no offsets at all. So the bytes that each token stands for are laid along
the text first; where they cover it exactly they are the truth. Else the tokenizer's own offsets are taken,
else text is decoded piece by piece.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

Span = tuple[int, int] | None

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # Unicode categories without a visible sign
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-ins for bytes in GPT-2's byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


def _byte_level(token: str) -> bytes | None:
    codes = [_ALPHABET.get(character) for character in token]
    return None if None in codes else bytes(codes)  # type: ignore[arg-type]


def _sentencepiece(token: str) -> bytes | None:
    if found := _BYTE.fullmatch(token):
        return bytes([int(found[1], 16)])
    return token.replace("▁", " ").encode()


class Pieces:
    """The tokens of one text before they are located.

    Args:
        tokenizer: the tokenizer that made them.
        ids: token ids.
        text: the text.
        before, after: how many ids at the two ends the tokenizer put there without any text.
        offsets: the tokenizer's own character offsets, where it has them.
    """

    def __init__(
        self,
        tokenizer: Any,
        ids: Sequence[int],
        text: str,
        before: int = 0,
        after: int = 0,
        offsets: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.tokenizer, self.ids, self.text = tokenizer, ids, text
        self.before, self.after, self.offsets = before, after, offsets
        self.raw = [_raw(tokenizer, i) for i in ids]
        self.added = {i: str(token) for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}

    def located(self) -> tuple[list[Span], list[str]]:
        """A character span (None for tokens without text) and a label for every token."""
        for surface in (_byte_level, _sentencepiece):
            found = self._exact(surface)
            if found is not None:
                return found
        spans = self._incremental() if self.offsets is None else self._from_offsets(self.offsets)
        return spans, [self._label(n, spans) for n in range(len(spans))]

    def _inside(self, number: int) -> bool:
        return self.before <= number < len(self.ids) - self.after

    def _exact(self, surface: Any) -> tuple[list[Span], list[str]] | None:
        """Lay the tokens' bytes along the text's; None where they do not cover it exactly."""
        data = self.text.encode()
        character = [0] * (len(data) + 1)  # index of the character that a byte belongs to
        position = -1
        for offset, byte in enumerate(data):
            position += byte & 0xC0 != 0x80
            character[offset] = position
        character[len(data)] = len(self.text)
        spans: list[Span] = []
        labels: list[str] = []
        at = 0
        special = True  # at the start, and after an added token, white space may have been dropped or put in
        for number, (token_id, raw) in enumerate(zip(self.ids, self.raw, strict=True)):
            if not self._inside(number):
                spans.append(None)
                labels.append(visible(self.added.get(token_id) or raw or f"<id {token_id}>"))
                continue
            added = self.added.get(token_id)
            piece = added.encode() if added is not None else raw if isinstance(raw, bytes) else surface(raw or "")
            if not piece:
                return None
            if not data.startswith(piece, at):
                if special and piece.startswith(b" ") and data.startswith(piece[1:], at):
                    piece = piece[1:]  # the space that SentencePiece puts before the first word
                elif (special or added is not None) and data[at:].lstrip().startswith(piece):
                    at = data.index(piece, at)
                else:
                    return None
            special = added is not None
            end = at + len(piece)
            if end == at:
                spans.append(None)
                labels.append("␣")
                continue
            span = character[at], character[end - 1] + 1
            spans.append(span)
            labels.append(_byte_label(self.text, data, at, end, span))
            at = end
        return (spans, labels) if not data[at:].strip() else None

    def _from_offsets(self, offsets: Sequence[tuple[int, int]]) -> list[Span]:
        return [(start, end) if end > start and self._inside(n) else None for n, (start, end) in enumerate(offsets)]

    def _incremental(self) -> list[Span]:
        """Decode growing groups of tokens until each group is found in the text where the last one ended."""
        spans: list[Span] = [None] * len(self.ids)
        at = 0
        group: list[int] = []
        known = [n for n in range(len(self.ids)) if self._inside(n) and self.raw[n] is not None]
        for number in known:
            group.append(number)
            piece = _decode(self.tokenizer, [self.ids[n] for n in group])
            last_try = len(group) == 4 or number == known[-1]  # no character has more than four bytes
            if not piece or ("\ufffd" in piece and not last_try):
                continue
            start = at
            if not self.text.startswith(piece, start):  # decoding a word alone loses the space before it
                while start < len(self.text) and self.text[start].isspace():
                    start += 1
            if self.text.startswith(piece, start):
                for member in group:
                    spans[member] = at, start + len(piece)
                at, group = start + len(piece), []
            elif last_try:
                group = []
        return spans

    def _label(self, number: int, spans: Sequence[Span]) -> str:
        token_id, raw, span = self.ids[number], self.raw[number], spans[number]
        if span is None:
            known = self.added.get(token_id) or raw
            return visible(known) if isinstance(known, str) else f"<id {token_id}>"
        covered = self.text[span[0] : span[1]]
        neighbours = [spans[n] for n in (number - 1, number + 1) if 0 <= n < len(spans)]
        if span not in neighbours and "\ufffd" not in covered:
            return visible(covered)
        own = _own_bytes(raw)
        own_text = f"<{own.hex(' ').upper()}>" if own is not None else f"<{visible(str(raw))}>"
        return (visible(covered) if "\ufffd" not in covered else "") + own_text


def _own_bytes(raw: Any) -> bytes | None:
    """The bytes of a piece that is less than a character."""
    if isinstance(raw, bytes):
        return raw
    if found := _BYTE.fullmatch(raw):
        return bytes([int(found[1], 16)])
    if len(raw) == 1 and ord(raw) < 0x100 and raw not in _ALPHABET:  # ByT5: a character per byte
        return bytes([ord(raw)])
    return _byte_level(raw)


def _raw(tokenizer: Any, token_id: int) -> Any:
    try:
        return tokenizer.convert_ids_to_tokens(token_id)
    except (IndexError, KeyError, ValueError, OverflowError, TypeError):
        return None


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _byte_label(text: str, data: bytes, at: int, end: int, span: tuple[int, int]) -> str:
    """The characters from byte `at` to `end`; one covered in part is followed by the covered bytes."""
    out = []
    for character in text[span[0] : span[1]]:
        start = at
        while data[start] & 0xC0 == 0x80:  # step back to where the character begins
            start -= 1
        stop = start + len(character.encode())
        covered = data[at : min(stop, end)]
        whole = start == at and stop <= end
        out.append(character if whole else f"{character}<{covered.hex(' ').upper()}>")
        at = stop
    return visible("".join(out))


def visible(label: str) -> str:
    """A label without control characters, invisible signs or lone combining marks; blanks alone show as ␣."""
    if label and not label.strip(" "):
        return "␣" * len(label)
    out = []
    for character in label:
        category = unicodedata.category(character)
        if character in _ESCAPES:
            out.append(_ESCAPES[character])
        elif category in _HIDDEN or (category == "Zs" and character != " "):
            out.append(escaped(character))
        elif category.startswith("M") and not out:
            out.append("◌" + character if not 0xFE00 <= ord(character) <= 0xFE0F else escaped(character))
        else:
            out.append(character)
    return "".join(out)


def escaped(character: str) -> str:
    """The character as Python escapes it in ASCII."""
    return character.encode("unicode_escape").decode()
