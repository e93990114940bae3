"""Examples before a question: total ESS over the question's own tokens with 0, 1, 3, 5 examples, and the answers.

The question's tokens are the same whatever stands before them, so curves are compared cut by cut from its end.  Per
question

    r = log( sum of ESS over the cuts of the question / sum with fewer examples ),

over all of it and over its first quarter; over questions exp(mean r) - 1 and a t interval
(hf_ess.comparing.modulation).  Without examples the first tokens of the question have few tokens before them, and rank
H_i <= i alone makes ESS small there: so r less the same of the bound min(TSS, i, L-i) stands beside it.

A model answers with the letter that has the largest logit after "Answer:".
"""

from __future__ import annotations

import string
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from hf_ess.comparing.modulation import LogRatio, effect, log_ratio
from hf_ess.comparing.runs import Runs, Variant, where
from hf_ess.errors import BadInput, HfEssError
from hf_ess.loading import LoadedModel
from hf_ess.loading.quieting import quiet
from hf_ess.text.tokens import tokenize

CONVENTIONS = {
    "position": "cut i lies before token i: H_i = T[i:, :i]",
    "question": "the cuts behind the question's first token and on, to the colon of its answer",
    "start": "the first quarter of them",
    "effect": "exp(mean over questions of log(sum of total ESS / sum with fewer examples)) - 1",
    "full": "the same of total ESS / its bound min(TSS, i, L-i): without examples, i is small at the first cuts",
    "interval": "95% t interval over questions; p_value: Wilcoxon signed rank, not corrected for many rows",
    "accuracy": "share of questions in which the right letter has the largest logit of the letters",
}


@dataclass(frozen=True)
class Question:
    """A question with choices.

    Attributes:
        text: the question.
        choices: texts of the choices, at most 26.
        answer: number of the right one.
    """

    text: str
    choices: tuple[str, ...]
    answer: int

    @property
    def letters(self) -> str:
        """A, B, C ..."""
        return string.ascii_uppercase[: len(self.choices)]

    def asked(self) -> str:
        """As it stands in a prompt, up to "Answer:"."""
        lines = [f"Question: {self.text}", *(f"{a}. {b}" for a, b in zip(self.letters, self.choices)), "Answer:"]
        return "\n".join(lines)

    def answered(self) -> str:
        """As an example stands in a prompt."""
        return f"{self.asked()} {self.letters[self.answer]}\n\n"


def from_row(row: dict[str, Any], number: int, source: str) -> Question:
    """A question from a row in MMLU's form: question, choices, answer (a number or a letter).

    Raises:
        BadInput: the row has another form.
    """
    text, choices, answer = row.get("question"), row.get("choices", ()), row.get("answer", -1)
    if isinstance(answer, str) and len(answer) == 1 and answer in string.ascii_uppercase:
        answer = string.ascii_uppercase.index(answer)
    good = isinstance(choices, list | tuple) and isinstance(answer, int)
    if not isinstance(text, str) or not good or not (2 <= len(choices) <= 26 and 0 <= answer < len(choices)):
        raise BadInput(
            f"row {number} of {source} is no question with choices: it needs question (text), choices (a list) and "
            "answer (the number of the right one)"
        )
    return Question(text, tuple(map(str, choices)), answer)


@dataclass(frozen=True)
class Asked:
    """A question with each number of examples before it.

    Attributes:
        variants: by the number of examples, as text; places are the positions of the question's own tokens.
        starts: by the same, the positions at which each example begins.
    """

    variants: dict[Hashable, Variant]
    starts: dict[str, list[int]]


def asked(tokenizer: Any, examples: Sequence[Question], question: Question, shots: Sequence[int]) -> Asked:
    """A question's prompts.

    Args:
        tokenizer: a transformers tokenizer.
        examples: at least as many as the largest of shots.
        question: what is asked.
        shots: numbers of examples.

    Raises:
        BadInput: too few examples.
        HfEssError: the tokenizer reads the question differently after an example.
    """
    if max(shots) > len(examples):
        raise BadInput(f"{max(shots)} examples are asked for and there are {len(examples)}")
    own: list[int] | None = None
    variants: dict[Hashable, Variant] = {}
    starts = {}
    for count in shots:
        parts = [example.answered() for example in examples[:count]]
        tokens = tokenize(tokenizer, "".join(parts) + question.asked())
        begins = [0, *accumulate(map(len, parts))]
        at = [next(p for p, s in enumerate(tokens.spans) if s is not None and s[1] > begin) for begin in begins]
        first = at[-1]
        # the first token may differ: at the start of a text some tokenizers put a space before it
        if own is not None and tokens.ids[first + 1 :] != own:
            raise HfEssError("the tokenizer reads a question differently behind an example, so there is no axis")
        own = tokens.ids[first + 1 :]
        variants[str(count)] = Variant(tokens.ids, range(first, len(tokens.ids)))
        starts[str(count)] = at[:-1]
    return Asked(variants, starts)


