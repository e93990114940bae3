"""Delimiters are found in the text, wherever they hide, and each occurrence marks the token that completes it."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ess.errors import BadInput
from hf_ess.text.delimiters import DEFAULT, eos_ids, find, special_id, unescape
from hf_ess.text.tokens import from_ids, tokenize
from tests.text.test_tokens import byte_level, sentencepiece
from tests.tiny import EOS, EOT, TEXT, tiny_model, tiny_tokenizer


def shown(text: str, delimiter: str, tokenizer: Any = None) -> list[str]:
    """The labels of the marked tokens."""
    tokenizer = tokenizer or byte_level()
    tokens = tokenize(tokenizer, text)
    return [tokens.texts[p] for p in find(tokens, tokenizer, None, [delimiter])[delimiter]]


def test_delimiters_inside_larger_tokens() -> None:
    assert shown("He paid.\n\nHe went.", ".") == [".\\n\\n", "."]
    assert shown("He paid.\n\nHe went.", "\n") == [".\\n\\n"]  # two occurrences in one token: one position
    assert shown("foo });\n}", "}") == [" });", "}"]
    assert shown("<p>a</p>", ">") == ["p", ">"] or shown("<p>a</p>", ">")[-1].endswith(">")
    assert shown("The lamp out.", ".", sentencepiece()) == ["."]


def test_first_and_last_positions() -> None:
    tokenizer = tiny_tokenizer(add_bos=False)
    tokens = tokenize(tokenizer, ".lamp.")
    found = find(tokens, tokenizer, None, ["."])["."]
    assert found == [0, len(tokens) - 1]


def test_a_delimiter_over_several_tokens_marks_the_last() -> None:
    tokens = tokenize(byte_level(), "灯。灯。")
    found = find(tokens, byte_level(), None, ["。"])["。"]
    assert [tokens.texts[p] for p in found] == ["。<82>", "。<82>"]
    assert find(tokens, byte_level(), None, ["灯。灯"])["灯。灯"] == [found[0] + 3]


def test_overlapping_occurrences_count() -> None:
    tokens = tokenize(byte_level(), "a...b")
    ends = find(tokens, byte_level(), None, [".."])[".."]
    assert ends == sorted({next(p for p, s in enumerate(tokens.spans) if s and s[0] <= e < s[1]) for e in (2, 3)})


@settings(max_examples=80, deadline=None)
@given(
    st.text(st.sampled_from("ab.}>\n 灯({;"), min_size=1, max_size=40), st.sampled_from([".", "}", "\n", ".\n", "a."])
)
def test_against_decoding(text: str, delimiter: str) -> None:
    """Position p is marked exactly if decoding up to p holds more occurrences than decoding up to p - 1."""
    tokenizer = tiny_tokenizer(add_bos=False)
    tokens = tokenize(tokenizer, text)

    def count(prefix: str) -> int:
        return sum(prefix.startswith(delimiter, start) for start in range(len(prefix)))

    prefixes = [tokenizer.decode(tokens.ids[:n]) for n in range(len(tokens) + 1)]
    expected = [p for p in range(len(tokens)) if count(prefixes[p + 1]) > count(prefixes[p])]
    assert find(tokens, tokenizer, None, [delimiter])[delimiter] == expected


def test_the_default_set_and_absent_delimiters() -> None:
    tokens = tokenize(byte_level(), TEXT)
    found = find(tokens, byte_level())
    assert tuple(found) == DEFAULT
    assert found["eos"] == [] and all(found[name] for name in (".", ">", "}", "\n"))
    assert find(tokens, byte_level(), None, ["§", "."])["§"] == []


def test_special_tokens_by_text_and_by_id() -> None:
    text = f"He paid.{EOS}The sea.{EOT}He <|end_of_text |> went{EOS}"
    tokens = tokenize(byte_level(), text)
    found = find(tokens, byte_level(), None, ["eos", EOS, EOT, "id:3", "id:999", ">"])
    assert found["eos"] == found[EOS] == [p for p, i in enumerate(tokens.ids) if i == 2]
    assert found[EOT] == found["id:3"] == [tokens.ids.index(3)]
    assert found["id:999"] == []
    assert len(found[">"]) == 1  # that of the near miss; a special token holds no ">"
    assert special_id(byte_level(), "He") is None and special_id(None, EOS) is None


def test_special_tokens_as_plain_text() -> None:
    tokens = tokenize(byte_level(), f"He paid.{EOS}", parse_special=False)
    found = find(tokens, byte_level(), None, ["eos", ">"])
    assert found == {"eos": [], ">": [len(tokens) - 1]}


def test_every_eos_counts() -> None:
    model = tiny_model("llama", eos_token_id=[2, 3])
    model.generation_config.eos_token_id = [3, 7]
    assert eos_ids(byte_level(), model) == {"tokenizer": [2], "config": [2, 3], "generation_config": [3, 7]}
    tokens = from_ids(byte_level(), [1, 2, 9, 3, 7, 2])
    assert find(tokens, byte_level(), model, ["eos"])["eos"] == [1, 3, 4, 5]
    assert find(tokens, None, model.config, ["eos"])["eos"] == [1, 3, 5]
    assert find(tokens, None, None, ["eos"])["eos"] == []


def test_eos_of_a_composite_configuration() -> None:
    text = SimpleNamespace(eos_token_id=5)
    config = SimpleNamespace(eos_token_id=None, get_text_config=lambda decoder: text)
    assert eos_ids(None, config)["config"] == [5]


def test_delimiters_as_typed() -> None:
    assert unescape(r"\n\t\r\\n.") == "\n\t\r\\n."
    tokens = tokenize(byte_level(), "a\nb")
    assert find(tokens, byte_level(), None, [r"\n"]) == {r"\n": [2]}


def test_a_cut_text_marks_only_what_is_left() -> None:
    tokens = tokenize(byte_level(), "a.b.c.", max_tokens=3)
    assert find(tokens, byte_level(), None, ["."])["."] == [2]


@pytest.mark.parametrize("name", ["", "id:", "id:x", "id:-1"])
def test_bad_delimiters(name: str) -> None:
    with pytest.raises(BadInput):
        find(tokenize(byte_level(), "a"), byte_level(), None, [name])
