"""What torch is asked to do in one forward of an attention: its softmax, and the product of that with the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hf_ess.operators import SoftmaxAttention

# What leaves the weights as they are, so that they may be multiplied with the values afterwards.
_SAME = {"view", "reshape", "contiguous", "clone", "to", "type", "type_as", "float", "half", "bfloat16", "dropout"}
# Files mask with finfo.min, -1e30, -65504 or -1e4. exp(-9e3) is 0 in float64: T does not depend on this number.
_HIDDEN = -9e3


@dataclass
class Product:
    """A softmax that met its values.

    Attributes:
        logits: (operator, L, S), what the softmax was given.
        values: (operator, S, d).
        output: (operator, L, d).
        batch: number of sequences, where the layer keeps them apart from its heads.
    """

    logits: Tensor
    values: Tensor
    output: Tensor
    batch: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """Number of queries and of keys."""
        return self.logits.shape[1], self.logits.shape[2]


@dataclass
class Sight:
    """What was seen, in order.

    Attributes:
        weights: every softmax along the last dimension, kept alive, and its logits; by the softmax's id.
        products: those of them that met their values.
    """

    weights: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)

    def follow(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Takes note of one call of a torch function: a softmax, another view of one, or a product with one."""
        if name == "softmax":
            logits = args[0] if args else kwargs["input"]
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if logits.dim() >= 3 and dim in (-1, logits.dim() - 1):
                self.weights[id(result)] = (result, logits)
        elif name in _SAME and args and id(args[0]) in self.weights:
            self.weights[id(result)] = (result, self.weights[id(args[0])][1])
        elif name in ("matmul", "__matmul__", "bmm"):
            self._multiplied(args[:2], result)
        elif name == "einsum" and isinstance(args[0], str):
            operands = args[1] if isinstance(args[1], list | tuple) else args[1:]
            self._multiplied(operands, result, args[0].replace(" ", ""))

    def _multiplied(self, operands: Sequence[Any], output: Tensor, equation: str = "") -> None:
        """Takes note of softmax (..., L, S) times values (..., S, d); equation: how einsum orders them."""
        if len(operands) != 2 or id(operands[0]) not in self.weights:
            return
        weights, logits = self.weights[id(operands[0])]
        values = operands[1]
        if equation:
            terms, out = equation.split("->")
            rows, columns = terms.split(",")
            heads, i, j, channel = rows[:-2], rows[-2], rows[-1], "".join(set(columns) - set(rows))
            if len(channel) != 1 or set(columns) != {*heads, j, channel} or set(out) != {*heads, i, channel}:
                return
            values = torch.einsum(f"{columns}->{heads}{j}{channel}", values)
            output = torch.einsum(f"{out}->{heads}{i}{channel}", output)
        leading = weights.shape[:-2]
        if weights.shape[-2:] == logits.shape[-2:] and torch.broadcast_shapes(leading, values.shape[:-2]) == leading:
            values = values.expand(*leading, *values.shape[-2:])
            batch = weights.shape[0] if weights.dim() > 3 else 1
            logits, values, output = (x.flatten(0, -3) for x in (logits, values, output))
            self.products.append(Product(logits, values, output, batch))


def operator_of(logits: Tensor, multiplicity: int = 1) -> SoftmaxAttention:
    """T = softmax(logits), row by row, in float64.

    Args:
        logits: (head, L, L), as the layer gave them to its softmax: scaled, with bias and mask.
        multiplicity: width of a value.
    """
    nothing = logits.new_empty(*logits.shape[:2], 0)  # q k^T = 0: the logits are a bias on it
    seen = logits > logits.amax(-1, keepdim=True) + _HIDDEN
    visible = seen.any(0, keepdim=True)  # the mask is the same for all heads, a bias need not be
    return SoftmaxAttention(nothing, nothing, 1.0, mask=visible, position_bias=logits, multiplicity=multiplicity)
