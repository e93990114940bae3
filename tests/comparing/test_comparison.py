"""compare() end to end: every number against an independent computation from operators and probe()."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

import hf_ess
from hf_ess import BadInput, UnsupportedModel
from hf_ess.loading import load
from tests.tiny import EOT, tiny_checkpoint, tiny_model, tiny_tokenizer

PROMPTS = [
    "The lamp was out in the high house<sep> Nobody had paid the man<sep> He went home and a ship came in the light.",
    "The sea was high that day and the old man<sep> kept the light of the lamp<sep> and the ships had seen him go.",
    "Nobody had seen the keeper of the lamp<sep> The light kept the ships<sep> The lamp was out and he went home.",
]
TOLERANCES = (1e-1, 1e-3)


@pytest.fixture(scope="module")
def llama():
    return load(tiny_model("llama"), tokenizer=tiny_tokenizer())


@pytest.fixture(scope="module")
def compared(llama):
    return hf_ess.compare(
        llama,
        PROMPTS,
        replace=["eos", ".", EOT],
        control=" the",
        second_control=" and",
        tolerances=TOLERANCES,
        groups=4,
    )


def _curves(llama, token: int, prompt: dict, made: list[int], layer: int | None, tolerance: float) -> np.ndarray:
    """Total ESS from probe(): another way through the program."""
    ids = [token if k in prompt["places"] else i for k, i in enumerate(made)]
    result = hf_ess.probe(llama, ids, tolerances=TOLERANCES, entropy=False)
    reduction = "sum_channels_layers" if layer is None else "sum_channels"
    (row,) = result.rows(layer=layer, reduction=reduction, metric="tolerance", tolerance=tolerance)
    return np.array(row["values"])


@pytest.mark.parametrize("layer", [None, 1])
def test_an_effect_from_scratch(llama, compared, layer):
    from hf_ess.text.substitution import template

    tolerance, values = 1e-1, []
    tokens = {c["name"]: c["token"] for c in compared.summary["candidates"]}
    for text, prompt in zip(PROMPTS, compared.summary["prompts"]):
        made = template(llama.tokenizer, text, "<sep>").ids
        sums = []
        for name in ("eos", " the"):
            curve = _curves(llama, tokens[name], prompt, made, layer, tolerance)
            kept = compared.curves.to_pylist()
            where = (len(values), name, layer, tolerance)
            (mine,) = [r for r in kept if (r["prompt"], r["replace"], r["layer"], r["tolerance"]) == where]
            assert mine["values"] == curve.tolist()
            sums.append(sum(min(curve[i - 1] for i in (p, p + 1, p + 2)) for p in prompt["places"]))
        values.append(math.log(sums[0] / sums[1]))
    (row,) = [r for r in compared.effects if (r["replace"], r["tolerance"], r["layer"]) == ("eos", tolerance, layer)]
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert row["effect"] == pytest.approx(math.expm1(np.mean(values)))
    assert (row["low"], row["high"]) == (pytest.approx(math.expm1(low)), pytest.approx(math.expm1(high)))
    assert (row["prompts"], row["places"], row["left_out"], row["token"]) == (3, 6, 0, 2)
    assert row["p_value"] == pytest.approx(stats.wilcoxon(values).pvalue)


def test_every_token_tolerance_and_layer_has_a_row(llama, compared):
    layers = llama.layers
    assert len(compared.effects) == 4 * len(TOLERANCES) * (1 + layers)
    keys = {"replace", "tolerance", "layer", "reduction", "effect", "low", "high", "p_value", "prompts", "places"}
    assert all(keys <= set(row) for row in compared.effects)
    assert {row["reduction"] for row in compared.effects if row["layer"] is None} == {"sum_channels_layers"}
    assert [c["role"] for c in compared.summary["candidates"]] == ["control", *["candidate"] * 3, "second control"]
    json.dumps(compared.to_json(), allow_nan=False)


def test_curves_of_all_tokens_share_the_axis_and_the_past(compared):
    """Before the first place nothing differs but through later readers; all have L-1 values."""
    rows = [r for r in compared.curves.to_pylist() if r["prompt"] == 0 and r["layer"] is None]
    length = compared.summary["prompts"][0]["tokens"]
    assert {len(r["values"]) for r in rows} == {length - 1}
    assert len(rows) == 5 * len(TOLERANCES)


def test_groups_are_heads_and_sum_up_to_their_layer(llama, compared):
    assert {(row["first"], row["last"]) for row in compared.groups} == {(h, h) for h in range(4)}
    mine = [r["effect"] for r in compared.groups if r["replace"] == "eos" and r["tolerance"] == 1e-1]
    sizes = [abs(math.log1p(e)) if e > -1 else math.inf for e in mine]
    assert sizes == sorted(sizes, reverse=True)
    joined = hf_ess.compare(
        llama, PROMPTS, replace=["eos"], control=" the", tolerances=TOLERANCES, groups=1, layers=[1]
    )
    group = next(r for r in joined.groups if r["tolerance"] == 1e-1)
    layer = next(r for r in joined.effects if r["layer"] == 1 and r["tolerance"] == 1e-1)
    assert group["effect"] == layer["effect"] and (group["first"], group["last"]) == (0, 3)


def test_the_model_sees_the_reset(monkeypatch):
    """A recurrence whose input gate wipes its state at one token, built from the operator alone."""
    from hf_ess.capturing import CapturedLayer
    from hf_ess.comparing import substituted
    from hf_ess.operators import RecurrentOperator

    def capture(model, ids, on_layer, layers=None):
        length, n = len(ids), 6
        g = torch.manual_seed(len(ids))
        decay = torch.full((2, length, n), 0.9).double()
        decay[:, torch.tensor(ids) == 2] = 0.0  # EOS wipes
        b, c = (torch.randn(2, length, n, generator=g).double() for _ in range(2))
        op = RecurrentOperator(decay, b, c)
        on_layer(CapturedLayer(0, 0, "layers.0.mixer", "Mixer", "mamba", op, 0.0, 1e-5, 0.0, True, torch.zeros(1)))
        return []

    monkeypatch.setattr(substituted, "capture", capture)
    loaded = load(tiny_model("llama"), tokenizer=tiny_tokenizer())
    done = hf_ess.compare(loaded, PROMPTS, replace=["eos", "."], control=" the", tolerances=[1e-3])
    eos, stop = (next(r for r in done.effects if r["replace"] == name and r["layer"] is None) for name in ("eos", "."))
    assert eos["effect"] == -1 and eos["emptied"] == 3 and eos["low"] is None and eos["dip"] == -1
    assert stop["effect"] == 0 and stop["p_value"] == 1 and stop["emptied"] == 0


def test_a_layer_that_fails_is_left_out_of_both_sides(monkeypatch, llama):
    from hf_ess.comparing import substituted

    real = substituted.capture

    def broken(model, ids, on_layer, layers=None):
        def spoil(layer):
            if layer.layer == 1 and 2 in ids:  # under EOS alone
                layer.error = 1.0
            on_layer(layer)

        return real(model, ids, spoil, layers=layers)

    whole = hf_ess.compare(llama, PROMPTS, replace=["eos"], control=" the", tolerances=[1e-1], layers=[0])
    monkeypatch.setattr(substituted, "capture", broken)
    done = hf_ess.compare(llama, PROMPTS, replace=["eos"], control=" the", tolerances=[1e-1], layers=[0, 1])
    by_layer = {row["layer"]: row for row in done.effects}
    assert by_layer[1]["effect"] is None and by_layer[1]["prompts"] == 0
    assert by_layer[None]["effect"] == whole.effects[0]["effect"]
    assert done.summary["verification"]["failed"] == 3


def test_a_horizon_longer_than_the_text_changes_nothing(llama, compared):
    far = hf_ess.compare(llama, PROMPTS, replace=["."], control=" the", tolerances=TOLERANCES, horizon=500)
    near = hf_ess.compare(llama, PROMPTS, replace=["."], control=" the", tolerances=TOLERANCES, horizon=3)
    mine = [r for r in compared.effects if r["replace"] == "."]
    assert [r["effect"] for r in far.effects] == [r["effect"] for r in mine]
    assert [r["dip"] for r in far.effects] == [r["dip"] for r in mine]
    assert [r["effect"] for r in near.effects] != [r["effect"] for r in mine]


def test_saved_and_read_again(compared, tmp_path):
    path = compared.save(tmp_path / "out", plots=True)
    again = hf_ess.load_comparison(path)
    assert again.summary == compared.summary and again.curves.equals(compared.curves)
    assert sorted(p.name for p in path.iterdir()) == ["curves.parquet", "plots", "summary.json"]
    assert {p.name for p in (path / "plots").iterdir()} == {
        "curves.png",
        "layers.png",
        "difference.png",
        "groups.png",
    }
    with pytest.raises(BadInput, match="exists already"):
        compared.save(path)
    with pytest.raises(BadInput, match="not a comparison"):
        hf_ess.load_comparison(tmp_path)


def test_pictures(compared):
    figure = compared.plot("curves", prompt=1, layer=1, tolerance=1e-1, replace=["eos"])
    (panel,) = figure.axes
    rows = compared.curves.to_pylist()
    (eos,) = [
        r["values"] for r in rows if (r["prompt"], r["replace"], r["layer"], r["tolerance"]) == (1, "eos", 1, 1e-1)
    ]
    assert any(list(line.get_ydata()) == eos for line in panel.lines) and len(panel.lines) == 3
    panels = compared.plot("layers").axes
    assert len(panels) == len(TOLERANCES)
    drawn = {round(float(line.get_ydata()[0]), 6) for line in panels[0].lines if len(line.get_ydata()) == 1}
    wanted = {round(100 * r["effect"], 6) for r in compared.effects if r["tolerance"] == 1e-1}
    assert wanted <= drawn
    for options in ({"kind": "nothing"}, {"prompt": 9}, {"layer": 77}, {"tolerance": 0.5}, {"replace": ["?"]}):
        with pytest.raises(BadInput):
            compared.plot(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"text": "No place."}, "no placeholder"),
        ({"replace": []}, "no token to compare"),
        ({"control": None}, "no control"),
        ({"control": "."}, "is the control"),
        ({"replace": ["out of paper"]}, "tokens of this tokenizer"),
        ({"replace": ["id:999999"]}, "embedding"),
        ({"text": []}, "at least one prompt"),
        ({"tolerances": [0.0]}, "above 0"),
        ({"horizon": 0}, "horizon"),
        ({"horizon": 4, "relative": True}, "absolute"),
        ({"groups": -1}, "groups"),
    ],
)
def test_bad_input_is_one_sentence(llama, options, said):
    arguments = {"text": PROMPTS, "replace": ["."], "control": " the", **options}
    with pytest.raises(BadInput, match=said) as refused:
        hf_ess.compare(llama, **arguments)
    assert "\n" not in str(refused.value)


def test_layers_that_do_not_exist(llama):
    with pytest.raises(UnsupportedModel, match="no layer"):
        hf_ess.compare(llama, PROMPTS, replace=["."], control=" the", layers=[99])


def test_what_must_be_told(llama):
    near = "The lamp was out in the house<sep> He went home<sep>"
    done = hf_ess.compare(llama, near, replace=["."], control=" the", tolerances=[0.1])
    notes = " ".join(done.summary["notes"])
    assert "only 0 tokens follow its last place" in notes and "one prompt has no interval" in notes
    assert done.effects[0]["low"] is None and done.effects[0]["p_value"] is None
    longer = hf_ess.compare(llama, near, replace=["."], control=" the", tolerances=[0.1], continuation=" the ship" * 9)
    assert "follow its last place" not in " ".join(longer.summary["notes"])


def test_models_by_relative_depth(tmp_path):
    llama = load(str(tiny_checkpoint(tmp_path / "llama", "llama")))
    mamba = load(str(tiny_checkpoint(tmp_path / "mamba", "mamba")))
    text = ["The lamp was out. Nobody had paid.", "He went home, and a ship came in."]
    done = hf_ess.compare_models([llama, mamba, llama], text, tolerances=TOLERANCES)
    names = [m["name"] for m in done.summary["models"]]
    assert len(set(names)) == 3 and names[0].endswith("#1")
    alone = hf_ess.probe(mamba, text, tolerances=TOLERANCES, entropy=False)
    lengths = np.array([p["tokens"] - 1 for p in alone.summary["prompts"]])
    for layer in range(mamba.layers):
        infos = [i for i in alone.layers if i["layer"] == layer]
        (row,) = [r for r in done.rows if (r["model"], r["layer"], r["tolerance"]) == (names[1], layer, 1e-3)]
        assert row["ess"] == pytest.approx(np.average([i["ess"][1] for i in infos], weights=lengths))
        assert row["utilisation"] == pytest.approx(np.average([i["utilisation"][1] for i in infos], weights=lengths))
        assert row["depth"] == (layer + 0.5) / mamba.layers
    for model in names:
        whole = next(r for r in done.profile if (r["model"], r["tolerance"], r["band"]) == (model, 1e-3, None))
        mine = [r["ess"] for r in done.rows if (r["model"], r["tolerance"]) == (model, 1e-3)]
        assert whole["ess"] == pytest.approx(np.mean(mine)) and whole["layers"] == len(mine)
    path = done.save(tmp_path / "out")
    assert hf_ess.load_result(path / "model-1").summary["layers"] == done.results[1].summary["layers"]
    with pytest.raises(BadInput, match="at least two"):
        hf_ess.compare_models([llama], text)
