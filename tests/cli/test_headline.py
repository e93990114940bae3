"""The commands that README.md prints for models of the Hub, literally, from its cache and from a stand-in Hub."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub_server import HubServer
from tests.loading.test_hub import cached
from tests.tiny import TEXT, tiny_checkpoint

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
COMMIT = "0123456789abcdef" * 2 + "01234567"


def printed(model: str) -> list[str]:
    """The arguments of the README's command for a model."""
    found = re.search(rf"^hf-ess (probe {re.escape(model)} .*)$", README, re.MULTILINE)
    assert found, f"README.md has no command for {model}"
    return shlex.split(found[1])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    root = tmp_path_factory.mktemp("headline")
    return {
        "tiiuae/falcon-mamba-7b": tiny_checkpoint(root / "mamba", "falcon_mamba", shards=True),
        "meta-llama/Meta-Llama-3-8B": tiny_checkpoint(root / "llama", "llama", shards=True),
    }


def hf_ess(arguments: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run of the program in a folder that holds file.txt, with no Hub settings but those given."""
    (folder / "file.txt").write_text(TEXT, encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", "from hf_ess.cli.main import main; main()", *arguments],
        env={**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd(), **environment},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_offline_from_the_cache(checkpoints, tmp_path):
    for name, checkpoint in checkpoints.items():
        cached(tmp_path / "home", name, checkpoint, COMMIT)
        done = hf_ess(printed(name), tmp_path, HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")
        assert done.returncode == 0, done.stderr
        assert name in done.stdout and ("mamba" in done.stdout or "softmax" in done.stdout)
    summary = json.loads((tmp_path / "result" / "summary.json").read_text())
    assert summary["provenance"]["revision"] == COMMIT


def test_from_a_hub_and_what_it_refuses(checkpoints, tmp_path):
    name = "tiiuae/falcon-mamba-7b"
    gated = "meta-llama/Meta-Llama-3-8B"
    with HubServer(checkpoints, gated={gated: "hf_somebody_else"}) as hub:
        environment = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.endpoint}
        done = hf_ess(printed(name), tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        assert "mamba" in done.stdout
        for model, word in (
            (gated, "gated"),
            ("tiiuae/falcon-mamba-8b", "no such model"),
            ("tiiuae/falcon mamba!", "valid"),
        ):
            done = hf_ess(["probe", model, "--text", "file.txt", "-o", "out"], tmp_path, **environment)
            assert done.returncode == 2 and done.stdout == ""
            assert done.stderr.startswith("hf-ess: ") and done.stderr.count("\n") == 1, done.stderr
            assert word in done.stderr and model in done.stderr
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()
