"""From one value per head or channel to one value per layer, named for what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Reduction = Callable[[Tensor, int], Tensor]


def mean(values: Tensor, multiplicity: int) -> Tensor:
    """Mean over the operators, which is also the mean over the channels that share them."""
    return values.nanmean(0)


def sum_heads(values: Tensor, multiplicity: int) -> Tensor:
    """Sum over the operators: over heads for attention, over channels for Mamba-1."""
    return _null_where_all_null(values, values.nansum(0))


def sum_channels(values: Tensor, multiplicity: int) -> Tensor:
    """Sum over all channels of the layer: each operator counts once for every channel that shares it."""
    return sum_heads(values, multiplicity) * multiplicity


def smallest(values: Tensor, multiplicity: int) -> Tensor:
    """The smallest value over the operators."""
    return _null_where_all_null(values, values.nan_to_num(nan=torch.inf).amin(0))


def largest(values: Tensor, multiplicity: int) -> Tensor:
    """The largest value over the operators."""
    return _null_where_all_null(values, values.nan_to_num(nan=-torch.inf).amax(0))


def quantile(q: float) -> Reduction:
    """The q-quantile over the operators, interpolated linearly."""
    return lambda values, multiplicity: _quantiles(values, [q])[0]


def reduced(values: Tensor, multiplicity: int, names: Sequence[str]) -> dict[str, Tensor]:
    """Several reductions by name; quantiles from one sort, which is what reducing thousands of channels costs.

    Args:
        values: (operator, ...) float64; NaN stands for null and is left out.
        multiplicity: channels that share each operator.
        names: keys of REDUCTIONS.

    Returns:
        (...) for each name; NaN where every operator is null.
    """
    wanted = [name for name in names if name in _QUANTILES]
    quantiles = dict(zip(wanted, _quantiles(values, [_QUANTILES[name] for name in wanted]))) if wanted else {}
    return {name: quantiles[name] if name in quantiles else REDUCTIONS[name](values, multiplicity) for name in names}


def _quantiles(values: Tensor, q: list[float]) -> Tensor:
    """(q, ...), in pieces: older torch takes at most 2^24 numbers, and neighbours in memory sort twice as fast."""
    at = torch.tensor(q, dtype=values.dtype, device=values.device)
    pieces = values.flatten(1).split(max(1, 2**20 // values.shape[0]), 1) if values.dim() > 1 else [values[:, None]]
    out = torch.cat([piece.mT.contiguous().nanquantile(at, 1) for piece in pieces], 1)
    return out.reshape(len(q), *values.shape[1:])


def _null_where_all_null(values: Tensor, reduced: Tensor) -> Tensor:
    return torch.where(values.isnan().all(0), torch.nan, reduced)


_QUANTILES = {"q10": 0.1, "q50": 0.5, "q90": 0.9}

#: Reductions over the operators of a layer by name.  Each takes (operator, ...) float64, where NaN stands for null
#: and is left out, and the multiplicity; it gives (...), NaN where every operator is null.
REDUCTIONS: dict[str, Reduction] = {
    "mean": mean,
    "sum_heads": sum_heads,
    "sum_channels": sum_channels,
    "min": smallest,
    **{name: quantile(q) for name, q in _QUANTILES.items()},
    "max": largest,
}
