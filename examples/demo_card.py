"""The model card of a demo checkpoint, filled from the training log, the evaluation and the data."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import demo_data
import numpy as np
import torch
from demo_evaluate import read_fragments

CARD = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---
# demo:{name}

A language model of {parameters:,} parameters that ships with hf-ess, so that its commands have a trained
model to look at without a download. It exists to be looked into, not to be used for its text.

* **Architecture**: transformers `{architecture}`, {shape}.
* **Files**: weights in float16 ({size:.1f} MB); `dtype: float32` in `config.json` makes them load in float32.
* **Tokenizer**: byte-level BPE, {vocabulary} entries, trained on the training part. A newline and each of
  `. ! ? ; }} < >` is always a token of its own. One special token, `<|endoftext|>` (id 0), is eos and bos;
  **no bos is added**. Decoding gives back the exact text.
* **Context**: trained on windows of {length} tokens.

## Data
Fragments of {shortest} to {longest} characters of different documents, shuffled, each followed by
`<|endoftext|>`, so that this token announces a change of context. {train_tokens:,} tokens in the training
part; 1 document in 25 is held out for scoring and another 1 in 25 for fitting the baseline, by a hash of
its name.

| source | training characters | licence of the text |
|---|---|---|
{sources}
## Training
{steps:,} steps of {batch} x {length} tokens, {tokens:,} in all ({epochs:.2f} passes), {minutes:.0f} minutes
on one CPU thread. AdamW (betas 0.9, 0.95; weight decay 0.1 on matrices; gradient norm clipped at 1), peak
learning rate {rate}, {warm_up} warm-up steps, cosine decay to zero. Seed {seed}. Made by
`examples/train_demo.py` with torch {torch} and transformers {transformers}.

| step | tokens | training loss (mean of 50 steps) | loss on {tune_tokens:,} tokens of the tuning part |
|---|---|---|---|
{curve}
## Held-out loss (nats per token)
The baseline is a bigram model interpolated with the unigram distribution (weight {weight} on the bigram,
fitted on the tuning part). Command: `python examples/train_demo.py evaluate --model {name}`.

| tokens scored | number | this model | bigram model | difference |
|---|---|---|---|---|
{scores}
## Limits
Small and briefly trained: its text is locally plausible and globally meaningless. English prose of the 18th
to 21st century, Python and JavaScript only. Documents are held out by file, so held-out code shares projects
with the training part. It never saw more than {length} tokens of context. What it shows about memory is
evidence about itself, not about large models.
"""

LICENCES = {
    "moby-dick": "public domain (Herman Melville, 1851)",
    "sotu": "public domain (State of the Union addresses, US government)",
    "python": "PSF-2.0 (standard library of Python {python}, without tests)",
    "javascript": "MIT ({packages})",
}
SHAPES = {
    "falcon-mamba": "{c.num_hidden_layers} layers, width {c.hidden_size}, {c.intermediate_size} channels "
    "with {c.state_size} states each, convolution of {c.conv_kernel}, tied embeddings",
    "llama": "{c.num_hidden_layers} layers, width {c.hidden_size}, {c.num_attention_heads} query heads and "
    "{c.num_key_value_heads} key/value heads of {c.head_dim}, MLP {c.intermediate_size}, tied embeddings",
}


def write_card(name: str, folder: Path, model: Any, work: Path, recipe: dict[str, Any]) -> None:
    """Write ``folder/README.md`` from the training log, the last evaluation and the data themselves."""
    import transformers

    by_step: dict[int, dict[str, Any]] = {}  # a training that was continued may have logged a step twice
    for line in (work / name / "loss.jsonl").read_text().splitlines():
        record = json.loads(line)
        by_step[record["step"]] = by_step.get(record["step"], {}) | record
    log = list(by_step.values())
    scored = json.loads((work / name / "evaluation.json").read_text())
    characters = dict.fromkeys(demo_data.MAX_CHARS, 0)
    for fragment in read_fragments(work, "train"):
        characters[fragment["source"]] += len(fragment["text"])
    licences = {
        k: v.format(python=platform.python_version(), packages=", ".join(demo_data.JS_PACKAGES))
        for k, v in LICENCES.items()
    }
    curve = ""
    for record in log:
        if "tune_loss" in record:
            loss = f"{record['loss']:.3f}" if "loss" in record else ""
            curve += f"| {record['step']:,} | {record['tokens']:,} | {loss} | {record['tune_loss']:.3f} |\n"
    train_tokens = len(np.load(work / "train.npy"))
    text = CARD.format(
        name=name,
        architecture=type(model).__name__,
        shape=SHAPES[name].format(c=model.config),
        parameters=sum(p.numel() for p in model.parameters()),
        vocabulary=model.config.vocab_size,
        size=(folder / "model.safetensors").stat().st_size / 1e6,
        train_tokens=train_tokens,
        shortest=demo_data.SHORTEST,
        longest=demo_data.LONGEST,
        sources="".join(f"| {s} | {n:,} | {licences[s]} |\n" for s, n in characters.items()),
        steps=log[-1]["step"],
        tokens=log[-1]["tokens"],
        epochs=log[-1]["tokens"] / train_tokens,
        minutes=log[-1]["minutes"],
        torch=torch.__version__,
        transformers=transformers.__version__,
        curve=curve,
        weight=scored["bigram_weight"],
        scores="".join(
            f"| {k} | {v['tokens']:,} | {v['model']:.3f} | {v['bigram']:.3f} | {v['model'] - v['bigram']:+.3f} |\n"
            for k, v in scored["scores"].items()
        ),
        **recipe,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
