"""The guide to large models prints what the program prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from hf_ess.cli.main import run

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def block(after: str, kind: str) -> list[str]:
    """Lines of the first block of that kind behind a mark."""
    return re.search(rf"```{kind}\n(.*?)```", GUIDE[GUIDE.index(after) :], re.DOTALL)[1].splitlines()


def without_error(line: str) -> str:
    """A row without its last column, which is rounding and differs between machines."""
    return line.rsplit("  ", 1)[0] if "softmax" in line else line


def test_stored_spectra(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for command in block("<!-- command: kept -->", "bash"):
        capsys.readouterr()
        words = shlex.split(command)
        assert words[0] == "hf-ess" and run([*words[1:], *(["--no-plots"] if words[1] == "probe" else [])]) == 0
    printed = capsys.readouterr()
    expected = block("<!-- command: kept -->", "text")
    table = [line for line in expected if not line.startswith("note: ")]
    assert [without_error(x) for x in printed.out.splitlines()] == [without_error(x) for x in table]
    assert [x for x in expected if x.startswith("note: ")] == printed.err.splitlines()[:3]


def test_half_precision(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    (command,) = block("## Half precision", "bash")
    assert run(shlex.split(command)[1:]) == 0
    assert block("## Half precision", "text")[0] in capsys.readouterr().err.splitlines()
