"""Finds the shifts of the entropy quadrature (PLACES in hf_ess/spectra/dense_entropy.py).

    python benchmarks/quadrature_nodes.py 11 12 14        ten minutes each

The weights follow from the shifts by a linear fit; the shifts are moved by Nelder-Mead (scipy) so that the error of
entropy-ESS, about e_1 + 4 e_0 (e_0: sum sigma, e_1: sum sigma log sigma), becomes small.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from scipy.optimize import minimize

sys.path.insert(0, str(Path(__file__).parents[1]))

from hf_ess.spectra.dense_entropy import PLACES, fitted


def error(places: list[float]) -> float:
    rule = fitted(10 ** torch.tensor(sorted(places), dtype=torch.float64))
    return max(4 * rule.errors[0], rule.errors[1])


def search(nodes: int, restarts: int = 4) -> list[float]:
    """log10 of the shifts, ascending."""
    even = torch.linspace(-6, -0.2, nodes, dtype=torch.float64)
    generator = torch.Generator().manual_seed(nodes)
    best = even.tolist()
    for restart in range(restarts):
        noise = torch.randn(nodes, generator=generator, dtype=torch.float64)
        places = (even + 0.1 * restart * noise).tolist()
        for _ in range(4):
            options = {"maxfev": 1500, "xatol": 1e-3, "fatol": 1e-4, "adaptive": True}
            places = minimize(lambda x: math.log(error(x)), places, method="Nelder-Mead", options=options).x.tolist()
        best = min(best, places, key=error)
    return sorted(best)


def main() -> None:
    torch.set_num_threads(1)
    for nodes in map(int, sys.argv[1:] or PLACES):
        even = error(torch.linspace(-6, -0.2, nodes).tolist())
        now = f", in use {error(list(PLACES[nodes])):.1e}" if nodes in PLACES else ""
        found = search(nodes)
        print(f"{nodes} nodes: evenly spaced {even:.1e}{now}, found {error(found):.1e} at", end=" ")
        print([round(x, 3) for x in found], flush=True)


if __name__ == "__main__":
    main()
