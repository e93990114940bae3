"""The one place where adapters are registered."""

from __future__ import annotations

from hf_ess.adapters.base import Adapter

_ADAPTERS: dict[str, Adapter] = {}


def register(adapter: type[Adapter]) -> type[Adapter]:
    """Class decorator: makes a family of mixers known under its kind.

    Raises:
        ValueError: the kind is taken.
    """
    if adapter.kind in _ADAPTERS:
        raise ValueError(f"an adapter for {adapter.kind!r} is registered already")
    _ADAPTERS[adapter.kind] = adapter()
    return adapter


def adapters() -> list[Adapter]:
    """All registered adapters, in order of registration."""
    from hf_ess.adapters import (  # noqa: F401  (importing a family registers it)
        delta,
        lightning,
        mamba,
        mamba2,
        mlstm,
        rglru,
        rwkv,
        shortconv,
        softmax,
    )

    return list(_ADAPTERS.values())
