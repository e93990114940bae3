"""What a study found: a directory of plain files, with a page of text that can be read and committed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hf_ess.errors import BadInput
from hf_ess.results.files import partial_path, publish, refuse_existing, write_json, write_table

if TYPE_CHECKING:
    from hf_ess.comparing.comparison import Comparison

SCHEMA_VERSION = 1


class StudyOutcome:
    """Rows of numbers, the curves they come from, and what was asked.

    Attributes:
        summary: what summary.json holds; its key "study" has name, title, claim and preset.
        curves: pyarrow table of total ESS along every sequence, in the schema of a comparison.
        comparison: the comparison, where the study puts delimiters in; else None.
    """

    def __init__(self, summary: dict[str, Any], curves: pa.Table, comparison: Comparison | None = None) -> None:
        self.summary, self.curves, self.comparison = summary, curves, comparison

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per effect, tolerance and layer (None: all together), with its interval."""
        return self.summary["effects"]

    @property
    def kind(self) -> str:
        """ "separators", "classes" or "shots"."""
        return self.summary["study"]["kind"]

    def page(self) -> str:
        """The outcome as a page of Markdown: the claim, the command, the tables, the origin."""
        from hf_ess.studying.rendering import page

        return page(self)

    def to_json(self) -> dict[str, Any]:
        """The summary as plain JSON values."""
        return self.summary

    def save(self, path: str | os.PathLike[str], overwrite: bool = False, plots: bool = False) -> Path:
        """Writes summary.json, curves.parquet and outcome.md as a directory that is either whole or not there.

        Raises:
            BadInput: the path exists (and overwrite is False), or cannot be written.
        """
        target = Path(path)
        refuse_existing(target, overwrite)
        partial = partial_path(target)
        try:
            partial.mkdir(parents=True, exist_ok=True)
            write_table(self.curves, partial / "curves.parquet")
            if plots:
                self._draw(partial / "plots")
            (partial / "outcome.md").write_text(self.page(), encoding="utf-8")
            write_json(self.summary, partial / "summary.json")
            publish(partial, target)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise BadInput(f"cannot write the outcome to {target}: {error.strerror or error}") from error
        return target

    def _draw(self, folder: Path) -> None:
        """Draws the study's pictures; what goes wrong there becomes a note, because the measurement is done."""
        try:
            from hf_ess.plotting import study

            study.save_all(self, folder)
        except Exception as error:
            first = str(error).partition("\n")[0]
            self.summary["notes"].append(f"the pictures could not be drawn ({first})")

    def __repr__(self) -> str:
        s = self.summary
        return f"<hf_ess.StudyOutcome {s['study']['name']} of {s['provenance']['model']}: {len(self.rows)} rows>"


def plain(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary as JSON keeps it, so that a saved outcome and one in memory are equal."""
    return json.loads(json.dumps(summary, allow_nan=False))
