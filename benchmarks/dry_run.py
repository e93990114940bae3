"""Is `hf-ess probe --dry-run` right?  Its peak memory, disk and time against a run of the same command.

    python -m benchmarks.dry_run [--threads 1] [--only NAME ...] [--output FILE]

Each case is a checkpoint on disk: random weights in real proportions (attention, Mamba, and a hybrid of gated delta
rule and attention), and SmolLM2-135M.  Both commands are processes of their own, with the same options.  Compared are

* memory: the peak resident set of the whole process that really ran, as the kernel counts it (ru_maxrss), with
  Python, torch and transformers in it; the plan states the same, its part for the interpreter and libraries included;
* disk: bytes of all files in the result's folder;
* time: wall time of the whole command, imports and loading included.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """A checkpoint and a length.

    Attributes:
        name: in the table.
        kind: model type; None for SmolLM2-135M.
        length: tokens.
        options: of both commands.
        config: sizes of the random checkpoint.
        dtype: in which it is stored.
    """

    name: str
    kind: str | None
    length: int
    options: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"


LLAMA = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
MAMBA = {
    "hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 12, "state_size": 16, "time_step_rank": 48,
    "vocab_size": 50280,
}  # fmt: skip
HYBRID = {
    "hidden_size": 768, "num_hidden_layers": 8, "intermediate_size": 2048, "num_attention_heads": 12,
    "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 6, "linear_num_value_heads": 12,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256, "vocab_size": 50000,
    "max_position_embeddings": 4096, "layer_types": None, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
CASES = [
    Case("llama, 98M, float32", "llama", 512, config=LLAMA),
    Case("llama, 98M, float32", "llama", 1024, config=LLAMA),
    Case("llama, 98M, bfloat16", "llama", 2048, ("--no-entropy", "--keep", "reductions"), LLAMA, "bfloat16"),
    Case("falcon_mamba, 87M, float32", "falcon_mamba", 256, config=MAMBA),
    Case("falcon_mamba, 87M, float32", "falcon_mamba", 512, ("--keep", "units", "--layers", "0-3"), MAMBA),
    Case("qwen3_next, hybrid, float32", "qwen3_next", 512, config=HYBRID),
    Case("SmolLM2-135M, float32", None, 1024),
    Case("SmolLM2-135M, bfloat16", None, 512, ("--dtype", "bfloat16", "--keep", "spectra", "--positions", "every:16")),
]


def checkpoint(case: Case, folder: Path) -> Path:
    """The case's checkpoint, made where it is not there yet."""
    from tests import real
    from tests.tiny import tiny_checkpoint

    if case.kind is None:
        return real.smollm2()
    path = folder / f"{case.kind}-{case.dtype}"
    if not path.exists():
        tiny_checkpoint(path, case.kind, dtype=case.dtype, **case.config)
    return path


def text(folder: Path) -> Path:
    """A text of more tokens than any case takes."""
    from tests.tiny import TEXT

    path = folder / "text.txt"
    path.write_text(TEXT * 40, encoding="utf-8")
    return path


def run(command: list[str], threads: int) -> tuple[float, float, str]:
    """Seconds, peak resident bytes of the process, and what it printed."""
    environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "hf_ess", *command], env=environment, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: {err.read()}")
        return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), out.read()


def compared(case: Case, folder: Path, threads: int) -> tuple[dict[str, Any], dict[str, float]]:
    """The plan of a case, and what a run of it took."""
    path, output = checkpoint(case, folder), folder / "out"
    command = ["probe", str(path), "--text", str(text(folder)), "--max-tokens", str(case.length), "-o", str(output)]
    command += case.options
    planning, _, printed = run([*command, "--dry-run", "--json", "-q"], threads)
    seconds, peak, _ = run([*command, "-q"], threads)
    disk = sum(f.stat().st_size for f in output.rglob("*") if f.is_file())
    shutil.rmtree(output)
    return json.loads(printed), {"planning": planning, "seconds": seconds, "peak": peak, "disk": disk}


def row(case: Case, plan: dict[str, Any], real: dict[str, float]) -> str:
    """A line of the table."""

    def both(planned: float, measured: float, unit: float, digits: int) -> str:
        return f"{planned / unit:.{digits}f} | {measured / unit:.{digits}f} | {planned / measured:.2f}"

    memory = both(plan["memory"]["peak"], real["peak"], 2**30, 2)
    disk = both(plan["disk"]["result"], real["disk"], 2**20, 1)
    seconds = both(plan["time"]["total"], real["seconds"], 1, 0)
    options = " ".join(case.options)
    return f"| {case.name} | {case.length} | {options} | {memory} | {disk} | {seconds} | {real['planning']:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name holds one of these")
    parser.add_argument("--folder", type=Path, help="for the checkpoints, kept; default temporary")
    parser.add_argument("--output", type=Path)
    a = parser.parse_args()
    from benchmarks.engines import processor
    from hf_ess.results.provenance import versions

    chosen = [case for case in CASES if not a.only or any(word in case.name for word in a.only)]
    heads = [f"{what} planned | measured | ratio" for what in ("memory, GiB:", "disk, MiB:", "time, s:")]
    lines = [f"| checkpoint | L | options | {' | '.join(heads)} | dry run, s |", "|---" * 13 + "|"]
    ratios: dict[str, list[float]] = {"memory": [], "disk": [], "time": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        run(["probe", "demo:llama", "--prompt", "to compile the kernels", "--no-plots", "-q"], a.threads)
        for case in chosen:
            plan, real = compared(case, folder, a.threads)
            lines.append(row(case, plan, real))
            print(lines[-1], flush=True)
            ratios["memory"].append(plan["memory"]["peak"] / real["peak"])
            ratios["disk"].append(plan["disk"]["result"] / real["disk"])
            ratios["time"].append(plan["time"]["total"] / real["seconds"])
    spread = ", ".join(f"{name} {min(r):.2f} to {max(r):.2f}" for name, r in ratios.items())
    v = versions()
    software = ", ".join(f"{name} {v[name]}" for name in ("torch", "transformers", "numba"))
    heading = f"{processor()}, {a.threads} thread(s), {software}, {datetime.date.today()}"
    about = "\n".join(__doc__.splitlines()[4:])
    body = "\n".join(lines)
    made = (
        f"# Dry runs beside real ones\n\n{heading}: `python -m benchmarks.dry_run`\n\n{body}\n\n"
        f"Planned / measured: {spread}.\n\n{about}\n"
    )
    if a.output:
        a.output.write_text(made, encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