def segments(runs: Runs, questions: Sequence[Asked], shots: Sequence[int]) -> list[dict[str, Any]]:
    """Mean total ESS over the cuts of each example and of the question, mean over questions, all layers together."""
    rows = []
    for count in map(str, shots):
        for k, tolerance in enumerate(runs.settings.tolerances):
            found = []
            for number, question in enumerate(questions):
                curve = runs.totals(number, count).get(None)
                if curve is not None:
                    edges = [*question.starts[count], question.variants[count].places[0], curve.shape[1]]
                    found.append([curve[k, a:b].mean() for a, b in pairwise(edges)])
            rows.append(
                {
                    "shots": int(count),
                    "tolerance": tolerance,
                    "reduction": "sum_channels_layers",
                    "examples": np.mean(found, axis=0)[:-1].tolist() if found else None,
                    "question": float(np.mean(found, axis=0)[-1]) if found else None,
                }
            )
    return rows


def answers(loaded: LoadedModel, question: Question, variants: Mapping[Hashable, Variant]) -> dict[str, bool] | None:
    """Whether the model answers rightly with each number of examples; None where a letter is not one token."""
    tokenizer, model = loaded.tokenizer, loaded.model
    assert model is not None
    letters = [tokenize(tokenizer, f"Answer: {letter}").ids for letter in question.letters]
    if len({tuple(ids[:-1]) for ids in letters}) != 1:
        return None
    last = [ids[-1] for ids in letters]
    found = {}
    for name, variant in variants.items():
        device = getattr(model, "device", torch.device("cpu"))
        ids = torch.tensor([variant.ids], device="cpu" if device.type == "meta" else device)
        with torch.no_grad(), quiet():
            logits = model(input_ids=ids, use_cache=False).logits[0, -1]
        found[str(name)] = int(logits[last].argmax()) == question.answer
    return found


def effects(runs: Runs, shots: Sequence[int]) -> list[dict[str, Any]]:
    """One row per number of examples, number it is compared with, part, tolerance and layer (None: all together)."""
    mixers, rows = runs.mixers(), []
    totals = [{n: runs.totals(q, n) for n in variants} for q, variants in enumerate(runs.prompts)]
    bounds = [{n: runs.bounds(q, n) for n in variants} for q, variants in enumerate(runs.prompts)]
    pairs = [(n, shots[0]) for n in shots[1:]] + [(n, m) for m, n in pairwise(shots[1:])]
    for count, fewer in pairs:
        for part in ("start", "question"):
            for k, tolerance in enumerate(runs.settings.tolerances):
                for key in (None, *mixers):
                    ratios, shares = [], []
                    for by_count, at_most, variants in zip(totals, bounds, runs.prompts):
                        mine, other = by_count[str(count)].get(key), by_count[str(fewer)].get(key)
                        if mine is not None and other is not None:
                            ratio = log_ratio(
                                _sum(mine[k], variants[str(count)], part), _sum(other[k], variants[str(fewer)], part)
                            )
                            room = log_ratio(
                                _sum(at_most[str(count)][key], variants[str(count)], part),
                                _sum(at_most[str(fewer)][key], variants[str(fewer)], part),
                            )
                            ratios.append(ratio)
                            if ratio.value is not None and room.value is not None:
                                shares.append(LogRatio(ratio.value - room.value, ratio.places, ratio.left_out))
                    label = {"shots": count, "against": fewer, "part": part, "tolerance": tolerance}
                    full = effect(shares)
                    row = {**label, **where(key and mixers[key]), **asdict(effect(ratios))}
                    rows.append({**row, "full": full.effect, "full_low": full.low, "full_high": full.high})
    return rows


def _sum(curve: np.ndarray, variant: Variant, part: str) -> np.ndarray:
    """The sum over the question's cuts, or over the first quarter of them, as one value."""
    own = curve[variant.places[0] :]  # the cut p+1 is at index p: behind the question's first token, and on
    own = own[: max(1, len(own) // 4)] if part == "start" else own
    return np.array([own.sum()])
