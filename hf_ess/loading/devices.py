"""Where a model and its operators go: device maps and single devices, with one sentence for what this machine lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hf_ess.errors import BadInput
from hf_ess.loading.configs import read_json

_PLACEMENTS = (None, "auto", "balanced", "balanced_low_0", "sequential", "disk")


def parse_device_map(device_map: Any) -> Any:
    """Check a device map, given as in transformers, as JSON, or as the path of a JSON file.

    Raises:
        BadInput: broken JSON, or a device that this machine does not have.
    """
    if isinstance(device_map, str) and device_map.lstrip().startswith("{"):
        try:
            device_map = json.loads(device_map)
        except json.JSONDecodeError as error:
            raise BadInput(f"the device map is not valid JSON: {error.msg} at column {error.colno}") from error
    elif isinstance(device_map, str) and device_map.endswith(".json"):
        path = Path(device_map)
        if not path.is_file():
            raise BadInput(f"there is no device map {device_map}")
        device_map = read_json(path)
        if not isinstance(device_map, dict):
            raise BadInput(f"{path} is no device map: it must be an object from modules to devices")
    if isinstance(device_map, dict) and not device_map:
        raise BadInput('the device map is empty: {"": "cpu"} puts the whole model on one device')
    for device in device_map.values() if isinstance(device_map, dict) else [device_map]:
        if device not in _PLACEMENTS:
            check_device(device)
    return device_map


def check_device(device: Any) -> Any:
    """The device as torch knows it.

    Raises:
        BadInput: there is no such device, or it cannot hold float64.
    """
    import torch

    if isinstance(device, int) and not isinstance(device, bool):
        device = f"cuda:{device}"  # as in the maps of accelerate
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise BadInput(f"{device!r} is not a device: give auto, cpu, cuda, cuda:0 ...") from error
    if found.type == "meta":
        raise BadInput("the device 'meta' holds no weights, so nothing can be measured on it")
    if found.type == "mps":
        raise BadInput("mps has no float64, in which operators are formed and measured: use the device cpu")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"{device} was asked for, but torch finds no CUDA device on this machine")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"{device} was asked for, but this machine has {torch.cuda.device_count()} CUDA devices")
    return found


def spectra_device(device: Any) -> Any:
    """Where operators are measured; None: where their layer is.

    Raises:
        BadInput: there is no such device, or it has no float64.
    """
    return None if device in (None, "layer") else check_device(device)


def mapped(model: Any) -> dict[str, str] | None:
    """The device map of a model that is spread over devices or disk, as JSON values; None for one in one place."""
    places = getattr(model, "hf_device_map", None)
    return None if not places else {str(name): str(place) for name, place in places.items()}
