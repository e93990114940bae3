"""hf-ess probe --keep spectra, --memory, --device-map and --spectra-device as a person types them."""

from __future__ import annotations

import json

import pytest

import hf_ess
from hf_ess.cli.main import run
from tests.tiny import tiny_checkpoint

TEXT = "The lamp was out. Nobody had paid.\n\nfunction lamp(a) { return a > 1; }\n"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(tiny_checkpoint(tmp_path_factory.mktemp("models") / "jamba", "jamba"))


def probed(checkpoint, out, *more):
    return run(["probe", checkpoint, "--prompt", TEXT, "-o", str(out), "--no-plots", "-q", *more])


def test_spectra_are_stored_behind_delimiters_and_counted_again(checkpoint, tmp_path, capsys):
    out = tmp_path / "out"
    assert probed(checkpoint, out, "--keep", "spectra", "--delimiter", ".") == 0
    result = hf_ess.load_result(out)
    places = [r["position"] for r in result.tokens.to_pylist() if r["delimiter"]]
    assert len(places) == 2
    for entry in result.spectra.entries:
        assert result.spectra.open(entry).positions.tolist() == sorted({p + k for p in places for k in range(3)})
    assert result.summary["options"]["positions"] == "delimiters"
    assert run(["retol", str(out), "--tol", "0.02", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"]["tolerances"] == [0.02]


def test_options_reach_the_run(checkpoint, tmp_path):
    out = tmp_path / "out"
    options = ["--keep", "spectra", "--positions", "3,8-10", "--spectra-dtype", "float32"]
    assert probed(checkpoint, out, *options, "--memory", "32MiB", "--spectra-device", "cpu") == 0
    said = hf_ess.load_result(out).summary
    assert said["options"]["positions"] == "3,8-10" and said["spectra"]["positions"] == [4]
    assert said["spectra"]["dtype"] == "float32" and said["options"]["memory"] == 32 * 2**20
    assert said["options"]["spectra_device"] == "cpu"


def test_weights_on_disk_give_the_same_result(checkpoint, tmp_path):
    keep = ["--keep", "spectra", "--positions", "every:5"]
    device_map = '{"": "cpu", "model.layers.1": "disk"}'
    assert probed(checkpoint, tmp_path / "here", *keep) == 0
    away = ["--device-map", device_map, "--offload-folder", str(tmp_path / "weights")]
    assert probed(checkpoint, tmp_path / "away", *keep, *away) == 0
    here, there = (hf_ess.load_result(tmp_path / name) for name in ("here", "away"))
    assert there.ess.equals(here.ess) and there.layers == here.layers and there.tokens.equals(here.tokens)
    for path in here.spectra.folder.iterdir():
        assert (there.spectra.folder / path.name).read_bytes() == path.read_bytes()
    places = there.summary["provenance"]["device_map"]
    assert places["model.layers.1"] == "disk" and places["model.layers.0"] == "cpu"
    assert here.summary["provenance"]["device_map"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "spectra", "--delimiter", "§"], "no delimiter (§) was found in the text"),
        (["--keep", "spectra", "--positions", "nowhere"], "positions must be"),
        (["--positions", "all"], 'ask for keep "spectra"'),
        (["--memory", "much"], "not an amount of memory"),
        (["--spectra-device", "mps"], "mps has no float64"),
        (["--spectra-device", "abacus"], "'abacus' is not a device"),
        (["--device-map", "none.json"], "no device map none.json"),
        (["--device-map", '{"": "cpu", "model.layers.9": "disk"}'], "'model.layers.9', which is no module"),
    ],
)
def test_what_is_refused_leaves_nothing(checkpoint, tmp_path, capsys, options, message):
    assert probed(checkpoint, tmp_path / "out", *options) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_spectra_need_a_directory(checkpoint, capsys):
    assert run(["probe", checkpoint, "--prompt", TEXT, "--keep", "spectra"]) == 2
    assert "name it with output (-o DIR)" in capsys.readouterr().err
