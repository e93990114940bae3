"""The report pages in a real browser: what they show, that they load nothing, that no text is taken for markup."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

import hf_ess
from tests.synthetic import Layer, Prompt, prompt, result
from tests.tiny import EOT, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.browser

PHONE = {"viewport": {"width": 375, "height": 812}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}
TEXT = (
    "The lamp was out. <script>alert(1)</script><img src=x onerror=alert(2)> costs $5 and $6$.\n\n\tif (a > 1) { b }\n"
    "🚢 👩‍🚀 灯塔 東京 שלום עולם مرحبا بالعالم नमस्ते é <b>bold</b> &amp; </script><!-- end"
)
# Whole words of every script, as tokenizers with large vocabularies have them; what must not pass for markup.
LABELS = [
    "<script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 2'>",
    "&lt;",
    "$$x$$",
    "\\frac{a}",
    "👩‍🚀",
    "灯塔",
    " שלום",
    "مرحبا",
    "नमस्ते",
    "🚢<F0 9F>",
    "\\n",
    "␣␣",
    "</script>",
    "<!--",
    "]]>",
    "\u202e",
    "{{x}}",
    "<id 7>",
]
PROMPTS = [
    "The lamp was out in the high house<sep> Nobody had paid the man<sep> He went home and a ship came in the light.",
    "The sea was high that day and the old man<sep> kept the light of the lamp<sep> and the ships had seen him go.",
    "Nobody had seen the keeper of the lamp<sep> The light kept the ships<sep> The lamp was out and he went home.",
]


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    """(folder, page) of a tiny model on a text of many scripts."""
    found = hf_ess.probe(tiny_model("llama"), [TEXT, "The lamp was out. Nobody had paid."], tokenizer=tiny_tokenizer())
    folder = tmp_path_factory.mktemp("report") / "result"
    found.save(folder)
    return found, hf_ess.report(folder)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """(comparison, page)."""
    found = hf_ess.compare(
        tiny_model("llama"),
        PROMPTS,
        tokenizer=tiny_tokenizer(),
        replace=["eos", ".", EOT],
        control=" the",
        second_control=" and",
        tolerances=(1e-1, 1e-3),
        groups=4,
    )
    folder = tmp_path_factory.mktemp("report") / "comparison"
    found.save(folder)
    return found, hf_ess.report(folder)


@pytest.mark.parametrize("which", ["probed", "compared"])
@pytest.mark.parametrize("options", [{}, PHONE, {"color_scheme": "dark"}], ids=["desktop", "phone", "dark"])
def test_a_page_draws_itself_without_an_error_and_without_the_network(opened, request, which, options):
    _, path = request.getfixturevalue(which)
    with opened(path, **options) as it:
        it.through()
        assert (it.said, it.asked) == ([], [])
        assert it.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        charts = it.page.query_selector_all(".chart .main-svg")
        assert len(charts) >= 3
        assert it.page.evaluate("[...document.querySelectorAll('.chart')].every((c) => c.clientHeight > 100)")


def test_every_token_is_shown_as_its_text(opened, probed):
    found, path = probed
    wanted = [t["text"] for t in found.tokens.to_pylist() if t["prompt"] == 0]
    with opened(path) as it:
        assert it.texts() == wanted
        assert (
            it.page.evaluate("document.querySelectorAll('#tokens img, #tokens script, #tokens b, #tokens a').length")
            == 0
        )
        ways = it.page.eval_on_selector_all("[data-at]", "nodes => nodes.map(n => getComputedStyle(n).unicodeBidi)")
        assert set(ways) == {"isolate"}
        assert it.page.eval_on_selector_all("#tokens br", "nodes => nodes.length") == 2  # "\n\n" is one token


def test_nothing_in_the_data_becomes_markup_or_runs(opened, tmp_path):
    """The same labels as tokens, delimiters, notes, reasons, names of modules and of the model."""
    evil = LABELS[0]
    made = result(
        [Layer("mamba", 16, 4), Layer(evil, 16, 4, status="failed", module=evil), Layer("softmax")],
        [Prompt(LABELS * 2, {label: [k] for k, label in enumerate(LABELS)})],
        model=evil,
        notes=LABELS,
        skipped=[{"layer": 3, "module": evil, "class": evil, "reason": f"because of {evil}"}],
    )
    with opened(hf_ess.report(made, tmp_path / "page.html")) as it:
        it.through()
        wanted = ["\\u202e" if label == "\u202e" else label for label in LABELS]
        assert it.texts() == wanted * 2
        assert it.page.inner_text("h1") == evil
        assert [n.text_content() for n in it.page.query_selector_all("#notes li")] == wanted
        assert evil in it.page.inner_text("#missing") and evil in it.page.inner_text("#layers")
        assert it.page.evaluate("document.scripts.length") == 3
        assert it.page.evaluate("document.images.length") == 0
        assert it.page.evaluate("window.ran") is None
        assert (it.said, it.asked) == ([], [])


def test_another_layer_tolerance_quantity_or_head_has_other_colours(opened, probed):
    with opened(probed[1]) as it:
        seen = [it.colours()]
        for name, value in (("layer", "1"), ("measure", "t0"), ("quantity", "share"), ("unit", "2"), ("prompt", "1")):
            it.page.select_option(f"#{name}", value)
            seen.append(it.colours())
        assert all(a != b for a, b in pairwise(seen))
        assert len(seen[-1]) < len(seen[0])
        assert it.said == []


def test_a_token_tells_its_numbers_and_is_marked_in_the_charts(opened, probed):
    found, path = probed
    with opened(path) as it:
        it.page.select_option("#layer", "1")
        it.page.click("[data-at='12']")
        (row,) = found.rows(prompt=0, layer=1, metric="tolerance", tolerance=1e-3, reduction="mean")
        token = found.tokens.to_pylist()[12]
        told = it.page.inner_text("#readout")
        assert re.search(r"position\s+12\b", told) and re.search(rf"id\s+{token['id']}\b", told)
        shown = re.search(r"mean per head\s+([\d.]+)", told)
        assert shown and float(shown[1]) == pytest.approx(row["values"][11], rel=6e-3)
        assert re.search(r"TSS\s+12\b.*bound\s+12\b", told, re.S)
        assert it.page.evaluate("[...document.querySelectorAll('.token.marked')].map((n) => n.dataset.at)") == ["12"]
        it.through()
        lines = "['along', 'depth', 'heat'].map((id) => document.getElementById(id).layout.shapes.map((s) => s.x0))"
        assert it.page.evaluate(lines) == [[12], [12], [12]]
        drawn = it.page.evaluate("document.getElementById('along').data.at(-1) && document.getElementById('along').data"
                                 ".find((t) => t.hovertemplate).y")  # fmt: skip
        assert drawn == pytest.approx(row["values"], rel=1e-3)
        it.page.focus("#tokens")
        it.page.keyboard.press("ArrowRight")
        assert it.page.evaluate("document.querySelector('.token.marked').dataset.at") == "13"
        assert "position 13" in it.page.inner_text("#spoken")


def test_a_click_in_a_chart_marks_the_token(opened, probed):
    with opened(probed[1]) as it:
        it.page.evaluate("document.getElementById('heat').scrollIntoView({block: 'center'})")
        it.page.wait_for_selector("#heat .nsewdrag")
        box = it.page.query_selector("#heat .nsewdrag").bounding_box()
        it.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        it.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        at = int(it.page.evaluate("document.querySelector('.token.marked').dataset.at"))
        tokens = len(it.texts())
        assert abs(at - tokens / 2) <= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["probed", "compared"])
def test_text_keeps_its_contrast_on_every_colour(opened, request, which, scheme):
    _, path = request.getfixturevalue(which)
    with opened(path, color_scheme=scheme) as it:
        pairs = it.page.eval_on_selector_all(
            "[data-at]",
            "nodes => nodes.filter(n => n.style.backgroundColor)"
            ".map(n => [getComputedStyle(n).backgroundColor, getComputedStyle(n).color])",
        )
        assert len(pairs) > 20 and len({background for background, _ in pairs}) > 5
        assert min(_contrast(*pair) for pair in pairs) >= 4.5


@pytest.mark.parametrize("which", ["probed", "compared"])
def test_the_selectors_are_reached_and_turned_by_keyboard(opened, request, which):
    _, path = request.getfixturevalue(which)
    with opened(path) as it:
        names = it.page.eval_on_selector_all("select", "nodes => nodes.filter(n => !n.disabled).map(n => n.id)")
        labels = it.page.eval_on_selector_all("select", "nodes => nodes.map(n => n.labels.length)")
        assert set(labels) == {1} and len(names) >= 4
        reached, before = set(), it.colours()
        for _ in range(30):
            it.page.keyboard.press("Tab")
            reached.add(it.page.evaluate("document.activeElement.id"))
        assert {*names, "tokens"} <= reached
        it.page.focus("#layer")
        it.page.keyboard.press("ArrowDown")
        it.page.keyboard.press("Enter")
        assert it.page.evaluate("document.getElementById('layer').selectedIndex") == 1
        assert it.colours() != before


def test_a_comparison_shows_effects_and_differences(opened, compared):
    found, path = compared
    with opened(path) as it:
        it.through()
        rows = [r for r in found.effects if r["layer"] is None]
        cells = it.page.eval_on_selector_all(
            "#effect-table tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
        )
        assert len(cells) == len(rows)
        for cell, row in zip(cells, rows):
            told = float(cell[2].replace("−", "-").replace("%", "").strip())
            assert told == pytest.approx(100 * row["effect"], abs=0.06, rel=2e-3)
        it.page.select_option("#candidate", label="end of text <|end_of_text|>")
        it.page.select_option("#tolerance", "0")
        it.through()
        z = it.page.evaluate("document.getElementById('heat').data[0].z")
        curves = {
            (r["replace"], r["layer"]): r["values"]
            for r in found.curves.to_pylist()
            if r["prompt"] == 0 and r["tolerance"] == 1e-1
        }
        for layer, row in enumerate(z):
            wanted = [a - b for a, b in zip(curves["eos", layer], curves[" the", layer])]
            assert row == pytest.approx(wanted)
        places = found.summary["prompts"][0]["places"]
        assert [it.texts()[p] for p in places] == ["<|end_of_text|>"] * len(places)
        marked = it.page.eval_on_selector_all(".token.delimiter", "nodes => nodes.map(n => Number(n.dataset.at))")
        assert marked == places
        before = it.colours()
        it.page.select_option("#candidate", label='"."')
        assert it.colours() != before and it.texts()[places[0]] == "."
        it.page.click(f"[data-at='{places[1]}']")
        assert "place" in it.page.inner_text("#readout")
        assert len(it.page.evaluate("document.getElementById('heads').data[0].x")) > 3
        assert (it.said, it.asked) == ([], [])


@pytest.mark.parametrize(
    "made",
    [
        result([Layer("softmax", status="failed"), Layer("mamba", 16, 4, status="not finite")], [prompt(20)]),
        result([Layer("softmax")], [prompt(2)]),
        result(
            [Layer("mamba", 16, 3), Layer("softmax", layer=0, module="b")], [prompt(30), prompt(3)], tolerances=(0.1,)
        ),
        result([Layer("mamba", 16, 8)] * 80, [prompt(64)]),
    ],
    ids=["nothing measured", "one cut", "two mixers in a layer", "80 layers"],
)
def test_odd_results_draw_too(opened, made, tmp_path):
    with opened(hf_ess.report(made, tmp_path / "page.html"), **PHONE) as it:
        it.through()
        for name in ("layer", "measure", "quantity", "colours"):
            for value in it.page.eval_on_selector_all(f"#{name} option", "nodes => nodes.map(n => n.value)")[:5]:
                if not it.page.is_disabled(f"#{name}"):
                    it.page.select_option(f"#{name}", value)
        it.page.tap("[data-at='1']")
        assert (it.said, it.asked) == ([], [])
        assert it.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_comparison_of_one_prompt_without_ranking_draws_too(opened, tmp_path):
    """No interval, no test, no heads; and a layer that failed under some token has no curves."""
    found = hf_ess.compare(
        tiny_model("llama"), PROMPTS[0], tokenizer=tiny_tokenizer(), replace=["eos"], control=" the", tolerances=[1e-1]
    )
    table = found.curves.to_pylist()
    curves = type(found.curves).from_pylist([r for r in table if r["layer"] != 1], schema=found.curves.schema)
    for row in found.effects:
        if row["layer"] == 1:
            row |= dict.fromkeys(("effect", "low", "high", "p_value", "dip", "control_dip"))
    found.summary["verification"]["failed"] = 1
    broken = hf_ess.Comparison(found.summary, curves)
    with opened(broken.report(tmp_path / "page.html"), **PHONE) as it:
        it.through()
        assert it.page.evaluate("document.getElementById('ranking').hidden")
        assert "1 failed" in it.page.inner_text("header") and "1 layer run failed" in it.page.inner_text("#missing")
        it.page.select_option("#layer", "1")
        assert set(it.colours()) == {""} and "No values" in it.page.inner_text("#curve-note")
        it.page.tap("[data-at='3']")
        assert (it.said, it.asked) == ([], [])
        assert it.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def _contrast(*colours: str) -> float:
    """WCAG 2 contrast of two colours as the browser names them."""
    lights = []
    for colour in colours:
        channels = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        lights.append(0.2126 * r + 0.7152 * g + 0.0722 * b)
    return (max(lights) + 0.05) / (min(lights) + 0.05)
