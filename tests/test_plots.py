import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_ess import plots
from hf_ess.errors import BadInput
from hf_ess.plotting import fonts, labels
from tests.synthetic import Layer, Prompt, prompt, result

MAMBA = Layer("mamba", size=16, operators=6)
HYBRID = [Layer("mamba", 16, 6), Layer("mamba", 16, 6, status="failed"), Layer("softmax"), Layer("mamba", 16, 6)]
WEIRD = [
    "a",
    "$$",
    r"$\frac{$",
    " $x_",
    "\x07",
    "灯",
    " 灯塔",
    "🚢",
    "\n",
    "  ",
    "",
    "‏",
    "שלום",
    r"\frac{",
    "{[red]",
    "<b>",
    "é",
    "%s",
]


@pytest.fixture(scope="module")
def mamba():
    return result([MAMBA] * 3, [prompt(90)])


@pytest.fixture(scope="module")
def hybrid():
    return result(HYBRID, [prompt(70)])


def panels(figure):
    """The axes that have an x axis along the tokens."""
    return [ax for ax in figure.axes if ax.get_ylabel() and ax.get_xlim()[1] > 2]


def curves(ax, length):
    """Lines over all positions, drawn in data coordinates."""
    lines = [line for line in ax.lines if len(line.get_xdata()) == length - 1 and line.get_transform() == ax.transData]
    return [np.array(line.get_ydata(), dtype=float) for line in lines]


def holds(drawn, wanted):
    """Whether a curve is among those drawn, where it is drawn at all."""
    return any(np.allclose(c, wanted, equal_nan=True) for c in drawn)


def values(of, **where):
    return [np.array(row["values"], dtype=float) for row in of.rows(**where)]


def texts(figure):
    import matplotlib.text

    return [t.get_text() for t in figure.findobj(matplotlib.text.Text)]


def test_lines_hold_every_layer_their_mean_and_the_bound(mamba):
    figure = plots.draw(mamba, "lines")
    assert len(panels(figure)) == 3
    i = np.arange(1, 90)
    for ax, tolerance in zip(panels(figure), (1e-1, 1e-3, 1e-5)):
        drawn = curves(ax, 90)
        layers = values(mamba, reduction="mean", metric="tolerance", tolerance=tolerance)
        assert len(layers) == 3 and all(holds(drawn, layer) for layer in layers)
        assert holds(drawn, np.mean(layers, axis=0))
        assert holds(drawn, np.minimum(16, np.minimum(i, 90 - i)))
        assert ax.get_ylabel() == "mean ESS per channel"
        assert ax.get_ylim()[0] == 0
    assert panels(figure)[-1].get_xlabel() == "position i: the cut lies before token i"
    assert {"tolerance 1e-1", "tolerance 1e-3", "tolerance 1e-5"} <= {a.get_title(loc="left") for a in figure.axes}


def test_delimiters_are_marked_where_they_are_and_named(mamba):
    figure = plots.draw(mamba, "lines", tolerance=1e-3)
    (ax,) = panels(figure)
    marks = [line for line in ax.lines if line.get_marker() == "v"]
    assert [list(m.get_xdata()) for m in marks] == [[28, 57, 86]]
    assert "eos × 3" in texts(figure)


def test_hybrids_have_a_column_per_family_and_name_what_failed(hybrid):
    figure = plots.draw(hybrid, "lines")
    assert len(panels(figure)) == 6
    assert {"recurrent (mamba) · layers 0-1, 3", "attention (softmax) · layer 2"} <= set(texts(figure))
    attention = panels(figure)[3]
    assert attention.get_ylabel() == "mean ESS per head"
    i = np.arange(1, 70)
    assert holds(curves(attention, 70), np.minimum(i, 70 - i))
    assert not holds(curves(attention, 70), np.minimum(16, np.minimum(i, 70 - i)))
    assert any("layer 1 (failed verification)" in " ".join(t.split()) for t in texts(figure))


def test_one_layer_shows_the_spread_of_its_heads_and_one_of_them(hybrid):
    figure = plots.draw(hybrid, "lines", layer=2, unit=1, tolerance=1e-3)
    (ax,) = panels(figure)
    drawn = curves(ax, 70)
    for unit in range(4):
        assert holds(drawn, values(hybrid, layer=2, unit=unit, metric="tolerance", tolerance=1e-3)[0])
    low, high = (values(hybrid, layer=2, reduction=q, metric="tolerance", tolerance=1e-3)[0] for q in ("q10", "q90"))
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == high.max()
    assert {tuple(v) for v in band} >= {(k + 1.0, low[k]) for k in range(69)}
    assert "head 1" in texts(figure)


