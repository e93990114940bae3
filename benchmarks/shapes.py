"""One layer of real shapes with random features: time and peak memory of all cuts of all its operators, on a CPU.

    python -m benchmarks.shapes [--lengths 256 1024] [--shapes falcon-mamba-7b ...] [--threads 2] [--output FILE]

Every case runs in a process of its own: three tolerances and entropy at every cut of every head or channel, without the
forward pass; memory is the peak resident memory of the whole process, and what of it was there before (Python, torch,
the layer's own features).  Totals for a whole model are these times its layers: extrapolated, not run.
Features are random but of realistic size: attention logits of standard deviation 2 with a slope towards near tokens,
decays of Mamba from its own initialisation.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines import processor

TOLERANCES = (1e-1, 1e-3, 1e-5)


@dataclass(frozen=True)
class Shape:
    """A layer of a published model.

    Attributes:
        make: operators of L tokens.
        layers: how many such layers the model has.
        what: in words.
    """

    make: Callable[[int], Any]
    layers: int
    what: str


def falcon_mamba(length: int) -> Any:
    """tiiuae/falcon-mamba-7b: 8,192 channels, n = 16, B and C normalised by RMS."""
    from hf_ess.operators import SelectiveScan

    g = torch.Generator().manual_seed(0)
    bias = torch.exp(torch.rand(8192, 1, generator=g) * math.log(100) + math.log(1e-3))
    dt = bias * torch.exp(0.5 * torch.randn(8192, length, generator=g))
    A = -torch.arange(1.0, 17).expand(8192, 16)
    B, C = torch.randn(2, length, 16, generator=g)
    return SelectiveScan(dt, A, B, C)


def llama(length: int) -> Any:
    """meta-llama/Meta-Llama-3-8B: 32 query heads, 8 key heads, width 128."""
    from hf_ess.operators import SoftmaxAttention

    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(32, length, 128, generator=g), torch.randn(8, length, 128, generator=g)
    slope = torch.exp2(-torch.arange(1, 33) / 4)[:, None, None]
    i = torch.arange(length)
    bias = -slope * (i[:, None] - i).clamp_min(0)
    visible = (i[:, None] >= i)[None]
    return SoftmaxAttention(q, k, 2 / 128**0.5, visible, position_bias=bias, multiplicity=128)


def mamba2(length: int) -> Any:
    """state-spaces/mamba2-2.7b: 80 heads of width 64, n = 128, one group."""
    from hf_ess.operators import SSDScan

    g = torch.Generator().manual_seed(0)
    dt = 1e-3 * 100 ** torch.rand(80, 1, generator=g) * torch.exp(0.5 * torch.randn(80, length, generator=g))
    A = -(1 + 15 * torch.rand(80, generator=g))
    B, C = torch.randn(2, 1, length, 128, generator=g)
    return SSDScan(dt, A, B, C, 64)


def gated_delta(length: int) -> Any:
    """Qwen/Qwen3-Next-80B-A3B: gated DeltaNet of 32 value heads, 16 key heads, width 128."""
    from hf_ess.operators import DeltaRule

    g = torch.Generator().manual_seed(0)
    q, k = torch.nn.functional.normalize(torch.randn(2, 16, length, 128, generator=g), dim=-1)
    decay = -0.02 * torch.exp(torch.randn(32, length, 1, generator=g))
    return DeltaRule(q / 128**0.5, k, decay, torch.rand(32, length, generator=g), 128)


SHAPES = {
    "falcon-mamba-7b": Shape(falcon_mamba, 64, "8,192 channels, n = 16"),
    "llama-3-8b": Shape(llama, 32, "32 heads, GQA 8"),
    "mamba2-2.7b": Shape(mamba2, 64, "80 heads, n = 128"),
    "qwen3-next": Shape(gated_delta, 36, "32 delta-rule heads, n = 128"),
}


def one(name: str, length: int, threads: int) -> dict[str, float]:
    """Time and memory of one case, in this process."""
    from hf_ess.spectra.ess import measure

    torch.set_num_threads(threads)
    operator = SHAPES[name].make(length)
    measure(SHAPES[name].make(48)[0:2], TOLERANCES)  # compiles what is compiled
    before = resident()
    peak = Peak()
    start = time.perf_counter()
    with peak:
        found = measure(operator, TOLERANCES)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "before": before,
        "peak": peak.value,
        "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "unresolved": int((~found.resolved).sum()),
        "mean": float(found.counts[1].double().mean()),
        "operators": operator.count,
    }


def resident() -> float:
    """Resident memory of this process, GiB."""
    import psutil

    return psutil.Process().memory_info().rss / 2**30


class Peak:
    """The largest resident memory while a block runs, looked at every 5 ms."""

    value = 0.0

    def __enter__(self) -> Peak:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._stop.wait(0.005):
            self.value = max(self.value, resident())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def table(lengths: list[int], names: list[str], threads: int) -> str:
    """Markdown, a row per shape and length."""
    lines = [
        "| shape of a layer | L | time, s | per operator and cut | peak memory, GiB (before) | mean ESS at 1e-3 "
        "| unresolved | whole model, extrapolated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        shape, times = SHAPES[name], []
        for length in lengths:
            command = [sys.executable, "-m", "benchmarks.shapes", "--one", name, "--lengths", str(length)]
            done = subprocess.run([*command, "--threads", str(threads)], stdout=subprocess.PIPE, text=True, check=True)
            r = json.loads(done.stdout.splitlines()[-1])
            times.append((length, r["seconds"]))
            each = 1e6 * r["seconds"] / (r["operators"] * (length - 1))
            whole = r["seconds"] * shape.layers / 60
            lines.append(
                f"| {name}: {shape.what} | {length} | {r['seconds']:.1f} | {each:.1f} us | "
                f"{max(r['peak'], r['before']):.2f} ({r['before']:.2f}) | {r['mean']:.1f} | {r['unresolved']} | "
                f"{shape.layers} layers: {whole:.1f} min |"
            )
            print(lines[-1], flush=True)
        if len(times) > 1:
            (a, s), (b, t) = times[-2:]
            print(f"  growth from {a} to {b}: L^{math.log(t / s) / math.log(b / a):.2f}", flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", choices=list(SHAPES), help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one:
        print(json.dumps(one(a.one, a.lengths[0], a.threads)))
        return
    from hf_ess.results.provenance import versions

    v = versions()
    text = (
        f"# Layers of real shapes\n\n{processor()}, {a.threads} threads, torch {v['torch']}, numba {v['numba']}, "
        f"{datetime.date.today()}: `python -m benchmarks.shapes`\n\n{table(a.lengths, a.shapes, a.threads)}\n\n"
        + "\n".join(__doc__.splitlines()[4:])
    )
    if a.output:
        a.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
