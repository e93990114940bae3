"""hf-ess compare and compare-models as a person runs them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from hf_ess.cli.main import run
from tests.comparing.test_comparison import PROMPTS
from tests.tiny import tiny_checkpoint

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "compare-delimiters.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```bash\nhf-ess (compare.*?)\n```\n\n```text\n(.*?)\n```", GUIDE, re.DOTALL)


def effects(table: str) -> list[tuple[str, float]]:
    """What stands before each effect in a table, and the effect."""
    found = re.findall(r"^(.*?) +([+-][\d.]+) %", table, re.MULTILINE)
    return [(" ".join(words.split()), float(number)) for words, number in found]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        pytest.param(command, shown, marks=() if "--groups" in command or "and then" in command else pytest.mark.slow)
        for command, shown in SHOWN
    ],
)
def test_the_guide_shows_what_the_program_prints(command, shown, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    status = run(shlex.split(command))
    printed = capsys.readouterr()
    if status == 2:
        assert printed.err.strip() == shown
        return
    if command.startswith("compare-models"):
        wanted, got = (re.findall(r"[\d.]+%", text) for text in (shown, printed.out))
        pairs = [(float(a[:-1]), float(b[:-1])) for a, b in zip(wanted, got, strict=True)]
    else:
        wanted, got = effects(shown), effects(printed.out)
        assert [words for words, _ in wanted] == [words for words, _ in got] and len(wanted) >= 2
        pairs = [(a, b) for (_, a), (_, b) in zip(wanted, got)]
    assert all(abs(a - b) <= 0.3 for a, b in pairs)  # other versions of torch round otherwise


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(tiny_checkpoint(tmp_path_factory.mktemp("models") / "llama", "llama"))


@pytest.fixture
def arguments(checkpoint, tmp_path):
    """The command of the documentation: each file is one prompt."""
    files = []
    for number, prompt in enumerate(PROMPTS):
        path = tmp_path / f"{number}.txt"
        path.write_text(prompt)
        files += ["--text", str(path)]
    return ["compare", checkpoint, *files, "--at", "<sep>", "--replace", "eos", "--replace", ".", "--control", " the"]


def test_the_table(arguments, capsys):
    assert run([*arguments, "--tol", "1e-1", "--second-control", " and"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert "3 prompts of" in lines[0] and "6 places" in lines[0]
    head = " ".join(lines[:9])
    for word in ("sum_channels_layers", "cut i lies before token i", "p .. p+2", "Wilcoxon", '" the"', '" and" is the'):
        assert word in head
    rows = [line.split() for line in lines if "1e-1" in line]
    assert [row[0] for row in rows] == ["eos", '"."', '"']  # " and" begins with a blank
    assert all("all" in row for row in rows)
    assert max(map(len, lines[1:])) <= 80


def test_per_layer_and_groups(arguments, capsys):
    assert run([*arguments, "--tol", "1e-1", "--per-layer", "--groups", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("softmax") >= 4 and "0-1" in out and "most modulated" in out


def test_json_holds_effects(arguments, capsys):
    assert run([*arguments, "--tol", "1e-2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    row = document["effects"][0]
    assert row["replace"] == "eos" and row["tolerance"] == 0.01 and row["layer"] is None
    assert {"reduction", "effect", "low", "high", "p_value", "prompts", "places", "left_out"} <= set(row)


def test_output_and_quiet(arguments, tmp_path, capsys):
    out = tmp_path / "out"
    assert run([*arguments, "-q", "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == ""
    assert json.loads((out / "summary.json").read_text())["document"] == "comparison"
    assert (out / "plots" / "layers.png").stat().st_size > 10_000
    assert run([*arguments, "-o", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert run([*arguments, "-q", "-o", str(out), "--overwrite", "--no-plots"]) == 0
    assert not (out / "plots").exists()


def test_prompts_on_the_command_line_and_from_a_dataset(checkpoint, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"text": prompt}) for prompt in PROMPTS))
    common = ["--replace", "\\n", "--control", " the", "--tol", "0.1", "--json"]
    assert run(["compare", checkpoint, "--dataset", str(rows), *common]) == 0
    by_rows = json.loads(capsys.readouterr().out)
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    assert run(["compare", checkpoint, *prompts, *common]) == 0
    assert json.loads(capsys.readouterr().out)["effects"] == by_rows["effects"]
    assert by_rows["candidates"][1]["text"] == "\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--at", "<gap>"], "no placeholder '<gap>'"),
        (["--replace", "out of paper"], "tokens of this tokenizer"),
        (["--control", "."], "is the control"),
        (["--tol", "0"], "above 0"),
        (["--layers", "x"], "--layers takes numbers"),
    ],
)
def test_bad_input(arguments, change, said, tmp_path, capsys):
    out = tmp_path / "out"
    assert run([*arguments, *change, "-o", str(out)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and "Traceback" not in error
    assert not out.exists() and not out.with_name("out.partial").exists()


def test_no_control_and_no_text(arguments, checkpoint, capsys):
    assert run(arguments[: arguments.index("--control")]) == 2
    assert "no control" in capsys.readouterr().err
    assert run(["compare", checkpoint, "--replace", ".", "--control", " the"]) == 2
    assert "--text FILE" in capsys.readouterr().err


def test_compare_models(checkpoint, tmp_path, capsys):
    other = str(tiny_checkpoint(tmp_path / "mamba", "mamba"))
    text = tmp_path / "text.txt"
    text.write_text("The lamp was out. Nobody had paid. He went home, and a ship came in.")
    arguments = ["compare-models", checkpoint, other, "--text", str(text), "--tol", "1e-1"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "75-100%" in out and len([line for line in out.splitlines() if line.strip().startswith("1e-1")]) == 2
    assert run([*arguments, "--json", "-o", str(tmp_path / "out")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["model"] for row in document["rows"]} == {m["name"] for m in document["models"]}
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == document
    assert run(["compare-models", checkpoint, "--text", str(text)]) == 2
    assert "at least two models" in capsys.readouterr().err
