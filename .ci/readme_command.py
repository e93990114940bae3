"""Prints the command that README.md shows under a marker, so that CI runs what people read.

usage: readme_command.py NAME       for the first code block after <!-- command: NAME -->
"""

import re
import sys
from pathlib import Path

readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
found = re.search(rf"<!-- command: {re.escape(sys.argv[1])} -->\s*```(?:bash|sh)\n(.*?)\n```", readme, re.DOTALL)
if found is None or "\n" in found[1]:
    sys.exit(f"README.md has no single-line command marked {sys.argv[1]!r}")
print(found[1])
