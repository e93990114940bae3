"""Models on the Hub: from its cache without a network, and over the network from a stand-in on localhost."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hub_server import COMMIT, HubServer
from tests.tiny import tiny_checkpoint

# Loads each name on its command line ("name", or "name@revision") and prints one line of JSON for it.
CHILD = """
import json, sys, time
import transformers, torch
from hf_ess.errors import HfEssError
from hf_ess.loading import load
for argument in sys.argv[1:]:
    name, _, revision = argument.partition("@")
    start = time.monotonic()
    try:
        loaded = load(name, revision=revision or None)
        found = {"class": type(loaded.model).__name__, "files": loaded.files, "revision": loaded.revision,
                 "hash": loaded.weights_hash, "tokens": len(loaded.tokenizer), "notes": loaded.notes}
    except HfEssError as error:
        found = {"error": str(error)}
    print(json.dumps({**found, "name": argument, "seconds": time.monotonic() - start}), flush=True)
"""


def run(names: list[str], **environment: str) -> dict[str, dict[str, object]]:
    """Load the names in a process of its own, since huggingface_hub reads its settings on import."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *names],
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


def cached(home: Path, repo_id: str, checkpoint: Path, commit: str) -> None:
    """Lay a checkpoint out as the Hub's cache does."""
    folder = home / "hub" / f"models--{repo_id.replace('/', '--')}"
    shutil.copytree(checkpoint, folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hub")
    made = {
        "mamba": tiny_checkpoint(root / "mamba", "falcon_mamba", shards=True),
        "llama": tiny_checkpoint(root / "llama", "llama", shards=True),
        "single": tiny_checkpoint(root / "single", "llama"),
        "bare": tiny_checkpoint(root / "bare", "llama", tokenizer=False),
    }
    (root / "gguf").mkdir()
    (root / "gguf" / "model.gguf").write_bytes(b"GGUF")
    (root / "t5").mkdir()
    (root / "t5" / "config.json").write_text('{"model_type": "t5", "architectures": ["T5Model"]}')
    shutil.copytree(made["llama"], root / "short")
    min((root / "short").glob("model-00002-of-*")).unlink()
    return {**made, **{path.name: path for path in root.iterdir()}}


def test_the_cache_alone(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    mamba, llama, commit = "tiiuae/falcon-mamba-7b", "meta-llama/Meta-Llama-3-8B", "0123456789abcdef" * 2 + "01234567"
    cached(tmp_path, mamba, checkpoints["mamba"], commit)
    cached(tmp_path, llama, checkpoints["llama"], commit)
    cached(tmp_path, "owner/short", checkpoints["short"], commit)
    found = run(
        [mamba, llama, f"{llama}@{commit}", "owner/short", "owner/absent", f"{llama}@v2"],
        HF_HOME=str(tmp_path),
        HF_HUB_OFFLINE="1",
    )
    assert found[mamba]["class"] == "FalconMambaForCausalLM" and len(found[mamba]["files"]) > 2
    assert found[llama]["class"] == found[f"{llama}@{commit}"]["class"] == "LlamaForCausalLM"
    assert found[mamba]["revision"] == found[llama]["revision"] == commit and found[llama]["tokens"] == 384
    assert "model-00002-of" in found["owner/short"]["error"]
    for name in ("owner/absent", f"{llama}@v2"):
        assert "nor in the local cache" in found[name]["error"]
        assert "HF_HUB_OFFLINE" in found[name]["error"] and "\n" not in found[name]["error"]


def test_the_hub_itself(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    names = ("mamba", "single", "bare", "gguf", "t5", "short")
    repositories = {f"owner/{name}": checkpoints[name] for name in names}
    repositories |= {"owner/closed": checkpoints["single"], "owner/granted": checkpoints["single"]}
    errors = {
        "owner/closed": ("is gated", "hf auth login"),
        "owner/typo": ("no such model", "mistyped"),
        "typo": ("no such model",),
        "not an id!": ("neither an existing folder nor a valid Hub id",),
        "owner/single@v9": ("has no revision v9",),
        "owner/bare": ("no tokenizer in owner/bare",),
        "owner/gguf": ("no config.json", "--gguf-file"),
        "owner/t5": ("encoder-decoder", "T5Model"),
        "owner/short": ("model-00002-of", "missing"),
    }
    sound = ["owner/mamba", "owner/single", f"owner/single@{COMMIT}", "owner/granted"]
    with HubServer(repositories, gated={"owner/closed": "hf_other", "owner/granted": "hf_mine"}) as server:
        home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": server.endpoint}
        found = run([*sound, *errors], **home, HF_TOKEN="hf_mine")
    assert found["owner/mamba"]["class"] == "FalconMambaForCausalLM" and len(found["owner/mamba"]["files"]) > 2
    for name in sound:
        assert found[name]["revision"] == COMMIT and found[name]["notes"] == []
    assert found["owner/granted"]["hash"] == found["owner/single"]["hash"]
    for name, parts in errors.items():
        sentence = str(found[name]["error"])
        assert all(part in sentence for part in parts), sentence
        assert "\n" not in sentence and len(sentence) < 400
        assert float(found[name]["seconds"]) < 20
    assert not any("owner/t5" in line and "safetensors" in line for line in server.requests)  # refused by its config
    assert not any("owner/closed" in line and line.startswith("GET") for line in server.requests)

    # The endpoint is gone now, as without a network: what is in the cache still loads, and says so.
    start = time.monotonic()
    found = run(["owner/single", "owner/other"], **home)
    assert time.monotonic() - start < 60
    assert found["owner/single"]["revision"] == COMMIT and "cache is used" in found["owner/single"]["notes"][0]
    assert f"{server.endpoint} cannot be reached" in found["owner/other"]["error"]
    assert float(found["owner/other"]["seconds"]) < 10
