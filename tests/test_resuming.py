"""A run that is killed at any moment, or finds the disk full, goes on and gives the result of an undisturbed run."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hf_ess
from hf_ess import HfEssError
from hf_ess.cli.main import run
from tests.resuming import ARGUMENTS, KEPT, TEXT, assert_equal, deep

LAYERS = 12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return deep(tmp_path_factory.mktemp("resuming") / "model")


@pytest.fixture(scope="module")
def undisturbed(checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("resuming") / "undisturbed"
    result = hf_ess.probe(checkpoint, TEXT, output=out, **KEPT)
    assert len(result.layers) == LAYERS
    return out


def command(checkpoint, out):
    return ["probe", checkpoint, "--prompt", TEXT, "-o", str(out), *ARGUMENTS]


def killed(checkpoint, out, layer, delay):
    """Starts the run in a process of its own and kills it a moment after a layer became durable; whether it did."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hf_ess", *command(checkpoint, out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    partial = out.with_name(out.name + ".partial")
    try:
        while process.poll() is None and len(list(partial.glob("layer-*.parquet"))) < layer:
            time.sleep(0.001)
        time.sleep(delay)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize(("layer", "delay"), [(1, 0.004), (7, 0.0)])
def test_killed_and_resumed(checkpoint, undisturbed, tmp_path, layer, delay):
    out = tmp_path / "out"
    assert killed(checkpoint, out, layer, delay)
    resumed = hf_ess.probe(checkpoint, TEXT, output=out, **KEPT)
    assert layer <= resumed.summary["reused_layers"] < LAYERS
    assert_equal(out, undisturbed)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize("seed", range(10))
def test_killed_again_and_again_at_random_moments(checkpoint, undisturbed, tmp_path, seed):
    chance, out = random.Random(seed), tmp_path / "out"
    for _ in range(2):
        if not out.exists():
            killed(checkpoint, out, chance.randint(1, LAYERS), chance.uniform(0, 0.1))
    if not out.exists():
        assert run(command(checkpoint, out)) == 0
    assert_equal(out, undisturbed)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


class FullDisk:
    """Lets a number of files reach the disk, and then none."""

    def __init__(self, room):
        self.room, self.sync = room, os.fsync

    def __call__(self, descriptor):
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1
        self.sync(descriptor)


# Of each layer three files (spectra, their index, rows); before them the key, after them what tells of the whole.
@pytest.mark.parametrize("room", [0, 1, 2, 3, 4, 5, 6, 20, 3 * LAYERS, 3 * LAYERS + 1, 3 * LAYERS + 3])
def test_a_full_disk_costs_one_layer_at_most(checkpoint, undisturbed, tmp_path, monkeypatch, capsys, room):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", FullDisk(room))
        assert run(command(checkpoint, out)) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"hf-ess: cannot write to {out}") and "No space left on device" in said
    assert said.count("\n") == 1 and not out.exists()
    finished = max(0, min(room - 1, 3 * LAYERS) // 3)
    assert len(list(tmp_path.glob("out.partial/layer-*.parquet"))) == finished
    if finished:
        assert "layers finished so far are kept there, and the same command goes on from them" in said
    else:
        assert list(tmp_path.iterdir()) == []
    assert run(command(checkpoint, out)) == 0
    assert hf_ess.load_result(out).summary["reused_layers"] == finished
    assert_equal(out, undisturbed)


def test_a_file_system_that_is_full(checkpoint, undisturbed, tmp_path, capsys):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        out = disk / "out"
        assert run(command(checkpoint, out)) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"hf-ess: cannot write to {out}.partial: ") and said.count("\n") == 1
        assert "No space left on device" in said or "are free" in said
        assert "the layers finished so far are kept there" in said
        kept = len(list((disk / "out.partial").glob("layer-*.parquet")))
        assert 0 < kept < LAYERS
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        assert run(command(checkpoint, out)) == 0
        assert hf_ess.load_result(out).summary["reused_layers"] == kept
        assert_equal(out, undisturbed)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_result_that_cannot_be_saved_leaves_nothing(undisturbed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "fsync", FullDisk(1))
    with pytest.raises(HfEssError, match=r"cannot write the result to .*No space left on device"):
        hf_ess.load_result(undisturbed).save(tmp_path / "copy")
    monkeypatch.setattr(os, "fsync", FullDisk(0))
    assert run(["retol", str(undisturbed), "--tol", "0.01", "-o", str(tmp_path / "new"), "-q"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
