"""The negative control of every family: what is left out of the operator must fail verification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.adapters.contract import captured, token_ids


def assert_found(model: Any, kind: str, leave_out: Callable[[], None], length: int = 32) -> None:
    """The layers of a kind verify, and after leave_out() none does, by far.

    Args:
        model: a causal language model.
        kind: the family looked at.
        leave_out: changes the adapter, not the model.
        length: number of tokens.
    """
    ids = token_ids(model, length)
    layers, _ = captured(model, ids)
    assert [layer.kind for layer in layers].count(kind) and all(layer.verified for layer in layers)
    leave_out()
    layers, _ = captured(model, ids)
    wrong = [layer for layer in layers if layer.kind == kind]
    assert all(not layer.verified and layer.error > 1e-2 for layer in wrong), [layer.error for layer in wrong]
