"""Recurrences for tests: the kinds of transition, and families that are hard in some way."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hf_ess.operators import RecurrentOperator

TRANSITIONS = [
    "identity",
    "scalar",
    "diagonal",
    "rank one",
    "scalar + rank one",
    "diagonal + rank one",
    "a for all",
    "b for all",
    "c for all",
    "maps for all",
]


def recurrence(kind: str, operators: int, length: int, n: int, seed: int = 0) -> RecurrentOperator:
    """Random recurrences with one of the TRANSITIONS; "for all": leading dimension 1."""
    normal = _normal(seed)
    shared = {name: 1 if kind in (f"{name} for all", "maps for all") else operators for name in "abc"}
    b, c = normal(shared["b"], length, n), normal(shared["c"], length, n)
    a = torch.sigmoid(normal(shared["a"] if kind != "maps for all" else operators, length, n) + 2)
    rank_one = None
    if "rank one" in kind:
        keys, strength = (
            normalize(normal(operators, length, n), dim=-1),
            2 * torch.sigmoid(normal(operators, length, 1)),
        )
        rank_one = strength * keys, keys
    if kind in ("identity", "rank one"):
        return RecurrentOperator(None, b, c, rank_one)
    return RecurrentOperator(a[:, :, :1] if "scalar" in kind else a, b, c, rank_one)


FAMILIES = [
    "no decay",
    "slow decay",
    "equal states",
    "hidden from the output",
    "resets",
    "fast decay",
    "decays of all sizes",
    "graded states",
    "states of opposed scales",
    "keys overwritten",
    "reflections",
    "the same key again and again",
    "rwkv-7",
    "sparse",
    "growing",
    "shift",
    "nothing",
]


def family(name: str, operators: int, length: int, n: int, seed: int = 0) -> RecurrentOperator:
    """Recurrences with some difficulty each; n >= 2."""
    normal = _normal(seed)
    b, c, x = normal(operators, length, n), normal(operators, length, n), normal(operators, length, n)
    a, keys = torch.sigmoid(x + 2), normalize(x, dim=-1)
    k = torch.arange(n, dtype=torch.float64)
    if name == "no decay":
        return RecurrentOperator(None, b, c)
    if name == "slow decay":
        return RecurrentOperator(1 - 10 ** (-1 - 5 * torch.sigmoid(x)), b, c)
    if name == "equal states":
        return RecurrentOperator(torch.full_like(a[:, :, :1], 0.9), b[:, :, :1] + 1e-9 * x, c)
    if name == "hidden from the output":  # P and Q are of order 1, their product is not
        b = b[:, :1]
        c = c - (c * b).sum(-1, keepdim=True) * b / b.square().sum(-1, keepdim=True)
        return RecurrentOperator(None, b + 1e-10 * x, c)
    if name == "resets":
        a[:, length // 3], a[:, length // 2], a[:, 2 * length // 3], a[:, 3 * length // 4] = 0.0, 1e-12, 1e-300, 1e-150
        return RecurrentOperator(a, b, c)
    if name == "fast decay":
        return RecurrentOperator(torch.exp(-30 * torch.sigmoid(x)), b, c)
    if name == "decays of all sizes":  # what is left of one state underflows beside others that forget nothing
        return RecurrentOperator(torch.exp(-torch.exp(3 * x[:, :, :1]) * 4**k), b, c)
    if name == "graded states":
        return RecurrentOperator(a, b * 10**-k, c * 10**-k)
    if name == "states of opposed scales":
        return RecurrentOperator(a, b * 10 ** (-12 * k), c * 10 ** (12 * k))
    if name == "keys overwritten":
        return RecurrentOperator(None, keys, c, (keys, keys))
    if name == "reflections":
        return RecurrentOperator(None, 2 * keys, c, (2 * keys, keys))
    if name == "the same key again and again":
        keys = keys[:, :1].expand(-1, length, -1)
        return RecurrentOperator(None, keys, c, (keys, keys))
    if name == "rwkv-7":
        return RecurrentOperator(torch.sigmoid(b + 3), b, c, (keys, torch.sigmoid(c) * keys))
    if name == "sparse":
        return RecurrentOperator(a, b * (x[:, :, :1] > 1.3), c * (x[:, :, 1:2] > 1.3))
    if name == "growing":
        return RecurrentOperator(1 + 0.2 * torch.sigmoid(x), b, c)
    if name == "shift":
        return shift(length, n - 1, operators)
    return RecurrentOperator(a, torch.zeros_like(b), c)


def shift(length: int, by: int, operators: int = 1) -> RecurrentOperator:
    """y_i = u_{i - by}: a ring of by + 1 cells; token i wipes and writes cell i, and reads cell i - by."""
    cells = torch.eye(by + 1, dtype=torch.float64).expand(operators, -1, -1)
    i = torch.arange(length)
    write = cells[:, i % (by + 1)]
    return RecurrentOperator(1 - write, write, cells[:, (i + 1) % (by + 1)])


def _normal(seed: int):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return draw
