"""Heads with large states (Mamba-2, delta rule) as a probe measures them, against the SVDs of every H_i.

    python -m benchmarks.engine_heads [--sources ssd delta] [-n 64 128] [--lengths 512 1024]

`measure` takes the recurrence or one sweep over T, whichever is cheaper at that size; both are timed here as well.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import torch

from benchmarks.engine_recurrent import SOURCES, TOLERANCES, _time
from hf_ess.spectra import ess
from hf_ess.spectra.ess import measure


@dataclass
class Row:
    """Seconds per head; svd is extrapolated from every how many-th cut."""

    source: str
    n: int
    length: int
    svd: float
    every: int
    measured: float
    recurrence: float
    sweep: float
    wrong: int
    compared: int


def row(source: str, n: int, length: int, heads: int, every: int, repeats: int) -> Row:
    """One comparison at TOLERANCES with entropy."""
    op = SOURCES[source](heads, length, n)
    T = op[:1].dense()[0]
    cuts = list(range(1 + every // 2, length, every))

    def timed(run) -> tuple[float, ess.Measurement]:
        times, out = [], None
        for _ in range(repeats):
            seconds, out = _time(run)
            times.append(seconds / heads)
        return statistics.median(times), out

    tolerances = list(TOLERANCES)
    measure(op[:1], tolerances)  # compiles what is compiled
    svd, exact = _time(lambda: [torch.linalg.svdvals(T[i:, :i]) for i in cuts])
    measured, found = timed(lambda: measure(op, tolerances))
    recurrence, _ = timed(lambda: ess._by_spectra(ess.recurrent, op, tolerances, True, False))
    sweep, _ = timed(lambda: ess._dense(op, tolerances, True, False, False))
    wrong = sum(
        int(found.counts[k, 0, i - 1]) != int((sigma >= tol * (1 - 1e-9)).sum())
        for k, tol in enumerate(tolerances)
        for i, sigma in zip(cuts, exact)
    )
    compared = len(tolerances) * len(cuts)
    return Row(source, n, length, svd * (length - 1) / len(cuts), every, measured, recurrence, sweep, wrong, compared)


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| source | n | L | SVDs, s/head | measure, ms/head | ratio | wrong | recurrence, ms | sweep over T, ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| {r.source} | {r.n} | {r.length} | {r.svd:.3g} (from 1 in {r.every}) | {1e3 * r.measured:.1f} "
            f"| {r.svd / r.measured:.0f}x | {r.wrong} of {r.compared} "
            f"| {1e3 * r.recurrence:.1f} | {1e3 * r.sweep:.1f} |"
        )
    return "\n".join(lines)


def rows(sources: list[str], sizes: list[int], lengths: list[int], heads: int, every: int, repeats: int) -> list[Row]:
    """All combinations."""
    return [row(s, n, length, heads, every, repeats) for s in sources for n in sizes for length in lengths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", default=["ssd", "delta"])
    parser.add_argument("-n", type=int, nargs="+", default=[64, 128], help="state sizes")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--every", type=int, default=16, help="an SVD at every how many-th cut")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    print(table(rows(a.sources, a.n, a.lengths, a.heads, a.every, a.repeats)))


if __name__ == "__main__":
    main()
