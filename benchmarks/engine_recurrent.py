"""Singular values of every H_i of recurrent operators, against torch.linalg.svdvals of every H_i of the dense T.

    python -m benchmarks.engine_recurrent [--source demo] [--lengths 256 512 1024] [--threads 1 2] [--every 8]

Both sides run in turn, in one process, with the same threads; times are medians, per channel.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from hf_ess.operators import RecurrentOperator, SelectiveScan
from hf_ess.operators.state_space import StateSpaceOperator
from hf_ess.spectra import recurrent, recurrent_factors
from hf_ess.spectra.metrics import TIE

TOLERANCES = (1e-1, 1e-3, 1e-5)


@dataclass
class Row:
    """One measurement.

    Attributes:
        source, engine, threads, n, length, channels: what was measured.
        svd: seconds per channel for the SVDs of all L-1 matrices H_i.
        every: every how many-th cut was timed; svd is extrapolated from them if it is not 1.
        engine_seconds: seconds per channel for all singular values of all H_i.
        error: largest distance of a singular value from the SVD's, in units of sigma_1(H_i).
        wrong, compared: counts at TOLERANCES that differ, of how many compared.
    """

    source: str
    engine: str
    threads: int
    n: int
    length: int
    channels: int
    svd: float
    every: int
    engine_seconds: float
    error: float
    wrong: int
    compared: int

    @property
    def ratio(self) -> float:
        return self.svd / self.engine_seconds

    @property
    def microseconds(self) -> float:
        """Per channel and cut."""
        return 1e6 * self.engine_seconds / (self.length - 1)


def s6(channels: int, length: int, n: int) -> SelectiveScan:
    """Random parameters spread as those of a Mamba-1 layer: A = -1 .. -n, dt from 1e-3 to 1e-1 and more."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    dt = torch.nn.functional.softplus(normal(channels, length) + normal(channels, 1) - 3)
    A = -torch.arange(1.0, n + 1, dtype=torch.float64).expand(channels, -1)
    return SelectiveScan(dt, A, normal(length, n), normal(length, n))


def delta(channels: int, length: int, n: int) -> RecurrentOperator:
    """Heads of a gated delta rule with random keys."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    keys, queries = (torch.nn.functional.normalize(normal(channels, length, n), dim=-1) for _ in range(2))
    decay, strength = torch.sigmoid(normal(channels, length, 1) + 4), torch.sigmoid(normal(channels, length, 1))
    return RecurrentOperator(decay, strength * keys, queries, (strength * keys, decay * keys))


def ssd(channels: int, length: int, n: int) -> RecurrentOperator:
    """Heads of a Mamba-2 layer: one decay per token, b and c of every head its own."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    dt = torch.nn.functional.softplus(normal(channels, length, 1) + normal(channels, 1, 1) - 3)
    return RecurrentOperator(torch.exp(-dt), dt * normal(channels, length, n), normal(channels, length, n))


