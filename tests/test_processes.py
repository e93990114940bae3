"""One run over several processes equals one over one, also when it fails on the way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hf_ess
from hf_ess import BadInput
from hf_ess.processes import Processes, processes
from hf_ess.results.writing import PartialResult
from tests.tiny import tiny_checkpoint

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
TEXTS = [f"The lamp was out. He went home, and a ship came in. The light kept {n} ships." for n in range(20)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_checkpoint(tmp_path_factory.mktemp("model") / "jamba", "jamba"))


def dataset(folder: Path, texts: list[str]) -> str:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


def launched(
    arguments: list[str], launch: list[str] = LAUNCH, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(hf_ess.__file__).parent.parent)}
    return subprocess.run(
        [*launch, *arguments], capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


def told(result) -> dict:
    """The summary, without times and what may differ from machine to machine."""
    origin = {k: v for k, v in result.summary["provenance"].items() if k not in ("created", "command", "threads")}
    return {**result.summary, "provenance": origin, "reused_layers": None}


def same(one, other) -> None:
    assert one.ess.equals(other.ess) and one.tokens.equals(other.tokens)
    assert told(one) == told(other)


def test_shares_of_the_prompts():
    shares = [[n for n in range(7) if Processes(rank, 3).mine(n)] for rank in range(3)]
    assert (
        sorted(n for share in shares for n in share) == list(range(7))
        and max(map(len, shares)) - min(map(len, shares)) <= 1
    )
    assert processes().alone and processes().first and processes().shared("x") == "x"
    assert Processes(1, 2, 1).device_map("cuda") == "cuda:1" and Processes(1, 2, 1).device_map("auto") == "auto"


def test_two_processes_give_what_one_gives(tmp_path, model):
    source = dataset(tmp_path, TEXTS)
    done = launched(["-m", "hf_ess", "probe", model, "--dataset", source, "-o", str(tmp_path / "two"), "--no-plots"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("20 prompts") == 1  # one process speaks
    one = hf_ess.probe(model, TEXTS, output=tmp_path / "one")
    same(hf_ess.load_result(tmp_path / "two"), one)
    assert not (tmp_path / "two.partial").exists()
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == sorted(p.name for p in (tmp_path / "one").iterdir())


def test_a_finished_prompt_is_not_run_again(tmp_path, model, monkeypatch):
    from hf_ess import probe_run

    def stop(prompt, prompts, done, layers, module):
        if prompt == 2 and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hf_ess.probe(model, TEXTS[:4], output=tmp_path / "out", progress=stop)
    ran, real = [], probe_run.capture
    monkeypatch.setattr(probe_run, "capture", lambda m, ids, *a, **k: (ran.append(ids), real(m, ids, *a, **k))[1])
    result = hf_ess.probe(model, TEXTS[:4], output=tmp_path / "out")
    assert len(ran) == 2 and result.summary["reused_layers"] == 2 * len(result.summary["layers"]) // 4 + 1
    monkeypatch.undo()
    same(result, hf_ess.probe(model, TEXTS[:4]))


def test_what_runs_in_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="one process"):
        hf_ess.study("code", "demo:llama")
    with pytest.raises(BadInput, match="one process"):
        hf_ess.compare_models(["demo:llama", "demo:falcon-mamba"], "a b")


def test_a_process_that_does_not_see_the_folder(tmp_path):
    with pytest.raises(BadInput, match="name an output directory that all machines share"):
        PartialResult(tmp_path / "out", {"ids": [1]}, first=False)
    with PartialResult(tmp_path / "out", {"ids": [1]}):
        with pytest.raises(BadInput, match="all machines share"):
            PartialResult(tmp_path / "out", {"ids": [2]}, first=False)
        other = PartialResult(tmp_path / "out", {"ids": [1]}, first=False)
        other.abandon()
        assert other.folder.exists()  # it is not its to remove


FAILING = """
import os, sys
from hf_ess import probe_run
from hf_ess.errors import HfEssError
from hf_ess.cli.main import main

if os.environ["RANK"] == "1":
    def capture(*arguments, **options):
        raise HfEssError("the card of this process is gone")
    probe_run.capture = capture
