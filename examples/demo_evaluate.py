"""Score a demo checkpoint on held-out text against the interpolated bigram model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import demo_bigram
import demo_data
import numpy as np
import torch


def windows(ids: np.ndarray, length: int) -> np.ndarray:
    """Cut 1-d ids into rows of ``length + 1``; a row's last id is the next row's first."""
    rows = (len(ids) - 1) // length
    return np.stack([ids[i * length : (i + 1) * length + 1] for i in range(rows)]).astype(np.int64)


@torch.no_grad()
def losses(model: Any, ids: np.ndarray, length: int, batch: int = 16) -> np.ndarray:
    """Negative log-likelihood in nats of every predicted token, in non-overlapping windows of ``length``."""
    model.eval()
    out, data = [], windows(ids, length)
    for rows in np.array_split(data, math.ceil(len(data) / batch)):
        x = torch.from_numpy(rows)
        logits = model(x[:, :-1], use_cache=False).logits.flatten(0, 1)
        out.append(torch.nn.functional.cross_entropy(logits, x[:, 1:].flatten(), reduction="none"))
    return torch.cat(out).double().numpy()


def read_fragments(work: Path, split: str) -> list[dict[str, str]]:
    """The fragments of one split, as ``train_demo.py data`` wrote them: ``source``, ``name``, ``text``."""
    return [json.loads(line) for line in (work / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def fitted_bigram(work: Path, vocabulary: int) -> demo_bigram.Bigram:
    """The baseline: counts from the training part, weight from the ``tune`` part."""
    return demo_bigram.Bigram.fit(np.load(work / "train.npy"), np.load(work / "tune.npy"), vocabulary)


def evaluate(model: Any, work: Path, length: int, tokens: int | None) -> dict[str, Any]:
    """Held-out loss in nats per token of the model and of the bigram model, for all tokens and by source.

    Args:
        tokens: score only the first so many held-out tokens; ``None`` for all.
    """
    bigram = fitted_bigram(work, model.config.vocab_size)
    ids = np.load(work / "heldout.npy")[:tokens]
    ours = losses(model, ids, length)
    theirs = bigram.losses(ids)[: len(ours)]
    targets = ids[1 : len(ours) + 1]
    # An end-of-text token belongs to the fragment that it ends: count the ends before each target.
    fragment = np.cumsum(ids == 0)[: len(ours)]
    label = np.array([f["source"] for f in read_fragments(work, "heldout")])[fragment]
    masks = {"all tokens": np.ones(len(ours), bool)}
    masks |= {f"source {s}": label == s for s in demo_data.MAX_CHARS}
    masks["end-of-text tokens"] = targets == 0
    scores = {
        name: {"tokens": int(m.sum()), "model": round(ours[m].mean(), 4), "bigram": round(theirs[m].mean(), 4)}
        for name, m in masks.items()
    }
    return {"bigram_weight": round(bigram.weight, 4), "scores": scores}


def write_sample(work: Path, to: Path, vocabulary: int, tokenizer: Any, fragments: int = 24) -> None:
    """Write held-out prose and the bigram counts of its tokens, enough to recompute the baseline anywhere.

    Only Moby-Dick and speeches before 1930 are taken, whose text is in the public domain beyond doubt.
    """
    bigram = fitted_bigram(work, vocabulary)
    chosen = [
        f
        for f in read_fragments(work, "heldout")
        if f["source"] == "moby-dick" or (f["source"] == "sotu" and f["name"] < "1930")
    ][:fragments]
    text = "".join(f["text"] + demo_data.EOS for f in chosen)
    ids = np.array(tokenizer(text).input_ids)
    before, after = ids[:-1], ids[1:]
    sample = {
        "from": "examples/train_demo.py sample",
        "documents": sorted({f"{f['source']}/{f['name']}" for f in chosen}),
        "text": text,
        "weight": bigram.weight,
        "vocabulary": vocabulary,
        "total": int(bigram.pairs.sum()),
        "count_pair": bigram.pairs[before, after].tolist(),
        "count_before": bigram.pairs.sum(1)[before].tolist(),
        "count_after": bigram.pairs.sum(0)[after].tolist(),
    }
    to.write_text(json.dumps(sample, ensure_ascii=False) + "\n", encoding="utf-8")
