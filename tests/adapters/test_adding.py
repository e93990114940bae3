"""docs/adding-a-mixer.md, followed to the letter: a package of somebody else's adds a mixer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-mixer.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The code block of the page that follows <!-- file: NAME -->."""
    found = re.search(rf"<!-- file: {re.escape(name)} -->\s*```\w+\n(.*?)\n```", PAGE, re.DOTALL)
    assert found, name
    return found[1] + "\n"


@pytest.fixture
def package(tmp_path):
    """The page's files as an installed package."""
    for name in ("toy_model.py", "toy_adapter.py", "try_it.py"):
        (tmp_path / name).write_text(block(name))
    group, entry = block("entry_points").split("\n", 1)
    info = tmp_path / "toy_adapter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-adapter\nVersion: 1.0\n")
    section = re.search(r'"(.+)"', group)[1]
    (info / "entry_points.txt").write_text(f"[{section}]\n{entry.replace(chr(34), '')}")
    return tmp_path


def python(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{os.getcwd()}", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def test_the_page_works_as_written(package):
    done = python(package, str(package / "try_it.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == re.search(r"```text\n(.*?)\n```", PAGE, re.DOTALL)[1]


def test_breaking_it_on_purpose_fails(package):
    adapter = package / "toy_adapter.py"
    adapter.write_text(adapter.read_text().replace("b=k, c=q", "b=q, c=k"))
    done = python(package, str(package / "try_it.py"))
    assert done.stdout.split() and done.stdout.split()[-1] == "False", done.stderr


def test_a_package_that_cannot_be_imported_is_named(package):
    (package / "toy_adapter.py").write_text("import no_such_module\n")
    done = python(package, "-c", "import sys; from hf_ess.cli.main import run; sys.exit(run(['ls']))")
    assert done.returncode == 1 and "toy-adapter" in done.stderr and "no_such_module" in done.stderr
