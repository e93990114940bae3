import io
import re
import sys

import pytest
from rich.console import Console

from hf_ess.tables import result as table
from tests.synthetic import Layer, prompt, result

MAMBA = Layer("mamba", 16, 6)


def printed(of, width=80, **options):
    """The table as a console of that width prints it, without blanks at the ends of lines."""
    out = io.StringIO()
    Console(file=out, width=width).print(table.layer_table(of, **options))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_row_per_layer_with_the_numbers_of_the_summary():
    of = result([MAMBA, Layer(), Layer("mamba", 1024, 1200)], [prompt(50)])
    head, _, *rows = printed(of)
    assert head.split() == [
        "layer",
        "kind",
        "ops",
        "TSS",
        "ESS",
        "1e-1",
        "ESS",
        "1e-3",
        "ESS",
        "1e-5",
        "entropy",
        "error",
    ]
    assert len(rows) == 3
    for row, info in zip(rows, of.layers):
        cells = row.split()
        assert cells[:3] == [str(info["layer"]), info["kind"], f"{info['operators']:,}"]
        assert float(cells[3].replace(",", "")) == info["tss"]
        for k in range(3):
            assert float(cells[4 + 2 * k]) == pytest.approx(info["ess"][k], rel=0.005)
            assert cells[5 + 2 * k] == f"{info['utilisation'][k]:.0%}"
        assert float(cells[10]) == pytest.approx(info["entropy"], rel=0.005)
        assert cells[11] == "3e-7"


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_no_number_is_cut_off(width):
    of = result([Layer("mamba", 1024, 4)] * 2, [prompt(3000)], tolerances=(1e-1, 1e-2, 1e-3, 1e-4, 1e-5))
    wide = set(" ".join(printed(of, 500)).split())
    text = " ".join(printed(of, width))
    assert "…" not in text
    if width >= 80:
        assert {w for w in wide if re.match(r"[\d,.]+%?$", w)} <= set(text.split())


def test_the_columns_fit_a_terminal_of_80_columns():
    assert max(map(len, printed(result([MAMBA, Layer(status="failed")], [prompt(60)]), 80))) <= 80


def test_status_is_a_column_where_something_failed():
    head, _, *rows = printed(result([MAMBA, Layer(status="failed"), Layer(status="not finite")], [prompt(20)]))
    assert head.split()[-1] == "status"
    assert rows[0].endswith("3e-7")
    assert rows[1].split()[-2:] == ["2e-1", "failed"] and rows[1].split()[3:7] == ["-"] * 4
    assert rows[2].endswith("not finite")


def test_many_layers_all_have_a_row():
    rows = printed(result([Layer("mamba", 16, 1)] * 81, [prompt(6)]))[2:]
    assert [int(row.split()[0]) for row in rows] == list(range(81))


def test_layers_with_several_mixers_are_told_apart():
    layers = [
        Layer(layer=0, module="model.layers.0.self_attn"),
        Layer("mamba", 16, layer=0, module="model.layers.0.mamba"),
        Layer("mamba", 16, layer=1, module="model.layers.1.mamba", call=0),
        Layer("mamba", 16, layer=1, module="model.layers.1.mamba", call=1),
    ]
    rows = printed(result(layers, [prompt(12)]))[2:]
    assert [row.split("  ")[0] for row in rows] == ["0 self_attn", "0 mamba", "1 mamba", "1 mamba#1"]


def test_prompts_are_averaged_and_it_is_said():
    of = result([MAMBA, Layer()], [prompt(30), prompt(60)])
    of.layers[2]["error"] = 4e-6
    rows = printed(of)[2:]
    assert len(rows) == 2
    mean = (of.layers[0]["ess"][0] + of.layers[2]["ess"][0]) / 2
    assert float(rows[0].split()[4]) == pytest.approx(mean, rel=0.005)
    assert rows[0].endswith("4e-6")
    assert table.heading(of)[0] == "demo:falcon-mamba: 2 prompts of 30 to 60 tokens"
    assert "prompts" in table.heading(of)[1]


def test_a_layer_that_failed_on_one_prompt_keeps_the_mean_of_the_others():
    of = result([MAMBA], [prompt(30), prompt(30)])
    of.layers[1].update(status="failed", error=0.5)
    del of.layers[1]["ess"], of.layers[1]["utilisation"]
    (row,) = printed(of)[2:]
    assert row.endswith("failed in 1 of 2")
    assert float(row.split()[4]) == pytest.approx(of.layers[0]["ess"][0], rel=0.005)


def test_names_are_neither_markup_nor_terminal_codes():
    of = result([Layer("[red]x[/red]"), Layer("[bold]\x1b[31m\n")], [prompt(8)], model="[link=x]m[/link]\x07\u202e")
    lines = printed(of)
    assert "[red]x[/red]" in lines[2]
    assert r"[bold]\x1b[31m\n" in lines[3] and len(lines) == 4
    assert table.heading(of)[0] == r"[link=x]m[/link]\x07\u202e: 8 tokens"


def test_an_ascii_terminal_gets_ascii(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    of = result([MAMBA, Layer(status="failed")], [prompt(40)])
    table.show(of)
    sys.stdout.flush()
    text = raw.getvalue().decode("ascii")
    assert "-----" in text and "mamba" in text and text.startswith("demo:falcon-mamba: 40 tokens\n")


def test_show_prints_wide_tables_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    of = result([MAMBA], [prompt(40)], tolerances=(1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6))
    table.show(of)
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("0 ")]
    assert row.count("%") == 6 and row.rstrip().endswith("3e-7")


def test_notes_group_what_was_skipped():
    skipped = [{"layer": k, "module": f"l.{k}.m", "class": "Rwkv", "reason": "no adapter"} for k in (0, 1, 2, 6)]
    skipped.append({"layer": None, "module": "m", "class": "X\n", "reason": "odd [b]"})
    not_called = [{"layer": 3, "module": "l.3.c", "class": "Cross", "reason": "never called"}]
    of = result([MAMBA], [prompt(10)], skipped=skipped, not_called=not_called)
    assert table.notes(of) == [
        "4 x Rwkv in layers 0-2, 6 ran and could not be measured: no adapter",
        r"1 x X\n ran and could not be measured: odd [b]",
        "1 x Cross in layer 3 did not run on this text: never called",
    ]


def test_notes_name_failures_and_unresolved_counts():
    of = result([Layer(status="failed"), Layer(status="not finite"), Layer(status="not finite"), MAMBA], [prompt(11)])
    of.layers[3]["unresolved"] = [0, 0, 7]
    failed, infinite, unresolved = table.notes(of)
    assert failed.startswith("layer 0 failed verification: T u differs from the layer's own output by up to 2e-1")
    assert "(at most 1e-5 is allowed)" in failed
    assert infinite.startswith("2 layers (1-2) not finite:")
    assert unresolved.startswith("tolerance 1e-5: 7 of 60 counts in layer 3 are unresolved")


def test_nothing_to_note():
    assert table.notes(result([MAMBA], [prompt(10)])) == []