def demo(channels: int, length: int, n: int) -> StateSpaceOperator:
    """The scan of the first layer of the shipped Falcon-Mamba on held-out text; n is the checkpoint's own."""
    import transformers

    from hf_ess.capturing import capture

    root = Path(__file__).parents[1]
    folder = root / "hf_ess/demo/falcon-mamba"
    text = json.loads((root / "tests/data/demo_heldout.json").read_text())["text"]
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text).input_ids
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    layers: list = []
    capture(model, (ids * (1 + length // len(ids)))[:length], layers.append)
    return layers[0].operator[:channels]


SOURCES: dict[str, Callable[[int, int, int], StateSpaceOperator]] = {
    "s6": s6,
    "ssd": ssd,
    "delta": delta,
    "demo": demo,
}


@contextmanager
def without_numba() -> Iterator[None]:
    """The torch path, which is what runs where numba is not installed."""
    with mock.patch.object(recurrent_factors, "compiled", lambda: False):
        yield


def spectra(op: StateSpaceOperator) -> torch.Tensor:
    """All singular values of all H_i, (channel, L-1, n)."""
    return torch.cat([sigma for _, sigma in recurrent.spectrum(op)])


def rows(
    source: str = "demo",
    n: int = 16,
    lengths: tuple[int, ...] = (256, 512, 1024),
    channels: int = 128,
    threads: tuple[int, ...] = (1,),
    every: int = 8,
    repeats: int = 3,
) -> list[Row]:
    """Measurements of every engine at every length and number of threads.

    Args:
        source: "demo" (trained), "s6" or "delta" (random).
        n: state size, for the random ones.
        lengths: numbers of tokens.
        channels: operators that the engine is given at once; a fifth of them without numba.
        threads: of torch and of the engine.
        every: every how many-th cut the SVDs are timed at.
        repeats: of both sides, in turn.
    """
    out = []
    before = torch.get_num_threads()
    for number in threads:
        torch.set_num_threads(number)
        for length in lengths:
            out += _rows(source, n, length, channels, number, every, repeats)
    torch.set_num_threads(before)
    return out


def _rows(source: str, n: int, length: int, channels: int, threads: int, every: int, repeats: int) -> list[Row]:
    op = SOURCES[source](channels, length, n)
    T = op[:1].dense()[0]
    cuts = list(range(1 + every // 2, length, every))

    def all_svds() -> list[torch.Tensor]:
        return [torch.linalg.svdvals(T[i:, :i]) for i in cuts]

    def with_torch() -> torch.Tensor:
        with without_numba():
            return spectra(op[: max(1, op.count // 5)])

    engines: dict[str, Callable[[], torch.Tensor]] = {"torch": with_torch}
    if find_spec("numba"):
        engines = {"numba": lambda: spectra(op), **engines}
        spectra(op[:1])  # compile
    exact = all_svds()
    seconds: dict[str, list[float]] = {name: [] for name in ("svd", *engines)}
    last = {}
    for _ in range(repeats):
        seconds["svd"].append(_time(all_svds)[0] * (length - 1) / len(cuts))
        for name, run in engines.items():
            elapsed, last[name] = _time(run)
            seconds[name].append(elapsed / len(last[name]))
    return [
        Row(
            source,
            name,
            threads,
            op.state,
            length,
            len(sigma),
            statistics.median(seconds["svd"]),
            every,
            statistics.median(seconds[name]),
            *_agreement(sigma[0], exact, cuts),
        )
        for name, sigma in last.items()
    ]


def _agreement(sigma: torch.Tensor, exact: list[torch.Tensor], cuts: list[int]) -> tuple[float, int, int]:
    """Largest error in units of sigma_1, wrong counts, counts compared."""
    error, wrong, compared = 0.0, 0, 0
    for i, reference in zip(cuts, exact):
        k = min(len(reference), sigma.shape[1])
        distance = (sigma[i - 1, :k] - reference[:k]).abs().max() / reference[0].clamp_min(1e-300)
        error = max(error, float(distance))
        for tol in TOLERANCES:
            wrong += int((sigma[i - 1] >= tol * (1 - TIE)).sum() != (reference >= tol * (1 - TIE)).sum())
            compared += 1
    return error, wrong, compared


def _time(task: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = task()
    return time.perf_counter() - start, result


def table(measured: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| source | engine | threads | n | L | SVDs, s/channel | engine, s/channel | us/(channel, cut) | ratio "
        "| error / sigma_1 | wrong counts |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in measured:
        every = "" if r.every == 1 else f" (from 1 in {r.every})"
        lines.append(
            f"| {r.source} | {r.engine} | {r.threads} | {r.n} | {r.length} | {r.svd:.3g}{every} "
            f"| {r.engine_seconds:.3g} | {r.microseconds:.2f} | {r.ratio:.0f}x | {r.error:.1e} "
            f"| {r.wrong} of {r.compared} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=SOURCES, default="demo")
    parser.add_argument("-n", type=int, default=16, help="state size, for the random sources")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--every", type=int, default=8, help="time the SVDs at every how many-th cut (1: all)")
    parser.add_argument("--repeats", type=int, default=3)
    a = parser.parse_args()
    print(table(rows(a.source, a.n, tuple(a.lengths), a.channels, tuple(a.threads), a.every, a.repeats)))


if __name__ == "__main__":
    main()
