"""Softmax attention written out in a modelling file of its own: bloom, mpt, falcon, gpt_neo, xlnet ...

These files never ask AttentionInterface for a function, so torch itself is watched while such a layer runs: the
logits are what its softmax is given, and the product of the softmax with something else gives values and output.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.inventory import is_mixer
from hf_ess.adapters.registry import register
from hf_ess.adapters.rerun import Forward, can_run_again, remembering
from hf_ess.adapters.seams import is_low, raised
from hf_ess.adapters.sight import Product, Sight, operator_of
from hf_ess.adapters.softmax import Softmax, error_bound
from hf_ess.operators import SoftmaxAttention

# By the folder of the modelling file and the class.
REFUSED = {
    ("big_bird", "BigBirdBlockSparseAttention"): "block_sparse attention lets tokens see later blocks, so its operator "
    "is not causal: load the model with attention_type='original_full'",
    ("cpmant", "CpmAntAttention"): "its operator is not causal: it prepends prompt tokens, and what is given as "
    "input_ids sees all of itself",
    ("reformer", "LocalSelfAttention"): "it attends within chunks of a padded sequence and forms no operator over the "
    "tokens",
    ("reformer", "LSHSelfAttention"): "it attends within random hash buckets and forms no operator over the tokens",
}


@register
class OwnSoftmax:
    """Every attention, by the name of its class, that does not ask AttentionInterface for its function.

    And gpt2 with reorder_and_upcast_attn, which asks and goes its own way.
    """

    kind = "softmax in own code"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        mixers = [m for path, m in watch.model.named_modules() if is_mixer(path, m)]
        layers = [m for m in mixers if all(in_own_code(part) for part in m.modules() if part in mixers)]
        if not layers:
            yield  # and nothing stands between torch and the model
            return
        eyes = _Eyes(watch)
        with remembering(layers, eyes.left) as eyes.running, eyes:
            yield


def in_own_code(module: nn.Module) -> bool:
    """Whether an attention, by the name of its class, computes its softmax itself: no method gets it from elsewhere."""
    methods = [inspect.unwrap(f) for kind in type(module).__mro__ for f in vars(kind).values() if inspect.isfunction(f)]
    asks = any("get_interface" in f.__code__.co_names for f in methods)
    own = not asks or getattr(module, "reorder_and_upcast_attn", False)
    return bool(re.search("Attention|Attn", type(module).__name__)) and own


class _Eyes(TorchFunctionMode):
    """Looks at what torch is asked to do while one of the layers is the innermost mixer that runs."""

    running: list[Forward]

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self.seen: dict[Forward, Sight] = {}
        self.twins: dict[Forward, nn.Module] = {}
        self.calls: dict[Forward, list[MixerCall]] = {}  # of scaled_dot_product_attention
        self.again: Sight | None = None  # of a twin that runs in place of its layer
        self.closed = False  # while operators are handed over: what is computed for them is not the model's

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if self.again is not None:
            self.again.follow(name, args, kwargs or {}, result)
        elif not self.closed and self.running and self.watch.running[-1] is self.running[-1].module:
            self._look(self.running[-1], name, args, kwargs or {}, result)
        return result

    def _look(self, forward: Forward, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if name == "scaled_dot_product_attention":
            call = _of_sdpa(forward.module, result, *args, **kwargs)
            if call is not None:
                self.calls.setdefault(forward, []).append(call)
            return
        self.seen.setdefault(forward, Sight()).follow(name, args, kwargs, result)
        if name == "softmax" and forward.low and forward not in self.twins and can_run_again(forward.module):
            self.twins[forward] = forward.twin()  # now, while the layer's own weights are in place

    def left(self, forward: Forward) -> None:
        """Hands over what was seen in a forward that is over, and says what in it is no operator."""
        module, calls, sight = forward.module, self.calls.pop(forward, []), self.seen.pop(forward, Sight())
        twin = self.twins.pop(forward, None)
        reasons = [REFUSED.get(_family(module))]
        if reasons == [None]:
            own = [x for x in sight.products if x.size[0] == x.size[1] and x.batch == 1]
            exact, failure = self._again(forward, twin, len(own)) if any(is_low(x.output) for x in own) else (own, None)
            calls += [_of_product(module, x, y) for x, y in zip(own, exact)]
            reasons = [failure, None if calls and len(own) == len(sight.products) else _no_operator(sight)]
        self.closed = True
        try:
            for call in calls:
                self.watch.record(call)
            for reason in filter(None, reasons):
                self.watch.refuse(module, reason)
        finally:
            self.closed = False

    def _again(self, forward: Forward, twin: nn.Module | None, count: int) -> tuple[list[Product], str | None]:
        """The operators of the same forward in float32, or why there are none."""
        reason = "its code could not be run again in float32 to verify its operator: load the model in float32"
        if twin is None:
            return [], reason
        self.again = Sight()
        try:
            forward.again(twin)
        except Exception as error:  # code of any kind, called otherwise than its author meant
            return [], f"{reason} ({type(error).__name__})"
        else:
            exact = [x for x in self.again.products if x.size[0] == x.size[1]]
            return (exact, None) if len(exact) == count else ([], reason)
        finally:
            self.again = None


def _of_product(module: nn.Module, own: Product, exact: Product) -> MixerCall:
    return MixerCall(
        module=module,
        kind=Softmax.kind,
        operator=operator_of(exact.logits, multiplicity=exact.values.shape[-1]),
        inputs=exact.values,
        reference=exact.output,
        output=None if own is exact else own.output,
    )


def _of_sdpa(
    module: nn.Module,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> MixerCall | None:
    """The operator of torch's scaled_dot_product_attention from its arguments; None where it is not on one sequence."""
    if query.dim() != 4 or query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        return None
    mask = attn_mask
    if is_causal:
        length = query.shape[2]
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    operator = SoftmaxAttention(
        query[0],
        key[0],
        query.shape[-1] ** -0.5 if scale is None else scale,
        mask=None if mask is None else mask.reshape(-1, *mask.shape[-2:]),
        multiplicity=value.shape[-1],
    )
    reference = output
    if is_low(output):
        q, k, v, m = (raised(x) for x in (query, key, value, attn_mask))
        reference = F.scaled_dot_product_attention(q, k, v, m, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    return MixerCall(
        module=module,
        kind=Softmax.kind,
        operator=operator,
        inputs=value[0].repeat_interleave(query.shape[1] // value.shape[1], 0),
        reference=reference[0],
        output=None if reference is output else output[0],
        bound=error_bound(operator),
    )


def _no_operator(sight: Sight) -> str | None:
    """Why a layer with a softmax has no operator on one sequence, or not only such, or None."""
    square = [x.size[0] == x.size[1] for x in sight.products]
    for product in sight.products:
        rows, columns = product.size
        if product.batch != 1:
            return f"it ran on a batch of {product.batch} sequences where one was given"
        if rows != columns and any(square):
            return f"it is not measured in full: it also attends with {rows} queries over {columns} keys"
        if rows != columns:
            return f"its operator is not square: {rows} queries over {columns} keys"
    if sight.weights and not sight.products:
        return "its softmax is not what is multiplied with its values, so no operator can be read off"
    return None


def _family(module: nn.Module) -> tuple[str, str]:
    """The folder of a modelling file, and the class: ("reformer", "LSHSelfAttention")."""
    return (["", *type(module).__module__.split(".")][-2], type(module).__name__)
