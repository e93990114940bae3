"""Fingerprints that tell whether two results came from the same weights and configuration.

"sha256:..." covers every byte. Beyond `FULL` bytes reading everything twice would take minutes, so then
"sha256-sampled:..." covers name, size and evenly spaced blocks. Large files in the Hub's cache are stored
under their sha256, which is taken from there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FULL = 2 << 30
BLOCK, BLOCKS = 1 << 16, 256


def hash_config(folder: Path | None, config: PretrainedConfig) -> str:
    """sha256 of the folder's config.json, or of the configuration as JSON where there is no file."""
    path = None if folder is None else folder / "config.json"
    data = path.read_bytes() if path is not None and path.is_file() else config.to_json_string().encode()
    return "sha256:" + hashlib.sha256(data).hexdigest()


def hash_files(paths: Sequence[Path]) -> str:
    """One fingerprint for a set of weight files; for a single file read in full, its sha256."""
    full = sum(path.stat().st_size for path in paths) <= FULL
    parts = [(path.name, path.stat().st_size, *_file(path, full)) for path in paths]
    if len(parts) == 1 and parts[0][3]:
        return f"sha256:{parts[0][2]}"
    whole = all(complete for *_, complete in parts)
    digest = hashlib.sha256(json.dumps([part[:3] for part in parts]).encode()).hexdigest()
    return f"{'sha256' if whole else 'sha256-sampled'}:{digest}"


def _file(path: Path, full: bool) -> tuple[str, bool]:
    """Digest of one file, and whether it covers every byte."""
    blob = path.resolve()
    if blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", blob.name):
        return blob.name, True
    with path.open("rb") as file:
        if full:
            return hashlib.file_digest(file, "sha256").hexdigest(), True
        size, digest = path.stat().st_size, hashlib.sha256()
        for block in range(BLOCKS):
            file.seek(max(0, (size - BLOCK) * block // (BLOCKS - 1)))
            digest.update(file.read(BLOCK))
        return digest.hexdigest(), False


def hash_model(model: PreTrainedModel) -> str:
    """Fingerprint of a model in memory: names, shapes, types and up to 4096 entries of each tensor.

    Weights that accelerate keeps on disk or on another device until they are needed are fetched one at a time, so
    that a model has the same fingerprint wherever its weights are.
    """
    import torch

    digest: Any = hashlib.sha256()
    whole = True
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.is_meta:
            tensor = _fetched(model, name)
            if tensor is None:
                whole = False
                continue
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // 4096)
        whole = whole and step == 1
        sample = flat[::step].contiguous().cpu()
        digest.update(sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b"")
    return f"{'sha256' if whole else 'sha256-sampled'}:{digest.hexdigest()}"


def _fetched(model: PreTrainedModel, name: str) -> Any:
    """The weight that stands behind a parameter on `meta`, or None where nobody keeps it."""
    from transformers.integrations.accelerate import load_offloaded_parameter

    try:
        return load_offloaded_parameter(model, name)
    except (AttributeError, KeyError, TypeError, ValueError):  # no hook of accelerate, or one without weights
        return None
