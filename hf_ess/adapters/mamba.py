"""Mamba-1 (S6): mamba, falcon_mamba, and the Mamba layers of jamba and zamba."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import Function, is_low, no_operator, observing, raised
from hf_ess.operators import SelectiveScan


@register
class Mamba:
    """Every mixer whose modelling file calls its own `mamba_selective_scan`, whichever kernel that name is bound to."""

    kind = "mamba"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        with observing(watch, "mamba_selective_scan", _observed):
            yield


def _observed(scan: Function, watch: Watch) -> Function:
    """The scan, with its arguments handed to the watch."""

    def observed(*args: Any, **kwargs: Any) -> Any:
        result = scan(*args, **kwargs)
        *features, bias, softplus = _features(*args, **kwargs)
        reason = no_operator(features[0].shape[0])
        if reason:
            watch.refuse(watch.running[-1], reason)
            return result
        # The mixing alone (no skip D, no gate z) by the model's own function: once in float32, as the reference,
        # and where the model runs in less, once as the model ran it, to tell what its own rounding costs.
        reference = scan(*map(raised, features), delta_bias=raised(bias), delta_softplus=softplus)
        output = scan(*features, delta_bias=bias, delta_softplus=softplus) if is_low(features[0]) else None
        u, dt, A, B, C = (x[0] if x.dim() == 3 else x for x in features)
        watch.record(
            MixerCall(
                module=watch.running[-1],
                kind=Mamba.kind,
                operator=operator_of(dt, A, B, C, bias, softplus),
                inputs=u[..., None],
                reference=reference[0][..., None],
                output=None if output is None else output[0][..., None],
            )
        )
        return result

    return observed


def _features(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, bool]:
    """What enters the mixing, from the arguments that the torch function and the kernels share."""
    return hidden_states, dt, A, B, C, delta_bias, delta_softplus


def operator_of(
    dt: Tensor, A: Tensor, B: Tensor, C: Tensor, bias: Tensor | None = None, softplus: bool = False
) -> SelectiveScan:
    """The scan of every channel from the arguments of `mamba_selective_scan`, in float64.

    Args:
        dt: (channel, L), before bias and softplus.
        A: (channel, n), negative.
        B, C: (n, L).
        bias: (channel,) or None.
        softplus: whether dt = softplus(dt + bias).
    """
    dt = dt.double()
    if bias is not None:
        dt = dt + bias.double()[:, None]
    return SelectiveScan(F.softplus(dt) if softplus else dt, A, B.mT, C.mT)
