"""What people try: each gets the right answer, or one clear sentence."""

from __future__ import annotations

import threading

import pytest
import torch

import hf_ess
from hf_ess import BadInput
from hf_ess.capturing import LARGEST_BOUND
from hf_ess.cli.main import run
from hf_ess.loading import load
from tests.tiny import tiny_model, tiny_tokenizer

TEXT = "The lamp was out. He went home, and a ship came in."


@pytest.fixture(scope="module")
def llama():
    return load(tiny_model("llama"), tokenizer=tiny_tokenizer())


def test_all_that_a_tokenizer_returns_is_its_ids(llama):
    ids = llama.tokenizer(TEXT)["input_ids"]
    wanted = hf_ess.probe(llama, ids).ess
    for given in (llama.tokenizer(TEXT), llama.tokenizer(TEXT, return_tensors="pt"), torch.tensor(ids)):
        assert hf_ess.probe(llama, given).ess.equals(wanted)


@pytest.mark.parametrize("text", [b"abc def", 5, {"words": [1, 2]}, 2.5])
def test_what_is_no_text(llama, text):
    with pytest.raises(BadInput, match="text must be a string"):
        hf_ess.probe(llama, text)


def test_options_of_a_wrong_kind(llama):
    assert hf_ess.probe(llama, TEXT, tolerances=0.1).summary["options"]["tolerances"] == [0.1]
    for options, says in (
        ({"tolerances": "x"}, "must be numbers"),
        ({"tolerances": None}, "must be numbers"),
        ({"layers": "0"}, "a list of numbers"),
        ({"layers": 0}, "a list of numbers"),
    ):
        with pytest.raises(BadInput, match=says):
            hf_ess.probe(llama, TEXT, **options)
    with pytest.raises(BadInput, match="takes a loaded model"):
        hf_ess.capture("demo:llama", [1, 2, 3], print)


def test_layers_and_delimiters_that_are_not_there_are_named(llama):
    notes = hf_ess.probe(llama, TEXT, layers=[0, 99], delimiters=["lamp", "zebra"]).summary["notes"]
    assert "there is no layer 99 with a sequence mixer" in notes
    assert "the delimiter 'zebra' does not occur in the text" in notes
    assert not any("'lamp'" in note for note in notes)


def test_a_bound_that_allows_everything_verifies_nothing():
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(1e20)
    result = hf_ess.probe(model, list(range(4, 30)))
    first, second = result.layers
    assert first["error_bound"] > LARGEST_BOUND and first["status"] == "failed" and second["status"] == "verified"
    assert all(row["values"] is None for row in result.rows(layer=0))


def test_operators_that_are_nothing_or_not_real():
    for T in (torch.zeros(4, 4), torch.eye(6), torch.zeros(2, 70, 70)):
        assert (hf_ess.entropy_ess(T) == 0).all() and (hf_ess.tolerance_ess(T, 1e-9) == 0).all()
    with pytest.raises(ValueError, match="real"):
        hf_ess.tolerance_ess(torch.eye(4, dtype=torch.complex128), 0.1)
    with pytest.raises(ValueError, match="no operator"):
        hf_ess.tolerance_ess(torch.zeros(0, 5, 5), 0.1)


def test_threads_take_turns(llama):
    wanted = hf_ess.probe(llama, TEXT).ess
    found, threads = [], []
    for _ in range(4):
        threads.append(threading.Thread(target=lambda: found.append(hf_ess.probe(llama, TEXT).ess)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(ess.equals(wanted) for ess in found)


def test_a_capture_within_a_capture(llama):
    with pytest.raises(BadInput, match="within the callback"):
        hf_ess.capture(llama.model, [4, 5, 6], lambda layer: hf_ess.probe(llama, TEXT))
    assert hf_ess.probe(llama, TEXT).layers


def test_tables_of_another_run_are_refused(llama, tmp_path):
    hf_ess.probe(llama, TEXT, output=tmp_path / "a")
    hf_ess.probe(llama, TEXT + TEXT, output=tmp_path / "b")
    for name in ("ess.parquet", "tokens.parquet"):
        (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
        with pytest.raises(BadInput, match="not of one run"):
            hf_ess.load_result(tmp_path / "a")
    (tmp_path / "b" / "summary.json").write_text("[]")
    with pytest.raises(BadInput, match="damaged"):
        hf_ess.load_result(tmp_path / "b")


def test_a_link_is_not_replaced(llama, tmp_path):
    hf_ess.probe(llama, TEXT, output=tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with pytest.raises(BadInput, match="is a link"):
        hf_ess.probe(llama, TEXT, output=tmp_path / "link", overwrite=True)
    with pytest.raises(BadInput, match="cannot write"):
        hf_ess.probe(llama, TEXT, output=tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", TEXT, "--layers", "0-99999999999999"], "--layers takes"),
        (["--prompt", TEXT, "--layers", "0-"], "--layers takes"),
        (["--text", __file__, "--encoding", "hex"], "no text encoding"),
        (["--prompt", TEXT, "--delimiter", "\udce7"], "encoding of this shell"),
    ],
)
def test_on_the_command_line(capsys, arguments, says):
    assert run(["probe", "demo:llama", *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.strip().splitlines()) == 1
