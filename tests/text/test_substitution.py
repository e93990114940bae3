"""Placeholders and candidates: one token for one token, with tokenizers of every kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ess.errors import BadInput, HfEssError
from hf_ess.text.substitution import Template, align, candidate, own_tokens, template
from hf_ess.text.tokens import tokenize
from tests.text.test_tokens import TOKENIZERS, sentencepiece
from tests.tiny import BOS, EOS, EOT, tiny_tokenizer

CASE = "The lamp was out{0} Nobody had paid{0} He went home{0} The sea was high"
NONE = SimpleNamespace(eos_token_id=None, generation_config=None)


def legacy_sentencepiece() -> Any:
    """One that puts its dummy space before every stretch between special tokens."""
    from tokenizers import Tokenizer, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_str(sentencepiece().backend_tokenizer.to_str())
    inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


MAKERS = {**TOKENIZERS, "tiny": tiny_tokenizer, "no bos": lambda: tiny_tokenizer(False), "legacy": legacy_sentencepiece}


@pytest.mark.parametrize("name", MAKERS)
def test_a_filled_prompt_is_the_text_but_for_the_places(name):
    tokenizer = MAKERS[name]()
    made = template(tokenizer, CASE.format("<sep>"), "<sep>")
    full_stop = candidate(tokenizer, None, ".")
    ids = made.filled(full_stop.token)
    assert len(made.places) == 3 and [ids[p] for p in made.places] == [full_stop.token] * 3
    # a full stop between words is a token of its own in all of these, so here the text itself gives the same ids
    assert ids == tokenize(tokenizer, CASE.format(".")).ids


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=25, deadline=None)
@given(pieces=st.lists(st.text("a. \n});灯<", max_size=6), min_size=2, max_size=4))
def test_sequences_differ_at_the_places_alone(name, pieces):
    tokenizer = MAKERS[name]()
    made = template(tokenizer, "<sep>".join(pieces), "<sep>")
    before, after = own_tokens(tokenizer)
    assert made.ids[: len(before)] == before and (not after or made.ids[-len(after) :] == after)
    assert len(made.places) == len(pieces) - 1
    filled = [made.filled(token) for token in (3, 7, 11)]
    align(filled, made.places)
    for position, column in enumerate(zip(*filled)):
        assert (len(set(column)) == 3) == (position in made.places)


def test_a_leading_space_stays_with_its_piece():
    for tokenizer in (sentencepiece(), legacy_sentencepiece()):
        made = template(tokenizer, "out<sep> The lamp<sep>out", "<sep>")
        shown = tokenizer.convert_ids_to_tokens([i for i in made.ids if i >= 0])
        assert "".join(shown).replace(BOS, "").replace("<s>", "") == "▁out▁The▁lampout"


def test_a_piece_that_would_merge_with_what_stands_before_it():
    """ ".\\n\\n" and " });" are tokens of this tokenizer; between the places they are cut where the place is."""
    tokenizer = tiny_tokenizer()
    assert len(tokenize(tokenizer, "out.\n\nHe").ids) < len(template(tokenizer, "out<sep>\n\nHe", "<sep>").ids)
    made = template(tokenizer, "out<sep>\n\nHe<sep>);", "<sep>")
    stop = candidate(tokenizer, NONE, ".").token
    assert tokenizer.decode(made.filled(stop)[1:]) == "out.\n\nHe.);"


def test_candidates_by_every_kind_of_name():
    tokenizer = tiny_tokenizer()
    by_name = {name: candidate(tokenizer, NONE, name).token for name in ("eos", EOT, "id:5", ".", "\n", "\\n", "}")}
    assert by_name["eos"] == 2 and by_name[EOT] == 3 and by_name["id:5"] == 5
    assert by_name["\n"] == by_name["\\n"] == tokenizer.convert_tokens_to_ids("Ċ")
    assert by_name["."] == tokenizer.convert_tokens_to_ids(".") and by_name["}"] == tokenizer.convert_tokens_to_ids("}")
    assert candidate(tokenizer, NONE, " the").text == " the"
    assert tokenizer.convert_ids_to_tokens(candidate(sentencepiece(), NONE, ".").token) is not None


def test_a_full_stop_of_sentencepiece_is_one_token():
    for tokenizer in (sentencepiece(), legacy_sentencepiece()):
        assert tokenizer.convert_ids_to_tokens(candidate(tokenizer, NONE, ".").token) == "."


def test_several_end_of_text_tokens_are_told():
    config = SimpleNamespace(eos_token_id=[2, 3], generation_config=None)
    found = candidate(tiny_tokenizer(), config, "eos")
    assert found.token == 2 and found.text == EOS
    assert f"not {EOT} (id:3)" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("out of paper", "tokens of this tokenizer"),
        ("", "must not be empty"),
        ("id:x", "write id:2"),
    ],
)
def test_what_is_not_one_token_is_refused_with_its_tokenisation(name, said):
    with pytest.raises(BadInput, match=said) as refused:
        candidate(tiny_tokenizer(), NONE, name)
    if name.startswith("out"):
        assert '"ou' in str(refused.value) or '"o' in str(refused.value)


def test_no_end_of_text_token():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(BadInput, match="no end-of-text token"):
        candidate(tokenizer, NONE, "eos")


def test_special_tokens_in_the_text_follow_the_switch():
    parsed = template(tiny_tokenizer(), f"a{EOS}b<sep>c{EOS}", "<sep>")
    literal = template(tiny_tokenizer(), f"a{EOS}b<sep>c{EOS}", "<sep>", parse_special=False)
    assert parsed.ids.count(2) == 2 and literal.ids.count(2) == 0
    assert candidate(tiny_tokenizer(), NONE, EOS).token == 2  # a candidate is always named by its text


def test_text_cut_short():
    whole = template(tiny_tokenizer(), CASE.format("<sep>"), "<sep>")
    cut = template(tiny_tokenizer(), CASE.format("<sep>"), "<sep>", max_tokens=whole.places[1] + 1)
    assert cut.places == whole.places[:2] and "was cut" in cut.notes[0]
    with pytest.raises(BadInput, match="first 2 tokens"):
        template(tiny_tokenizer(), CASE.format("<sep>"), "<sep>", max_tokens=2)


@pytest.mark.parametrize(("text", "at"), [("No place here.", "<sep>"), ("", "<sep>"), ("a<sep>b", "")])
def test_no_placeholder(text, at):
    with pytest.raises(BadInput, match="placeholder"):
        template(tiny_tokenizer(), text, at)
    with pytest.raises(BadInput, match="no tokenizer"):
        template(None, text, at)


def test_align_refuses_what_it_must():
    align([[1, 2, 3], [1, 9, 3]], [1])
    with pytest.raises(HfEssError, match="token 2"):
        align([[1, 2, 3], [1, 9, 4]], [1])
    with pytest.raises(HfEssError, match="3 and 2 tokens"):
        align([[1, 2, 3], [1, 9]], [1])
    assert Template([1, -1], [1], []).filled(5) == [1, 5]
