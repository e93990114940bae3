"""Tokens: what each covers of the text, what the tokenizer added, and what a model can take."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ess.errors import BadInput
from hf_ess.text.limits import check, position_limit
from hf_ess.text.spans import visible
from hf_ess.text.tokens import Tokens, from_ids, tokenize
from tests.tiny import BOS, EOS, EOT, TEXT, tiny_config, tiny_model, tiny_tokenizer

TRICKY = 'He paid.\n\n  "灯。" 🚢 👩‍🚒 e\u0301 \x1b[31m\t\r\nfoo });\n<p>The light</p>  '
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@cache
def sentencepiece(add_bos: bool = True) -> Any:
    """A tokenizer as SentencePiece's: "▁" for blanks, a blank put before the text, bytes for rare characters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"Thelampout.s", "▁T", "he", "▁The", "la", "mp", "▁la", "▁lamp", "t.", "ut.", "▁out.", "out."]
    merges = [("▁", "T"), ("h", "e"), ("▁T", "he"), ("l", "a"), ("m", "p"), ("▁", "la"), ("▁la", "mp")]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@cache
def slow() -> Any:
    """A tokenizer without offsets: one token per UTF-8 byte, and an EOS after the text."""
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer()


@cache
def trimming() -> Any:
    """GPT-2's habit: offsets leave out the blanks that belong to the tokens."""
    from tokenizers import processors

    tokenizer = tiny_tokenizer(add_bos=False)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


@cache
def byte_level() -> Any:
    return tiny_tokenizer()


TOKENIZERS = {"byte-level": byte_level, "trimming": trimming, "sentencepiece": sentencepiece, "slow": slow}


def covers(tokens: Tokens) -> None:
    """Spans are ordered, overlap only where tokens share a character, and leave out nothing of the text."""
    at = 0
    for span in tokens.spans:
        if span is not None:
            start, end = span
            assert start < end and start in (at, at - 1), (span, at)
            at = end
    assert at == len(tokens.text)
    assert len(tokens.ids) == len(tokens.texts) == len(tokens.spans)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(text=UNICODE)
def test_every_character_is_covered_in_order(name: str, text: str) -> None:
    tokens = tokenize(TOKENIZERS[name](), text)
    assert tokens.text == text
    covers(tokens)
    for label in tokens.texts:
        assert label and label.isprintable() and (label != "\ufffd" or "\ufffd" in text)


@settings(max_examples=60, deadline=None)
@given(text=UNICODE.filter(lambda text: "\ufffd" not in text))
def test_spans_agree_with_decoding(text: str) -> None:
    """Decoding the first n tokens gives the text up to the end of token n, less a character that is cut there."""
    tokenizer = tiny_tokenizer(add_bos=False)
    tokens = tokenize(tokenizer, text)
    for n, span in enumerate(tokens.spans, start=1):
        decoded = tokenizer.decode(tokens.ids[:n], clean_up_tokenization_spaces=False)
        assert span is not None
        cut = decoded.endswith("\ufffd")
        assert decoded.rstrip("\ufffd") == text[: span[1] - cut]


def test_labels_can_be_read() -> None:
    tokens = tokenize(byte_level(), "He paid.\n\n  灯 });\n")
    assert tokens.texts == [BOS, "He", " paid", ".\\n\\n", "␣", "␣", "灯<E7>", "灯<81>", "灯<AF>", " });", "\\n"]
    assert tokens.spans[:4] == [None, (0, 2), (2, 7), (7, 10)]
    assert tokens.spans[6:9] == [(12, 13)] * 3


def test_labels_of_sentencepiece() -> None:
    tokens = tokenize(sentencepiece(), "The lamp out.灯")
    assert tokens.texts[:3] == ["<s>", "The", " lamp"] and tokens.texts[-3:] == ["灯<E7>", "灯<81>", "灯<AF>"]
    assert tokens.bos_added


