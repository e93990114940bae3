"""What every adapter must keep, as functions of a model: used by one small test per family."""

from __future__ import annotations

from typing import Any

import torch

from hf_ess.capturing import CapturedLayer, SkippedLayer, capture
from hf_ess.spectra.ess import measure, singular_values
from hf_ess.spectra.reference import all_spectra

TOLERANCES = (1e-1, 1e-3, 1e-5)


def token_ids(model: Any, length: int = 32, seed: int = 1) -> torch.Tensor:
    """Random ids that lie in the vocabulary, special tokens left out."""
    rows = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, min(rows, 300), (length,), generator=generator)


def captured(model: Any, ids: torch.Tensor) -> tuple[list[CapturedLayer], list[SkippedLayer]]:
    """All layers of one run, kept."""
    layers: list[CapturedLayer] = []
    skipped = capture(model, ids, layers.append)
    return layers, skipped


def check(
    model: Any, mixers: int, kinds: set[str] | None = None, ids: torch.Tensor | None = None
) -> list[CapturedLayer]:
    """The whole contract on one model.

    Args:
        model: a causal language model in evaluation mode.
        mixers: how many mixer calls there must be; none may be skipped.
        kinds: the kinds that must occur.
        ids: (L,) token ids.
    """
    ids = token_ids(model) if ids is None else ids
    before = state(model)
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits
    layers, skipped = captured(model, ids)
    assert [s for s in skipped if s.called] == []
    assert len(layers) == mixers
    if kinds is not None:
        assert {layer.kind for layer in layers} == kinds
    for layer in layers:
        assert layer.error <= layer.bound and layer.verified, (layer.module, layer.error)
        T = layer.operator.dense()
        assert T.dtype == torch.float64
        assert (T.triu(1) == 0).all(), layer.module
        assert T.tril(-1).abs().amax() > 1e-3, layer.module  # a mixer that mixes nothing proves nothing
        assert_engine_is_svd(layer)
    assert state(model) == before
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids[None], use_cache=False).logits, logits)
    return layers


def assert_engine_is_svd(layer: CapturedLayer) -> None:
    """Counts at all cuts, and rank <= TSS, against dense float64 SVDs of a few operators."""
    some = layer.operator[0 : min(3, layer.operator.count)]
    sigma = all_spectra(some.dense())  # one (operator, k) per cut
    measured = measure(some, TOLERANCES)
    assert measured.resolved.float().mean() > 0.9
    for k, tol in enumerate(TOLERANCES):
        exact = torch.stack([(s >= tol).sum(-1) for s in sigma], -1)
        wrong = (measured.counts[k] != exact) & measured.resolved[k]
        near = torch.stack([((s / tol - 1).abs() < 1e-6).any(-1) for s in sigma], -1)
        assert not (wrong & ~near).any(), layer.module
    top = torch.stack([s[:, 0] for s in sigma], -1)
    rank = torch.stack([(s > 1e-9 * s[:, :1]).sum(-1) for s in sigma], -1)
    assert (rank * (top > 0) <= some.tss()).all(), layer.module
    chosen = singular_values(some, [some.length // 2])[0]
    expected = sigma[some.length // 2 - 1][:, : chosen.shape[1]]
    assert torch.allclose(chosen, expected, atol=1e-7 * float(top.max()))


def state(model: Any) -> dict[str, Any]:
    """What capture must leave as it was."""
    return {
        "attention": [getattr(getattr(m, "config", None), "_attn_implementation", None) for m in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "training": [m.training for m in model.modules()],
        "rng": torch.random.get_rng_state().tolist(),
    }
