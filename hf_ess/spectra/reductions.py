"""From one value per head or channel to one value per layer, named for what is done."""

from __future__ import annotations

from collections.abc import Callable

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
    return lambda values, multiplicity: values.nanquantile(q, 0)


def _null_where_all_null(values: Tensor, reduced: Tensor) -> Tensor:
    return torch.where(values.isnan().all(0), torch.nan, reduced)


#: Reductions over the operators of a layer by name.  Each takes (operator, ...) float64, where NaN stands for null
#: and is left out, and the multiplicity; it gives (...), NaN where every operator is null.
REDUCTIONS: dict[str, Reduction] = {
    "mean": mean,
    "sum_heads": sum_heads,
    "sum_channels": sum_channels,
    "min": smallest,
    "q10": quantile(0.1),
    "q50": quantile(0.5),
    "q90": quantile(0.9),
    "max": largest,
}
