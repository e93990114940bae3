"""The mLSTM of xlstm, by the code in transformers (the external package `xlstm` brings modules of its own)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_ess.adapters.base import MixerCall, Watch
from hf_ess.adapters.registry import register
from hf_ess.adapters.seams import is_low, modules, no_operator, raised, run
from hf_ess.operators import RecurrentOperator

_LOSS = 4 * 2.0**-24  # roundings of a term in float32: two gates, a product, a sum; measured up to 0.9 of one


@register
class MLSTM:
    """Every module whose class name ends in xLSTMBackend: its arguments and its result are all there is to know."""

    kind = "mlstm"

    @contextmanager
    def watch(self, watch: Watch) -> Iterator[None]:
        def ran(module: nn.Module, args: Any, kwargs: dict[str, Any], result: Any) -> None:
            _record(watch, module, kwargs, result)

        with ExitStack() as stack:
            for module in modules(watch.model, "xLSTMBackend"):
                stack.callback(module.register_forward_hook(ran, with_kwargs=True).remove)
            yield


def _record(watch: Watch, module: Any, features: dict[str, Any], result: Any) -> None:
    query, key, value, igate, fgate = (features[name] for name in ("query", "key", "value", "igate", "fgate"))
    reason = no_operator(query.shape[0], features.get("c_initial"))
    if reason:
        watch.refuse(module, reason)
        return
    output = _hidden(result)
    reference = output
    if is_low(output):
        reference = _hidden(run(module, **{name: raised(x) for name, x in features.items()}))
    operator, lost = operator_of(query[0], key[0], igate[0], fgate[0], module.config.eps, value.shape[-1])
    watch.record(
        MixerCall(
            module=module,
            kind=MLSTM.kind,
            operator=operator,
            inputs=value[0],
            reference=reference[0],
            output=None if reference is output else output[0],
            bound=max(1e-5, lost),
        )
    )


def _hidden(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def operator_of(
    query: Tensor, key: Tensor, igate: Tensor, fgate: Tensor, eps: float, multiplicity: int = 1
) -> tuple[RecurrentOperator, float]:
    """Matrix memory with exponential gates and a normaliser, of every head, in float64 (arXiv 2405.04517, eq. 19 - 27).

    T_ij = e^{F_i - F_j + g_j} q_i . k_j / (sqrt(d) z_i), F the sum of the logarithms of the forget gates; z_i is the
    size of the row sum, but at least 1. The largest exponent m_i so far (from m_{-1} = 0 on) is taken out of the
    state, so that nothing overflows; eps is added to what is left of z_i then.

    Args:
        query, key: (head, L, d).
        igate, fgate: (head, L) before exp and sigmoid.
        eps: of the layer's configuration.
        multiplicity: width of a value.

    Returns:
        The operators, and what float32 loses where z_i is small because its terms cancel.
    """
    q, k, g = query.double() * query.shape[-1] ** -0.5, key.double(), igate.double()
    f = F.logsigmoid(fgate.double())
    a, write, z, size = (torch.empty_like(g) for _ in range(4))
    m = torch.zeros_like(g[:, 0])
    n, reach = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
    for i in range(g.shape[1]):
        top = torch.maximum(f[:, i] + m, g[:, i])
        a[:, i], write[:, i] = torch.exp(f[:, i] + m - top), torch.exp(g[:, i] - top)
        n = a[:, i, None] * n + write[:, i, None] * k[:, i]
        reach = a[:, i, None] * reach + write[:, i, None] * k[:, i].abs()
        z[:, i] = torch.maximum((q[:, i] * n).sum(-1).abs(), torch.exp(-top)) + eps
        size[:, i] = (q[:, i].abs() * reach).sum(-1)
        m = top
    operator = RecurrentOperator(a[..., None], write[..., None] * k, q / z[..., None], multiplicity=multiplicity)
    return operator, _LOSS * float((size / z).max().nan_to_num())
