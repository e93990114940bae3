"""hf-ess probe as a person runs it: what is printed where, which exit status, what is left on disk."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from hf_ess.cli.main import run
from tests.tiny import tiny_checkpoint, tiny_model, tiny_tokenizer

TEXT = "The lamp was out. Nobody had paid.\n\nfunction lamp(a) { return a > 1; }\n"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(tiny_checkpoint(tmp_path_factory.mktemp("models") / "llama", "llama"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def test_the_headline_command(checkpoint, text, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["probe", checkpoint, "--text", text, "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert "softmax" in printed.out and "1e-3" in printed.out
    assert f"result written to {out}" in printed.err
    assert sorted(p.name for p in out.iterdir()) == ["ess.parquet", "plots", "summary.json", "tokens.parquet"]
    assert pq.read_metadata(out / "ess.parquet").num_rows > 0
    assert {p.name for p in (out / "plots").iterdir()} >= {"lines.png", "heatmap.png", "utilisation.png"}
    assert json.loads((out / "summary.json").read_text())["schema_version"] == 1


def test_json_is_one_document_on_stdout(checkpoint, capsys):
    assert run(["probe", checkpoint, "--prompt", TEXT, "--tol", "1e-2", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["schema_version"] == 1 and summary["options"]["tolerances"] == [0.01]


def test_quiet_prints_nothing(checkpoint, tmp_path, capsys):
    assert run(["probe", checkpoint, "--prompt", TEXT, "-q", "-o", str(tmp_path / "out"), "--no-plots"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == ""


def test_text_from_standard_input(checkpoint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert run(["probe", checkpoint, "--text", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompts"][0]["tokens"] > 10


def test_text_from_a_dataset(checkpoint, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"body": t}) for t in (TEXT, "The sea was high. So it went.", TEXT)))
    arguments = ["probe", checkpoint, "--dataset", str(rows), "--field", "body", "--limit", "2", "--json"]
    assert run(arguments) == 0
    assert len(json.loads(capsys.readouterr().out)["prompts"]) == 2


def test_layers_delimiters_and_lengths(checkpoint, capsys):
    arguments = ["--layers", "1", "--delimiter", "\\n", "--delimiter", "eos", "--max-tokens", "9", "--json"]
    assert run(["probe", checkpoint, "--prompt", TEXT, *arguments]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [info["layer"] for info in summary["layers"]] == [1]
    assert summary["prompts"][0]["tokens"] == 9
    assert len(summary["prompts"][0]["delimiters"]) == 2


def refused(arguments, capsys, status=2):
    """The one sentence of a refused command."""
    assert run(arguments) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err and printed.err.startswith("hf-ess: ")
    assert printed.err.count("\n") == 1 and len(printed.err) < 700, printed.err
    return printed.err


def test_bad_usage(checkpoint, text, capsys):
    assert "give the text one way" in refused(["probe", checkpoint], capsys)
    assert "give the text one way" in refused(["probe", checkpoint, "--text", text, "--prompt", "x"], capsys)
    assert "prompt is empty" in refused(["probe", checkpoint, "--prompt", ""], capsys)
    assert "--layers" in refused(["probe", checkpoint, "--prompt", TEXT, "--layers", "a-b"], capsys)
    assert "no layer" in refused(["probe", checkpoint, "--prompt", TEXT, "--layers", "77"], capsys)
    assert "above 0" in refused(["probe", checkpoint, "--prompt", TEXT, "--tol", "-1"], capsys)
    assert "--tolerance" in refused(["probe", checkpoint, "--prompt", TEXT, "--tolerance", "1"], capsys)
    assert "keep" in refused(["probe", checkpoint, "--prompt", TEXT, "--keep", "all"], capsys)


def test_bad_text_leaves_nothing(checkpoint, tmp_path, capsys):
    out = tmp_path / "out"
    bad = tmp_path / "latin1.txt"
    bad.write_bytes("naïve café".encode("latin-1"))
    message = refused(["probe", checkpoint, "--text", str(bad), "-o", str(out)], capsys)
    assert "byte 2" in message and "--encoding" in message
    assert run(["probe", checkpoint, "--text", str(bad), "--encoding", "latin-1", "-q"]) == 0
    refused(["probe", checkpoint, "--prompt", TEXT, "--layers", "9", "-o", str(out)], capsys)
    assert list(tmp_path.iterdir()) == [bad]


def test_bad_output(checkpoint, text, tmp_path, capsys):
    assert "is a file" in refused(["probe", checkpoint, "--text", text, "-o", text], capsys)
    assert "cannot write" in refused(["probe", checkpoint, "--text", text, "-o", "/proc/nope/x"], capsys)
    full = tmp_path / "full"
    full.mkdir()
    assert "exists already" in refused(["probe", checkpoint, "--text", text, "-o", str(full)], capsys)
    assert run(["probe", checkpoint, "--text", text, "-o", str(full), "--overwrite", "-q"]) == 0


def test_a_model_that_is_none(text, tmp_path, capsys):
    refused(["probe", str(tmp_path / "nothing-here"), "--text", text], capsys)
    refused(["probe", "demo:gpt5", "--text", text], capsys)


def test_a_layer_that_is_not_finite_ends_with_status_3_and_keeps_the_result(text, tmp_path, capsys):
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    tiny_tokenizer().save_pretrained(tmp_path / "nan")
    assert run(["probe", str(tmp_path / "nan"), "--text", text, "-o", str(tmp_path / "out")]) == 3
    assert "not finite" in capsys.readouterr().err
    assert (tmp_path / "out" / "summary.json").exists()


def test_plot_draws_a_saved_result(checkpoint, text, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["probe", checkpoint, "--text", text, "-o", str(out), "--no-plots", "-q"]) == 0
    assert run(["plot", str(out), "-o", str(tmp_path / "pictures")]) == 0
    paths = capsys.readouterr().out.split()
    assert paths and all(Path(p).read_bytes()[:4] == b"\x89PNG" for p in paths)
    assert "no summary.json" in refused(["plot", str(tmp_path)], capsys)


def test_debug_shows_where(tmp_path):
    with pytest.raises(Exception, match="nothing-here"):
        run(["probe", str(tmp_path / "nothing-here"), "--prompt", "x", "--debug"])


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, hf_ess\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'numpy'} & set(sys.modules), 'import hf_ess is heavy'\n"
        "from hf_ess.cli.main import run\n"
        "assert run(['probe', '--help']) == 0\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'datasets'} & set(sys.modules), 'help is heavy'\n"
    )
    times = []
    for _ in range(3):  # the best of three: the machine may be busy
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        times.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
    assert "--max-tokens" in done.stdout and "tiiuae/falcon-mamba-7b" in done.stdout
    assert min(times) < 1


def test_the_script_survives_a_bare_environment(checkpoint, tmp_path):
    """No display, a foreign matplotlib backend, an ASCII locale, no home."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.getcwd(),
        "MPLBACKEND": "module://no_such_backend",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "HOME": "/nonexistent",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    prose = tmp_path / "cjk.txt"
    prose.write_text("灯灭了。 🚢 $$ The lamp was out.\n", encoding="utf-8")
    command = [sys.executable, "-c", "from hf_ess.cli.main import main; main()"]
    arguments = ["probe", checkpoint, "--text", str(prose), "-o", str(tmp_path / "out")]
    done = subprocess.run([*command, *arguments], capture_output=True, env=environment, cwd=os.getcwd())
    assert done.returncode == 0, done.stderr
    assert b"softmax" in done.stdout and len(done.stderr) < 1000
    assert (tmp_path / "out" / "plots" / "lines.png").stat().st_size > 1000
