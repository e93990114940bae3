"""Memory of the forward pass, found by running it on `meta`: shapes alone, no number is computed or held.

Every tensor that the pass makes is counted while it lives, so that attention, scans in plain PyTorch and output heads
of any kind are seen as they are written.  Layers that are alike run once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_ess.adapters.inventory import Inventory
from hf_ess.loading.quieting import quiet
from hf_ess.planning.skeleton import on_meta
from hf_ess.planning.twins import like

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LONGEST = 2048  # tokens that are run: a scan in plain PyTorch takes a step per token


def forward_bytes(
    config: PretrainedConfig, dtype: Any, length: int, trust_remote_code: bool = False
) -> Callable[[int], float] | None:
    """Peak memory of what one forward pass makes: bytes by the number of tokens; None where it cannot run on meta.

    That is a L + b L^2 through the length and half of it, or through 2,048 and 1,024 where the length is beyond.

    Args:
        config: of the model.
        dtype: "auto" or a torch.dtype, as for loading.
        length: number of tokens about which it is to be right.
        trust_remote_code: as for loading.
    """
    whole = max(4, min(length, LONGEST))
    half = whole // 2
    try:
        model = on_meta(config, dtype, trust_remote_code).to("meta")
        at_half, at_whole = _peak(model, half), _peak(model, whole)
    except Exception:  # what the text decides (a choice of experts one by one, patches of bytes) has no shape
        return None
    b = max(0.0, (at_whole / whole - at_half / half) / (whole - half))
    a = at_whole / whole - b * whole
    return lambda tokens: a * tokens + b * tokens**2


def _peak(model: nn.Module, length: int) -> int:
    ids = torch.zeros(1, length, dtype=torch.long, device="meta")
    with quiet(), torch.no_grad(), _each_sort_once(model), Living(model) as living:
        model(input_ids=ids, use_cache=False)
    return living.peak


class Living(TorchDispatchMode):
    """Counts the bytes of all tensors that were made inside and still live; those of the model are not.

    Attributes:
        peak: the most there were at once.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._own = [x.untyped_storage() for x in (*model.parameters(), *model.buffers())]
        self._known = {storage._cdata for storage in self._own}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            # Models ask whether a mask is special (packed sequences): it is not.
            return False if args[0].dtype == torch.bool else 1
        if func is torch.ops.aten._grouped_mm.default and args[0].is_meta:  # experts; its rule knows bfloat16 alone
            out = args[0].new_empty(*args[0].shape[:-1], args[1].shape[-1])
        else:
            out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                if storage._cdata not in self._known:
                    self._made(storage)
        return out

    def _made(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@contextmanager
def _each_sort_once(model: nn.Module) -> Iterator[None]:
    """A layer like one that ran before gives that one's output."""
    seen: dict[Any, Any] = {}

    def instead(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        alike = like(module)

        def once(*args: Any, **kwargs: Any) -> Any:
            key = (alike, len(args), tuple(sorted(kwargs)))
            if key not in seen:
                seen[key] = forward(*args, **kwargs)
            return seen[key]

        return once

    layers = list({id(m): m for m in Inventory(model).layers.values()}.values())
    for layer in layers:
        layer.forward = instead(layer, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)
