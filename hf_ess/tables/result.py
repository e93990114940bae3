"""The result of a probe in a terminal: a row per layer, and what has to be said about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hf_ess.capturing import LARGEST_BOUND
from hf_ess.plotting.labels import count, number, plain, ranges, tolerance, visible
from hf_ess.tables import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from hf_ess.results import Result

Row = dict[str, Any]


def show(result: Result) -> None:
    """Prints the table on stdout, what it is of above; plain characters where the stream has no others."""
    terminal.show(heading(result), layer_table(result, terminal.ascii_only()))


def heading(result: Result) -> list[str]:
    """What was measured, and what the columns mean."""
    lengths = [p["tokens"] for p in result.summary["prompts"]]
    text = count(lengths[0], "token") if len(lengths) == 1 else f"{len(lengths)} prompts of {_span(lengths)} tokens"
    means = "mean over operators and positions" if len(lengths) == 1 else "mean over operators, positions and prompts"
    lines = [
        f"{visible(str(result.summary['provenance']['model']))}: {text}",
        f"  ESS, and % of TSS: {means}",
        "  error: largest ||T u - y|| / ||y||, y by the model itself",
    ]
    if result.summary["options"].get("relative"):
        lines.insert(2, "  tolerances: in units of each operator's largest singular value")
    return lines


def layer_table(result: Result, ascii_only: bool = False) -> Table:
    """One row per layer (mixer call), averaged over the prompts.

    Columns: layer, kind, operators (heads or channels), TSS, ESS and utilisation at every tolerance, entropy-ESS
    if it was computed, error; status if a layer failed.

    Args:
        result: what probe() returned.
        ascii_only: no line-drawing characters.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = _rows(result)
    failed = any(row["status"] != "verified" for row in rows)
    entropy = any(row["entropy"] is not None for row in rows)
    lined = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True) if ascii_only else box.SIMPLE_HEAD
    names = ["layer", "kind", "ops", "TSS"]
    names += [f"ESS {tolerance(t)}" for t in result.tolerances]
    names += ["entropy"] * entropy + ["error"] + ["status"] * failed
    lines = []
    for row in rows:
        cells = [row["label"], row["kind"], f"{row['operators']:,}", "-" if row["tss"] is None else plain(row["tss"])]
        cells += [_used(ess, share) for ess, share in zip(row["ess"], row["utilisation"])]
        status = "" if row["status"] == "verified" else row["status"]
        cells += [number(row["entropy"])] * entropy + [_error(row["error"])] + [status] * failed
        lines.append([visible(cell) for cell in cells])
    widths = [max(map(len, column)) for column in zip(names, *lines)]
    gap = 1 if sum(widths) + 2 * (len(widths) - 1) <= 80 else 0  # two blanks between columns, or one
    table = Table(box=lined, padding=(0, gap, 0, 0), show_edge=False, pad_edge=False)
    for name, width in zip(names, widths):
        left = name in ("layer", "kind", "status")
        # a column is never narrower than its numbers
        table.add_column(Text(name), justify="left" if left else "right", no_wrap=True, min_width=width)
    for line in lines:
        table.add_row(*map(Text, line))  # Text: square brackets in a name are no markup
    return table


def notes(result: Result) -> list[str]:
    """What the table does not show: layers without values and why, mixers skipped or not called, unresolved counts."""
    summary = result.summary
    out = [*_failures(result), *_unresolved(result)]
    for skipped, verb in (
        (summary["skipped"], "ran and could not be measured"),
        (summary.get("not_called", []), "did not run on this text"),
    ):
        groups: dict[tuple[str, str], list[Row]] = {}
        for one in skipped:
            groups.setdefault((one["class"], one["reason"]), []).append(one)
        for (name, reason), members in groups.items():
            where = _where(m["layer"] for m in members)
            out.append(visible(f"{len(members)} x {name}{where} {verb}: {reason}"))
    return out


