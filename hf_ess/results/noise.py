"""How small a singular value still means something, by the precision that the model computes in.

Operators are formed in float64, but from features that the model has rounded to its own dtype, each by a relative u
(2^-8 in bfloat16, 2^-11 in float16, 2^-24 in float32).  Entries of T that are off by u each change H_i by a matrix of
Frobenius norm u ||H_i||_F, and no singular value moves by more than the largest one of that matrix, which is at most
its Frobenius norm (Weyl).  So u max_i ||H_i||_F is an operator's noise floor: singular values below it may be rounding
alone.  It errs on the low side where features are amplified: an error d of a logit is a relative error d of an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hf_ess.plotting.labels import count, ranges, tolerance

#: Largest relative error of rounding to a dtype.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}


def floors(frobenius: Tensor, dtype: str | None) -> Tensor | None:
    """u max_i ||H_i||_F of each operator, (operator,); None for a dtype of unknown rounding.

    Args:
        frobenius: (operator, cut) ||H_i||_F.
        dtype: of the model.
    """
    rounding = ROUNDING.get(dtype or "")
    return None if rounding is None or not frobenius.shape[1] else rounding * frobenius.amax(1)


def described(floor: Tensor | None, tolerances: Tensor) -> dict[str, Any]:
    """What a layer's row says: the largest floor, and how many operators have theirs above each tolerance.

    Args:
        floor: from `floors`.
        tolerances: (tolerance, operator), absolute.
    """
    if floor is None:
        return {}
    below = (tolerances.cpu() < floor.cpu()).sum(1).tolist()
    return {"noise_floor": float(floor.max()), "below_noise": below}


def notes(layers: Sequence[dict[str, Any]], tolerances: Sequence[float], dtype: str | None) -> list[str]:
    """A sentence for each tolerance that lies below the floor of some operators."""
    out = []
    for k, tol in enumerate(tolerances):
        hit = [info for info in layers if info.get("below_noise") and info["below_noise"][k]]
        if hit:
            operators = sum(info["below_noise"][k] for info in hit)
            largest = max(info["noise_floor"] for info in hit)
            numbers = sorted({info["layer"] for info in hit})
            out.append(
                f"tolerance {tolerance(tol)} is below the noise floor of {dtype} features for "
                f"{count(operators, 'operator')} in layer{'s' if len(numbers) > 1 else ''} {ranges(numbers)} (up to "
                f"{largest:.1e}): what is counted there may be rounding"
            )
    return out
