"""retol(): counts from stored spectra are the direct ones but where rounding hides on which side a value is."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hf_ess
from hf_ess import BadInput
from hf_ess.cli.main import run
from hf_ess.results.shards import ROUNDING, Shard, ShardWriter
from hf_ess.retolerancing import _count
from hf_ess.spectra.reference import all_spectra
from tests.adapters.contract import captured, token_ids
from tests.tiny import tiny_model

TOLERANCES = (3e-1, 2e-2, 7e-4, 1e-9)


def stored(model, out, **options):
    return hf_ess.probe(
        model, token_ids(model), output=out, keep="spectra", positions="every:3", **{"tolerances": (0.5,), **options}
    )


def curves(result, metric):
    """Values by layer, unit and tolerance."""
    return {(r["layer"], r["unit"], r["tolerance"]): r["values"] for r in result.rows(metric=metric, reduction=None)}


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["llama", "falcon_mamba", "jamba", "lfm2"])
def test_counts_are_the_direct_ones_up_to_what_rounding_hides(name, dtype, relative, tmp_path):
    model = tiny_model(name)
    kept = stored(model, tmp_path / "out", spectra_dtype=dtype, relative=relative)
    direct = hf_ess.probe(model, token_ids(model), tolerances=TOLERANCES, relative=relative)
    found = hf_ess.retol(tmp_path / "out", TOLERANCES)
    assert found.tolerances == list(TOLERANCES) and len(found.layers) == len(direct.layers)
    ours, doubt, theirs = curves(found, "tolerance"), curves(found, "uncertain"), curves(direct, "tolerance")
    layers, _ = captured(model, token_ids(model))
    hidden = 0
    for layer in layers:
        spectra = all_spectra(layer.operator.dense())
        for tol in TOLERANCES:
            for unit in range(layer.operator.count):
                where = layer.layer, unit, tol
                top = max(float(s[unit].max()) for s in spectra) if relative else 1.0
                for i, (a, b, c) in enumerate(zip(ours[where], theirs[where], doubt[where], strict=True), 1):
                    assert (a is None) == (c is None) == (i % 3 > 0)
                    if a is None or b is None:
                        continue
                    near = (spectra[i - 1][unit] - tol * top).abs() <= ROUNDING[dtype] * 2 * tol * top + 1e-12 * top
                    assert abs(a - b) <= c <= near.sum()
                    hidden += int(c)
    assert hidden == sum(found.summary["retol"]["uncertain"])
    assert hidden > 0 or dtype == "float32" or name == "lfm2"  # whose short convolutions have few singular values
    assert kept.tolerances == [0.5]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["bfloat16", "float32"]), st.floats(1e-6, 10.0), st.floats(0, 1e-4))
def test_the_count_is_certain_wherever_it_says_so(tmp_path_factory, seed, dtype, tol, error):
    """Values crowd around the tolerance, some exactly on it, and each was computed with an error of its own."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.randint(-12, 3, (2, 40), generator=generator).double()
    exact = tol * (1 + torch.randn(2, 40, generator=generator, dtype=torch.float64).sign() * 2.0**scale / 8)
    exact[:, ::7] = tol
    exact = exact.sort(1, True).values
    wrong = (2 * torch.rand(2, 40, generator=generator, dtype=torch.float64) - 1) * error
    path = tmp_path_factory.mktemp("s") / "s"
    with open(path, "wb") as file:
        writer = ShardWriter(file, 2, [50], [40], torch.full((1, 1), 40.0), dtype)
        writer([exact + wrong], torch.ones(2), torch.full((2,), error, dtype=torch.float64))
        writer.finish()
    rows, info = Collected(), {"multiplicity": 1}
    _count(Shard(path), rows, info, [tol], 200, 2**20, "float32")
    truth = (exact >= tol).sum(1)
    assert ((rows.number - truth).abs() <= rows.doubt).all()
    near = ((exact - tol).abs() <= 2 * ROUNDING[dtype] * tol + 4 * error).sum(1)
    assert (rows.doubt <= near).all()
    assert info["uncertain"] == [int(rows.doubt.sum())] and info["counts"] == 2


class Collected:
    """In the place of a layer's rows."""

    def counts(self, info, tolerances, counts, resolved, tss, bound):
        self.number = counts[0, :, 0]

    def units(self, metric, tolerance, values):
        self.doubt = values[:, 0]

    def reduced(self, *_):
        pass


