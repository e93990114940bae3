"""Whole runs: hf-ess beside the plain forward pass, and beside the same job done with what others offer.

    python -m benchmarks.whole_runs [--lengths 256 512 1024 2048] [--threads 1] [--transformer-lens PYTHON]

The job is three tolerances and entropy at every cut of every head of SmolLM2-135M (fetched as a package on first use).
Others give the attention matrices, and the SVDs are the user's: torch.linalg.svdvals of H_i in float64.  A sample of
those is timed (every cut of a head would take hours) and extrapolated to all cuts, as sum over i of the median cost.

* `output_attentions`: model(ids, output_attentions=True) in eager attention; all layers are held at once.
* TransformerLens: TransformerBridge.run_with_cache, patterns from its cache; PYTHON is an interpreter that has it.

Every run is a process of its own; memory is the peak of the whole process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

TOLERANCES = (1e-1, 1e-3, 1e-5)
TASKS = ("forward", "hf-ess", "output_attentions", "transformer-lens")


def inputs(length: int) -> Any:
    """Token ids, (1, L)."""
    from transformers import AutoTokenizer

    from tests import real

    return AutoTokenizer.from_pretrained(real.smollm2())(real.text(length), return_tensors="pt").input_ids[:, :length]


def one(task: str, length: int, threads: int) -> dict[str, float]:
    """Seconds and memory of one task, in this process."""
    import torch

    torch.set_num_threads(threads)
    ids = inputs(length)
    seconds, svd, heads = {
        "forward": forward,
        "hf-ess": measured,
        "output_attentions": attentions,
        "transformer-lens": lens,
    }[task](ids)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "svd": svd, "heads": heads, "peak": peak}


def model(attention: str = "sdpa") -> Any:
    """SmolLM2 in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests import real

    return AutoModelForCausalLM.from_pretrained(
        real.smollm2(), dtype=torch.float32, attn_implementation=attention
    ).eval()


def timed(run: Any) -> tuple[float, Any]:
    """Seconds of the second call, after one that warms up."""
    import torch

    with torch.no_grad():
        run()
        start = time.perf_counter()
        found = run()
        return time.perf_counter() - start, found


def forward(ids: Any) -> tuple[float, float, int]:
    loaded = model()
    seconds, _ = timed(lambda: loaded(input_ids=ids, use_cache=False).logits)
    return seconds, 0.0, 0


def measured(ids: Any) -> tuple[float, float, int]:
    from hf_ess.capturing import capture
    from hf_ess.spectra.ess import measure

    loaded, heads = model(), []

    def on_layer(layer: Any) -> None:
        heads.append(layer.operator.count)
        measure(layer.operator, TOLERANCES)

    seconds, _ = timed(lambda: capture(loaded, ids, on_layer))
    return seconds, 0.0, sum(heads) // 2


def attentions(ids: Any) -> tuple[float, float, int]:
    loaded = model("eager")
    seconds, maps = timed(lambda: loaded(input_ids=ids, use_cache=False, output_attentions=True).attentions)
    return seconds, svds(maps[len(maps) // 2][0, 0]), sum(m.shape[1] for m in maps)


def lens(ids: Any) -> tuple[float, float, int]:
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    from tests import real

    bridge = TransformerBridge.boot_transformers(str(real.smollm2()), device="cpu", dtype=torch.float32)
    names = [f"blocks.{k}.attn.hook_pattern" for k in range(bridge.cfg.n_layers)]
    seconds, found = timed(lambda: bridge.run_with_cache(ids, names_filter=names)[1])
    maps = [found[name] for name in names]
    return seconds, svds(maps[len(maps) // 2][0, 0]), sum(m.shape[1] for m in maps)


def svds(T: Any, samples: int = 9) -> float:
    """Seconds for the SVDs of all H_i of one matrix, from a sample of cuts, by the trapezoidal rule."""
    import numpy as np
    import torch

    T, L = T.double(), T.shape[0]
    cuts = np.unique(np.linspace(1, L - 1, samples).astype(int))
    times = []
    for i in cuts:
        torch.linalg.svdvals(T[i:, :i])
        start = time.perf_counter()
        torch.linalg.svdvals(T[i:, :i])
        times.append(time.perf_counter() - start)
    return float(np.trapezoid(times, cuts))


def row(task: str, length: int, threads: int, python: str) -> dict[str, float] | None:
    command = [python, "-m", "benchmarks.whole_runs", "--one", task, "--lengths", str(length)]
    done = subprocess.run([*command, "--threads", str(threads)], capture_output=True, text=True)
    if done.returncode:
        print(f"{task}, {length} tokens: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def table(lengths: list[int], threads: int, python: str | None) -> str:
    """Markdown, a row per length and task."""
    lines = [
        "| L | | run, s | SVDs of all heads, extrapolated | whole job against hf-ess | peak memory, GiB |",
        "|---|---|---|---|---|---|",
    ]
    growth, memory = [], []
    for length in lengths:
        rows = {
            t: row(t, length, threads, python if t == TASKS[3] else sys.executable) for t in TASKS[: 4 if python else 3]
        }
        base, ours = rows["forward"], rows["hf-ess"]
        assert base is not None and ours is not None
        for task, r in rows.items():
            if r is None:
                continue
            svd, hours = r["svd"] * r["heads"], r["svd"] * r["heads"] / 3600
            name, after = f"{task}", f"{hours:.1f} h" if svd > 600 else f"{svd:.0f} s"
            whole = (
                f"{(r['seconds'] + svd) / ours['seconds']:,.0f}x"
                if svd
                else f"{r['seconds'] / base['seconds']:.1f} forward passes"
            )
            lines.append(
                f"| {length} | {name} | {r['seconds']:.2f} | {after if svd else ''} | {whole} | {r['peak']:.2f} |"
            )
            print(lines[-1], flush=True)
        growth.append((length, ours["seconds"], base["seconds"]))
        memory.append(f"{length}: {ours['peak'] - base['peak']:+.2f} GiB")
    notes = [f"Peak memory of hf-ess above the forward pass, by length: {', '.join(memory)}."]
    for (a, s, f), (b, t, g) in pairwise(growth):
        powers = (math.log(y / x) / math.log(b / a) for x, y in ((s, t), (f, g)))
        notes.append(
            "From {} to {} tokens hf-ess grows as L^{:.2f}, the forward pass as L^{:.2f}.".format(a, b, *powers)
        )
    return "\n".join([*lines, "", *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--transformer-lens", metavar="PYTHON")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", choices=TASKS, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one:
        print(json.dumps(one(a.one, a.lengths[0], a.threads)))
        return
    from benchmarks.engines import processor
    from hf_ess.results.provenance import versions

    v = versions()
    made = table(a.lengths, a.threads, a.transformer_lens)
    software = ", ".join(f"{name} {v[name]}" for name in ("torch", "transformers", "numba"))
    heading = f"{processor()}, {a.threads} thread(s), {software}, {datetime.date.today()}"
    about = "\n".join(__doc__.splitlines()[4:])
    text = f"# Whole runs of SmolLM2-135M\n\n{heading}: `python -m benchmarks.whole_runs`\n\n{made}\n\n{about}\n"
    if a.output:
        a.output.write_text(text, encoding="utf-8")
    print(made.splitlines()[-1])


if __name__ == "__main__":
    main()
