"""How total ESS changes at the tokens of a class, against the other tokens of the same text.

Of a token at p: m, the smallest value of the curve over the cuts p .. p+2, and its surroundings, the mean over the cuts
p-12 .. p-3 and p+5 .. p+14.  Of a class in one text

    d = log( sum of m / sum of surroundings ),     step = log( sum of ESS at the cut p+1 / sum of ESS at the cut p ),

less the same of the baseline: the tokens of that text that are of no class.  Over texts: exp(mean) - 1 and a t
interval, as for delimiters that are put in (hf_ess.comparing.modulation).  Tokens nearer to an end than the
surroundings reach are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hf_ess.comparing.modulation import BEFORE, WINDOW, LogRatio, effect, log_ratio, lowest
from hf_ess.comparing.runs import Runs, where
from hf_ess.errors import BadInput
from hf_ess.text.delimiters import special_ids
from hf_ess.text.tokens import Tokens

#: Surroundings behind a token at p: the cuts p + AFTER[0] .. p + AFTER[1], as far from its window as those before it.
AFTER = (WINDOW + 2, WINDOW + 11)

SPECIAL = "special token"

CONVENTIONS = {
    "position": "cut i lies before token i: H_i = T[i:, :i]",
    "dip": f"m, the smallest total ESS over the cuts p .. p+{WINDOW - 1}, against the mean over the cuts "
    f"p-{BEFORE[0]} .. p-{BEFORE[1]} and p+{AFTER[0]} .. p+{AFTER[1]}",
    "step": "total ESS at the cut p+1 against that at the cut p: over the token itself",
    "effect": "both against the same of the tokens of no class; exp(mean over texts of the log ratio) - 1",
    "interval": "95% t interval over texts; p_value: Wilcoxon signed rank, not corrected for many rows",
}


@dataclass(frozen=True)
class TokenClass:
    """A kind of token.

    Attributes:
        name: to print.
        pattern: matches the whole of what such a token covers of the text; it may look at the text before and after.
    """

    name: str
    pattern: re.Pattern[str]


def token_classes(rows: Sequence[Mapping[str, str]]) -> list[TokenClass]:
    """Classes from the tables of a study.

    Raises:
        BadInput: a table without name or pattern, or a pattern that is no regular expression.
    """
    made = []
    for row in rows:
        try:
            made.append(TokenClass(row["name"], re.compile(row["pattern"], re.DOTALL)))
        except KeyError as error:
            raise BadInput(f"a class of the study has no {error.args[0]}") from error
        except re.error as error:
            raise BadInput(f"the pattern of the class {row['name']!r} is no regular expression: {error}") from error
    return made


def classified(tokens: Tokens, tokenizer: Any, classes: Sequence[TokenClass], exclusive: bool) -> dict[str, list[int]]:
    """Positions of the tokens of every class, and of those of none under "".

    Args:
        tokens: a text.
        tokenizer: tells its special tokens; they are a class of their own.
        classes: in order.
        exclusive: a token is of the first class that it matches alone.
    """
    special = special_ids(tokenizer)
    found: dict[str, list[int]] = {SPECIAL: [], **{c.name: [] for c in classes}, "": []}
    for position, (token, span) in enumerate(zip(tokens.ids, tokens.spans)):
        if token in special:
            found[SPECIAL].append(position)
            continue
        mine = [] if span is None else [c.name for c in classes if c.pattern.fullmatch(tokens.text, *span)]
        for name in (mine[:1] if exclusive else mine) or [""]:
            found[name].append(position)
    return found


def away_from_the_ends(places: Sequence[int], length: int) -> list[int]:
    """Places whose surroundings the sequence has."""
    return [p for p in places if p > BEFORE[0] and p + AFTER[1] <= length - 1]


def dip(curve: np.ndarray, places: Sequence[int]) -> LogRatio:
    """log(sum of m / sum of surroundings).

    Args:
        curve: (L-1,) total ESS, cut i at index i - 1.
        places: positions away from the ends.
    """
    around = [
        np.concatenate([curve[p - BEFORE[0] - 1 : p - BEFORE[1]], curve[p + AFTER[0] - 1 : p + AFTER[1]]]).mean()
        for p in places
    ]
    return log_ratio(lowest(curve, places), np.array(around))


def step(curve: np.ndarray, places: Sequence[int]) -> LogRatio:
    """log(sum over the cuts p+1 / sum over the cuts p); arguments as in dip()."""
    at = np.array(places, dtype=int)
    return log_ratio(curve[at], curve[at - 1])


def effects(runs: Runs, found: Sequence[Mapping[str, list[int]]]) -> list[dict[str, Any]]:
    """One row per class, tolerance and layer (None: all together), the dip and the step of each.

    Args:
        runs: one variant "" per text.
        found: of every text, the positions of each class (see classified()).
    """
    mixers, rows = runs.mixers(), []
    totals = [runs.totals(text, "") for text in range(len(found))]
    kept = [
        {name: away_from_the_ends(places, len(runs.prompts[text][""].ids)) for name, places in by_class.items()}
        for text, by_class in enumerate(found)
    ]
    for name in [name for name in found[0] if name and any(by[name] for by in kept)]:
        for k, tolerance in enumerate(runs.settings.tolerances):
            for key in (None, *mixers):
                dips, steps = [], []
                for curves, places in zip(totals, kept):
                    if key in curves and places[name] and places[""]:
                        curve = curves[key][k]
                        dips.append(_less(dip(curve, places[name]), dip(curve, places[""])))
                        steps.append(_less(step(curve, places[name]), step(curve, places[""])))
                row = {"class": name, "tolerance": tolerance, **where(key and mixers[key]), **asdict(effect(dips))}
                over = effect(steps)
                rows.append({**row, "step": over.effect, "step_low": over.low, "step_high": over.high})
    return rows


def _less(ratio: LogRatio, baseline: LogRatio) -> LogRatio:
    if ratio.value is None or baseline.value is None or not np.isfinite(baseline.value):
        return LogRatio(None, 0, ratio.left_out + ratio.places)
    return LogRatio(ratio.value - baseline.value, ratio.places, ratio.left_out)
