"""The report as a file: what it holds, where it may be written, how large it gets.  Its looks: tests/browser."""

from __future__ import annotations

import base64
import builtins
import hashlib
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hf_ess
from hf_ess.cli.main import run
from hf_ess.errors import BadInput
from hf_ess.reporting import page as pages
from hf_ess.reporting import result_data as results
from hf_ess.reporting.numbers import Pool, rounded, shown
from tests.synthetic import Layer, Prompt, prompt, result
from tests.tiny import tiny_model, tiny_tokenizer

PROMPTS = [
    "The lamp was out in the high house<sep> Nobody had paid the man<sep> He went home and a ship came in the light.",
    "The sea was high that day and the old man<sep> kept the light of the lamp<sep> and the ships had seen him go.",
]


@pytest.fixture(scope="module")
def made():
    return result([Layer("mamba", 16, 6), Layer("softmax"), Layer("mamba", 16, 6, status="failed")], [prompt(40)])


@pytest.fixture(scope="module")
def compared():
    return hf_ess.compare(
        tiny_model("llama"),
        PROMPTS,
        tokenizer=tiny_tokenizer(),
        replace=["eos", "."],
        control=" the",
        tolerances=(1e-1, 1e-3),
        groups=4,
    )


def data(html: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert "<" not in text
    return json.loads(text)


@given(st.lists(st.one_of(st.floats(width=64), st.integers(-(10**9), 10**9).map(float)), min_size=1, max_size=20))
def test_rounding_keeps_four_digits_whole_numbers_and_gaps(values):
    for value, kept in zip(values, rounded(np.array(values))):
        if not math.isfinite(value):
            assert kept is None
        elif value.is_integer() and abs(value) < 1e15:
            assert kept == value
        else:
            assert kept == pytest.approx(value, rel=5.1e-4, abs=1e-300)
            assert json.loads(json.dumps(kept)) == kept
            if 1e-3 < abs(value) < 1e3:
                assert len(repr(abs(kept)).replace(".", "").lstrip("0")) <= 4


def test_equal_curves_are_kept_once_and_empty_ones_not_at_all():
    pool = Pool()
    assert [pool.add(np.array(c)) for c in ([1.0, 2.0], [1.0, 3.0], [1.0, 2.0])] == [0, 1, 0]
    assert pool.add(np.array([np.nan])) is None and pool.add(None) is None
    assert pool.curves == [[1, 2], [1, 3]]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\n\t", "\\n\\t"),
        ("\x07\x1b[0m", "\\x07\\x1b[0m"),
        ("\u202egnp", "\\u202egnp"),
        ("👩‍🚀 नमस्ते می‌خواهم <b>$", "👩‍🚀 नमस्ते می‌خواهم <b>$"),
        ("灯<E7 81>", "灯<E7 81>"),
        ("\u2028", "\\u2028"),
    ],
)
def test_what_could_disturb_a_page_is_written_out_and_nothing_else(text, wanted):
    assert shown(text) == wanted


def test_the_page_holds_the_curves_of_the_result(made):
    found = data(pages.page(made))
    (page,) = found["prompts"]
    assert page["shown"] == [t["text"].replace("\n", "\\n") for t in made.tokens.to_pylist()]
    for number, layer in enumerate(page["layers"]):
        for k, tolerance in enumerate(made.tolerances):
            (row,) = made.rows(layer=number, metric="tolerance", tolerance=tolerance, reduction="mean")
            index = layer["ess"][f"t{k}"]
            if row["values"] is None:
                assert index is None and layer["status"] == "failed"
                continue
            assert page["curves"][index] == pytest.approx(row["values"], rel=6e-4)
            units = [page["curves"][u] for u in layer["units"][f"t{k}"]]
            assert units == [r["values"] for r in made.rows(layer=number, reduction=None, tolerance=tolerance)]
    (row,) = made.rows(layer=None, metric="tolerance", tolerance=1e-3, reduction="sum_channels_layers")
    assert page["curves"][page["total"]["ess"]["t1"]] == pytest.approx(row["values"], rel=6e-4)
    head = found["header"]
    assert not head["verification"]["good"] and "1 failed" in head["verification"]["verdict"]
    assert "Layer 2 failed verification" in head["missing"][0]


def test_the_share_of_tss_is_the_mean_of_the_shares(made):
    """Where the page divides by itself, dividing is right; where it is not, the curve is in the page."""
    (page,) = data(pages.page(made))["prompts"]
    for number, layer in enumerate(page["layers"][:2]):
        for limit, metric in (("tss", "utilisation"), ("bound", "saturation")):
            (row,) = made.rows(layer=number, metric=metric, tolerance=1e-3)
            kept = layer["ratios"][limit].get("t1")
            curves = page["curves"]
            if kept is None:
                told = [e / s for e, s in zip(curves[layer["ess"]["t1"]], curves[layer[limit]])]
            else:
                told = curves[kept]
            assert told == pytest.approx(row["values"], rel=1.2e-3)


