"""Effects of delimiters as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_ess.plotting.labels import count, tolerance, visible
from hf_ess.tables import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from hf_ess.comparing.comparison import Comparison


def heading(result: Comparison) -> list[str]:
    """What was compared with what, and by which conventions."""
    s = result.summary
    lengths = [p["tokens"] for p in s["prompts"]]
    places = sum(len(p["places"]) for p in s["prompts"])
    text = f"{count(len(lengths), 'prompt')} of {min(lengths)} to {max(lengths)} tokens, {count(places, 'place')}"
    control, *others = (_token(c) for c in s["candidates"] if "control" in c["role"])
    horizon = s["options"]["horizon"]
    lines = [
        f"{visible(str(s['provenance']['model']))}: {text}",
        f"  effect: change of m against {control} in its place; 95 % t interval over prompts",
        "  m: smallest total ESS over the cuts p .. p+2 at a place p",
        "  cut i lies before token i: H_i = T[i:, :i]",
        "  all: sum_channels_layers, over channels and layers; a layer: sum_channels",
        "  p: Wilcoxon signed rank, not corrected for the number of rows",
        "  dip: m against the same curve at p-12 .. p-3; of the control in brackets",
    ]
    if others:
        lines.insert(2, f"  {others[0]} is the second control: what mere identity of the token does")
    if s["options"]["relative"]:
        lines.insert(1, "  tolerances: in units of each operator's largest singular value")
    if horizon is not None:
        lines.insert(1, f"  horizon: H_i with its first {horizon} rows only")
    return lines


def effect_table(result: Comparison, per_layer: bool = False) -> Table:
    """A row per token and tolerance for all layers together, and per layer if asked for."""
    left_out = any(row["left_out"] for row in result.effects)
    columns = ["token", "tol", "layer", "effect", "95 % interval", "p", "dip, %", "prompts"]
    table = terminal.new_table(columns + ["places", "left out"] * left_out, left=("token", "layer"))
    tokens = {c["name"]: c for c in result.summary["candidates"]}
    for row in result.effects:
        if row["layer"] is not None and not per_layer:
            continue
        cells = [_token(tokens[row["replace"]]), tolerance(row["tolerance"]), layer_name(row), *numbers(row)]
        dips = (percent(row[name]).removesuffix(" %") for name in ("dip", "control_dip"))
        cells += ["{} ({})".format(*dips), str(row["prompts"])]
        table.add_row(*_literal(cells + [str(row["places"]), str(row["left_out"])] * left_out))
    return table


def group_table(result: Comparison, most: int = 8) -> Table:
    """The most modulated heads or groups of channels of each token and tolerance."""
    table = terminal.new_table(
        ["token", "tol", "layer", "operators", "effect", "95 % interval", "p", "prompts"], left=("token", "layer")
    )
    tokens = {c["name"]: c for c in result.summary["candidates"]}
    shown: dict[tuple[str, float], int] = {}
    for row in result.groups:
        key = (row["replace"], row["tolerance"])
        shown[key] = shown.get(key, 0) + 1
        if shown[key] <= most and row["effect"] is not None:
            first, last = row["first"], row["last"]
            where = str(first) if first == last else f"{first}-{last}"
            cells = [_token(tokens[row["replace"]]), tolerance(row["tolerance"]), layer_name(row), where, *numbers(row)]
            table.add_row(*_literal([*cells, str(row["prompts"])]))
    return table


def notes(result: Comparison) -> list[str]:
    """What the table does not say."""
    s = result.summary
    out = [visible(note) for note in s["notes"]]
    if any(row["emptied"] for row in result.effects):
        out.append("an effect of -100 %: in some prompt m is 0 at every place; such rows have no interval")
    checks = s["verification"]
    if checks["failed"] or checks["not_finite"]:
        bad = checks["failed"] + checks["not_finite"]
        out.append(f"{bad} layer runs failed verification or were not finite: their layers are left out of that prompt")
    for skipped in s["skipped"]:
        out.append(visible(f"skipped {skipped['module']} ({skipped['class']}): {skipped['reason']}"))
    return out


def percent(value: float | None) -> str:
    """A change: -12.3 %; "-" where there is none."""
    return "-" if value is None else f"{100 * value + 0.0:+.1f} %"


def numbers(row: dict[str, Any]) -> list[str]:
    interval = "-" if row["low"] is None else f"{100 * row['low']:+.1f} .. {100 * row['high']:+.1f}"
    p = row["p_value"]
    return [percent(row["effect"]), interval, "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"]


def layer_name(row: dict[str, Any]) -> str:
    return "all" if row["layer"] is None else f"{row['layer']} {row['kind']}"


def _token(candidate: dict[str, Any]) -> str:
    r"""A token as it was named, a newline as \n; blanks are kept visible by quotes."""
    name = visible(candidate["name"])
    return f'"{name}"' if name != name.strip() or not name[:1].isalpha() else name


def _literal(cells: list[str]) -> list[Any]:
    from rich.text import Text

    return [Text(cell) for cell in cells]  # square brackets in a token are no markup
