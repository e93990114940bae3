"""The WKV recurrence of RWKV-4."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import Function, is_low, no_operator, observing, raised
from hf_ess.operators import RecurrentOperator

# A decay of e^-600 per token leaves nothing that float64 can see beside the newest token; stronger ones would make
# e^600 in c overflow.
_STRONGEST = -600.0
_ROUNDOFF = 2.0**-24  # of float32


@register
class RWKV:
    """Every mixer whose modelling file calls its own `rwkv_linear_attention`, in torch or by its CUDA kernel."""

    kind = "rwkv"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        with observing(watch, "rwkv_linear_attention", _observed):
            yield


def _observed(attention: Function, watch: Watch) -> Function:
    """The function, with its arguments and result handed to the watch."""

    def observed(
        decay: Tensor, first: Tensor, key: Tensor, value: Tensor, state: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        result = attention(decay, first, key, value, state, *args, **kwargs)
        reason = no_operator(key.shape[0], state)
        if reason:
            watch.refuse(watch.running[-1], reason)
            return result
        output = result[0]
        reference = attention(*map(raised, (decay, first, key, value)))[0] if is_low(output) else output
        operator, lost = operator_of(decay.detach(), first.detach(), key[0])
        watch.record(
            MixerCall(
                module=watch.running[-1],
                kind=RWKV.kind,
                operator=operator,
                inputs=value[0].mT[..., None],
                reference=reference[0].mT[..., None],
                output=None if reference is output else output[0].mT[..., None],
                bound=max(1e-5, lost),
            )
        )
        return result

    return observed


def operator_of(time_decay: Tensor, time_first: Tensor, key: Tensor) -> tuple[RecurrentOperator, float]:
    """The weighted mean that every channel is, in float64 (arXiv 2305.13048).

    T_ij = e^{(i-1-j) w + k_j} / z_i for j < i and T_ii = e^{u + k_i} / z_i with w = -e^{time_decay}; z_i makes the sum
    of a row 1. As a recurrence with the largest exponent m_i so far taken out of the state, so that nothing
    overflows: a_i = e^{m_{i-1} + w - m_i}, b_i = e^{k_i - m_i}, and c_i undoes one decay, which the newest token has
    not had.

    Args:
        time_decay: (channel,), log of -w.
        time_first: (channel,), u, the bonus of the current token.
        key: (L, channel).

    Returns:
        The operators, and what float32 loses: it adds w to m once a token, and what is read has been there for a while.
    """
    w = -torch.exp(time_decay.double())
    w, u, k = w.clamp_min(_STRONGEST), time_first.double(), key.double()
    a, b, c, diagonal = (torch.zeros_like(k) for _ in range(4))
    m, z, age = torch.full_like(w, -torch.inf), torch.zeros_like(w), torch.zeros_like(w)
    lost = torch.zeros_like(w)
    for i in range(len(k)):
        top = torch.maximum(m, u + k[i])
        z_i = torch.exp(m - top) * z + torch.exp(u + k[i] - top)
        diagonal[i] = torch.exp(u + k[i] - top) / z_i
        new = torch.maximum(m + w, k[i])
        a[i], b[i] = torch.exp(m + w - new), torch.exp(k[i] - new)
        if i:  # before the first token there is nothing to read
            c[i] = torch.exp(new - w - top) / z_i
            lost = torch.maximum(lost, _ROUNDOFF * m.abs() * torch.exp(m - top) * age / z_i)
        m, z, age = new, a[i] * z + b[i], a[i] * (age + z)
    operator = RecurrentOperator(a.mT[..., None], b.mT[..., None], c.mT[..., None], diagonal=diagonal.mT)
    return operator, float(lost.max().nan_to_num())