def test_a_window_bounds_what_a_layer_can_hold():
    windowed = result([Layer(size=8), Layer()], [prompt(60)])
    (ax,) = panels(plots.draw(windowed, "lines", tolerance=1e-5))
    i = np.arange(1, 60)
    top = np.minimum(7, np.minimum(i, 60 - i))
    drawn = [c for c in curves(ax, 60) if np.isfinite(c).any()]
    assert any(np.nanmax(np.abs(c - top)) == 0 and np.isfinite(c).sum() > 40 for c in drawn)


@pytest.mark.parametrize(
    ("metric", "reduction", "label"),
    [
        ("entropy", "mean", "mean entropy-ESS per channel"),
        ("tolerance", "sum_channels", "ESS summed over channels"),
        ("tolerance", "q90", "90% quantile of ESS over channels"),
        ("utilisation", "mean", "mean utilisation (ESS / TSS)"),
        ("tolerance", "sum_channels_layers", "ESS summed over channels and layers"),
    ],
)
def test_the_axis_carries_the_name_of_the_reduction(mamba, metric, reduction, label):
    figure = plots.draw(mamba, "lines", metric=metric, reduction=reduction)
    assert {" ".join(ax.get_ylabel().split()) for ax in panels(figure)} == {label}


def test_sums_are_drawn_with_the_bound_of_the_sum(mamba):
    i = np.arange(1, 90)
    one = np.minimum(16, np.minimum(i, 90 - i))
    for reduction, times in (("sum_channels", 6), ("sum_heads", 6), ("sum_channels_layers", 18)):
        ax = panels(plots.draw(mamba, "lines", reduction=reduction))[2]
        assert holds(curves(ax, 90), times * one)


def test_entropy_has_gaps_where_it_is_null(mamba):
    (ax,) = panels(plots.draw(mamba, "lines", metric="entropy"))
    rows = values(mamba, reduction="mean", metric="entropy")
    assert np.isnan(rows[0]).any()
    assert holds(curves(ax, 90), rows[0])


def test_heatmap_is_the_table_with_failed_layers_left_out(hybrid):
    figure = plots.draw(hybrid, "heatmap", tolerance=1e-5)
    (ax,) = [ax for ax in figure.axes if ax.images]
    recurrent, attention = (np.ma.filled(image.get_array(), np.nan) for image in ax.images)
    rows = values(hybrid, reduction="mean", metric="tolerance", tolerance=1e-5)
    assert rows[1].shape == ()  # null
    np.testing.assert_array_equal(recurrent[0], rows[0])
    np.testing.assert_array_equal(recurrent[3], rows[3])
    np.testing.assert_array_equal(attention[2], rows[2])
    assert np.isnan(recurrent[1:3]).all() and np.isnan(attention[[0, 1, 3]]).all()
    assert ax.patch.get_hatch()
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0 M", "1 M", "2 A", "3 M"]
    assert {"recurrent", "attention"} <= {bar.get_ylabel() for bar in figure.axes}
    assert any("mean ESS per channel" in t for t in texts(figure))


def test_utilisation_dots_are_the_summary(hybrid):
    figure = plots.draw(hybrid, "utilisation")
    (ax,) = figure.axes
    dots = [line for line in ax.lines if line.get_marker() in "os"]
    for k in range(3):
        for marker, layers in (("o", (0, 3)), ("s", (2,))):
            series = [d.get_ydata() for d in dots if d.get_marker() == marker][k]
            for layer in range(4):
                wanted = hybrid.layers[layer]["utilisation"][k] if layer in layers else np.nan
                assert series[layer] == pytest.approx(wanted, nan_ok=True)
    assert {"tolerance 1e-1", "mamba", "softmax"} <= set(texts(figure))
    assert ax.get_ylabel() == "utilisation: mean of ESS / TSS"


def test_the_title_says_what_was_measured():
    of = result([MAMBA, Layer()], [Prompt(["<s>", "é<C3 A9>", "é<A9>", "tait", "␣", "l", "\\n"])], model="some/model")
    spans = [(None, None), (0, 1), (0, 1), (1, 5), (5, 6), (6, 7), (7, 8)]
    of.tokens = of.tokens.set_column(4, "start", [[s for s, _ in spans]]).set_column(5, "end", [[e for _, e in spans]])
    assert "some/model  ·  1 mamba layer + 1 softmax layer  ·  7 tokens  ·  “était l\\n”" in texts(plots.draw(of))


def test_short_texts_have_their_tokens_on_the_axis():
    figure = plots.draw(result([MAMBA], [prompt(30)]), "heatmap")
    (ax,) = [ax for ax in figure.axes if ax.images]
    names = [t.get_text() for t in ax.get_xticklabels()]
    assert len(names) == 29
    assert names[0] == "." and names[1] == "me" and names[27] == "<|endoftext|>"
    assert ax.get_xlabel() == "token i: the cut lies before it"