def test_reductions_and_totals_are_those_of_the_stored_positions(tmp_path):
    model = tiny_model("falcon_mamba")
    stored(model, tmp_path / "out", spectra_dtype="float32")
    direct = hf_ess.probe(model, token_ids(model), tolerances=TOLERANCES[:3])
    found = hf_ess.retol(tmp_path / "out", TOLERANCES[:3])
    assert sum(found.summary["retol"]["uncertain"]) == 0
    at = np.arange(3, 32, 3) - 1
    for row in direct.rows(unit=None):
        if row["metric"] not in ("tolerance", "utilisation", "saturation", "tss", "bound"):
            continue
        where = {k: row[k] for k in ("layer", "reduction", "metric", "tolerance")}
        (ours,) = found.rows(**where)
        assert np.allclose(np.array(ours["values"], float)[at], np.array(row["values"], float)[at])
        assert len(ours["values"]) == 31 and sum(v is not None for v in ours["values"]) == len(at)
    for info in found.layers:
        (row,) = direct.rows(layer=info["layer"], reduction="mean", metric="tolerance", tolerance=TOLERANCES[1])
        assert info["ess"][1] == pytest.approx(np.array(row["values"])[at].mean())


def test_blocks_of_channels_change_nothing(tmp_path):
    model = tiny_model("jamba")
    stored(model, tmp_path / "out")
    a, b = (hf_ess.retol(tmp_path / "out", TOLERANCES, memory=m) for m in (1, "1GiB"))
    assert a.ess.equals(b.ess) and a.layers == b.layers


def test_many_channels_keep_reductions_alone(tmp_path, monkeypatch):
    from hf_ess.results import recording

    monkeypatch.setattr(recording, "FEW_UNITS", 10)
    model = tiny_model("jamba")
    stored(model, tmp_path / "out")
    found = hf_ess.retol(tmp_path / "out", [1e-2])
    assert {r["kind"] for r in found.rows(metric="uncertain", reduction="sum_heads")} == {"mamba", "softmax"}
    units = [r for r in found.rows(metric="tolerance", reduction=None) if r["unit"] is not None]
    assert {r["kind"] for r in units} == {"softmax"}


def test_a_layer_without_spectra_stays_without_values(tmp_path):
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = float("nan")
    stored(model, tmp_path / "out")
    found = hf_ess.retol(tmp_path / "out", [1e-2])
    assert [info["status"] for info in found.layers] == ["verified", "not finite"]
    assert [row["values"] for row in found.rows(layer=1)] == [None]


def test_the_result_is_one_like_any_other(tmp_path):
    model = tiny_model("llama")
    kept = stored(model, tmp_path / "out")
    found = hf_ess.retol(kept, TOLERANCES)
    found.save(tmp_path / "new")
    loaded = hf_ess.load_result(tmp_path / "new")
    assert loaded.ess.equals(found.ess) and loaded.summary == found.summary
    assert loaded.to_dataset().num_rows > 0
    for kind in ("lines", "heatmap", "utilisation"):
        assert loaded.plot(kind, tolerance=2e-2)
    with pytest.raises(BadInput, match="holds no spectra"):
        hf_ess.retol(loaded, [0.1])


def test_the_command(tmp_path, capsys):
    model = tiny_model("llama")
    stored(model, tmp_path / "out")
    assert run(["retol", str(tmp_path / "out"), "--tol", "2e-2", "--tol", "1e-7", "-o", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr()
    assert "ESS 2e-2" in printed.out and "softmax" in printed.out
    assert "counted from singular values stored as bfloat16 at 10 of 31 positions" in printed.err
    assert "counts uncertain, by" in printed.err and "all 80 counts are certain" in printed.err
    assert hf_ess.load_result(tmp_path / "new").tolerances == [2e-2, 1e-7]
    assert run(["retol", str(tmp_path / "out"), "--tol", "2e-2", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["retol"]["rounding"] == 2**-8 and summary["retol"]["uncertain"][0] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["retol", "PLAIN", "--tol", "0.1"], "holds no spectra: measure it again with --keep spectra"),
        (["retol", "NOTHING", "--tol", "0.1"], "no summary.json"),
        (["retol", "PLAIN", "--tol", "0"], "above 0"),
        (["retol", "PLAIN"], "--tol"),
        (["retol", "PLAIN", "--tol", "0.1", "-o", "PLAIN"], "exists already"),
        (["retol", "PLAIN", "--tol", "0.1", "--memory", "lots"], "not an amount of memory"),
    ],
)
def test_what_cannot_be_counted(tmp_path, capsys, arguments, message):
    model = tiny_model("llama")
    hf_ess.probe(model, token_ids(model), output=tmp_path / "plain")
    paths = {"PLAIN": str(tmp_path / "plain"), "NOTHING": str(tmp_path / "nothing")}
    assert run([paths.get(a, a) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_damaged_spectra_are_named(tmp_path):
    model = tiny_model("llama")
    kept = stored(model, tmp_path / "out")
    path = kept.spectra.folder / kept.spectra.entries[0]["file"]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(BadInput, match=r"safetensors is cut off or damaged"):
        hf_ess.retol(kept, [0.1])