main()
"""


def test_one_process_fails(tmp_path, model):
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    source, out = dataset(tmp_path, TEXTS[:4]), tmp_path / "out"
    start = time.monotonic()
    done = launched([str(script), "probe", model, "--dataset", source, "-o", str(out), "--no-plots"])
    assert done.returncode != 0 and time.monotonic() - start < 100
    assert "hf-ess: the card of this process is gone" in done.stderr and not out.exists()
    # what the other finished is kept, and one process alone goes on from it
    result = hf_ess.probe(model, TEXTS[:4], output=out)
    same(result, hf_ess.probe(model, TEXTS[:4]))


@pytest.mark.slow
def test_a_comparison_by_two_processes(tmp_path, model):
    prompts = [
        f"The lamp was out in house {n}<sep> He went home, and a ship came in the light of it." for n in range(5)
    ]
    arguments = [
        "-m",
        "hf_ess",
        "compare",
        model,
        "--dataset",
        dataset(tmp_path, prompts),
        "--replace",
        ".",
        "--control",
    ]
    done = launched([*arguments, " the", "--tol", "1e-2", "-o", str(tmp_path / "two"), "--no-plots"])
    assert done.returncode == 0, done.stderr
    two = hf_ess.load_comparison(tmp_path / "two")
    one = hf_ess.compare(model, prompts, replace=["."], control=" the", tolerances=[1e-2], output=tmp_path / "one")
    assert two.curves.equals(one.curves) and two.effects == one.effects and two.summary["reused_runs"] == 0
    assert done.stdout.count(two.summary["provenance"]["model"]) == 1


@pytest.mark.slow
def test_bad_input_is_said_once(tmp_path):
    done = launched(["-m", "hf_ess", "probe", str(tmp_path / "no-model"), "--prompt", "a b"])
    assert done.returncode != 0 and done.stderr.count("hf-ess: ") == 1 and "there is no file" in done.stderr


@pytest.mark.slow
def test_a_lost_process_without_a_launcher_that_ends_the_others(tmp_path, model):
    script, source = tmp_path / "failing.py", dataset(tmp_path, TEXTS[:4])
    script.write_text(FAILING)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(script), "probe", model, "--dataset", source, "-o", str(tmp_path / "out")]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    shared["PYTHONPATH"] = str(Path(hf_ess.__file__).parent.parent)
    started = [
        subprocess.Popen(
            command, env={**os.environ, **shared, "RANK": r, "LOCAL_RANK": r}, stderr=subprocess.PIPE, text=True
        )
        for r in "01"
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [1, 1]
    assert "another process of this run ended" in said[0] and "the card of this process is gone" in said[1]
    assert "Traceback" not in "".join(said)


@pytest.mark.slow
def test_without_an_output_folder_and_with_too_many_processes(tmp_path, model):
    done = launched(["-m", "hf_ess", "probe", model, "--prompt", TEXTS[0], "--json"])
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    wanted = hf_ess.probe(model, TEXTS[0]).summary
    assert summary["layers"] == wanted["layers"] and summary["totals"] == wanted["totals"]


@pytest.mark.slow
def test_spectra_by_accelerate_and_an_unfinished_run_of_one_process(tmp_path, model):
    def stop(prompt, prompts, done, layers, module):
        if prompt == 3:
            raise KeyboardInterrupt

    options = {"keep": "spectra", "positions": "every:4"}
    with pytest.raises(KeyboardInterrupt):
        hf_ess.probe(model, TEXTS, output=tmp_path / "two", progress=stop, **options)
    launch = [str(Path(sys.executable).parent / "accelerate"), "launch", "--cpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    arguments = ["-m", "hf_ess", "probe", model, "--dataset", dataset(tmp_path, TEXTS), "--no-plots"]
    arguments += ["--keep", "spectra", "--positions", "every:4", "-o", str(tmp_path / "two")]
    done = launched(arguments, launch)
    assert done.returncode == 0, done.stderr
    two, one = hf_ess.load_result(tmp_path / "two"), hf_ess.probe(model, TEXTS, output=tmp_path / "one", **options)
    assert two.summary["reused_layers"] > 0
    same(two, one)
    for path in (tmp_path / "one" / "spectra").iterdir():
        assert (tmp_path / "two" / "spectra" / path.name).read_bytes() == path.read_bytes(), path.name
