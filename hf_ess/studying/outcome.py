"""What a study found: a directory of plain files, with a page of text that can be read and committed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_ess.errors import BadInput
from hf_ess.plotting.attempt import attempt
from hf_ess.results.files import whole_directory, write_json, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        from hf_ess.tables.study import page

        return page(self)

    def plot(self, kind: str = "curves", prompt: int = 0) -> Figure:
        """A matplotlib figure, never shown: "curves" along a prompt; "layers" or "effects" where the study has them."""
        from hf_ess.plotting import study

        return study.draw(self, kind, prompt)

    def to_json(self) -> dict[str, Any]:
        """The summary as plain JSON values."""
        return self.summary

    def save(self, path: str | os.PathLike[str], overwrite: bool = False, plots: bool = False) -> Path:
        """Writes summary.json, curves.parquet and outcome.md as a directory that is either whole or not there.

        Raises:
            BadInput: the path exists (and overwrite is False), or cannot be written.
            HfEssError: the disk is full.
        """
        target = Path(path)
        with whole_directory(target, overwrite, "the outcome") as folder:
            self.write(folder, plots)
        return target

    def write(self, folder: Path, plots: bool = False) -> None:
        """Writes the files of an outcome into an existing folder."""
        write_table(self.curves, folder / "curves.parquet")
        if plots:
            attempt(lambda: self._draw(folder / "plots"), self.summary["notes"])
        (folder / "outcome.md").write_text(self.page(), encoding="utf-8")
        write_json(self.summary, folder / "summary.json")

    def _draw(self, folder: Path) -> None:
        from hf_ess.plotting import study

        study.save_all(self, folder)

    def __repr__(self) -> str:
        s = self.summary
        return f"<hf_ess.StudyOutcome {s['study']['name']} of {s['provenance']['model']}: {len(self.rows)} rows>"


def load_outcome(path: str | os.PathLike[str]) -> StudyOutcome:
    """Reads a directory that StudyOutcome.save() wrote.

    Raises:
        BadInput: it is none, is incomplete, or was written by a newer schema.
    """
    folder = Path(path)
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        version, kind = summary["schema_version"], summary["study"]["kind"]
        curves = pq.read_table(folder / "curves.parquet")
    except (ValueError, KeyError, OSError) as error:
        raise BadInput(f"{folder} is not the outcome of a study: {error}") from error
    if version > SCHEMA_VERSION:
        raise BadInput(f"{folder} has schema version {version}; this hf-ess reads up to {SCHEMA_VERSION}")
    if kind != "separators":
        return StudyOutcome(summary, curves)
    from hf_ess.comparing.comparison import Comparison

    return StudyOutcome(summary, curves, Comparison(summary, curves))


def plain(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary as JSON keeps it, so that a saved outcome and one in memory are equal."""
    return json.loads(json.dumps(summary, allow_nan=False))
