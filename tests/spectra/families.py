"""Causal operators of many kinds for tests and benchmarks of the dense engine, strictly lower triangular, float64."""

from __future__ import annotations

import torch
from torch import Tensor


def operator(name: str, L: int, seed: int = 0) -> Tensor:
    """T (L, L) of the family `name` (one of NAMES)."""
    g = torch.Generator().manual_seed(seed)
    i = torch.arange(L, dtype=torch.float64)
    row, column = i[:, None], i[None]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def softmax(temperature: float, sink: float = 0.0, window: int = 0) -> Tensor:
        scores = normal(L, 16) @ normal(16, L) / 4 / temperature
        scores[:, 0] += sink
        hidden = (column > row) | (row - column >= window if window else torch.zeros(L, L, dtype=torch.bool))
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)

    def rotation() -> Tensor:
        return torch.linalg.qr(normal(L, L))[0]

    def one_hot() -> Tensor:
        T = torch.zeros(L, L, dtype=torch.float64)
        T[1:][torch.arange(L - 1), (torch.rand(L - 1, generator=g) * i[1:]).long()] = 1
        return T

    def geometric(base: float) -> Tensor:
        return rotation() * base**i @ rotation()

    def documents() -> Tensor:
        number = (i // (L // 4 + 1))[:, None]
        return softmax(1.0) * (number == number.T)

    make = {
        "gaussian": lambda: normal(L, L),
        "signs": lambda: normal(L, L).sign(),
        "graded rows": lambda: normal(L, L) * 10 ** (-8 * row / L),
        "graded columns": lambda: normal(L, L) * 10 ** (-8 * column / L),
        "graded both": lambda: normal(L, L) * 10 ** (-4 * (row + column) / L),
        "scales at random": lambda: normal(L, L) * 10 ** (-6 * torch.rand(L, 1, generator=g, dtype=torch.float64)),
        "geometric 0.9": lambda: geometric(0.9),
        "geometric 0.5": lambda: geometric(0.5),
        "two scales": lambda: normal(L, 2) @ normal(2, L) + 1e-6 * normal(L, L),
        "low rank": lambda: normal(L, 3) @ normal(3, L),
        "sparse": lambda: normal(L, L) * (torch.rand(L, L, generator=g) < 2 / L),
        "uniform": lambda: torch.ones(L, L, dtype=torch.float64) / (row + 1),
        "running sum": lambda: torch.ones(L, L, dtype=torch.float64),
        "shift 1": lambda: (row - column == 1).double(),
        "shift 7": lambda: (row - column == 7).double(),
        "one-hot rows": one_hot,
        "sink": lambda: (column == 0).double().expand(L, L).clone(),
        "documents": documents,
        "decay": lambda: 0.8 ** (row - column).clamp_min(0),
        "oscillation": lambda: torch.cos(0.7 * (row - column)) * 0.99 ** (row - column).clamp_min(0),
        "power law": lambda: (1 + (row - column).clamp_min(0)) ** -1.0,
        "gaussian kernel": lambda: torch.exp(-(((row - column) / (L / 8)) ** 2)),
        "softmax": lambda: softmax(1.0),
        "softmax sharp": lambda: softmax(0.05),
        "softmax with a sink": lambda: softmax(1.0, sink=8.0),
        "softmax in a window": lambda: softmax(0.5, window=max(2, L // 8)),
        "bidiagonal": lambda: 1.0 * (row - column == 1) - 0.999 * (row - column == 2),
        "zero": lambda: torch.zeros(L, L, dtype=torch.float64),
    }
    return torch.tril(make[name]().double(), -1)


NAMES = [
    *("gaussian", "signs", "graded rows", "graded columns", "graded both", "scales at random", "geometric 0.9"),
    *("geometric 0.5", "two scales", "low rank", "sparse", "uniform", "running sum", "shift 1", "shift 7"),
    *("one-hot rows", "sink", "documents", "decay", "oscillation", "power law", "gaussian kernel", "softmax"),
    *("softmax sharp", "softmax with a sink", "softmax in a window", "bidiagonal", "zero"),
]
