"""Draws the pictures of README.md and docs/ with the tool itself: python docs/make_images.py"""

from pathlib import Path

import hf_ess

here = Path(__file__).parent
text = (here.parent / "examples" / "mixed.txt").read_text(encoding="utf-8")
result = hf_ess.probe("demo:llama", text, tolerances=[1e-1], entropy=False)
(here / "images").mkdir(exist_ok=True)
result.plot("lines", tolerance=1e-1).savefig(here / "images" / "lines.png")
