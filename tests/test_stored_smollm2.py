"""Stored spectra of SmolLM2-135M: retol() equals direct counts, also where layers stay on disk."""

from __future__ import annotations

import pytest

import hf_ess
from hf_ess.spectra.ess import singular_values
from tests import real

pytestmark = pytest.mark.real

LENGTH, NEW = 160, (3e-1, 1e-2, 3e-4)
MAP = {"": "cpu", **{f"model.layers.{n}": "disk" for n in range(10, 30)}}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder, out = str(real.require_smollm2()), tmp_path_factory.mktemp("kept")
    options = {"max_tokens": LENGTH, "keep": "spectra", "positions": "every:8", "entropy": False, "tolerances": (1e-1,)}
    text = real.text(LENGTH)
    here = hf_ess.probe(folder, text, output=out / "here", **options)
    away = hf_ess.probe(folder, text, output=out / "away", device_map=MAP, **options)
    return folder, text, here, away


def test_layers_on_disk_give_equal_values(kept):
    _, _, here, away = kept
    assert "disk" in away.summary["provenance"]["device"]
    assert away.ess.equals(here.ess) and away.layers == here.layers
    for path in here.spectra.folder.iterdir():
        assert (away.spectra.folder / path.name).read_bytes() == path.read_bytes()


def test_new_tolerances_are_counted_right_but_for_values_within_rounding(kept):
    folder, text, here, _ = kept
    direct = hf_ess.probe(folder, text, max_tokens=LENGTH, tolerances=NEW, entropy=False)
    found = hf_ess.retol(here, NEW)
    truth = {(r["layer"], r["unit"], r["tolerance"]): r["values"] for r in direct.rows(metric="tolerance")}
    doubt = {(r["layer"], r["unit"], r["tolerance"]): r["values"] for r in found.rows(metric="uncertain")}
    differ: dict[int, list[tuple[int, int, float, int]]] = {}
    counts = 0
    for row in found.rows(metric="tolerance", reduction=None):
        if row["unit"] is None:
            continue
        key = row["layer"], row["unit"], row["tolerance"]
        for i, (a, b, c) in enumerate(zip(row["values"], truth[key], doubt[key]), 1):
            if a is not None and b is not None:
                counts += 1
                assert abs(a - b) <= c
                if a != b:
                    differ.setdefault(row["layer"], []).append((row["unit"], i, row["tolerance"], int(abs(a - b))))
    assert counts == 270 * 19 * 3 and sum(map(len, differ.values())) < 0.02 * counts

    def look(layer):  # every difference is explained by singular values within a relative 2^-8 of the tolerance
        for unit, i, tol, n in differ.get(layer.layer, []):
            (sigma,) = singular_values(layer.operator[unit : unit + 1], [i])
            assert int(((sigma - tol).abs() <= 2**-8 * tol).sum()) >= n

    loaded = hf_ess.loading.load(folder)
    ids = here.tokens["id"].to_pylist()
    hf_ess.capture(loaded.model, ids, look, layers=set(differ))
