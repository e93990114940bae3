"""Peak memory of a run, in bytes: what is held at once, by the sizes of blocks in the code that holds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from hf_ess.planning.survey import PlannedLayer, Survey
from hf_ess.results.recording import Options
from hf_ess.spectra import convolution, recurrent
from hf_ess.spectra.ess import _COPIES, _ROOM

# What a process holds beside what it holds when a run is planned: compiled kernels, pyarrow, pictures (measured with
# the extra `fast`: 72 MB of kernels, 60 MB of matplotlib), and what the allocator keeps.
_LATER = 160 * 2**20
_SWEEP = 4  # copies of T while it is formed and swept (measured: 2 to 3.9)
_APPLIED = 2**25  # numbers of T that exist at once while an operator is verified, see hf_ess.operators.softmax


@dataclass(frozen=True)
class Memory:
    """Where the peak of the whole process comes from, in bytes.

    Attributes:
        process: interpreter and libraries, and what the process held before.
        weights: of the model.
        run: the largest of the forward pass, and forming, verifying and measuring the operators of one layer.
        largest: which of these, or the module of that layer.
        rows: the curves of all layers, which are kept until the end.
        available: what the machine has to give, what the process holds already included; None where not asked.
        unknown: why the forward pass could not be foreseen and is left out, or None.
    """

    process: int
    weights: int
    run: int
    largest: str
    rows: int
    available: int | None = None
    unknown: str | None = None

    @property
    def peak(self) -> int:
        """All parts together."""
        return self.process + self.weights + self.run + self.rows


def largest(
    survey: Survey, length: int, options: Options, room: int | None, forward: Callable[[int], float] | None
) -> tuple[int, str]:
    """Bytes of the moment at which a run holds most beside weights and results, and what that moment is.

    Args:
        survey: of the model.
        length: number of tokens.
        options: what is computed.
        room: bytes for a block of operators (--memory), or None.
        forward: bytes of the forward pass by the number of tokens, or None.
    """
    moments = [(0.0 if forward is None else forward(length), "forward pass")]
    for layer in survey.layers:
        if options.layers is None or layer.layer in options.layers:
            moments.append((_layer(layer, length, options, room, survey.itemsize), layer.module))
    size, name = max(moments, key=lambda moment: moment[0])
    return int(size), name


def _layer(layer: PlannedLayer, L: int, options: Options, room: int | None, itemsize: int) -> float:
    """Bytes while the operators of one layer are verified or measured."""
    square, count = float(L) ** 2, layer.operators
    # Features are kept as the model made them, those of recurrences in float64; inputs and reference with them.
    held = layer.per_token * L * (itemsize if layer.form == "dense" else 8) + layer.per_pair * square * itemsize
    outputs = 3 * 8 * count * layer.multiplicity * L
    if layer.form == "dense":
        held += count * square * itemsize  # the model's own attention, which is alive while its layer is measured
        applied = 2 * 8 * square * min(count, max(1, int(_APPLIED / square)))
        again = 3 * 4 * count * square if itemsize < 4 else 0  # logits and softmax once more in float32
    else:
        applied, again = 3 * 8 * count * layer.state * layer.multiplicity, 0
    return held + max(again, applied + outputs, _engine(layer, L, room) + _measured(layer, L, options))


def _engine(layer: PlannedLayer, L: int, room: int | None) -> float:
    """Bytes that the engine takes for a block of operators."""
    count, n = layer.operators, layer.state
    if swept(layer, L):
        square = float(L * layer.tss.block) ** 2
        numbers = _ROOM if room is None else room // (8 * _COPIES)
        return _SWEEP * 8 * square * min(count, max(1, int(numbers / square)))
    if layer.form == "state":
        some = room or recurrent.MEMORY
        return min(some, 8 * 12 * L * n * count) + 2 * 8 * (L**0.5 + 1) * n**2
    return min(room or convolution.MEMORY, convolution._BYTES * L * max(1, n - 1) ** 2 * count)


def swept(layer: PlannedLayer, length: int) -> bool:
    """Whether T is formed: always of attention, and of recurrences whose state is large beside the text."""
    return layer.form == "dense" or (layer.form == "state" and layer.state >= 64 and length <= 8 * layer.state)


def _measured(layer: PlannedLayer, L: int, options: Options) -> float:
    """Bytes of the measurement of a layer and of the rows that are made of it."""
    per_cut = 9 * len(options.counted) + 4 * 8  # counts and whether they are sure; entropy, its error and two norms
    return layer.operators * L * (per_cut + 3 * 8)


def process_bytes() -> int:
    """What this process holds now, with what it will load later."""
    import psutil

    return psutil.Process().memory_info().rss + _LATER


def available_bytes(places: set[str]) -> int | None:
    """What a run may hold: free memory, within the limit of a container, and what this process holds already.

    Several processes that a launcher started on this machine (LOCAL_WORLD_SIZE) share it.

    Args:
        places: devices of the model.  Memory of GPUs is added where it is not on the CPU alone; None with "disk".
    """
    import psutil
    import torch

    if "disk" in places:
        return None
    free = min([psutil.virtual_memory().available, *_container()])
    if places - {"cpu"} and torch.cuda.is_available():
        free += sum(torch.cuda.mem_get_info(k)[0] for k in range(torch.cuda.device_count()))
    return psutil.Process().memory_info().rss + free // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def _container() -> list[int]:
    """Free bytes by the limits of a Linux container, where there are any."""
    from pathlib import Path

    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cache = next((line for line in (folder / "memory.stat").read_text().split("\n") if "inactive_file" in line), "")
        return [] if limit == "max" else [int(limit) - int(used) + int(cache.partition(" ")[2] or 0)]
    except (OSError, ValueError):
        return []


def longest(need: Callable[[int], float], available: float, length: int) -> int:
    """About the largest number of tokens, at most length, whose need fits, in two digits; 0 where 2 do not.

    Args:
        need: bytes of a number of tokens, growing.
        available: bytes.
        length: number of tokens.
    """
    low, high = 1, length + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need(middle) <= available else (low, middle)
    unit = 10 ** max(0, len(str(low)) - 2)
    return low // unit * unit if low >= 2 else 0
