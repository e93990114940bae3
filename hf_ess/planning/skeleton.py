"""A model of any size with all weights zero, which takes no memory: its structure can run, its weights cannot cost.

Every parameter is a view of one zero-filled anonymous mapping, and a page that is only read is never allocated.
Buffers (rotary frequencies, masks) are made as usual, for what they hold decides how the model runs.
"""

from __future__ import annotations

import math
import mmap
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hf_ess.errors import BadInput
from hf_ess.loading.configs import auto_class, first_line
from hf_ess.loading.quieting import quiet
from hf_ess.loading.weights import attention

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def on_meta(config: PretrainedConfig, dtype: Any = "auto", trust_remote_code: bool = False) -> PreTrainedModel:
    """The model of a configuration with its parameters on `meta`, in the dtype in which it would be loaded.

    Raises:
        BadInput: transformers cannot build it.
    """
    from accelerate import init_empty_weights

    if dtype == "auto":
        dtype = getattr(config, "dtype", None) or torch.float32
    named = {"trust_remote_code": True} if trust_remote_code else {}
    try:
        with quiet(), init_empty_weights(include_buffers=False), _LargeOnMeta():
            model = auto_class(config).from_config(config, dtype=dtype, attn_implementation=attention(config), **named)
        model.tie_weights()
    except Exception as error:
        name = getattr(config, "_name_or_path", "") or config.model_type
        raise BadInput(f"transformers cannot build {name} from its configuration: {first_line(error)}") from error
    return model.eval()


class _LargeOnMeta(TorchFunctionMode):
    """Makes large tensors on `meta` at once: accelerate moves a parameter there only after it was allocated."""

    LARGE = 2**24  # numbers; a buffer that a model reads (a causal mask, a table of positions) has fewer, or is bool

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn) and kwargs.get("device") is None:
            sizes = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
            floats = getattr(kwargs.get("dtype") or torch.float32, "is_floating_point", False)  # bool: the type itself
            if floats and all(isinstance(n, int) for n in sizes) and math.prod(sizes) > self.LARGE:
                kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def zeroed(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with parameters of zeros in float32, in place: it can run, and holds nothing."""
    largest = max((p.numel() for p in model.parameters()), default=0)
    zeros = _zeros(largest)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.device.type == "meta":
                view = zeros[: parameter.numel()].view(parameter.shape)
                if not parameter.is_floating_point():
                    view = view.to(parameter.dtype)
                module._parameters[name] = nn.Parameter(view, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = torch.zeros_like(buffer, device="cpu") if buffer.is_meta else buffer.float()
    model.config.dtype = torch.float32
    return model


def _zeros(count: int) -> Tensor:
    """float32 zeros that take no memory while they are only read."""
    size = 4 * max(1, count)
    private = getattr(mmap, "MAP_PRIVATE", None)
    if private is None:  # Windows commits memory when it is written to
        return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.float32)
    # NORESERVE: no check that the machine could hold a tensor that will never exist.
    linux = 0x4000 if sys.platform == "linux" else 0  # Python 3.11 lacks the name
    flags = private | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", linux)
    region = mmap.mmap(-1, size, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)  # 2 MB of zeros at a time: 500 times fewer page faults
    return torch.frombuffer(region, dtype=torch.float32)
