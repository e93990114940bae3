"""Where a number came from: model, software, machine and command."""

from __future__ import annotations

import datetime
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

from hf_ess import __version__

if TYPE_CHECKING:
    from hf_ess.loading import LoadedModel

_PACKAGES = ("hf-ess", "torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "numba", "gguf")


def versions() -> dict[str, str | None]:
    """Versions of what computes the numbers; None where a package is not installed."""
    out: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = __version__ if name == "hf-ess" else None  # run from a checkout
    return out


def identity(loaded: LoadedModel) -> dict[str, Any]:
    """What two runs have in common if they are of one model and one software."""
    origin = provenance(loaded)
    return {name: origin[name] for name in ("model_class", "weights_hash", "config_hash", "model_dtype", "versions")}


def provenance(loaded: LoadedModel) -> dict[str, Any]:
    """What a result says of its origin."""
    import torch

    from hf_ess.loading.devices import mapped

    return {
        "model": loaded.name,
        "source": loaded.source,
        "revision": loaded.revision,
        "weights_hash": loaded.weights_hash,
        "config_hash": loaded.config_hash,
        "files": loaded.files,
        "model_class": type(loaded.model).__name__,
        "geometry": loaded.geometry,
        "model_dtype": loaded.dtype,
        "operator_dtype": "float64",
        "device": loaded.device,
        "device_map": mapped(loaded.model),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        **made(),
    }


def made() -> dict[str, str | None]:
    """By which command, and when."""
    return {
        "command": " ".join(sys.argv) if sys.argv else None,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
