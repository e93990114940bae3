"""hf-ess study as a person runs it."""

from __future__ import annotations

import json

import pytest

import hf_ess
from hf_ess.cli.main import run


def test_the_list(capsys):
    assert run(["study"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("separators", "code", "tokens", "shots", "6a"))


@pytest.mark.parametrize("name", ["separators", "code", "tokens", "shots"])
def test_a_study_writes_its_page(tmp_path, capsys, name):
    target = tmp_path / "out"
    assert run(["study", name, "demo:llama", "--limit", "2", "--tol", "0.1", "-o", str(target)]) == 0
    printed = capsys.readouterr().out
    page = (target / "outcome.md").read_text(encoding="utf-8")
    for line in printed.splitlines()[:3]:
        assert line.rstrip() in page
    assert "verified: largest error" in page
    assert list((target / "plots").glob("*.png"))
    again = hf_ess.load_outcome(target)
    assert again.page() == page and again.rows and again.plot("curves", prompt=1)
    summary = json.loads((target / "summary.json").read_text(encoding="utf-8"))
    assert summary["study"]["name"] == name and summary["effects"]
    assert run(["study", name, "demo:llama", "-o", str(target)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_json_is_the_summary(capsys):
    assert run(["study", "code", "demo:llama", "--limit", "1", "--tol", "0.1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["document"] == "study" and document["effects"][0]["class"] == "{"


def test_a_preset_brings_its_settings(capsys):
    done = hf_ess.study("separators", "demo:falcon-mamba", preset="6a", limit=1)
    assert [c["name"] for c in done.summary["candidates"] if c["role"] == "candidate"] == ["eos", "."]
    assert done.summary["options"]["tolerances"] == [1e-1, 1e-3, 1e-5]
    assert done.summary["study"]["reduction"] == "sum_channels_mean_layers"
    assert run(["study", "separators"]) == 2
    assert "name the model to study, or a preset" in capsys.readouterr().err


def test_a_study_of_ones_own(tmp_path, capsys):
    (tmp_path / "study.toml").write_text(
        'kind = "classes"\ntitle = "Commas"\nclaim = "None."\ntexts = "*.txt"\n'
        "[[class]]\nname = 'comma'\npattern = '.*,.*'\n"
    )
    text = "One word, and another word, and so on, until the end of the line, which is far away. " * 4
    (tmp_path / "a.txt").write_text(text)
    assert run(["study", str(tmp_path), "demo:llama", "--tol", "0.1"]) == 0
    assert "comma" in capsys.readouterr().out
    (tmp_path / "a.txt").unlink()
    assert run(["study", str(tmp_path), "demo:llama"]) == 2
    assert "has no *.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["code", "demo:llama", "--replace", "."], "puts no tokens in"),
        (["separator", "demo:llama"], "there is no study 'separator'"),
        (["code", "demo:llama", "--preset", "6a"], "no preset '6a'"),
        (["shots", "demo:llama", "--dataset", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_what_does_not_go(capsys, arguments, says):
    assert run(["study", *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err and err.startswith("hf-ess: ") and len(err.strip().splitlines()) == 1
