"""What a directory of hf-ess holds: a result, a comparison or the outcome of a study."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hf_ess.comparing.comparison import Comparison, load_comparison
from hf_ess.errors import BadInput
from hf_ess.results import Result, load_result
from hf_ess.studying.outcome import StudyOutcome, load_outcome


def load_saved(path: str | os.PathLike[str]) -> Result | Comparison | StudyOutcome:
    """Reads a directory that `hf-ess probe -o`, `hf-ess compare -o` or `hf-ess study -o` wrote.

    Raises:
        BadInput: it is none of them, or is incomplete.
    """
    folder = Path(path)
    if not folder.exists():
        raise BadInput(f"{folder} does not exist; name a directory written by hf-ess probe -o or hf-ess compare -o")
    if not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a directory written by hf-ess probe -o or hf-ess compare -o")
    file = folder / "summary.json"
    if not file.is_file():
        raise BadInput(f"{folder} is not a result of hf-ess: it has no summary.json")
    try:
        document = json.loads(file.read_text(encoding="utf-8")).get("document")
    except (ValueError, OSError, AttributeError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from error
    if document == "comparison":
        return load_comparison(folder)
    if document == "study":
        return load_outcome(folder)
    if not (folder / "ess.parquet").is_file() and (folder / "model-0" / "ess.parquet").is_file():
        raise BadInput(f"{folder} compares models; name the result of one of them, such as {folder / 'model-0'}")
    return load_result(folder)