def test_labels_of_a_slow_tokenizer() -> None:
    tokens = tokenize(slow(), "é a")
    assert tokens.texts == ["é<C3>", "é<A9>", "␣", "a", "</s>"]
    assert tokens.spans == [(0, 1), (0, 1), (1, 2), (2, 3), None] and not tokens.bos_added


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("  ", "␣␣"),
        (" a", " a"),
        ("\t\r\n", "\\t\\r\\n"),
        ("\x1b[31m\x00", "\\x1b[31m\\x00"),
        ("a\u202eb\u2028", "a\\u202eb\\u2028"),
        ("\u0301", "◌\u0301"),
        ("\ufe0f", "\\ufe0f"),
        ("\u3000", "\\u3000"),
        ("灯🚢é$<b>,\"'", "灯🚢é$<b>,\"'"),
    ],
)
def test_visible(label: str, shown: str) -> None:
    assert visible(label) == shown


def test_bos_is_reported() -> None:
    with_bos, without = tokenize(byte_level(), "The lamp"), tokenize(tiny_tokenizer(add_bos=False), "The lamp")
    assert with_bos.bos_added and with_bos.ids[0] == 1 and with_bos.ids[1:] == without.ids
    assert not without.bos_added and not with_bos.double_bos and with_bos.notes == []
    twice = tokenize(byte_level(), f"{BOS}The lamp")
    assert twice.double_bos and twice.ids[:2] == [1, 1] and twice.spans[:2] == [None, (0, len(BOS))]
    assert "two" in twice.notes[0]


def test_special_tokens_in_the_text() -> None:
    text = f"He paid.{EOS}The sea.{EOT}"
    parsed = tokenize(byte_level(), text)
    assert [parsed.ids.count(i) for i in (2, 3)] == [1, 1] and EOS in parsed.texts
    plain = tokenize(byte_level(), text, parse_special=False)
    assert not {2, 3} & set(plain.ids)
    covers(plain)
    assert tokenize(byte_level(), text).ids == parsed.ids  # the switch does not stay


def test_nothing_is_cut_but_by_max_tokens() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 8
    tokenizer.backend_tokenizer.enable_truncation(8)
    whole = tokenize(tokenizer, TEXT)
    assert len(whole) > 100 and whole.notes == []
    cut = tokenize(tokenizer, TEXT, max_tokens=8)
    assert cut.ids == whole.ids[:8] and cut.spans == whole.spans[:8] and len(cut.texts) == 8
    assert cut.notes == [f"the text was cut from {len(whole)} to 8 tokens"]
    assert tokenize(tokenizer, TEXT, max_tokens=len(whole)).notes == []


@pytest.mark.parametrize(
    ("tokenizer", "text", "options", "pattern"),
    [
        (byte_level, "", {}, "the text is empty"),
        (byte_level, 3, {}, "must be a string, got int"),
        (byte_level, "a\ud800b", {}, "character 1 is a lone surrogate"),
        (byte_level, "a", {"max_tokens": 1}, "at least 2, got 1"),
        (lambda: None, "a", {}, "no tokenizer"),
    ],
)
def test_bad_texts(tokenizer: Any, text: Any, options: dict[str, Any], pattern: str) -> None:
    with pytest.raises(BadInput, match=pattern):
        tokenize(tokenizer(), text, **options)


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece"])
def test_ids_give_back_text_spans_and_labels(name: str) -> None:
    tokens = tokenize(TOKENIZERS[name](), TRICKY)
    again = from_ids(TOKENIZERS[name](), tokens.ids)
    assert (again.text, again.spans, again.texts) == (tokens.text, tokens.spans, tokens.texts)
    assert again.bos_added


