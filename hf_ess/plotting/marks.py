"""Delimiters in a figure: a mark on the upper edge, a thin line down the panel, a name in the legend."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import offset_copy

from hf_ess.plotting import fonts, labels
from hf_ess.plotting.data import View

# Okabe and Ito's colours (distinct with every kind of colour vision), and a marker each for those who see none.
MARKS = (
    ("#d55e00", "v"),
    ("#0072b2", "o"),
    ("#cc79a7", "s"),
    ("#e69f00", "D"),
    ("#009e73", "^"),
    ("#56b4e9", "P"),
    ("#000000", "X"),
)
MOST_HAIRLINES = 40
MOST_MARKS = 200  # of one name: more would run together into a line


def chosen(view: View) -> list[tuple[str, str, str]]:
    """(name, colour, marker) of the delimiters that occur: the same in all figures of results with the same names."""
    asked = [str(name) for name in view.result.summary["options"].get("delimiters") or []]
    asked = list(dict.fromkeys([*asked, *view.delimiters]))
    if len(asked) > len(MARKS):
        asked = sorted(view.delimiters, key=lambda name: (name != "eos", len(view.delimiters[name])))
    return [(name, *mark) for name, mark in zip(asked, MARKS) if name in view.delimiters]


def draw(ax: Axes, view: View, hairlines: bool = True) -> None:
    """Marks on the top edge at every delimiter; thin lines down the panel for the names that are rare enough."""
    left = MOST_HAIRLINES
    above = offset_copy(ax.get_xaxis_transform(), fig=ax.figure.figure, y=4.5, units="points")
    rarest_first = sorted(chosen(view), key=lambda m: (m[0] != "eos", len(view.delimiters[m[0]])))
    for rank, (name, color, marker) in enumerate(rarest_first):
        places = [p for p in view.delimiters[name] if p >= 1]
        if len(places) > MOST_MARKS:
            continue
        size = (5.5 if name == "eos" else 4.5) if len(places) <= 60 else 2.4
        ax.plot(
            places,
            np.ones(len(places)),
            marker,
            color=color,
            markersize=size,
            markeredgewidth=0,
            transform=above,
            clip_on=False,
            zorder=6 - 0.1 * rank,
        )
        if hairlines and len(places) <= left:
            left -= len(places)
            for place in places:
                ax.axvline(place, color=color, linewidth=0.9, alpha=0.55 if name == "eos" else 0.28, zorder=0.8)


def handles(view: View) -> list[Line2D]:
    """Legend entries for the delimiters: name and how often."""
    return [
        Line2D(
            [],
            [],
            color=color,
            marker=marker,
            markersize=5,
            markeredgewidth=0,
            linewidth=0,
            label=f"{fonts.literal(labels.shortened(name, 20))} × {_how_often(len(view.delimiters[name]))}",
        )
        for name, color, marker in chosen(view)
    ]


def _how_often(n: int) -> str:
    return f"{n:,}" if n <= MOST_MARKS else f"{n:,} (too many to mark)"