EDGES = {
    "two tokens": result([MAMBA] * 2, [prompt(2)]),
    "three tokens": result([Layer()], [prompt(3)]),
    "one layer": result([Layer()], [prompt(40)]),
    "nothing measured": result([Layer(status="failed"), Layer("mamba", 4, status="not finite")], [prompt(20)]),
    "one tolerance": result([MAMBA, Layer()], [prompt(20)], tolerances=(0.5,)),
    "five tolerances": result([MAMBA], [prompt(20)], tolerances=(1.0, 0.5, 1e-2, 1e-3, 2.5e-5)),
    "several mixers in a layer": result(
        [Layer(layer=0), Layer("mamba", 4, layer=0), Layer(layer=1, call=1)], [prompt(9)]
    ),
    "three families": result([Layer("shortconv", 2), Layer("softmax in own code"), MAMBA], [prompt(30)]),
    "weird tokens": result(
        [Layer("mamba", 4), Layer("$kind$", 4)],
        [
            Prompt(
                WEIRD,
                {
                    "$$": [1],
                    r"$\frac{$": [2],
                    "灯": [3],
                    "\n": [6],
                    "[bold]": [5],
                    "x" * 99: [4],
                    "1": [7],
                    "2": [8],
                    "3": [9],
                },
            )
        ],
        model=r"$\frac{$/модель 灯 [red]\x1b[31m" + "long" * 40,
    ),
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("kind", plots.KINDS)
def test_edge_cases_render_without_a_warning(name, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.draw(EDGES[name], kind).canvas.draw()


def test_one_position_is_visible():
    ax = panels(plots.draw(EDGES["two tokens"], "lines"))
    ax = ax[0] if ax else plots.draw(EDGES["two tokens"], "lines").axes[0]
    dots = [line for line in ax.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    assert len(dots) >= 3  # two layers and their mean


def test_a_panel_without_values_says_so():
    assert "no value: nothing could be measured here" in texts(plots.draw(EDGES["nothing measured"], "lines"))


def test_many_layers_and_long_texts_are_drawn():
    deep = result([Layer("mamba", 16, 1)] * 80, [prompt(64)], tolerances=(1e-3,))
    long = result([Layer("mamba", 16, 1)] * 2, [prompt(4096)], tolerances=(1e-3,))
    for kind in plots.KINDS:
        plots.draw(deep, kind).canvas.draw()
        plots.draw(long, kind).canvas.draw()
    assert ". × 1,978 (too many to mark)" in texts(plots.draw(long, "heatmap"))


def test_save_all_writes_whole_pictures_for_up_to_eight_prompts(tmp_path, monkeypatch):
    from matplotlib.image import imread

    monkeypatch.setattr(plots, "DPI", 40)
    written = plots.save_all(result([MAMBA], [prompt(8)] * 9, tolerances=(1e-3,)), tmp_path / "a" / "plots")
    assert len(written) == 24
    assert [p.name for p in written[:4]] == ["lines.png", "heatmap.png", "utilisation.png", "lines-1.png"]
    assert sorted(os.listdir(tmp_path / "a" / "plots")) == sorted(p.name for p in written)
    picture = imread(written[0])
    assert picture.shape[1] == 400 and picture.std() > 0.05


def test_a_failed_write_leaves_the_old_picture_and_nothing_else(tmp_path, mamba, monkeypatch):
    monkeypatch.setattr(plots, "DPI", 40)
    plots.save_all(mamba, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match=r"cannot write the plots to .*No space left"):
        plots.save_all(mamba, tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path, mamba):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write the plots to"):
        plots.save_all(mamba, tmp_path / "file" / "plots")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "pie"}, "there is no plot 'pie'; the kinds are lines, heatmap, utilisation"),
        ({"tolerance": 0.02}, "tolerance 0.02 was not measured; this result has 1e-1, 1e-3, 1e-5"),
        ({"tolerance": "low"}, "tolerance 'low' was not measured"),
        ({"layer": 9}, "there is no layer 9 in this result; it has 0-2"),
        ({"prompt": 1}, "there is no prompt 1; this result has 1, numbered from 0"),
        ({"prompt": -1}, "there is no prompt -1"),
        ({"prompt": "a"}, "there is no prompt 'a'"),
        ({"metric": "norm"}, "no metric 'norm'; it has .*tolerance.* norms"),
        ({"reduction": "median"}, "no reduction 'median' of tolerance; it has .*mean"),
        ({"unit": 1}, "unit= needs layer="),
        ({"layer": 0, "unit": 99}, "layer 0 has no head or channel 99; it has 0-5"),
        ({"layer": 0, "metric": "entropy", "unit": 0}, 'probe with keep="units"'),
        ({"layer": 0, "reduction": "sum_channels_layers"}, "does not go with layer="),
        ({"kind": "heatmap", "layer": 0}, 'layer= goes with the plot "lines"'),
        ({"kind": "heatmap", "reduction": "sum_channels_layers"}, "it has no heatmap"),
        ({"kind": "utilisation", "reduction": "q10"}, "metric= and reduction= do not go with it"),
        ({"ax": "axes"}, "ax must be a matplotlib Axes, got str"),
    ],
)
def test_bad_options_get_one_sentence(mamba, options, message):
    with pytest.raises(BadInput, match=message) as caught:
        plots.draw(mamba, options.pop("kind", "lines"), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", plots.KINDS)
def test_axes_of_the_caller_are_drawn_on(hybrid, kind):
    from matplotlib.figure import Figure

    own = Figure(figsize=(9, 4), layout="constrained")
    left, right = own.subplots(1, 2)
    assert plots.draw(hybrid, kind, ax=right) is own
    assert right.has_data() and not left.has_data()
    assert right.get_xlabel() and right.get_ylabel()
    own.savefig(os.devnull, format="png")


def test_a_result_plots_itself_and_shows_in_a_notebook(mamba):
    assert mamba.plot("utilisation")._repr_png_().startswith(b"\x89PNG")


def test_no_pyplot_no_global_state_any_backend(tmp_path):
    code = """if True:
        import json, sys
        import hf_ess
        early = [m for m in ("matplotlib", "transformers") if m in sys.modules]
        from tests.synthetic import Layer, prompt, result
        from hf_ess import plots
        import matplotlib
        before = dict(matplotlib.rcParams)
        plots.save_all(result([Layer()], [prompt(5)], tolerances=(0.1,)), sys.argv[1])
        changed = [k for k in before if str(before[k]) != str(matplotlib.rcParams[k])]
        print(json.dumps([early, "matplotlib.pyplot" in sys.modules, changed]))
    """
    env = {k: v for k, v in os.environ.items() if k != "DISPLAY"} | {"MPLBACKEND": "module://nonsense"}
    root = Path(__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=env, cwd=root, capture_output=True, text=True, check=True
    )
    assert json.loads(run.stdout) == [[], False, []]
    assert run.stderr == ""
    assert (tmp_path / "lines.png").stat().st_size > 10_000


def test_a_backend_that_matplotlib_refuses_is_named():
    code = """if True:
        from hf_ess import plots, errors
        try:
            plots.draw(None)
        except errors.BadInput as error:
            print(error)
    """
    env = {**os.environ, "MPLBACKEND": "nonsense"}
    root = Path(__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("matplotlib cannot start with MPLBACKEND='nonsense'; unset that variable")


def test_token_labels_are_literal_and_drawable():
    assert fonts.token(" lamp", 5) == "lamp"
    assert fonts.token("\n\n", 5) == r"\n\n"
    assert fonts.token("\x1b[31m", 5) == r"\x1b[31m"
    assert fonts.token("", 5) == "#5"
    assert fonts.token("   ", 5) == "␣␣␣"
    assert fonts.token("$$", 5) == "$$"
    assert fonts.token("a" * 40, 5) == "a" * 12 + "…"
    rare = "\U0001f6a2"
    assert fonts.token(rare, 5) in ("U+1F6A2", rare)  # by the fonts at hand
    assert fonts.token(rare + rare, 5) in ("#5", rare + rare)


def test_fonts_that_have_gone_since_the_cache_was_written_are_passed_over(monkeypatch):
    from matplotlib import font_manager

    gone = font_manager.FontEntry(fname="/gone.otf", name="Noto Sans CJK SC", style="normal", weight=400)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [gone, *font_manager.fontManager.ttflist])
    fonts.available.cache_clear()
    try:
        assert "Noto Sans CJK SC" not in fonts.available()
        assert fonts.families()[0] == "DejaVu Sans"
    finally:
        fonts.available.cache_clear()


@given(st.text())
def test_visible_text_is_one_printable_line(text):
    shown = labels.visible(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()
    assert fonts.drawable(fonts.token(text, 1))


@given(st.floats(1e-12, 1e3))
def test_a_tolerance_reads_as_it_is(value):
    assert float(labels.tolerance(value)) == pytest.approx(value, rel=1e-5)


def test_words():
    assert [labels.tolerance(t) for t in (1e-1, 1e-3, 2.5e-3, 0.5, 1.0, 1e-10)] == [
        "1e-1",
        "1e-3",
        "2.5e-3",
        "0.5",
        "1",
        "1e-10",
    ]
    assert labels.ranges([3, 0, 1, 2, 7, 7]) == "0-3, 7"
    assert [labels.number(v) for v in (None, float("nan"), 0, 1.234, 12.34, 123.4, 12345)] == [
        "-",
        "-",
        "0",
        "1.23",
        "12.3",
        "123",
        "12,345",
    ]
    assert labels.count(1, "layer") == "1 layer" and labels.count(2000, "token") == "2,000 tokens"