def test_ids_in_every_shape() -> None:
    for ids in ([1, 5, 6], (1, 5, 6), torch.tensor([1, 5, 6]), torch.tensor([[1, 5, 6]]), [[1, 5, 6]], range(1, 4)):
        assert len(from_ids(byte_level(), ids)) == 3
    assert from_ids(None, [1, 5]).texts == ["<id 1>", "<id 5>"]
    assert from_ids(None, [1, 5, 6], max_tokens=2).ids == [1, 5]
    assert from_ids(byte_level(), [1, 1, 5]).double_bos
    for bad, pattern in (([[1], [2]], "one flat list"), ([1.5], "integers"), ([True], "integers"), ([1, -2], "-2")):
        with pytest.raises(BadInput, match=pattern):
            from_ids(byte_level(), bad)


def test_ids_that_are_no_text() -> None:
    lonely = tokenize(byte_level(), "灯").ids[1:2]  # the first byte of a character
    tokens = from_ids(byte_level(), [*lonely, 9999, 40])
    assert tokens.texts[0] == "<E7>" and tokens.texts[1] == "<id 9999>" and tokens.ids[2] == 40


@pytest.mark.parametrize("family", ["llama", "mamba", "gpt2", "jamba"])
def test_tokens_that_fit_pass(family: str) -> None:
    assert check(tokenize(byte_level(), TEXT, max_tokens=100), tiny_model(family)) == []


def test_too_few_tokens() -> None:
    model = tiny_model("llama")
    with pytest.raises(BadInput, match="has 1 token: at least 2"):
        check(tokenize(tiny_tokenizer(add_bos=False), "a"), model)
    with pytest.raises(BadInput, match="has 0 tokens"):
        check(from_ids(None, []), model)
    assert check(tokenize(byte_level(), "a"), model) == []


def test_ids_beyond_the_embedding() -> None:
    model = tiny_model("llama", vocab_size=260)
    tokens = tokenize(byte_level(), "The lamp")
    with pytest.raises(BadInput, match=r"token 1 'The' has id \d+, .* has 260 rows \(and 1 more\)"):
        check(tokens, model)
    with pytest.raises(BadInput, match="260 rows"):
        check(tokens, model.config)
    assert check(tokenize(byte_level(), "a.b"), model) == []


TABLES = ["gpt2", "gpt_bigcode", "gpt_neo", "opt", "openai-gpt", "ctrl", "codegen", "bert", "camembert", "rembert"]


@pytest.mark.parametrize("family", TABLES)
def test_learned_positions_are_counted_right(family: str) -> None:
    """At the limit the model runs, one token later it fails: so the limit is neither too low nor too high."""
    model = tiny_model(family)
    limit = position_limit(model)
    assert limit is not None
    with torch.no_grad():
        model(torch.full((1, limit), 9), use_cache=False)
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, limit + 1), 9), use_cache=False)
    check(from_ids(None, [9] * limit), model)
    with pytest.raises(BadInput, match=f"{limit + 1} tokens.* {limit} positions.*--max-tokens {limit}"):
        check(from_ids(None, [9] * (limit + 1)), model)


@pytest.mark.parametrize("family", ["llama", "gemma2", "falcon", "gpt_neox"])
def test_rotary_models_run_on_with_a_warning(family: str) -> None:
    model = tiny_model(family)
    tokens = from_ids(None, [9] * 520)
    assert position_limit(model) is None
    with torch.no_grad():
        model(torch.tensor([tokens.ids]), use_cache=False)
    (note,) = check(tokens, model)
    assert "520 tokens" in note and "512 positions" in note
    assert check(tokens, tiny_config(family)) == [note]


@pytest.mark.parametrize("family", ["mamba", "falcon_mamba"])
def test_recurrent_models_have_no_limit(family: str) -> None:
    assert check(from_ids(None, [9] * 5000), tiny_model(family)) == []


def test_a_vision_tower_does_not_count() -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = tiny_config("gemma3_text").to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config)
    assert any(name.endswith("position_embedding") for name, _ in model.named_modules())
    assert position_limit(model) is None
