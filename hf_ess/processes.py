"""One run spread over processes, as `accelerate launch` and `torchrun` start them: each has a share of the prompts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ess.errors import BadInput, HfEssError

if TYPE_CHECKING:
    from accelerate import PartialState

#: How long a process that is done waits for the others; a launcher ends all of them when one fails.
PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Processes:
    """This process among those that work on one run.

    Attributes:
        rank: number of this process; the first, 0, holds the result directory and writes what is printed.
        count: of all processes.
        local: number of this process on its machine.
    """

    rank: int = 0
    count: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this process gathers the result and speaks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.count == 1

    def mine(self, number: int) -> bool:
        """Whether a prompt is this process's to run."""
        return number % self.count == self.rank

    def wait(self) -> None:
        """Until every process is here."""
        if not self.alone:
            with _together():
                _state().wait_for_everyone()

    def shared(self, value: Any) -> Any:
        """The first process's value, in every process."""
        if self.alone:
            return value
        from accelerate.utils import broadcast_object_list

        with _together():
            _state()
            return broadcast_object_list([value])[0]

    def device_map(self, asked: Any) -> Any:
        """Where this process's copy of the model goes: a card of its own where "cuda" is asked for."""
        return f"cuda:{self.local}" if not self.alone and asked == "cuda" else asked


@contextmanager
def meeting_place(output: str | os.PathLike[str] | None, shared: Processes) -> Iterator[Path | None]:
    """Where the result is put together; several processes without an output directory meet in a temporary one."""
    if output is not None or shared.alone:
        yield None if output is None else Path(output)
        return
    folder = shared.shared(tempfile.mkdtemp(prefix="hf-ess-") if shared.first else None)
    yield Path(folder) / "result"
    shared.wait()
    if shared.first:
        shutil.rmtree(folder, ignore_errors=True)


def require_one(what: str) -> None:
    """Refuses a launcher for what does not share its work.

    Raises:
        BadInput: there are several processes.
    """
    if not processes().alone:
        raise BadInput(f"{what} runs in one process: start it without accelerate launch or torchrun")


def processes() -> Processes:
    """What the launcher's environment says; one process without a launcher."""
    rank, count, local = (int(os.environ.get(name) or default) for name, default in _VARIABLES)
    return Processes(rank, count, local)


_VARIABLES = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))


@contextmanager
def _together() -> Iterator[None]:
    """Turns what torch says of a lost process into a sentence."""
    try:
        yield
    except RuntimeError as error:
        raise HfEssError(
            "another process of this run ended before its work was done, and has said why; the same command goes on "
            "from what is finished"
        ) from error


def _state() -> PartialState:
    """The process group: gloo on CPUs, nccl on cards."""
    import torch
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
