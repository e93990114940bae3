"""Every causal model type of transformers, and the page that says which are covered."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

from hf_ess.adapters import registry
from tests.adapters.contract import captured, token_ids
from tests.coverage import looks_ahead, model_types, something_else_mixes, survey
from tests.tiny import CONFIGS, tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
SAMPLE = [
    "bloom",
    "cpmant",
    "deepseek_v4",
    "diffllama",
    "falcon",
    "gemma4_text",
    "hrm_text",
    "inkling2_text",
    "minimax_m3_vl_text",
    "prophetnet",
    "rwkv",
    "xlnet",
    "zaya",
]


@pytest.fixture(scope="module")
def maker():
    path = PAGE.with_name("make_coverage.py")
    spec = importlib.util.spec_from_file_location("make_coverage", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page():
    import transformers

    text = PAGE.read_text(encoding="utf-8")
    if f"transformers {transformers.__version__} " not in text:
        pytest.skip(f"{PAGE.name} is about another version of transformers: python docs/make_coverage.py")
    return text


def test_the_page_adds_up(maker, page):
    types = model_types()
    assert set(types) <= set(CONFIGS)
    covered, total = map(int, re.search(r"\*\*(\d+) of the (\d+) model types\*\*", page).groups())
    assert (covered, total) == (int(re.search(r"## Covered: (\d+)", page)[1]), len(types))
    assert total - covered == int(re.search(r"## Not covered: (\d+)", page)[1])
    assert sorted(maker.table(page)) == types


def test_what_ls_says_is_what_the_page_says(maker, page):
    state = json.loads(maker.STATE.read_text(encoding="utf-8"))
    assert f"**{state['covered']} of the {state['types']} model types**" in page
    assert f"transformers {state['transformers']}" in page
    covered = page.partition("## Covered")[2]
    for kind, names in state["kinds"].items():
        for name in names:
            assert re.search(rf"^\| {re.escape(name)} \| .*\({re.escape(kind)}\)", covered, re.MULTILINE), (name, kind)


@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_sample_is_what_the_page_says(model_type, maker, page):
    assert maker.table(maker.page([survey(model_type)]))[model_type] == maker.table(page)[model_type]


@pytest.mark.slow
def test_every_type_is_what_the_page_says(maker, page):
    rows = [survey(model_type) for model_type in model_types()]
    assert maker.table(maker.page(rows)) == maker.table(page)
    assert f"**{sum(row.covered for row in rows)} of the {len(rows)} model types**" in page


def without(monkeypatch, *kinds):
    """The adapters of these kinds are not there."""
    rest = [adapter for adapter in registry.adapters() if adapter.kind not in kinds]
    monkeypatch.setattr("hf_ess.capturing.adapters", lambda: rest)


@pytest.mark.parametrize(
    "model_type, kind",
    [("rwkv", "token_shift_conv"), ("inkling_text", "convolution"), ("bloom", "softmax in own code")],
)
def test_a_mixer_that_nobody_measures_is_no_coverage(model_type, kind, monkeypatch):
    assert survey(model_type).covered
    without(monkeypatch, kind)
    found = survey(model_type)
    assert not found.covered and "no adapter" in found.reasons[0]


@pytest.mark.parametrize("model_type", ["llama", "bloom", "rwkv", "inkling_text", "xlnet", "xlstm", "jamba"])
def test_whatever_else_mixes_is_found(model_type):
    """Also where it goes by no name that is known: any one measured mixer that is not held fixed is noticed."""
    model = tiny_model(model_type)
    ids = token_ids(model)
    paths = {layer.module for layer in captured(model, ids)[0]}
    assert len(paths) > 1 and not something_else_mixes(model, ids, paths)
    for path in paths:
        assert something_else_mixes(model, ids, paths - {path}), path


def test_a_look_ahead_is_found():
    model = tiny_model("llama")
    ids = token_ids(model)
    assert not looks_ahead(model, ids)
    model.model.norm.register_forward_hook(lambda _, __, output: output + 1e-3 * output.flip(1))
    assert looks_ahead(model, ids)
    assert survey("prophetnet").reasons and looks_ahead(tiny_model("prophetnet"), ids)


def test_sparse_choices_and_windows_are_in_the_mask():
    """Whatever form a file's choice of keys has, T sees no more keys than the configuration allows."""
    most = {
        "deepseek_v32": [8, 8],
        "glm_moe_dsa": [8, 8],
        "hy_v4": [8, 8, 8],
        "axk2": [8, 8],
        "dots3_note_text": [8, 8],
        "minimax_m3_vl_text": [32, 8],  # the second: two blocks of 4
        "doge": [8, 8],
        "phimoe": [8, 8],
        "gemma4_text": [8, 32, 8, 32],  # the last two layers read keys and values of the first two
    }
    for name, keys in most.items():
        model = tiny_model(name)
        layers, _ = captured(model, token_ids(model))
        seen = [int((layer.operator.dense() > 0).sum(-1).max()) for layer in layers]
        assert seen == keys, name
        assert all(layer.operator.tss().max() <= 31 for layer in layers)
        assert all(
            torch.equal(layer.operator.tss()[:, :3].mean(0), torch.tensor([1.0, 2, 3]).double()) for layer in layers
        )
