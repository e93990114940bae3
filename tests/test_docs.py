"""The guides say what the program does."""

from __future__ import annotations

import doctest
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_guide_to_plots_runs():
    found = doctest.testfile(str(DOCS / "reading-a-plot.md"), module_relative=False)
    assert found.attempted >= 10 and found.failed == 0
