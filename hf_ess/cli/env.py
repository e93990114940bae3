"""hf-ess env: what a bug report needs."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Print versions, devices and accelerators of this installation."""
    import os
    import platform

    import torch

    from hf_ess.results.provenance import versions

    rows = {
        **{name: version or "not installed" for name, version in versions().items()},
        "platform": platform.platform(),
        "processors": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "cuda": ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "none",
        "compiled kernels": "yes" if versions()["numba"] else "no: install hf-ess[fast]",
    }
    if as_json:
        sys.stdout.write(json.dumps({"schema_version": 1, **rows}) + "\n")
        return
    width = max(map(len, rows))
    for name, value in rows.items():
        sys.stdout.write(f"{name:{width}}  {value}\n")
