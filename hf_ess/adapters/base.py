"""What an adapter is: it watches one family of mixers while the model runs and hands over their operators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from hf_ess.operators import Operator


@dataclass
class MixerCall:
    """One call of one sequence mixer: its operator, and what is needed to verify it.

    Attributes:
        module: the mixer that ran.
        kind: family name, such as "softmax" or "mamba".
        operator: T, taken from the features that the mixer used.
        inputs: u, (operator, L, channel); what T is applied to.
        reference: y, (operator, L, channel); what the model's original function returns for the same arguments
            in float32 or better.  Never computed from the operator: the check could not fail.
        output: (operator, L, channel); what the model went on with, in its own dtype; None where it is the reference.
        bound: largest relative error between T u and y that counts as verified.
    """

    module: nn.Module
    kind: str
    operator: Operator
    inputs: Tensor
    reference: Tensor
    output: Tensor | None = None
    bound: float = 1e-5


@dataclass
class Watch:
    """What capture gives an adapter for one run.

    Attributes:
        model: the model that is about to run, in evaluation mode, attention set to "eager".
        record: to be called once per mixer call, while the model runs.
        refuse: to be called with (module, reason) instead, where a mixer that ran has no causal operator.
        running: the modules in whose forward the model is just now, outermost first.
    """

    model: nn.Module
    record: Callable[[MixerCall], None]
    refuse: Callable[[nn.Module, str], None]
    running: list[nn.Module] = field(default_factory=list)


class Adapter(Protocol):
    """A family of mixers; one object, registered once, without state of its own."""

    kind: str

    def watch(self, watch: Watch) -> AbstractContextManager[None]:
        """Intercepts the family's function while the context is open, and restores it on leaving."""
        ...
