"""Stored spectra of SmolLM2-135M: what they cost, that they come layer by layer, and what can be counted from them.

python -m benchmarks.spectra_storage [--length 512] [--positions every:8] > benchmarks/results/spectra_storage.txt
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ASKED, NEW = (1e-1, 1e-3, 1e-5), (3e-1, 1e-2, 3e-4)
MAP = {"": "cpu", **{f"model.layers.{n}": "disk" for n in range(10, 30)}}
MIB = 2**20


def command(folder: Path, text: Path, out: Path, length: int, *more: str, tolerances=ASKED) -> list[str]:
    """hf-ess probe on the first tokens of a text."""
    line = [sys.executable, "-m", "hf_ess", "probe", str(folder), "--text", str(text), "--max-tokens", str(length)]
    return [*line, *(x for t in tolerances for x in ("--tol", str(t))), "-o", str(out), "--no-plots", "-q", *more]


def run(line: list[str], out: Path) -> tuple[float, float, list[tuple[int, float]]]:
    """Seconds, peak resident MiB, and when the n-th file of spectra was there."""
    partial, start, seen = out.with_name(out.name + ".partial"), time.perf_counter(), []
    process = subprocess.Popen(line)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        index = partial / "spectra" / "index.json"
        listed = len(json.loads(index.read_text())["files"]) if index.exists() and not pid else 0
        if listed and (not seen or listed > seen[-1][0]):
            seen.append((listed, time.perf_counter() - start))
        if pid:
            break
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, line
    return time.perf_counter() - start, usage.ru_maxrss / 1024, seen


def report(name: str, seconds: float, peak: float) -> None:
    print(f"  {name:44} {seconds:7.1f} s   peak {peak:6.0f} MiB", flush=True)


def compare(counted, direct) -> str:
    """How the counts from stored spectra differ from those of a run at these tolerances."""
    same = off = beyond = doubtful = 0
    theirs = {
        (r["layer"], r["unit"], r["tolerance"]): r["values"] for r in direct.rows(metric="tolerance", reduction=None)
    }
    doubts = {
        (r["layer"], r["unit"], r["tolerance"]): r["values"] for r in counted.rows(metric="uncertain", reduction=None)
    }
    for row in counted.rows(metric="tolerance", reduction=None):
        key = row["layer"], row["unit"], row["tolerance"]
        if row["unit"] is None:
            continue
        for a, b, c in zip(row["values"], theirs[key], doubts[key]):
            if a is not None:
                same, off = same + (a == b), off + (a != b)
                beyond, doubtful = beyond + (abs(a - b) > c), doubtful + (c > 0)
    return (
        f"{same + off:,} counts: {same:,} equal, {off:,} differ, {doubtful:,} called uncertain; "
        f"{beyond:,} differ by more than the singular values called uncertain"
    )


def large_layer(memory: int, channels: int = 8192, length: int = 1024, state: int = 16) -> None:
    """One layer of the shape of Falcon Mamba 7B, all its spectra written; prints what it took as JSON."""
    import resource

    import psutil
    import torch

    from hf_ess.operators import SelectiveScan
    from hf_ess.results.shards import ShardWriter
    from hf_ess.spectra.ess import measure

    torch.manual_seed(0)

    def scan(count: int) -> SelectiveScan:
        features = torch.randn(length, state), torch.randn(length, state)
        return SelectiveScan(torch.rand(count, length) * 0.1, -torch.rand(count, state) * 8, *features)

    measure(scan(2), ASKED)  # compiles what is compiled
    operator, cuts = scan(channels), list(range(1, length))
    widths = [min(i, length - i, state) for i in cuts]
    before, start = psutil.Process().memory_info().rss, time.perf_counter()
    with tempfile.TemporaryFile() as file:
        writer = ShardWriter(file, channels, cuts, widths, operator.tss()[:1], "bfloat16")
        found = measure(operator, ASKED, memory=memory, sink=writer)
        writer.finish()
        size = file.tell() and os.fstat(file.fileno()).st_size
    kept = sum(x.numel() * x.element_size() for x in vars(found).values() if x is not None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before - kept
    print(json.dumps({"seconds": time.perf_counter() - start, "peak": peak, "kept": kept, "file": size}))


def large_layers() -> None:
    """The same under several bounds of memory, each in a process of its own."""
    print("\nOne layer of 8,192 Mamba channels, n = 16, 1,024 tokens, all 1,023 cuts (float64: 1.0 GiB of values):")
    for bound in (64, 256, 1024):
        line = [sys.executable, "-m", "benchmarks.spectra_storage", "--layer", str(bound)]
        done = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
        print(
            f"  memory {bound:5} MiB: {done['seconds']:6.1f} s, {done['peak'] / MIB:6.0f} MiB above the operators and "
            f"the {done['kept'] / MIB:.0f} MiB of counts returned; file {done['file'] / MIB:.0f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--positions", default="every:8")
    parser.add_argument("--layer", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.layer:
        large_layer(a.layer * MIB)
        return
    import torch

    import hf_ess
    from tests import real

    folder = real.smollm2()
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    print(
        f"SmolLM2-135M ({weights / MIB:.0f} MiB of weights), {a.length} tokens, positions {a.positions}, torch "
        f"{torch.__version__}, {torch.get_num_threads()} threads"
    )
    spectra = ("--keep", "spectra", "--positions", a.positions)
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        text = root / "text.txt"
        text.write_text(real.text(a.length), encoding="utf-8")
        (root / "map.json").write_text(json.dumps(MAP))

        def line(name: str, *more: str, tolerances=ASKED) -> list[str]:
            return command(folder, text, root / name, a.length, *more, tolerances=tolerances)

        run(line("warm"), root / "warm")  # compiles what is compiled
        report("without spectra", *run(line("plain"), root / "plain")[:2])
        seconds, peak, seen = run(line("kept", *spectra), root / "kept")
        report("--keep spectra", seconds, peak)
        for memory in ("64MiB", "256MiB"):
            out = f"memory-{memory}"
            report(f"--keep spectra --memory {memory}", *run(line(out, *spectra, "--memory", memory), root / out)[:2])
        wide = ("--spectra-dtype", "float32")
        report("--keep spectra --spectra-dtype float32", *run(line("wide", *spectra, *wide), root / "wide")[:2])
        away = ("--device-map", str(root / "map.json"))
        report("--keep spectra, layers 10-29 on disk", *run(line("away", *spectra, *away), root / "away")[:2])
        report("at three other tolerances, no spectra", *run(line("new", tolerances=NEW), root / "new")[:2])

        kept = hf_ess.load_result(root / "kept")
        entries, stored = kept.spectra.entries, kept.spectra.bytes()
        values = sum(e["shape"][0] * e["shape"][1] for e in entries)
        print(
            f"\n  on disk: {len(entries)} files, {stored / MIB:.1f} MiB for {values:,} values "
            f"({stored / values:.3f} bytes each); float32: "
            f"{hf_ess.load_result(root / 'wide').spectra.bytes() / MIB:.1f} MiB"
        )
        print("  files of spectra that were whole and listed, and when:")
        for n in (1, 10, 20, len(entries)):
            at = next(t for files, t in seen if files >= n)
            print(f"    {n:3} after {at:6.1f} s of {seconds:.1f} s")
        start = time.perf_counter()
        counted = hf_ess.retol(root / "kept", NEW)
        took = time.perf_counter() - start
        print(f"\n  retol at {', '.join(map(str, NEW))}: {took:.1f} s")
        for note in counted.summary["notes"]:
            print(f"    {note}")
        direct = hf_ess.load_result(root / "new")
        print(f"  against a run at these tolerances: {compare(counted, direct)}")
        print(f"  the same from float32: {compare(hf_ess.retol(root / 'wide', NEW), direct)}")
        disk = hf_ess.load_result(root / "away")
        equal = disk.ess.equals(kept.ess) and disk.layers == kept.layers
        equal &= disk.summary["provenance"]["weights_hash"] == kept.summary["provenance"]["weights_hash"]
        files = [path.name for path in kept.spectra.folder.iterdir()]
        equal &= all((kept.spectra.folder / f).read_bytes() == (disk.spectra.folder / f).read_bytes() for f in files)
        print(
            f"  with layers 10-29 on disk (device {disk.summary['provenance']['device']}): every value equal: {equal}"
        )
        print(f"  and counted from its spectra: {compare(hf_ess.retol(disk, NEW), direct)}", flush=True)
    large_layers()


if __name__ == "__main__":
    main()