def test_the_page_holds_effects_and_curves_of_a_comparison(compared):
    found = data(pages.page(compared))
    assert len(found["effects"]) == len(compared.effects)
    for told, row in zip(found["effects"], compared.effects):
        assert told["effect"] == pytest.approx(row["effect"], rel=6e-4)
        assert told["layer"] == (-1 if row["layer"] is None else row["layer"])
    names = [c["name"] for c in compared.summary["candidates"]]
    for row in compared.curves.to_pylist():
        page = found["prompts"][row["prompt"]]
        at = 0 if row["layer"] is None else row["layer"] + 1
        index = page["index"][names.index(row["replace"])][compared.tolerances.index(row["tolerance"])][at]
        assert page["curves"][index] == row["values"]
    assert [p["places"] for p in found["prompts"]] == [p["places"] for p in compared.summary["prompts"]]
    sizes = [abs(math.log1p(g["effect"])) for g in found["groups"] if (g["candidate"], g["tolerance"]) == (1, 0)]
    assert sizes == sorted(sizes, reverse=True) and sizes


def test_the_policy_allows_these_two_scripts_and_no_address(made):
    html = pages.page(made)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert re.findall(r"'sha256-([^']*)'", policy) == hashes and len(hashes) == 2
    assert "default-src 'none'" in policy and "http" not in policy
    outside = re.sub(r"<script>.*?</script>", "", html, flags=re.S)
    assert not re.search(r"""(src|href)=["'](?!#)""", outside) and "url(" not in outside and "@import" not in outside


def test_a_text_cannot_end_the_data(made):
    evil = result([Layer("softmax")], [Prompt(["</script><script>x", "<!--<script>", "b"])], model="</title><script>")
    html = pages.page(evil)
    assert html.count("</script>") == 3 and "<title>&lt;/title" in html
    assert data(html)["prompts"][0]["shown"][0] == "</script><script>x"


def test_curves_of_heads_and_further_prompts_stay_out_where_they_are_many(monkeypatch):
    many = result([Layer("mamba", 16, 6)] * 2, [prompt(30)] * 3)
    monkeypatch.setattr(results, "MOST_UNIT_VALUES", 100)
    monkeypatch.setattr(results, "MOST_VALUES", 1500)
    found = data(pages.page(many))
    assert not any(p["units"] for p in found["prompts"])
    assert 1 <= len(found["prompts"]) < 3
    assert sum(len(c) for p in found["prompts"] for c in p["curves"]) <= 1500
    assert any(note.startswith(f"This page holds prompts 0 to {len(found['prompts']) - 1} of 3") for note in
               found["header"]["notes"])  # fmt: skip


def test_where_a_report_may_be_written(made, tmp_path):
    folder = made.save(tmp_path / "result")
    first = hf_ess.report(folder)
    assert first == folder / "report.html"
    assert hf_ess.report(folder) == first  # an earlier report at the default place is replaced
    other = tmp_path / "a" / "page.html"
    assert hf_ess.report(folder, other) == other
    with pytest.raises(BadInput, match="exists already"):
        hf_ess.report(folder, other)
    hf_ess.report(made, other, overwrite=True)
    first.write_text("my own notes")
    with pytest.raises(BadInput, match="exists already"):
        hf_ess.report(folder)
    assert first.read_text() == "my own notes"
    with pytest.raises(BadInput, match="is a directory"):
        hf_ess.report(folder, tmp_path)
    with pytest.raises(BadInput, match="name the file"):
        hf_ess.report(made)
    with pytest.raises(BadInput, match="got int"):
        hf_ess.report(3, tmp_path / "x.html")  # type: ignore[arg-type]
    assert made.report(tmp_path / "method.html").stat().st_size > 1_000_000
    assert not list(tmp_path.rglob("*.writing"))


def test_a_failed_write_leaves_nothing(made, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pages.os, "replace", full)
    with pytest.raises(BadInput, match="No space left"):
        hf_ess.report(made, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_without_plotly_one_sentence_says_what_to_install(made, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name: str, *args: object, **more: object):
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r"pip install 'hf-ess\[report\]'") as refused:
        hf_ess.report(made, tmp_path / "page.html")
    assert "\n" not in str(refused.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_wrong_directory_gets_one_sentence(command, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text("{")
    for name, said in (
        ("empty", "no summary.json"),
        ("file", "is a file"),
        ("gone", "does not exist"),
        ("broken", "cannot be read"),
    ):
        assert run([command, str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


def test_the_command_line(made, compared, tmp_path, capsys):
    folder = made.save(tmp_path / "result")
    assert run(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    target = tmp_path / "page.html"
    assert run(["report", str(compared.save(tmp_path / "comparison")), "-o", str(target)]) == 0
    assert data(target.read_text(encoding="utf-8"))["document"] == "comparison"
    assert run(["report", str(folder), "-o", str(target)]) == 2
    assert run(["report", str(folder), "-o", str(target), "--overwrite"]) == 0
    capsys.readouterr()
    assert run(["plot", str(tmp_path / "comparison"), "-o", str(tmp_path / "plots")]) == 0
    written = {path.name for path in (tmp_path / "plots").iterdir()}
    assert written == {"curves.png", "layers.png", "difference.png", "groups.png"}


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from hf_ess.cli.main import run; run(['report', '--help']);"
        "print([m for m in ('torch', 'plotly', 'matplotlib', 'pyarrow') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.rstrip().endswith("[]") and "report.html" in out
