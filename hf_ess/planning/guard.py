"""What a real run asks of its plan before anything slow: does it fit, and is it long?"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ess.errors import BadInput
from hf_ess.results.recording import Options

if TYPE_CHECKING:
    from hf_ess.loading import LoadedModel

_SMALL_WEIGHTS, _SMALL_LENGTH = 2**28, 512  # what is smaller than both fits wherever torch does, and is not planned
_LONG = 60.0  # seconds that are announced


def foresee(
    loaded: LoadedModel,
    lengths: Sequence[int],
    options: Options,
    room: int | None,
    output: str | os.PathLike[str] | None,
    plots: bool,
    announce: Callable[[str], object] | None,
) -> None:
    """Refuses a run that cannot fit, and announces one that takes more than a minute.

    Args:
        loaded: the model, its weights read or not.
        lengths: tokens of each prompt.
        options: what is computed and kept.
        room: bytes for a block of operators, or None.
        output: the result's directory, or None.
        plots: whether pictures are drawn.
        announce: called with a sentence; None: nobody listens.

    Raises:
        BadInput: memory or disk do not suffice; with the numbers.
    """
    if max(lengths) < 2 or (_few_weights(loaded) and sum(lengths) <= _SMALL_LENGTH):
        return
    from hf_ess.planning import timing
    from hf_ess.planning.planner import places, planned, stored_dtype, torch_dtype
    from hf_ess.processes import processes

    folder = None if output is None else Path(output)
    try:
        plan = planned(loaded, lengths, None, options, room, folder, plots)
    except BadInput:  # a model that only its own loader can build is not refused for that
        return
    if plan.refusals:
        raise BadInput(plan.refusals[0])
    if announce is None or places(loaded) - {"cpu"} or timing.nominal(plan.layers, lengths) < _LONG / 4:
        return
    dtype = torch_dtype(loaded, stored_dtype(loaded)[0])
    mine = [length for number, length in enumerate(lengths) if processes().mine(number)]
    seconds = timing.estimated(plan.survey, plan.layers, mine, None, options, dtype, plots).total
    if seconds > _LONG:
        operators = sum(layer.operators for layer in plan.layers)
        announce(
            f"{operators:,} heads and channels at {plan.cuts:,} positions take about {timing.spoken(seconds)} on the "
            "CPU of this machine (--dry-run tells more)"
        )


def _few_weights(loaded: LoadedModel) -> bool:
    """Whether the weights are so few that their size is no question; by the files where they are still to be read."""
    if loaded.model is not None:
        return sum(p.numel() * p.element_size() for p in loaded.model.parameters()) <= _SMALL_WEIGHTS
    folder = Path(loaded.source)
    files = [folder] if folder.is_file() else list(folder.glob("*.safetensors")) + list(folder.glob("*.bin"))
    return bool(files) and sum(path.stat().st_size for path in files) <= _SMALL_WEIGHTS


def refuse(length: int, model: Any, available: int | None = None) -> None:
    """Refuses a text of that length for a loaded model where it cannot fit, see hf_ess.text.limits.check_memory."""
    if length < 2 or (available is None and length <= _SMALL_LENGTH):
        return
    import psutil

    from hf_ess.loading.weights import devices
    from hf_ess.planning import memory
    from hf_ess.planning.forward import forward_bytes
    from hf_ess.planning.survey import survey

    options = Options((1e-1, 1e-3, 1e-5), False, True, False, 1e-5, "reductions", None)
    dtype = next(model.parameters()).dtype
    try:
        found = survey(model.config, dtype)
    except BadInput:  # see above
        return
    if available is None:
        there = memory.available_bytes(set(devices(model)))
        if there is None:
            return
        available = there - psutil.Process().memory_info().rss

    forward = forward_bytes(model.config, dtype, length)

    def need(tokens: int) -> float:
        return memory.largest(found, tokens, options, None, forward)[0]

    needed = need(length)
    if needed > available:
        fits = memory.longest(need, available, length)
        raise BadInput(
            f"the text has {length} tokens, which take about {needed / 2**30:.1f} GiB at a time, and "
            f"{available / 2**30:.1f} GiB are free, enough for about {fits} tokens: shorten it with --max-tokens {fits}"
        )
