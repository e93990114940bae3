"""Classes of tokens: who belongs to which, planted dips, calibration, and every number from scratch."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

import hf_ess
from hf_ess import BadInput
from hf_ess.comparing.modulation import LogRatio, effect
from hf_ess.loading import load
from hf_ess.studying import catalog, classes
from hf_ess.studying.classes import TokenClass, away_from_the_ends, classified, dip, step, token_classes
from hf_ess.text.tokens import tokenize
from tests.tiny import EOS, tiny_model, tiny_tokenizer

CODE = """for (const item of list) { lamp(item); }
function lamp(a) { if (a > 1) { return { on: true }; } else { return { on: false }; } }
list.map(function (x) { return x > 2; });
for (const item of list) { lamp(item); }
"""


def test_a_token_that_holds_several_delimiters_counts_for_each():
    tokenizer = tiny_tokenizer()
    tokens = tokenize(tokenizer, CODE)
    made = token_classes(catalog.find("code").options["class"])
    found = classified(tokens, tokenizer, made, exclusive=False)
    for name, sign in (("{", "{"), ("}", "}"), (";", ";"), ("newline", "\n")):
        wanted = [p for p, s in enumerate(tokens.spans) if s and sign in tokens.text[slice(*s)]]
        assert found[name] == wanted and wanted
    assert set(found[";"]) & set(found["}"])  # "});" is one token here
    assert found[classes.SPECIAL] == [0]  # BOS
    everywhere = sorted({p for places in found.values() for p in places})
    assert everywhere == list(range(len(tokens)))
    assert not set(found[""]) & {p for name, places in found.items() if name for p in places}


def test_exclusive_classes_part_the_text():
    tokenizer = tiny_tokenizer()
    text = f'The lamp (of 1850) was out, he said.{EOS} "Where is Nobody?"\n'
    tokens = tokenize(tokenizer, text)
    made = token_classes(catalog.find("tokens").options["class"])
    found = classified(tokens, tokenizer, made, exclusive=True)
    assert sorted(p for places in found.values() for p in places) == list(range(len(tokens)))
    words = {name: "".join(tokens.texts[p] for p in places) for name, places in found.items()}
    assert EOS in words[classes.SPECIAL] and "\\n" in words["newline"]
    assert "1" in words["digits"] and "was" in words["function word"] and "lamp" in words[""]


def test_a_class_may_look_around():
    tokenizer = tiny_tokenizer()
    tokens = tokenize(tokenizer, "unbelievable lamp")
    rest = TokenClass("rest", re.compile("(?<=[a-z])[a-z]+"))
    found = classified(tokens, tokenizer, [rest], exclusive=True)["rest"]
    assert found and all(tokens.text[tokens.spans[p][0] - 1].isalpha() for p in found)


def test_bad_classes():
    with pytest.raises(BadInput, match="no pattern"):
        token_classes([{"name": "x"}])
    with pytest.raises(BadInput, match="'x' is no regular expression"):
        token_classes([{"name": "x", "pattern": "("}])


def test_windows_by_hand():
    curve = np.arange(1.0, 100.0) ** 2  # cut i has i^2, L = 100
    assert away_from_the_ends(range(100), 100) == list(range(13, 86))
    m = min(40.0**2, 41.0**2, 42.0**2)
    around = np.mean([float(i) ** 2 for i in (*range(28, 38), *range(45, 55))])
    assert dip(curve, [40]).value == pytest.approx(math.log(m / around))
    assert step(curve, [40]).value == pytest.approx(math.log(41**2 / 40**2))


def test_without_an_effect_the_interval_covers_0():
    """Curves of log-normal noise, 12 texts, 6 tokens of the class and 50 of none."""
    rng, covered, runs = np.random.default_rng(0), 0, 400
    for _ in range(runs):
        ratios = []
        for _ in range(12):
            curve = 1000 * np.exp(0.1 * rng.standard_normal() + 0.1 * rng.standard_normal(160))
            places = rng.choice(np.arange(13, 140), 56, replace=False)
            one, rest = dip(curve, places[:6]), dip(curve, places[6:])
            ratios.append(LogRatio(one.value - rest.value, 6, 0))
        found = effect(ratios)
        covered += found.low <= 0 <= found.high
    assert 0.92 <= covered / runs <= 0.98


def test_a_planted_class_is_found_and_another_is_not(monkeypatch):
    """A recurrence whose state is damped at ";", built from the operator alone."""
    from hf_ess.capturing import CapturedLayer
    from hf_ess.comparing import substituted
    from hf_ess.operators import RecurrentOperator

    tokenizer = tiny_tokenizer()
    semicolons = {i for i in range(len(tokenizer)) if ";" in tokenizer.decode([i])}

    def capture(model, ids, on_layer, layers=None):
        length, n = len(ids), 6
        g = torch.manual_seed(len(ids))
        decay = torch.full((4, length, n), 0.95).double()
        decay[:, [i in semicolons for i in ids]] = 1e-3
        b, c = (torch.randn(4, length, n, generator=g).double() for _ in range(2))
        op = RecurrentOperator(decay, b, c)
        on_layer(CapturedLayer(0, 0, "layers.0.mixer", "Mixer", "mamba", op, 0.0, 1e-5, 0.0, True, torch.zeros(1)))
        return []

    monkeypatch.setattr(substituted, "capture", capture)
    loaded = load(tiny_model("llama"), tokenizer=tokenizer)
    done = hf_ess.study("code", loaded, tolerances=[1e-2])
    rows = {row["class"]: row for row in done.rows if row["layer"] is None}
    assert rows[";"]["effect"] < -0.3 and rows[";"]["high"] < 0 and rows[";"]["step_low"] > 0  # the cut p is the lowest
    assert abs(rows["{"]["effect"]) < 0.15 and rows["{"]["low"] < 0.05


def test_a_row_from_scratch():
    """From probe() and plain loops: another way through the program."""
    loaded = load(tiny_model("llama"), tokenizer=tiny_tokenizer())
    done = hf_ess.study("code", loaded, tolerances=[1e-1], limit=2)
    for layer, reduction in ((None, "sum_channels_layers"), (1, "sum_channels")):
        values, steps = [], []
        for prompt in done.summary["prompts"]:
            text = (catalog.home() / "code" / "sources" / prompt["name"]).read_text()
            probed = hf_ess.probe(loaded, text, tolerances=[1e-1], entropy=False)
            (row,) = probed.rows(layer=layer, reduction=reduction, metric="tolerance")
            e = dict(enumerate(row["values"], start=1))
            sums = {}
            for name in ("}", ""):
                at = [p for p in prompt["classes"][name] if p > 12 and p + 14 < prompt["tokens"]]
                around = [(*range(p - 12, p - 2), *range(p + 5, p + 15)) for p in at]
                m = sum(min(e[p], e[p + 1], e[p + 2]) for p in at)
                level = sum(sum(e[i] for i in cuts) / len(cuts) for cuts in around)
                sums[name] = math.log(m / level), math.log(sum(e[p + 1] for p in at) / sum(e[p] for p in at))
            values.append(sums["}"][0] - sums[""][0])
            steps.append(sums["}"][1] - sums[""][1])
        (mine,) = [r for r in done.rows if r["class"] == "}" and r["layer"] == layer]
        assert mine["effect"] == pytest.approx(math.expm1(np.mean(values)), abs=1e-12)
        assert mine["step"] == pytest.approx(math.expm1(np.mean(steps)), abs=1e-12)
