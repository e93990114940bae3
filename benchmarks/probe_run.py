"""A whole probe of SmolLM2-135M against its plain forward pass: time in one process, memory in separate ones.

python -m benchmarks.probe_run [--length 512] [--threads 2] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

TOLERANCES = (1e-1, 1e-3, 1e-5)


def setup(length: int, threads: int):
    """Model and token ids."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests import real

    torch.set_num_threads(threads)
    folder = real.smollm2()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(folder)(real.text(length), return_tensors="pt").input_ids[:, :length]
    assert ids.shape[1] == length
    return model, ids


def forward(model, ids) -> None:
    """What a user pays anyway."""
    import torch

    with torch.no_grad():
        model(input_ids=ids, use_cache=False)


def measured(model, ids, entropy: bool) -> None:
    """Capture, verification and spectra of every head at every position."""
    from hf_ess.capturing import capture
    from hf_ess.spectra.ess import measure

    capture(model, ids, lambda layer: measure(layer.operator, TOLERANCES, entropy=entropy))


def seconds(task, *arguments) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    task(*arguments)
    return time.perf_counter() - start


def times(length: int, threads: int, repeats: int) -> None:
    """Interleaved, so that a busy machine slows all of them alike."""
    model, ids = setup(length, threads)
    forward(model, ids)
    measured(model, ids, True)  # compiles what is compiled
    rows: dict[str, list[float]] = {"forward": [], "three tolerances": [], "and entropy": []}
    for _ in range(repeats):
        rows["forward"].append(seconds(forward, model, ids))
        rows["three tolerances"].append(seconds(measured, model, ids, False))
        rows["and entropy"].append(seconds(measured, model, ids, True))
    base = statistics.median(rows["forward"])
    print(f"SmolLM2-135M, {length} tokens, {threads} threads, medians of {repeats}")
    for name, values in rows.items():
        median = statistics.median(values)
        print(f"  {name:18} {median:8.2f} s   {median / base:6.1f} forward passes")


def memory(length: int, threads: int) -> None:
    """Peak resident memory, each task in a process of its own."""
    peaks = {}
    for task in ("forward", "probe"):
        command = [sys.executable, "-m", "benchmarks.probe_run", "--one", task]
        command += ["--length", str(length), "--threads", str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[task] = json.loads(done.stdout.splitlines()[-1])
    gib = 2**20  # ru_maxrss is in KiB on Linux
    forward, probe = peaks["forward"] / gib, peaks["probe"] / gib
    print(f"  peak memory: forward {forward:.2f} GiB, probe {probe:.2f} GiB (+{probe - forward:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", choices=["forward", "probe"], help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one:
        model, ids = setup(a.length, a.threads)
        forward(model, ids) if a.one == "forward" else measured(model, ids, True)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return
    times(a.length, a.threads, a.repeats)
    memory(a.length, a.threads)


if __name__ == "__main__":
    main()