def _rows(result: Result) -> list[Row]:
    """One row per mixer call, in order of execution; means over the prompts that have a value, largest error."""
    groups: dict[tuple[int, str, int], list[Row]] = {}
    for info in result.layers:
        groups.setdefault((info["layer"], info["module"], info["call"]), []).append(info)
    layers = [layer for layer, _, _ in groups]
    out = []
    for (layer, module, call), infos in groups.items():
        label = str(layer)
        if layers.count(layer) > 1:  # several mixers in one layer, or one that is called several times
            label += f" {module.rpartition('.')[2]}{f'#{call}' if call else ''}"
        bad = [i["status"] for i in infos if i["status"] != "verified"]
        status = ", ".join(dict.fromkeys(bad)) or "verified"
        if 0 < len(bad) < len(infos):
            status += f" in {len(bad)} of {len(infos)}"
        errors = [i["error"] for i in infos]
        out.append(
            {
                "label": label,
                "kind": infos[0]["kind"],
                "operators": infos[0]["operators"],
                "tss": _mean(i.get("tss") for i in infos),
                "ess": [_mean(_at(i, "ess", k) for i in infos) for k in range(len(result.tolerances))],
                "utilisation": [_mean(_at(i, "utilisation", k) for i in infos) for k in range(len(result.tolerances))],
                "entropy": _mean(i.get("entropy") for i in infos),
                "error": None if None in errors else max(errors),
                "status": status,
            }
        )
    return out


def _failures(result: Result) -> list[str]:
    """One sentence per way of failing."""
    out = []
    bad = [i for i in result.layers if i["status"] == "failed" and i["error_bound"] > LARGEST_BOUND]
    if bad:
        worst = max(i["error_bound"] for i in bad)
        out.append(
            f"{_layers(bad)} could not be verified: float32 itself may lose {_error(worst)} of the layer's output; "
            "their values are null"
        )
    bad = [i for i in result.layers if i["status"] == "failed" and i["error_bound"] <= LARGEST_BOUND]
    if bad:
        worst = max(bad, key=lambda i: i["error"] if i["error"] is not None else float("inf"))
        out.append(
            f"{_layers(bad)} failed verification: T u differs from the layer's own output by up to "
            f"{_error(worst['error'])} (at most {_error(worst['error_bound'])} is allowed); their values are null"
        )
    bad = [i for i in result.layers if i["status"] == "not finite"]
    if bad:
        out.append(
            f"{_layers(bad)} not finite: the operator or the layer's output holds NaN or Inf; their values are null"
        )
    return out


def _unresolved(result: Result) -> list[str]:
    """How many counts float64 could not resolve, per tolerance."""
    out = []
    prompts = result.summary["prompts"]
    for k, t in enumerate(result.tolerances):
        hit = [i for i in result.layers if (_at(i, "unresolved", k) or 0) > 0]
        if hit:
            n = sum(i["unresolved"][k] for i in hit)
            of = sum(i["operators"] * (prompts[i["prompt"]]["tokens"] - 1) for i in hit)
            out.append(
                f"tolerance {tolerance(t)}: {n:,} of {of:,} counts{_where(i['layer'] for i in hit)} are unresolved: "
                "float64 cannot tell on which side of the tolerance a singular value lies"
            )
    return out


def _layers(infos: list[Row]) -> str:
    n = len({(i["layer"], i["module"], i["call"]) for i in infos})
    numbers = ranges(i["layer"] for i in infos)
    return f"layer {numbers}" if n == 1 else f"{n:,} layers ({numbers})"


def _where(layers: Iterable[int | None]) -> str:
    known = [layer for layer in layers if layer is not None]
    if not known:
        return ""
    return f" in layer{'s' if len(set(known)) > 1 else ''} {ranges(known)}"


def _used(ess: float | None, share: float | None) -> str:
    """ESS and, in three more places, utilisation."""
    return "-" if ess is None else f"{number(ess)} {'   -' if share is None else f'{share:4.0%}'}"


def _error(error: float | None) -> str:
    return "-" if error is None else f"{error:.0e}".replace("e-0", "e-").replace("e+00", "")


def _at(info: Row, name: str, k: int) -> float | None:
    values = info.get(name) or []
    return values[k] if k < len(values) else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _span(lengths: list[int]) -> str:
    low, high = min(lengths), max(lengths)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
