"""Few-shot prompts: one axis, every number from scratch, and the model's own answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import hf_ess
from hf_ess import BadInput
from hf_ess.loading import load
from hf_ess.studying import catalog, shots
from hf_ess.text.reading import read_rows
from tests.tiny import tiny_model, tiny_tokenizer

ROWS = read_rows(str(catalog.home() / "shots" / "questions.jsonl"))
QUESTIONS = [shots.from_row(row, number, "") for number, row in enumerate(ROWS)]


@pytest.fixture(scope="module")
def llama():
    return load(tiny_model("llama", max_position_embeddings=2048), tokenizer=tiny_tokenizer())


@pytest.fixture(scope="module")
def done(llama):
    return hf_ess.study("shots", llama, tolerances=[1e-1], limit=3)


def test_a_row_in_both_forms():
    row = {"question": "2 + 2?", "choices": ["3", "4"], "answer": 1}
    assert shots.from_row(row, 0, "") == shots.from_row({**row, "answer": "B"}, 0, "")
    assert shots.from_row(row, 0, "").answered() == "Question: 2 + 2?\nA. 3\nB. 4\nAnswer: B\n\n"


@pytest.mark.parametrize(
    "change",
    [{"question": None}, {"choices": "34"}, {"choices": ["4"]}, {"answer": 2}, {"answer": "E"}, {"answer": "x"}],
)
def test_what_is_no_question(change):
    row = {"question": "2 + 2?", "choices": ["3", "4"], "answer": 1, **change}
    with pytest.raises(BadInput, match="row 7 of here is no question"):
        shots.from_row(row, 7, "here")


def test_prompts_end_alike_and_examples_begin_where_they_say(llama):
    made = shots.asked(llama.tokenizer, QUESTIONS[:5], QUESTIONS[7], [0, 1, 3, 5])
    own = {n: v.ids[v.places[0] + 1 :] for n, v in made.variants.items()}
    assert own["0"] == own["1"] == own["3"] == own["5"]
    for n, variant in made.variants.items():
        assert len(made.starts[n]) == int(n)
        for k, start in enumerate(made.starts[n]):
            text = llama.tokenizer.decode(variant.ids[start:])
            assert text.startswith(QUESTIONS[k].asked())
    with pytest.raises(BadInput, match="5 examples are asked for and there are 4"):
        shots.asked(llama.tokenizer, QUESTIONS[:4], QUESTIONS[7], [5])


def test_a_row_from_scratch(llama, done):
    values, full = [], []
    for k in range(3):
        sums = {}
        for n in (0, 3):
            text = "".join(q.answered() for q in QUESTIONS[:n]) + QUESTIONS[5 + k].asked()
            result = hf_ess.probe(llama, text, tolerances=[1e-1], entropy=False)
            (row,) = result.rows(layer=None, reduction="sum_channels_layers", metric="tolerance")
            length = len(row["values"]) + 1
            first = done.summary["prompts"][k]["first"][str(n)]
            cuts = list(range(first + 1, length))[: (length - first - 1) // 4]
            heads, size, layers = 4, llama.model.config.head_dim, len(llama.model.model.layers)
            bound = sum(min(i, length - i) for i in cuts) * heads * size * layers
            sums[n] = sum(row["values"][i - 1] for i in cuts), bound
        values.append(math.log(sums[3][0] / sums[0][0]))
        full.append(values[-1] - math.log(sums[3][1] / sums[0][1]))
    wanted = (3, 0, "start", None)
    (mine,) = [r for r in done.rows if (r["shots"], r["against"], r["part"], r["layer"]) == wanted]
    assert mine["effect"] == pytest.approx(math.expm1(np.mean(values)), rel=1e-12)
    assert mine["full"] == pytest.approx(math.expm1(np.mean(full)), rel=1e-12)


def test_answers_are_the_models_own(llama, done):
    letters = [llama.tokenizer(f" {letter}", add_special_tokens=False)["input_ids"] for letter in "ABCD"]
    right = 0
    for question in QUESTIONS[5:8]:
        ids = torch.tensor([llama.tokenizer(question.asked())["input_ids"]])
        with torch.no_grad():
            logits = llama.model(ids).logits[0, -1]
        right += int(max(range(4), key=lambda k: logits[letters[k][-1]])) == question.answer
    if all(len(ids) == len(letters[0]) and ids[:-1] == letters[0][:-1] for ids in letters):
        assert len({tuple(ids[:-1]) for ids in letters}) == 1
    assert done.summary["chance"] == 0.25
    if len(letters[0]) == 1:
        assert done.summary["accuracy"]["0"] == pytest.approx(right / 3)


def test_segments_are_means_over_their_cuts(llama, done):
    (row,) = [r for r in done.summary["segments"] if r["shots"] == 1]
    found = []
    for k in range(3):
        text = QUESTIONS[0].answered() + QUESTIONS[5 + k].asked()
        result = hf_ess.probe(llama, text, tolerances=[1e-1], entropy=False)
        (curve,) = result.rows(layer=None, reduction="sum_channels_layers", metric="tolerance")
        first, start = done.summary["prompts"][k]["first"]["1"], done.summary["prompts"][k]["examples"]["1"][0]
        values = np.array(curve["values"])
        found.append((values[start:first].mean(), values[first:].mean()))
    assert row["examples"][0] == pytest.approx(np.mean(found, axis=0)[0])
    assert row["question"] == pytest.approx(np.mean(found, axis=0)[1])


def test_rows_of_a_data_set_with_mmlus_splits(tmp_path, llama):
    """`cais/mmlu:elementary_mathematics` has its examples in dev and its questions in test."""
    import datasets

    rows = [{k: row[k] for k in ("question", "choices", "answer")} for row in ROWS]
    parts = {"dev": datasets.Dataset.from_list(rows[:5]), "test": datasets.Dataset.from_list(rows[5:9])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "mmlu"))
    done = hf_ess.study("shots", llama, preset="41", tolerances=[1e-1], limit=2, dataset=str(tmp_path / "mmlu"))
    assert [p["question"] for p in done.summary["prompts"]] == [q.text for q in QUESTIONS[5:7]]
    assert len(done.summary["prompts"][0]["examples"]["5"]) == 5
    assert done.summary["study"]["preset"] == "41"
