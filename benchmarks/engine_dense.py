"""The dense engine against an SVD of every H_i, on trained attention, and the study of its certificate.

    python benchmarks/engine_dense.py speed --length 512 --heads 3       needs SmolLM2-135M (tests/real.py)
    python benchmarks/engine_dense.py certificate                        a few minutes

All is measured in one process, in turn (SVDs, counts, entropy, again), because timings of one minute do not hold in
the next.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from hf_ess.spectra import dense_counts, dense_entropy, dense_norms, reference
from hf_ess.spectra.dense_norms import compiled_available
from tests.spectra.families import NAMES, operator

TOLERANCES = (1e-1, 1e-3, 1e-5)


@dataclass
class Row:
    """One comparison, in seconds for each head.

    Attributes:
        svd: all singular values of every H_i, by torch.linalg.svdvals.
        sampled: every how many cuts an SVD was taken; `svd` is extrapolated if this is not 1.
        counts: three tolerances, all cuts.
        entropy: all cuts.
        wrong: counts that differ from those by SVD, of `checked`.
        entropy_error: the largest relative error of entropy-ESS.
    """

    length: int
    heads: int
    threads: int
    compiled: bool
    svd: float
    sampled: int
    counts: float
    entropy: float
    wrong: int
    checked: int
    entropy_error: float

    @property
    def counts_ratio(self) -> float:
        return self.svd / self.counts

    @property
    def entropy_ratio(self) -> float:
        return self.svd / self.entropy


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def speed(T: Tensor, compiled: bool, repeats: int = 5, every: int = 1) -> Row:
    """Compares the engine with SVDs on heads T (B, L, L) at the tolerances TOLERANCES.

    Args:
        compiled: with numba, or batched torch calls.
        repeats: rounds; medians are kept.
        every: take an SVD at every so many cuts only and multiply its time.
    """
    B, L = T.shape[:2]
    T = T.tril(-1)
    cuts = range(1, L, every)
    tol = torch.tensor(TOLERANCES, dtype=torch.float64)[:, None].expand(-1, B)

    def svds(b: int) -> list[Tensor]:
        return [torch.linalg.svdvals(T[b, i:, :i]) for i in cuts]

    # The first call compiles or loads what is compiled; its results are checked.
    counts = dense_counts.counts(T, tol, compiled)[0]
    ess, _ = dense_entropy.entropy(T, 11, 1, compiled)
    times: dict[str, list[float]] = {"svd": [], "counts": [], "entropy": []}
    wrong = checked = 0
    error = 0.0
    for turn in range(repeats):
        # The SVDs take long: one head in each round, the others only to check the results.
        spectra: list[Tensor] = []
        b = turn % B
        times["svd"].append(seconds(lambda b=b, out=spectra: out.extend(svds(b))))  # type: ignore[misc]
        times["counts"].append(seconds(lambda: dense_counts.counts(T, tol, compiled)) / B)
        times["entropy"].append(seconds(lambda: dense_entropy.entropy(T, 11, 1, compiled)) / B)
        if turn >= B:
            continue
        for k, tolerance in enumerate(TOLERANCES):
            exact = reference.tolerance_ess(spectra, tolerance)
            wrong += int((counts[k, b, ::every] != exact).sum())
            checked += len(exact)
        exact = reference.entropy_ess(spectra)
        error = max(error, float(((ess[b, ::every] - exact) / exact).abs().max()))
    return Row(
        length=L,
        heads=B,
        threads=torch.get_num_threads(),
        compiled=compiled,
        svd=median(times["svd"]) * (L - 1) / len(cuts),
        sampled=every,
        counts=median(times["counts"]),
        entropy=median(times["entropy"]),
        wrong=wrong,
        checked=checked,
        entropy_error=error,
    )


def trained_heads(length: int, heads: int) -> Tensor:
    """Attention of SmolLM2-135M on real text, heads taken evenly from layers 3, 14 and 26, (heads, L, L)."""
    from tests import real

    T = torch.cat(real.attention(length, [3, 14, 26]))
    return T[torch.linspace(0, len(T) - 1, heads).long()].contiguous()


def print_rows(rows: list[Row]) -> None:
    print("times in ms for each head; SVD: torch.linalg.svdvals of every H_i; counts: tolerances 1e-1, 1e-3, 1e-5")
    head = ("L", "threads", "engine", "SVD", "counts", "ratio", "wrong", "entropy", "ratio", "error")
    print(("{:>6}{:>9}{:>10}{:>14}{:>9}{:>8}{:>12}{:>9}{:>8}{:>10}").format(*head))
    for r in rows:
        svd = f"{1e3 * r.svd:.0f}" + ("" if r.sampled == 1 else f" (1/{r.sampled})")
        print(
            f"{r.length:>6}{r.threads:>9}{'compiled' if r.compiled else 'torch':>10}{svd:>14}"
            f"{1e3 * r.counts:>9.1f}{r.counts_ratio:>7.0f}x{f'{r.wrong}/{r.checked}':>12}"
            f"{1e3 * r.entropy:>9.1f}{r.entropy_ratio:>7.0f}x{r.entropy_error:>10.1e}"
        )


@dataclass
class Verdict:
    """What became of the counts at one tolerance.  All but `cuts` are numbers of cuts.

    Attributes:
        raw_wrong: the sweep alone was wrong.
        wrong: a count that was vouched for was wrong.
        svds: computed by SVD.
        unresolved: marked as beyond float64.
    """

    cuts: int = 0
    raw_wrong: int = 0
    wrong: int = 0
    svds: int = 0
    unresolved: int = 0


EXPONENTS = (-1.0, -3.0, -5.0, -5.5, -6.0, -6.5, -7.0, -7.5, -8.0, -10.0, -14.0)


def certificate(lengths: list[int], seeds: int, compiled: bool, first_seed: int = 0) -> dict[float, Verdict]:
    """Counts on all families at tolerances 10^e |H|_F (the largest over the cuts), against SVD, by e.

    A cut with a singular value within the rounding noise of the tolerance is not judged.
    """
    verdicts = {e: Verdict() for e in EXPONENTS}
    taken = 0

    def counting(H: Tensor) -> Tensor:
        nonlocal taken
        taken += 1
        return dense_norms.svdvals(H)

    original, dense_counts.svdvals = dense_counts.svdvals, counting  # type: ignore[attr-defined]
    try:
        for name, L, seed in ((n, L, s) for n in NAMES for L in lengths for s in range(seeds)):
            T = operator(name, L, first_seed + seed)[None]
            spectra = reference.all_spectra(T[0])
            size = max(float(s.norm()) for s in spectra) or 1.0
            for e in EXPONENTS:
                w = torch.tensor(size * 10**e * (1 - dense_counts.SHADE), dtype=torch.float64)
                exact = torch.stack([(s >= w).sum() for s in spectra])
                clear = ~torch.stack([dense_counts._too_close(s, w) for s in spectra])
                taken = 0
                counts, resolved = dense_counts.counts(T, torch.full((1, 1), size * 10**e).double(), compiled)
                op = dense_counts.prepare(T, compiled)
                raw = dense_counts._swept(op, (w / op.unit)[None])[0][0, 0, 1:L]
                v = verdicts[e]
                v.cuts += L - 1
                v.raw_wrong += int(((raw != exact) & clear).sum())
                v.wrong += int(((counts[0, 0] != exact) & resolved[0, 0] & clear).sum())
                v.unresolved += int((~resolved).sum())
                v.svds += taken
    finally:
        dense_counts.svdvals = original  # type: ignore[attr-defined]
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fast = commands.add_parser("speed", help="time against SVDs")
    fast.add_argument("--length", type=int, nargs="+", default=[256, 512])
    fast.add_argument("--heads", type=int, default=3)
    fast.add_argument("--threads", type=int, nargs="+", default=[1])
    fast.add_argument("--repeats", type=int, default=5)
    fast.add_argument("--every", type=int, default=1, help="an SVD at every so many cuts, the time extrapolated")
    study = commands.add_parser("certificate", help="what goes wrong among the counts that are vouched for")
    study.add_argument("--length", type=int, nargs="+", default=[48, 100, 160])
    study.add_argument("--seeds", type=int, default=3)
    study.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    engines = [True, False] if compiled_available() else [False]
    if arguments.command == "speed":
        rows = []
        for length in arguments.length:
            T = trained_heads(length, arguments.heads)
            for threads in arguments.threads:
                torch.set_num_threads(threads)
                rows += [speed(T, compiled, arguments.repeats, arguments.every) for compiled in engines]
        print_rows(rows)
        return
    torch.set_num_threads(1)
    print("tolerance 10^e |H|_F, numbers of cuts")
    print(
        "{:>10}{:>6}{:>9}{:>12}{:>8}{:>9}{:>12}".format(
            "engine", "e", "cuts", "raw wrong", "wrong", "by SVD", "unresolved"
        )
    )
    for compiled in engines:
        verdicts = certificate(arguments.length, arguments.seeds, compiled, arguments.first_seed)
        for e, v in verdicts.items():
            name = "compiled" if compiled else "torch"
            print(f"{name:>10}{e:>6}{v.cuts:>9}{v.raw_wrong:>12}{v.wrong:>8}{v.svds:>9}{v.unresolved:>12}")


if __name__ == "__main__":
    main()
