"""hf-ess probe --dry-run as a person runs it."""

import json

import pytest

from hf_ess.cli.main import run
from hf_ess.planning import memory

EXAMPLE = "The lamp was out. Nobody had paid."


@pytest.fixture(autouse=True)
def _no_timing(monkeypatch):
    monkeypatch.setattr("hf_ess.planning.timing.estimated", lambda *_: None)


def test_table(capsys, tmp_path):
    assert run(["probe", "demo:falcon-mamba", "--prompt", EXAMPLE, "--dry-run", "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "0-3" in out and "mamba" in out and "384" in out and "memory" in out and "free" in out
    assert list(tmp_path.iterdir()) == []


def test_json(capsys):
    assert run(["probe", "demo:llama", "--max-tokens", "300", "--dry-run", "--json", "--layers", "1-2"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["tokens"] == [300] and planned["cuts"] == 299 and planned["fits"] is True
    assert [layer["layer"] for layer in planned["layers"]] == [1, 2]
    assert planned["layers"][0]["tss"] == 150 and planned["operators"] == 12


def test_two_where_it_cannot_fit(capsys, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda places: 2**20)
    assert run(["probe", "demo:llama", "--max-tokens", "300", "--dry-run"]) == 2
    printed = capsys.readouterr()
    assert "needs about" in printed.err and "memory" in printed.out


def test_it_needs_a_length(capsys):
    assert run(["probe", "demo:llama", "--dry-run"]) == 2
    assert "--max-tokens" in capsys.readouterr().err


def test_layers_that_cannot_be_measured_are_named(capsys, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr("hf_ess.planning.survey._run", broken)
    assert run(["probe", "demo:llama", "--max-tokens", "300", "--dry-run"]) == 0
    assert "will not be measured" in capsys.readouterr().err
