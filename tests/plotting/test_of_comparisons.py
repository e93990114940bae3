"""Pictures of a comparison: the difference to the control, and the ranking of heads."""

from __future__ import annotations

import numpy as np
import pytest

import hf_ess
from hf_ess import plots
from hf_ess.errors import BadInput
from hf_ess.plotting.groups import MOST
from tests.tiny import tiny_model, tiny_tokenizer

PROMPTS = [
    "The lamp was out in the high house<sep> Nobody had paid the man<sep> He went home and a ship came in the light.",
    "The sea was high that day and the old man<sep> kept the light of the lamp<sep> and the ships had seen him go.",
]


def _compared(**options):
    return hf_ess.compare(
        tiny_model("llama"),
        PROMPTS,
        tokenizer=tiny_tokenizer(),
        replace=["eos", "."],
        control=" the",
        tolerances=(1e-1, 1e-3),
        **options,
    )


@pytest.fixture(scope="module")
def compared():
    return _compared(groups=4)


def _images(figure):
    return [image for ax in figure.axes for image in ax.images if len(image.get_array()) > 1 and ax.get_ylabel()]


@pytest.mark.parametrize(("replace", "name"), [(None, "eos"), (".", ".")])
def test_the_difference_is_the_curve_under_the_token_minus_that_under_the_control(compared, replace, name):
    images = _images(compared.plot("difference", prompt=1, replace=replace))
    assert len(images) == 2
    curves = {
        (r["replace"], r["tolerance"], r["layer"]): np.array(r["values"])
        for r in compared.curves.to_pylist()
        if r["prompt"] == 1
    }
    for image, tolerance in zip(images, (1e-1, 1e-3)):
        drawn = np.asarray(image.get_array())
        wanted = [curves[name, tolerance, n] - curves[" the", tolerance, n] for n in range(len(drawn))]
        assert np.allclose(drawn, wanted)
        low, high = image.get_clim()
        assert low == -high and high == pytest.approx(np.abs(wanted).max())


def test_layers_that_failed_are_left_empty(compared):
    import pyarrow.compute as pc

    kept = compared.curves.filter(pc.invert(pc.fill_null(pc.equal(compared.curves["layer"], 1), False)))
    (image, *_) = _images(hf_ess.Comparison(compared.summary, kept).plot("difference"))
    masked = np.ma.getmaskarray(image.get_array())
    assert masked[1].all() and not masked[0].any()


def test_the_ranking_holds_the_largest_effects_in_order(compared):
    figure = compared.plot("groups", tolerance=1e-1, most=5)
    (ax,) = figure.axes
    rows = [r for r in compared.groups if r["replace"] == "eos" and r["tolerance"] == 1e-1][:5]
    dots = [line for line in ax.lines if len(line.get_xdata()) == 1]
    assert [float(d.get_xdata()[0]) for d in dots] == pytest.approx([100 * r["effect"] for r in rows])
    spans = [list(line.get_xdata()) for line in ax.lines if line.get_linewidth() == 1.6]
    assert spans == [pytest.approx([100 * r["low"], 100 * r["high"]]) for r in rows if r["low"] is not None]
    names = [t.get_text() for t in ax.get_yticklabels()]
    assert names == [f"layer {r['layer']} · head {r['first']}" for r in rows]
    assert len(compared.plot("groups").axes[0].get_yticklabels()) <= MOST


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("difference", {"prompt": 7}, "no prompt 7"),
        ("difference", {"replace": "?"}, "not compared here"),
        ("difference", {"replace": ["eos", "."]}, "shows one token"),
        ("difference", {"replace": " the"}, "not compared here"),
        ("difference", {"tolerance": 0.5}, "was not measured"),
        ("groups", {"most": 0}, "at least 1"),
        ("groups", {"replace": "?"}, "not compared here"),
    ],
)
def test_bad_options_get_one_sentence(compared, kind, options, said):
    with pytest.raises(BadInput, match=said) as refused:
        compared.plot(kind, **options)
    assert "\n" not in str(refused.value)


def test_without_a_ranking_there_is_no_picture_of_one(tmp_path):
    found = _compared()
    with pytest.raises(BadInput, match="ranks no heads"):
        found.plot("groups")
    written = plots.save_all(found, tmp_path)
    assert [path.name for path in written] == ["curves.png", "layers.png", "difference.png"]
    assert all(path.stat().st_size > 10_000 for path in written)
