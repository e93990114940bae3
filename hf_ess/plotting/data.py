"""What a figure needs of a result: curves of every mixer call of one prompt, its tokens and delimiters."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from hf_ess.errors import BadInput
from hf_ess.plotting import labels
from hf_ess.results import Result

_BYTE_PIECE = re.compile(r"(.+?)<[0-9A-F]{2}( [0-9A-F]{2})*>")  # the label of some bytes of a character

Curve = np.ndarray  # (L-1,) float64, index i-1 for the cut before token i; NaN where there is no value


@dataclass(frozen=True)
class Mixer:
    """One call of one sequence mixer.

    Attributes:
        layer, call, module, kind: as in the result's tables.
        operators: number of heads or channels with an operator of their own.
        multiplicity: how many channels share one of them.
        status: "verified", "failed" or "not finite".
        label: the layer's number, with letters where a layer has several mixers.
    """

    layer: int
    call: int
    module: str
    kind: str
    operators: int
    multiplicity: int
    status: str
    label: str

    @property
    def family(self) -> str:
        """ "attention" (TSS grows with the position), "convolution" or "recurrent" (a state of fixed size)."""
        if "conv" in self.kind:
            return "convolution"
        attention = any(word in self.kind for word in ("softmax", "attention", "differential"))
        return "attention" if attention and "linear" not in self.kind else "recurrent"

    @property
    def unit(self) -> str:
        """ "head" where several channels share an operator, else "channel"."""
        return "head" if self.multiplicity > 1 else "channel"


class View:
    """One prompt of a result.

    Attributes:
        result: the whole result.
        prompt: number of the prompt.
        length: L, its tokens.
        positions: (L-1,) i = 1..L-1.
        mixers: in order of execution.
        measured: whether any layer of the result has values.
        texts: (L) a label for each token: what it stands for in the text.
        spans: (L) its characters in the text, (None, None) for a token without text.
        ids: (L) token ids.
        delimiters: name -> positions of the tokens that hold it; names that occur only.
    """

    def __init__(self, result: Result, prompt: int) -> None:
        prompts = result.summary["prompts"]
        if not isinstance(prompt, int) or not 0 <= prompt < len(prompts):
            raise BadInput(f"there is no prompt {prompt!r}; this result has {len(prompts)}, numbered from 0")
        self.result, self.prompt = result, prompt
        self.length = int(prompts[prompt]["tokens"])
        self.positions = np.arange(1, self.length)
        self.measured = any(info["status"] == "verified" for info in result.layers)
        infos = [info for info in result.layers if info["prompt"] == prompt]
        self.mixers = [
            Mixer(
                layer=info["layer"],
                call=info["call"],
                module=info["module"],
                kind=info["kind"],
                operators=info["operators"],
                multiplicity=info["multiplicity"],
                status=info["status"],
                label=label,
            )
            for info, label in zip(infos, layer_labels([info["layer"] for info in infos]))
        ]
        tokens = sorted(result.tokens.to_pylist(), key=lambda t: t["position"])
        tokens = [t for t in tokens if t["prompt"] == prompt]
        self.texts = [t["text"] or "" for t in tokens]
        self.spans = [(t["start"], t["end"]) for t in tokens]
        self.ids = [t["id"] for t in tokens]
        self.delimiters: dict[str, list[int]] = {}
        for token in tokens:
            for name in token["delimiter"] or ():
                self.delimiters.setdefault(name, []).append(token["position"])

    def opening(self, most: int) -> str:
        """The beginning of the text, put together from the tokens' labels; at least `most` characters if there are."""
        out, last = "", None
        for label, (start, end) in zip(self.texts, self.spans):
            if start is None or start == last:  # a special token; the further bytes of a character
                continue
            last = start
            if end - start == 1 and (piece := _BYTE_PIECE.fullmatch(label)):
                label = piece[1]
            out += " " * len(label) if set(label) == {"␣"} else label
            if len(out) > most:
                break
        return out

    def tolerances(self, metric: str) -> list[float | None]:
        """Those at which the metric was measured, in the order asked for; [None] for a metric without.

        Raises:
            BadInput: the result has no such metric.
        """
        if not self.measured and metric in ("tolerance", "utilisation"):
            return list(self.result.tolerances)
        known = self._distinct("metric")
        if metric not in known:
            hint = " (the probe's option norms adds norms and stable ranks)" if metric in labels.METRICS else ""
            raise BadInput(f"this result has no metric {metric!r}; it has {', '.join(sorted(known))}{hint}")
        rows = self._distinct("tolerance", metric)
        return [t for t in self.result.tolerances if t in rows] or [None]

    def chosen(self, metric: str, tolerance: float | None) -> float | None:
        """The measured tolerance that equals the one asked for; the middle one for None."""
        measured = self.tolerances(metric)
        if tolerance is None or measured == [None]:
            return measured[len(measured) // 2]
        for t in measured:
            if t is not None and isinstance(tolerance, (int, float)) and math.isclose(t, tolerance, rel_tol=1e-6):
                return t
        have = ", ".join(labels.tolerance(t) for t in measured if t is not None)
        raise BadInput(f"tolerance {tolerance!r} was not measured; this result has {have}")

    def check_reduction(self, metric: str, reduction: str) -> None:
        """Raises BadInput where the result does not keep this reduction of the metric."""
        kept = self._distinct("reduction", metric)
        if reduction not in kept and self.measured:
            raise BadInput(
                f"this result keeps no reduction {reduction!r} of {metric}; it has {', '.join(sorted(kept))}"
            )

    def curves(self, metric: str, tolerance: float | None, reduction: str) -> dict[Mixer, Curve]:
        """One curve per mixer, all NaN where nothing was measured."""
        rows = self._rows(reduction=reduction, metric=metric, tolerance=tolerance)
        found = {(r["layer"], r["module"], r["call"]): r["values"] for r in rows}
        return {m: self._curve(found.get((m.layer, m.module, m.call))) for m in self.mixers}

    def units(self, mixer: Mixer, metric: str, tolerance: float | None) -> dict[int, Curve]:
        """Curves of single heads or channels; empty where the result keeps reductions alone."""
        rows = self._rows(
            layer=mixer.layer, reduction=None, metric=metric, tolerance=tolerance, module=mixer.module, call=mixer.call
        )
        return {r["unit"]: self._curve(r["values"]) for r in rows if r["unit"] is not None}

    def total(self, metric: str, tolerance: float | None, reduction: str) -> Curve | None:
        """The curve over all layers together, None where the result has no such row."""
        rows = self._rows(layer=None, reduction=reduction, metric=metric, tolerance=tolerance)
        return self._curve(rows[0]["values"]) if rows else None

    def limits(self, which: str, reduction: str) -> dict[Mixer, Curve]:
        """TSS or bound ("tss", "bound") of every mixer, reduced as the curves that they limit."""
        kept = "sum_channels" if reduction == "sum_channels" else "mean"
        curves = self.curves(which, None, kept)
        return {m: c * (m.operators if reduction == "sum_heads" else 1) for m, c in curves.items()}

    def unit(self, mixers: list[Mixer]) -> str:
        """ "head" where all of the mixers have heads, else "channel"."""
        return "head" if mixers and all(m.unit == "head" for m in mixers) else "channel"

    def _rows(self, **where: object) -> list[dict]:
        return self.result.rows(**where, prompt=self.prompt)  # the most selective column first: filters copy

    def _curve(self, values: list[float | None] | None) -> Curve:
        if values is None or len(values) != self.length - 1:
            return np.full(self.length - 1, np.nan)
        return np.array(values, dtype=float)

    def _distinct(self, column: str, metric: str | None = None) -> set:
        import pyarrow.compute as pc

        table = self.result.ess.select([column, "metric"] if column != "metric" else ["metric"])
        if metric is not None:
            table = table.filter(pc.equal(table["metric"], metric))
        return {v for v in pc.unique(table[column]).to_pylist() if v is not None}


def layer_labels(layers: list[int]) -> list[str]:
    """0, 1, 2a, 2b, 3: letters where a layer has several mixers or is called several times."""
    out, seen = [], dict.fromkeys(layers, 0)
    for layer in layers:
        many = layers.count(layer)
        letter = "" if many == 1 else chr(ord("a") + seen[layer]) if many <= 26 else f".{seen[layer]}"
        seen[layer] += 1
        out.append(f"{layer}{letter}")
    return out
