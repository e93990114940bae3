"""Hybrids: one table with each layer's kind, one picture in which attention and recurrent layers stand apart."""

from __future__ import annotations

import pytest

import hf_ess
from hf_ess.tables import result as table
from tests.adapters.contract import token_ids
from tests.tiny import tiny_model

HYBRIDS = {
    "jamba": {"mamba", "softmax"},
    "falcon_h1": {"mamba2", "softmax"},
    "qwen3_next": {"gated_deltanet", "softmax"},
    "nemotron_h": {"mamba2", "softmax"},
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_one_table_and_one_picture(name, capsys):
    model = tiny_model(name)
    result = hf_ess.probe(model, token_ids(model))
    assert result.skipped == []
    assert {row["kind"] for row in result.layers} == HYBRIDS[name]
    table.show(result)
    printed = capsys.readouterr().out
    for row in result.layers:
        assert any(line.startswith(str(row["layer"])) and row["kind"] in line for line in printed.splitlines())
    figure = result.plot("lines")
    texts = " ".join(text.get_text() for text in [*figure.texts, *(t for ax in figure.axes for t in ax.texts)])
    assert "recurrent" in texts and "attention" in texts
