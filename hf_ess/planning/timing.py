"""How long a run will take: the engines themselves, timed for a moment on this machine, and their known growth."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hf_ess.operators import ConvolutionOperator, DeltaRule, RecurrentOperator, SoftmaxAttention, StateSpaceOperator
from hf_ess.operators.state_space import _ROOM
from hf_ess.planning.memory import swept
from hf_ess.planning.survey import PlannedLayer, Survey
from hf_ess.results.recording import Options
from hf_ess.spectra import recurrent, svd_cost
from hf_ess.spectra.ess import measure

_SHORT, _LONG = 256, 768  # tokens at which attention is timed
_SWEEP, _FORMING = (2.3, 3.0), (1.9, 2.3)  # powers of L by which that grows
_READING = 0.8e9  # bytes of weights per second, read and hashed
_STARTING = 5.0  # seconds for imports, tokenizer and files (measured: 4 to 7)
_DRAWING = 4.0  # for three pictures


# Tolerances to count at, and whether entropy, sigma_1 and relative tolerances are asked for.
_Asked = tuple[tuple[float, ...], bool, bool, bool]


@dataclass(frozen=True)
class Time:
    """Seconds of a run, in parts.

    Attributes:
        starting: imports, reading the weights, and pictures at the end.
        forward: the model itself.
        operators: forming and verifying them.
        spectra: ESS of every operator at every cut, and stored singular values.
    """

    starting: float
    forward: float
    operators: float
    spectra: float

    @property
    def total(self) -> float:
        """All parts together."""
        return self.starting + self.forward + self.operators + self.spectra


def estimated(
    survey: Survey,
    layers: Sequence[PlannedLayer],
    lengths: Sequence[int],
    cuts: Sequence[Sequence[int]] | None,
    options: Options,
    dtype: torch.dtype,
    plots: bool,
) -> Time:
    """Seconds of a run on the CPU of this machine.

    Args:
        survey: of the model.
        layers: that will be measured.
        lengths: tokens of each prompt.
        cuts: where spectra are stored, for each prompt; None where that is not known, or none are.
        options: what is computed.
        dtype: of the model.
        plots: whether pictures are drawn.
    """
    asked = (options.counted, options.entropy, options.norms, options.relative)
    starting = _STARTING + survey.parameter_bytes / _READING + (_DRAWING if plots else 0)
    forward = operators = spectra = 0.0
    rate = multiplications(dtype)
    for number, L in enumerate(lengths):
        forward += 2 * survey.matmul * L / rate
        for layer in layers:
            applied, measured = _per_layer(layer, L, asked)
            operators += applied
            spectra += measured
            if cuts is not None and cuts[number] and layer.form == "dense":
                spectra += svd_cost.seconds(L, list(cuts[number]), layer.operators)
    return Time(starting, forward, operators, spectra)


def nominal(layers: Sequence[PlannedLayer], lengths: Sequence[int]) -> float:
    """Seconds by the rates of one core of some server, to see whether it is worth timing this machine."""
    seconds = 0.0
    for L in lengths:
        for layer in layers:
            rate = 1.2e-10 * (L * layer.tss.block) ** 3 if swept(layer, L) else 3e-6 * L * max(1, layer.state / 16) ** 2
            seconds += layer.operators * rate
    return seconds


def spoken(seconds: float) -> str:
    """A length of time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} second{'' if round(seconds) == 1 else 's'}"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


def _per_layer(layer: PlannedLayer, L: int, asked: _Asked) -> tuple[float, float]:
    """Seconds to form and verify the operators of a layer, and to measure them."""
    count, n = layer.operators, layer.state
    if layer.form == "dense":
        width = min(256, layer.multiplicity)
        applied = count * _growth(lambda length: _applied_dense(length, width), L, *_FORMING)
        return applied, count * _growth(lambda length: _swept(length, asked), L * layer.tss.block, *_SWEEP)
    if layer.form == "convolution":
        return 0.0, count * (L - 1) * _corner(max(2, n), asked)
    applied = _steps(count, L, n, layer.multiplicity, layer.rank_one)
    if swept(layer, L):
        formed = _growth(lambda length: _formed(length, n, layer.rank_one), L, *_FORMING)
        return applied + count * formed, count * _growth(lambda length: _swept(length, asked), L, *_SWEEP)
    return applied, count * (L - 1) * _cut(n, layer.rank_one, asked)


