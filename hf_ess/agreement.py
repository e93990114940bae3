"""Is the operator the one that the layer used?  T u against the layer's own y."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_ess.operators import Operator


def relative_error(operator: Operator, inputs: Tensor, reference: Tensor) -> float:
    """The largest ||T u - y|| / ||y|| over the operators, with the diagonal of T in.

    Args:
        operator: T.
        inputs: u, (operator, L, channel), any floating point.
        reference: y, the same shape, from the model's original function.

    Returns:
        The error; 0 where both sides are 0, infinite where only y is 0 or anything is not finite.
    """
    return _distance(operator.apply(inputs), reference.double())


def rounding(output: Tensor, reference: Tensor) -> float:
    """||y' - y|| / ||y|| between what the model went on with in its own dtype and the float32 reference."""
    return _distance(output.double()[None].flatten(1), reference.double()[None].flatten(1))


def _distance(x: Tensor, y: Tensor) -> float:
    gap = (x - y).flatten(1).norm(dim=1)
    size = y.flatten(1).norm(dim=1)
    error = torch.where(size > 0, gap / size, torch.where(gap > 0, torch.inf, 0.0))
    return float(error.nan_to_num(nan=torch.inf).max())
