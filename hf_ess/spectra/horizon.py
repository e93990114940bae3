"""ESS of a bounded future: singular values of T[i:i+h, :i], what the next h tokens alone read of the past."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_ess.errors import BadInput
from hf_ess.operators import Operator

_ROOM = 2**24  # numbers of T that one block may hold: 128 MB in float64
_MOST_WORK = 1e14  # multiplications of all SVDs of one layer: hours on a processor
_TIES = 1 - 1e-9  # as in the engines: a tie counts


def horizon_counts(operator: Operator, tolerances: Sequence[float], positions: Sequence[int], horizon: int) -> Tensor:
    """Number of singular values >= tol of the first h rows of H_i, by SVD at the positions asked for.

    H_i without its later rows is no contiguous block of a smaller causal operator, so the one-pass engines do not
    apply, and T is formed block by block of operators.

    Args:
        operator: the operators.
        tolerances: absolute, > 0.
        positions: cuts i, 1 <= i <= L-1.
        horizon: h >= 1; at the end of the text fewer rows are left.

    Returns:
        (tolerance, operator, position) int64 on the CPU.

    Raises:
        BadInput: the layer has too many operators and positions for that.
    """
    length, width = operator.length, getattr(operator, "block", 1)
    work = 4.0 * operator.count * sum(i * min(horizon, length - i) ** 2 for i in positions) * width**3
    if work > _MOST_WORK:
        raise BadInput(
            f"a horizon of {horizon} takes an SVD for each of {operator.count:,} operators at {len(positions):,} "
            f"positions of {length:,} tokens, too much work: shorten the horizon or the text, or leave the horizon out"
        )
    limits = torch.tensor(list(tolerances), dtype=torch.float64)[:, None] * _TIES
    parts = []
    for _, some in operator.blocks(max(1, _ROOM // (length * width) ** 2)):
        T = some.dense()
        at = limits.to(T.device)
        counts = []
        for i in positions:
            sigma = torch.linalg.svdvals(T[:, i * width : (i + horizon) * width, : i * width])
            counts.append((sigma >= at[..., None]).sum(-1).cpu())
        parts.append(torch.stack(counts, -1))
    return torch.cat(parts, 1)
