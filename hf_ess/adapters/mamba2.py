"""Mamba-2 (SSD): mamba2 and the Mamba layers of bamba, falcon_h1, granitemoehybrid, nemotron_h and zamba2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import Function, is_low, lost_in_chunks, no_operator, observing, raised
from hf_ess.operators import SSDScan

# Not part of the mixing: the skip D and the gate z; and a final state that nobody asks for.
_LEFT_OUT = ("D", "z", "return_final_states")


@register
class Mamba2:
    """Every mixer whose modelling file calls its own `mamba2_chunk_scan`, whichever kernel that name is bound to."""

    kind = "mamba2"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        with observing(watch, "mamba2_chunk_scan", _observed):
            yield


def _observed(scan: Function, watch: Watch) -> Function:
    """The scan, with its arguments handed to the watch."""

    def observed(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = scan(x, dt, A, B, C, *args, **kwargs)
        reason = no_operator(x.shape[0], kwargs.get("initial_states"))
        if reason:
            watch.refuse(watch.running[-1], reason)
            return result
        # The mixing alone by the model's own function: once in float32, as the reference, and where the model runs
        # in less, once as the model ran it, to tell what its own rounding costs.
        features = (x, dt, A, B, C, *args)
        mixing = {name: value for name, value in kwargs.items() if name not in _LEFT_OUT}
        reference = scan(*map(raised, features), **{name: raised(value) for name, value in mixing.items()})
        output = scan(*features, **mixing) if is_low(x) else None
        operator = operator_of(
            dt[0],
            A,
            B[0],
            C[0],
            bias=kwargs.get("dt_bias"),
            softplus=kwargs.get("dt_softplus", False),
            limit=kwargs.get("dt_limit"),
            multiplicity=x.shape[-1],
        )
        chunk = kwargs.get("chunk_size") or args[0]
        watch.record(
            MixerCall(
                module=watch.running[-1],
                kind=Mamba2.kind,
                operator=operator,
                inputs=x[0].transpose(0, 1),
                reference=reference[0].transpose(0, 1),
                output=None if output is None else output[0].transpose(0, 1),
                bound=max(1e-5, lost_in_chunks(operator.dt * operator.A[:, None], chunk)),
            )
        )
        return result

    return observed


def operator_of(
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    bias: Tensor | None = None,
    softplus: bool = False,
    limit: Sequence[float] | None = None,
    multiplicity: int = 1,
) -> SSDScan:
    """The scan of every head from the arguments of `mamba2_chunk_scan`, in float64.

    Args:
        dt: (L, head), before bias, softplus and clamp.
        A: (head,), negative.
        B, C: (L, group, n).
        bias: (head,) or None.
        softplus: whether dt = softplus(dt + bias).
        limit: what dt is clamped to, or None.
        multiplicity: width of a head.
    """
    dt = dt.double()
    if bias is not None:
        dt = dt + bias.double()
    if softplus:
        dt = F.softplus(dt)
    if limit is not None:
        dt = dt.clamp(*limit)
    return SSDScan(dt.mT, A, B.transpose(0, 1), C.transpose(0, 1), multiplicity)
