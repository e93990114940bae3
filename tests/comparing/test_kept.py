"""A comparison or study that dies goes on where it stopped, and ends as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import hf_ess
from hf_ess import BadInput, HfEssError
from hf_ess.comparing.kept import KeptRuns
from hf_ess.loading import load
from tests.comparing.test_comparison import PROMPTS
from tests.tiny import tiny_checkpoint, tiny_model, tiny_tokenizer

OPTIONS = {"replace": ["eos", "."], "control": " the", "tolerances": [1e-1], "groups": 2}


class Died(Exception):
    pass


def dying(after: int):
    """A progress that ends the run in the middle of its run number `after`."""

    def progress(run, runs, done, layers, module):
        if run == after and done == 2:
            raise Died

    return progress


@pytest.fixture(scope="module")
def llama():
    return load(tiny_model("llama"), tokenizer=tiny_tokenizer())


def same(one, other) -> bool:
    def told(found):
        summary = {k: v for k, v in found.summary.items() if k != "reused_runs"}
        return {**summary, "provenance": {**summary["provenance"], "created": None, "command": None}}

    return told(one) == told(other) and one.curves.equals(other.curves)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_comparison_goes_on(tmp_path, llama, after):
    target = tmp_path / "out"
    with pytest.raises(Died):
        hf_ess.compare(llama, PROMPTS, **OPTIONS, output=target, progress=dying(after))
    assert not target.exists()
    assert (tmp_path / "out.partial").exists() == (after > 0)  # nothing is left where nothing was finished
    done = hf_ess.compare(llama, PROMPTS, **OPTIONS, output=target)
    assert done.summary["reused_runs"] == after
    assert same(done, hf_ess.compare(llama, PROMPTS, **OPTIONS))
    assert same(done, hf_ess.load_comparison(target))
    assert sorted(p.name for p in target.iterdir()) == ["curves.parquet", "summary.json"]
    assert not (tmp_path / "out.partial").exists()


def test_a_study_goes_on(tmp_path, llama):
    options = {"tolerances": [1e-1], "limit": 3}
    with pytest.raises(Died):
        hf_ess.study("tokens", llama, **options, output=tmp_path / "out", progress=dying(2))
    done = hf_ess.study("tokens", llama, **options, output=tmp_path / "out")
    assert done.summary["reused_runs"] == 2
    assert same(done, hf_ess.study("tokens", llama, **options))


def test_an_unfinished_run_of_something_else_is_refused(tmp_path, llama):
    with pytest.raises(Died):
        hf_ess.compare(llama, PROMPTS, **OPTIONS, output=tmp_path / "out", progress=dying(2))
    other = {**OPTIONS, "tolerances": [1e-2]}
    with pytest.raises(BadInput, match="holds an unfinished run of another model, text or options"):
        hf_ess.compare(llama, PROMPTS, **other, output=tmp_path / "out")
    done = hf_ess.compare(llama, PROMPTS, **other, output=tmp_path / "out", overwrite=True)
    assert done.summary["reused_runs"] == 0


def test_two_at_once_are_refused(tmp_path):
    with KeptRuns(tmp_path / "out", {}), pytest.raises(BadInput, match="another run is writing"):
        KeptRuns(tmp_path / "out", {})


def test_a_damaged_piece_is_measured_again(tmp_path, llama):
    with pytest.raises(Died):
        hf_ess.compare(llama, PROMPTS, **OPTIONS, output=tmp_path / "out", progress=dying(3))
    piece = tmp_path / "out.partial" / "run-00000-001.npz"
    piece.write_bytes(piece.read_bytes()[:100])
    done = hf_ess.compare(llama, PROMPTS, **OPTIONS, output=tmp_path / "out")
    assert done.summary["reused_runs"] == 2 and same(done, hf_ess.compare(llama, PROMPTS, **OPTIONS))


def test_a_full_disk(tmp_path, llama, monkeypatch):
    from hf_ess.results import files

    real, written = files.write_durably, []

    def full(path, write):
        if path.suffix == ".npz":
            if len(written) == 2:
                raise OSError(28, "No space left on device")
            written.append(path)
        real(path, write)

    monkeypatch.setattr(files, "write_durably", full)
    with pytest.raises(HfEssError, match="No space left on device; the runs finished so far are kept there"):
        hf_ess.compare(llama, PROMPTS, **OPTIONS, output=tmp_path / "out")
    monkeypatch.undo()
    assert hf_ess.compare(llama, PROMPTS, **OPTIONS, output=tmp_path / "out").summary["reused_runs"] == 2


@pytest.mark.slow
def test_killed_and_started_again(tmp_path):
    model = tiny_checkpoint(tmp_path / "model", "llama")
    command = [sys.executable, "-m", "hf_ess.cli.main", "compare", str(model), "--tol", "0.1", "--no-plots"]
    command[1:3] = ["-c", "from hf_ess.cli.main import main; main()"]
    for prompt in PROMPTS * 4:
        command += ["--prompt", prompt]
    command += ["--replace", "eos", "--control", " the", "-o", str(tmp_path / "out")]
    partial = tmp_path / "out.partial"
    for pieces in (1, 5, 9):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(list(partial.glob("run-*.npz"))) < pieces:
            time.sleep(0.002)
        process.kill()
        process.wait()
    assert subprocess.run(command, capture_output=True).returncode == 0
    done = hf_ess.load_comparison(tmp_path / "out")
    assert done.summary["reused_runs"] >= 9
    whole = hf_ess.compare(str(model), PROMPTS * 4, replace=["eos"], control=" the", tolerances=[0.1])
    assert done.effects == whole.effects and done.curves.equals(whole.curves)
