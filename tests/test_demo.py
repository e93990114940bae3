"""The shipped demo checkpoints, and the code that trains them."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import demo_bigram  # noqa: E402
import demo_data  # noqa: E402
import demo_evaluate  # noqa: E402
import train_demo  # noqa: E402

NAMES = ["falcon-mamba", "llama"]
DELIMITERS = ".!?;}<>\n"
EOS = "<|endoftext|>"


def folder(name: str) -> Path:
    return ROOT / "hf_ess" / "demo" / name


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder("llama"))


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_loads_whole_in_float32_and_is_small(name: str) -> None:
    model, report = AutoModelForCausalLM.from_pretrained(folder(name), output_loading_info=True)
    expected = {"falcon-mamba": "FalconMambaForCausalLM", "llama": "LlamaForCausalLM"}
    assert type(model).__name__ == expected[name]
    assert not any(report.values())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert 1e6 < sum(p.numel() for p in model.parameters()) < 2e6
    assert (folder(name) / "model.safetensors").stat().st_size < 4e6
    assert model.generation_config.eos_token_id == 0


def test_both_checkpoints_ship_the_same_tokenizer_and_a_card() -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert len({(folder(n) / file).read_bytes() for n in NAMES}) == 1
    for name in NAMES:
        card = (folder(name) / "README.md").read_text()
        assert f"# demo:{name}" in card and "licence" in card and "bigram" in card


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("aZ 3\t\"'()[]{},=-/\\é日" + DELIMITERS), max_size=40) | st.text(max_size=40))
def test_tokenizer_round_trip_is_exact(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    text = text.encode("utf-8", errors="ignore").decode()  # lone surrogates are not text
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab 1\t\"'()[]{,=-" + DELIMITERS), max_size=40))
def test_each_delimiter_is_a_token_of_its_own(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    pieces = [tokenizer.decode([i]) for i in tokenizer(text).input_ids]
    assert [p for p in pieces if any(d in p for d in DELIMITERS)] == [c for c in text if c in DELIMITERS]


def test_end_of_text_is_one_special_token_and_no_bos_is_added(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer(f"One.{EOS}Two.").input_ids
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 0)
    assert ids.count(0) == 1 and ids[0] != 0 and ids[-1] != 0
    assert len(tokenizer) == 2048


def test_example_texts_have_the_stated_size(tokenizer: PreTrainedTokenizerFast) -> None:
    prose, mixed = ((ROOT / "examples" / f).read_text(encoding="utf-8") for f in ("prose.txt", "mixed.txt"))
    assert 300 < len(tokenizer(prose).input_ids) < 400 and EOS not in prose and "\n\n" in prose
    ids = tokenizer(mixed).input_ids
    assert 400 < len(ids) < 480 and ids.count(0) == 5


@pytest.mark.parametrize("name", NAMES)
def test_heldout_loss_is_below_the_bigram_model(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    sample = json.loads((ROOT / "tests" / "data" / "demo_heldout.json").read_text(encoding="utf-8"))
    ids = np.array(tokenizer(sample["text"]).input_ids)
    pair, before, after = (np.array(sample[f"count_{k}"]) for k in ("pair", "before", "after"))
    assert len(pair) == len(ids) - 1  # the counts belong to this tokenisation
    unigram = (after + 1) / (sample["total"] + sample["vocabulary"])
    bigram = -np.log(sample["weight"] * pair / before + (1 - sample["weight"]) * unigram)
    loss = demo_evaluate.losses(AutoModelForCausalLM.from_pretrained(folder(name)), ids, length=256)
    assert len(loss) > 1500
    assert loss.mean() < bigram[: len(loss)].mean() - 0.3


def _scan_inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(2, 6, 19), (2, 6, 19), (6, 5), (2, 5, 19), (2, 5, 19), (6,), (2, 6, 19), (6,)]
    # Transformers' version casts B and u to float32 on the way: float32 values make that cast exact.
    u, dt, a, *rest = (torch.randn(s).to(dtype).requires_grad_() for s in shapes)
    return [u, dt, (-a.detach().exp()).requires_grad_(), *rest]


def _plain_scan(u, dt, a, b, c, d, z, bias):  # type: ignore[no-untyped-def]
    dt = torch.nn.functional.softplus(dt + bias[:, None])
    h, out = torch.zeros(*u.shape[:2], a.shape[1], dtype=u.dtype), []
    for t in range(u.shape[2]):
        h = torch.exp(dt[:, :, t, None] * a) * h + (dt * u)[:, :, t, None] * b[:, None, :, t]
        out.append((h * c[:, None, :, t]).sum(-1))
    return (torch.stack(out, -1) + u * d[:, None]) * torch.nn.functional.silu(z), h


def test_fused_scan_has_the_gradients_of_the_plain_recurrence() -> None:
    demo_scan = pytest.importorskip("demo_scan", exc_type=ImportError)
    from transformers.models.falcon_mamba import modeling_falcon_mamba as reference

    inputs = _scan_inputs(torch.float64)
    u, dt, a, b, c, d, z, bias = inputs
    keywords = dict(D=d, z=z, delta_bias=bias, delta_softplus=True, return_last_state=True)
    fused, last = demo_scan.fused_selective_scan(u, dt, a, b, c, **keywords)
    plain, plain_last = _plain_scan(*inputs)
    theirs, their_last = reference.mamba_selective_scan(u, dt, a, b, c, **keywords)
    for ours, other in ((fused, plain), (last, plain_last), (fused, theirs), (last, their_last)):
        torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-12)
    weight = torch.randn(fused.shape, dtype=torch.float64)
    gradients = torch.autograd.grad((fused * weight).sum(), inputs)
    expected = torch.autograd.grad((plain * weight).sum(), inputs)
    for ours, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-11, atol=1e-11)


def test_fused_scan_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    demo_scan = pytest.importorskip("demo_scan", exc_type=ImportError)
    from transformers.models.falcon_mamba import modeling_falcon_mamba as reference

    model = AutoModelForCausalLM.from_pretrained(folder("falcon-mamba"))
    ids = torch.randint(0, 2048, (2, 40), generator=torch.Generator().manual_seed(0))
    calls = []

    def counted(*args, **kwargs):  # type: ignore[no-untyped-def]
        calls.append(1)
        return demo_scan.fused_selective_scan(*args, **kwargs)

    with torch.no_grad():
        stock = model(ids).logits
        monkeypatch.setattr(reference, "mamba_selective_scan", counted)
        fused = model(ids).logits
    assert len(calls) == model.config.num_hidden_layers
    torch.testing.assert_close(fused, stock, rtol=1e-3, atol=1e-3)


def test_bigram_model_is_a_distribution_with_its_best_weight() -> None:
    rng = np.random.default_rng(0)
    train, tune = rng.integers(0, 7, 400) // 2, rng.integers(0, 7, 300) // 2
    model = demo_bigram.Bigram.fit(train, tune, 5)
    for before in range(4):
        pairs = np.array([[before, after] for after in range(5)])
        total = sum(np.exp(-model.losses(p))[0] for p in pairs)
        assert total == pytest.approx(1, abs=1e-12)
    others = [demo_bigram.Bigram(model.pairs, w).losses(tune).mean() for w in np.linspace(0, 0.99, 100)]
    assert model.losses(tune).mean() <= min(others) + 1e-9


@pytest.mark.parametrize("source", ["moby-dick", "python"])
def test_fragments_are_consecutive_pieces_of_the_document(source: str) -> None:
    prose = (ROOT / "examples" / "prose.txt").read_text(encoding="utf-8") * 3
    text = prose if source == "moby-dick" else Path(demo_data.__file__).read_text(encoding="utf-8")
    pieces = [f.text for f in demo_data.fragments(demo_data.Document(source, "x", text), random.Random(0))]
    assert len(pieces) > 5
    position = 0
    for piece in pieces:
        position = text.index(piece, position) + len(piece)
        assert demo_data.SHORTEST * 0.9 <= len(piece) <= demo_data.LONGEST
        assert source == "python" or piece.rstrip("\"')]")[-1] in ".!?"


def test_documents_are_held_out_by_name_alone() -> None:
    documents = [demo_data.Document("python", f"{i}.py", "x") for i in range(5000)]
    share = sum(d.split == "heldout" for d in documents) / 5000
    assert 0.03 < share < 0.05
    assert all(d.split == demo_data.Document("python", d.name, "other").split for d in documents)


def test_training_continues_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_demo, "LENGTH", 32)
    monkeypatch.setattr(train_demo, "BATCH", 2)
    ids = np.random.default_rng(0).integers(0, 2048, 2000).astype(np.uint16)
    finals = []
    for work, stops in ((tmp_path / "whole", [4]), (tmp_path / "halves", [2, 4])):
        work.mkdir()
        AutoTokenizer.from_pretrained(folder("llama")).save_pretrained(work / "tokenizer")
        np.save(work / "train.npy", ids)
        np.save(work / "tune.npy", ids)
        for stop in stops:
            share = lambda step, *_, stop=stop: step / 4 if step < stop else 1  # noqa: E731
            monkeypatch.setattr(train_demo, "progress", share)
            train_demo.train(argparse.Namespace(model="llama", work=work, steps=4, minutes=None))
        finals.append(torch.load(work / "llama" / "state.pt", weights_only=True))
        AutoModelForCausalLM.from_pretrained(work / "llama" / "export")
    assert finals[0]["step"] == finals[1]["step"] == 4
    for name, tensor in finals[0]["model"].items():
        torch.testing.assert_close(finals[1]["model"][name], tensor, rtol=0, atol=0, msg=name)
    moments = itertools.chain(*(s.values() for s in finals[0]["optimizer"]["state"].values()))
    assert all(torch.isfinite(m).all() for m in moments)
