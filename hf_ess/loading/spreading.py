"""A device map with general and special entries, spelt out as accelerate wants it: without overlaps.

In '{"": "cpu", "model.layers.2": "disk"}' the innermost entry above a parameter decides.  transformers 5.24 takes such
a map, loses the weights of the inner entry on the way ("weight is on the meta device"), and matches names as patterns.
"""

from __future__ import annotations

from typing import Any

from hf_ess.errors import BadInput


def spread(device_map: Any, model: Any) -> Any:
    """A map whose entries do not overlap and leave nothing out; what is no map is returned as it is.

    Args:
        device_map: a device for each path of a module or parameter; "" is the whole model.
        model: the model, or its structure with parameters on `meta`.

    Raises:
        BadInput: an entry names no module of the model, or a parameter has no device, or one that is tied has two.
    """
    if not isinstance(device_map, dict):
        return device_map
    known = {path for path, _ in model.named_modules()} | {path for path, _ in _tensors(model)}
    if unknown := [path for path in device_map if path not in known]:
        layer = next((path for path, _ in model.named_modules() if path.endswith(".0")), None)
        named = f"; its layers are named as in {layer!r}" if layer else ""
        raise BadInput(f"the device map names {unknown[0]!r}, which is no module of {type(model).__name__}{named}")
    out: dict[str, Any] = {}
    lacking: list[str] = []

    def give(path: str, module: Any, device: Any) -> None:
        device = device_map.get(path, device)
        inside = f"{path}." if path else ""
        if not any(name.startswith(inside) and name != path for name in device_map):
            if device is None:
                lacking.extend(inside + name for name, _ in _tensors(module))
            else:
                out[path] = device
            return
        for name, child in module.named_children():
            give(inside + name, child, device)
        for name, _ in _tensors(module, recurse=False):
            own = device_map.get(inside + name, device)
            if own is None:
                lacking.append(inside + name)
            else:
                out[inside + name] = own

    give("", model, None)
    if lacking:
        others = f" and {len(lacking) - 1} others" if len(lacking) > 1 else ""
        raise BadInput(
            f'the device map gives no device to {lacking[0]}{others}: add "": "cpu" for all that it does not name'
        )
    for one, other in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        if _place(out, one) != _place(out, other):
            raise BadInput(
                f"{one} and {other} are one tensor, and the device map gives it two places, {_place(out, one)} and "
                f"{_place(out, other)}: give both the same"
            )
    return out


def _place(spread: dict[str, Any], tensor: str) -> Any:
    """Device of a tensor; the entries do not overlap."""
    return next((place for path, place in spread.items() if f"{tensor}.".startswith(f"{path}." if path else "")), None)


def _tensors(module: Any, recurse: bool = True) -> list[tuple[str, Any]]:
    return [*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)]
