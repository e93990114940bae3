"""The one place where adapters are registered: by this decorator, here or in another package."""

from __future__ import annotations

import functools
from importlib import import_module, metadata

from hf_ess.adapters.base import Adapter
from hf_ess.errors import HfEssError

#: Entry-point group in which other packages name modules that register adapters.
GROUP = "hf_ess.adapters"

_OWN = (
    "convolution",
    "delta",
    "differential",
    "lightning",
    "mamba",
    "mamba2",
    "mlstm",
    "own_softmax",
    "rglru",
    "rwkv",
    "shortconv",
    "softmax",
    "tokenshift",
)
_ADAPTERS: dict[str, Adapter] = {}


def register(adapter: type[Adapter]) -> type[Adapter]:
    """Class decorator: makes a family of mixers known under its kind.

    Raises:
        ValueError: the kind is taken by another class.
    """
    taken = _ADAPTERS.get(adapter.kind)
    if taken is not None and type(taken).__qualname__ != adapter.__qualname__:
        raise ValueError(f"an adapter for {adapter.kind!r} is registered already: {type(taken).__module__}")
    _ADAPTERS[adapter.kind] = adapter()
    return adapter


def adapters() -> list[Adapter]:
    """All registered adapters: those of this package, then those of others, in order of registration.

    Raises:
        HfEssError: a package in the entry-point group cannot be imported.
    """
    _import_all()
    return list(_ADAPTERS.values())


@functools.lru_cache(maxsize=1)
def _import_all() -> None:
    """Importing a family registers it; other packages are found by their entry points."""
    for name in _OWN:
        import_module(f"hf_ess.adapters.{name}")
    for entry in metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else entry.value
            raise HfEssError(
                f"the adapter {entry.name!r} of the installed package {package} cannot be imported: {error}; "
                "update or uninstall that package"
            ) from error
