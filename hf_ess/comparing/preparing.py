"""What a comparison needs before its runs: settings, tokens and prompts, checked and tokenised."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from hf_ess.comparing.effects import Fill, Substitutions
from hf_ess.comparing.modulation import BEFORE, CONFIDENCE, WINDOW
from hf_ess.comparing.runs import Runs
from hf_ess.comparing.substituted import Settings
from hf_ess.errors import BadInput
from hf_ess.loading import LoadedModel
from hf_ess.probing import Progress
from hf_ess.text.limits import check, check_memory
from hf_ess.text.substitution import Template, align, candidate, template
from hf_ess.text.tokens import from_ids


@dataclass
class Plan:
    """What is to be compared, checked as far as that goes without the model.

    Attributes:
        prompts, at, replace, control, second_control, continuation, max_tokens, parse_special: as in compare().
        settings: what is measured.

    Raises:
        BadInput: there is no prompt, token or control.
    """

    prompts: list[str]
    at: str
    replace: str | Sequence[str]
    control: str | None
    second_control: str | None
    continuation: str
    max_tokens: int | None
    parse_special: bool
    settings: Settings

    def __post_init__(self) -> None:
        if not self.prompts or not all(isinstance(prompt, str) for prompt in self.prompts):
            raise BadInput("text must be a string or a list of strings, with at least one prompt")
        self.replace = [self.replace] if isinstance(self.replace, str) else list(dict.fromkeys(self.replace))
        if not self.replace:
            raise BadInput('there is no token to compare: give replace, such as "eos" or "."')
        if self.control is None:
            raise BadInput('there is no control: give a neutral token to compare with, such as control=" and"')

    def prepared(self, loaded: LoadedModel, progress: Progress | None = None) -> Prepared:
        """Everything tokenised and checked for this model.

        Raises:
            BadInput: a prompt or a token does not go with the model.
        """
        templates = [
            template(
                loaded.tokenizer,
                prompt + self.continuation,
                self.at,
                max_tokens=self.max_tokens,
                parse_special=self.parse_special,
            )
            for prompt in self.prompts
        ]
        assert self.control is not None
        fills = _fills(loaded, list(self.replace), self.control, self.second_control)
        notes = _notes(loaded, templates, fills)
        check_memory(max(len(t.ids) for t in templates), loaded.model)
        options = {
            "at": self.at,
            "replace": self.replace,
            "control": self.control,
            "second_control": self.second_control,
            **asdict(self.settings),
            "continuation": self.continuation,
            "parse_special": self.parse_special,
            "window": WINDOW,
            "before": BEFORE,
            "confidence": CONFIDENCE,
        }
        return Prepared(Substitutions(loaded, templates, fills, self.settings, progress), options, notes)


@dataclass
class Prepared:
    """A comparison that is ready to run: runs.run(), then result()."""

    substitutions: Substitutions
    options: dict[str, Any]
    notes: list[str]

    @property
    def runs(self) -> Runs:
        """What is to be run."""
        return self.substitutions.runs

    def summary(self, reused: int = 0) -> dict[str, Any]:
        """The summary of the comparison, after its runs, as JSON keeps it.

        Args:
            reused: how many of them an earlier attempt had finished.
        """
        return json.loads(json.dumps(self.substitutions.summary(self.options, self.notes) | {"reused_runs": reused}))

    def curves(self) -> pa.Table:
        """All curves, after the runs."""
        return self.substitutions.curves()


def measured_as(
    tolerances: Sequence[float], relative: bool, layers: Iterable[int] | None, groups: int, horizon: int | None
) -> Settings:
    """What is measured in every run.

    Raises:
        BadInput: a tolerance, a number of groups or a horizon that cannot be.
    """
    chosen = tuple(dict.fromkeys(float(t) for t in tolerances))
    bad = [t for t in chosen if not (math.isfinite(t) and t > 0)]
    if bad or not chosen:
        raise BadInput(f"tolerances must be finite and above 0, got {bad or 'none'}")
    if groups < 0:
        raise BadInput(f"the number of groups must be at least 0, got {groups}")
    if horizon is not None and horizon < 1:
        raise BadInput(f"a horizon must be at least 1 token, got {horizon}")
    if horizon is not None and relative:
        raise BadInput("a horizon goes with absolute tolerances only")
    return Settings(chosen, relative, None if layers is None else tuple(sorted(set(layers))), groups, horizon)


def _fills(loaded: LoadedModel, replace: list[str], control: str, second: str | None) -> list[Fill]:
    """The control first, then the candidates, then the second control; none of them the control itself."""
    roles = [(control, "control"), *((name, "candidate") for name in replace)]
    roles += [(second, "second control")] if second is not None else []
    fills = [Fill(candidate(loaded.tokenizer, loaded.model, str(name)), role) for name, role in roles]
    for fill in fills[1:]:
        if fill.candidate.token == fills[0].candidate.token:
            raise BadInput(f"{fill.candidate.name!r} is the control {control!r} itself: compare another token with it")
    return fills


def _notes(loaded: LoadedModel, templates: list[Template], fills: list[Fill]) -> list[str]:
    """Warnings; and every filled prompt is one that the model can take."""
    notes = [*loaded.notes, *(note for fill in fills for note in fill.candidate.notes)]
    for number, made in enumerate(templates):
        align([made.filled(fill.candidate.token) for fill in fills], made.places)
        for fill in fills:
            notes += check(from_ids(loaded.tokenizer, made.filled(fill.candidate.token)), loaded.model)
        notes += made.notes
        after = len(made.ids) - 1 - made.places[-1]
        if after < BEFORE[0]:
            notes.append(
                f"prompt {number}: only {after} tokens follow its last place, so the end of the sequence limits ESS "
                "there under every token: add text, or a continuation"
            )
    if len(templates) < 2:
        notes.append("one prompt has no interval and no test: give several")
    return list(dict.fromkeys(notes))
