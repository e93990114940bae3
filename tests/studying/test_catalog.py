"""The studies that come with hf-ess: complete, and readable by name or by path."""

from __future__ import annotations

import pytest

from hf_ess import BadInput
from hf_ess.studying import catalog
from hf_ess.studying.classes import token_classes
from hf_ess.studying.shots import from_row
from hf_ess.text.reading import read_dataset, read_rows


def test_the_papers_figures_of_public_models_are_presets():
    found = {number for name in catalog.names() for number in catalog.find(name).presets}
    assert {"6a", *map(str, range(31, 38)), "39", "40", "41", "42"} <= found
    for name in catalog.names():
        study = catalog.find(name)
        for number in study.presets:
            settings = study.settings(number)
            assert "/" in settings["model"] and settings["tolerances"] and settings["reduction"].startswith("sum_")


def test_mean_over_layers_where_the_axes_of_the_paper_need_it():
    """Its axes of figures 6a and 31 to 37 fit a mean over layers, those of 39 to 42 a sum."""
    reductions = {n: catalog.find(s).settings(n)["reduction"] for s in catalog.names() for n in catalog.find(s).presets}
    assert {reductions[n] for n in ("6a", "31", "37")} == {"sum_channels_mean_layers"}
    assert {reductions[n] for n in ("39", "40", "41", "42")} == {"sum_channels_layers"}


def test_inputs_are_whole():
    prompts = read_dataset(str(catalog.home() / "separators" / "prompts.jsonl"))
    at = catalog.find("separators").options["at"]
    assert len(prompts) >= 20 and all(prompt.count(at) >= 4 and not prompt.endswith(at) for prompt in prompts)
    assert len(set(prompts)) == len(prompts)
    rows = read_rows(str(catalog.home() / "shots" / "questions.jsonl"))
    questions = [from_row(row, n, "") for n, row in enumerate(rows)]
    assert sum(row["use"] == "example" for row in rows) >= max(catalog.find("shots").options["shots"])
    assert all(len(set(q.choices)) == 4 for q in questions)
    for name in ("code", "tokens"):
        study = catalog.find(name)
        assert len(list(study.folder.glob(study.options["texts"]))) >= 8 and token_classes(study.options["class"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no kind"),
        ("kind = 'sums'\ntitle = ''\nclaim = ''", "no kind 'sums'"),
        ("kind = ", "cannot be read"),
    ],
)
def test_a_study_that_cannot_be_used(tmp_path, text, says):
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(BadInput, match=says):
        catalog.find(str(tmp_path))


def test_wrong_names():
    with pytest.raises(BadInput, match="no study 'separator'; there is code, separators, shots, tokens"):
        catalog.find("separator")
    with pytest.raises(BadInput, match="no preset '99'; there is 39"):
        catalog.find("code").settings("99")