def _growth(seconds: Callable[[int], float], L: int, least: float, most: float) -> float:
    """c L^p through two lengths, p within what is known of the work.

    The sweep was measured to grow as L^2.5 to L^2.6 from 512 to 2,048 tokens (benchmarks/results/engines.md).
    """
    short, long = seconds(_SHORT), seconds(_LONG)
    power = math.log(long / short) / math.log(_LONG / _SHORT)
    return long * (L / _LONG) ** min(max(power, least), most)


def _timed(run: Callable[[], object]) -> float:
    """Seconds of a call, after one that warms up (and compiles): the median, since what else runs slows a run too."""
    run()
    times: list[float] = []
    while len(times) < 3 or (len(times) < 100 and sum(times) < 0.1):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@functools.lru_cache
def multiplications(dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product in that dtype."""
    x, w = torch.randn(256, 1024).to(dtype), torch.randn(1024, 1024).to(dtype)
    return 2 * 256 * 1024**2 / _timed(lambda: x @ w)


def _attention(L: int, count: int = 1) -> SoftmaxAttention:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(count, L, 64, generator=generator) for _ in range(2))
    return SoftmaxAttention(q, k, 0.125, mask=torch.ones(1, L, L, dtype=torch.bool).tril())


def _recurrence(count: int, L: int, n: int, rank_one: bool) -> StateSpaceOperator:
    generator = torch.Generator().manual_seed(0)
    b, c = (torch.randn(count, L, n, generator=generator, dtype=torch.float64) for _ in range(2))
    decay = 0.9 + 0.1 * torch.rand(count, L, 1 if rank_one else n, generator=generator, dtype=torch.float64)
    if not rank_one:
        return RecurrentOperator(decay, b, c)
    return DeltaRule(c, torch.nn.functional.normalize(b, dim=-1), decay.log(), torch.full((count, L), 0.5))


@functools.lru_cache
def _swept(L: int, asked: _Asked) -> float:
    """Seconds for one dense operator."""
    op, (tolerances, entropy, norms, relative) = _attention(L), asked
    return _timed(lambda: measure(op, tolerances, entropy=entropy, sigma_1=norms, relative=relative)) / op.count


@functools.lru_cache
def _applied_dense(L: int, width: int) -> float:
    """Seconds to form one dense operator twice, apply it, and for the model's own attention and its reference."""
    op = _attention(L)
    u, hidden = torch.randn(op.count, L, width), torch.zeros(1, L, L)

    def attention() -> torch.Tensor:
        return (op.q @ op.k.mT * op.scaling + hidden).softmax(-1) @ u

    return _timed(lambda: (op.apply(u), op.dense(), attention(), attention())) / op.count


@functools.lru_cache
def _formed(L: int, n: int, rank_one: bool) -> float:
    """Seconds to form T of one recurrence."""
    op = _recurrence(2, L, n, rank_one)
    return _timed(op.dense) / op.count


@functools.lru_cache
def _cut(n: int, rank_one: bool, asked: _Asked) -> float:
    """Seconds for one recurrence at one cut."""
    count, L = (64, 96) if n <= 32 else (8, 48)
    op, (tolerances, entropy, _, relative) = _recurrence(count, L, n, rank_one), asked
    if n >= 64:  # what is to be timed is the recurrence, not the sweep that suits so short a text
        return _timed(lambda: list(recurrent.spectrum(op))) / count / (L - 1)
    return _timed(lambda: measure(op, tolerances, entropy=entropy, relative=relative)) / count / (L - 1)


def _steps(count: int, L: int, n: int, width: int, rank_one: bool) -> float:
    """Seconds to apply recurrences to their inputs, token by token: one Python step for a block of them."""
    block = min(count, max(1, _ROOM // (L * n)))
    timed = min(block, max(1, 2**20 // (n * width)))
    return count / block * L * _step(timed, n, width, rank_one) * block / timed


@functools.lru_cache
def _step(count: int, n: int, width: int, rank_one: bool) -> float:
    """Seconds for one token."""
    L = 8
    op, u = _recurrence(count, L, n, rank_one), torch.randn(count, L, width, dtype=torch.float64)
    return _timed(lambda: op.apply(u)) / L


@functools.lru_cache
def _corner(taps: int, asked: _Asked) -> float:
    """Seconds for one short convolution at one cut."""
    count, L = 16, 64
    ones = torch.ones(count, L, dtype=torch.float64)
    op = ConvolutionOperator(torch.rand(count, taps, dtype=torch.float64), ones, ones)
    tolerances, entropy, _, relative = asked
    return _timed(lambda: measure(op, tolerances, entropy=entropy, relative=relative)) / count / (L - 1)
