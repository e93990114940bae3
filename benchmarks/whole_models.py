"""Whole models of published shapes with random weights: probe against the forward pass, and device memory above both.

    python -m benchmarks.whole_models [--device cuda] [--shapes llama-3-8b falcon-mamba-7b ...] [--length 1024]

Only configurations are needed, no download: the weights are random, in bfloat16, the queries of attention scaled so
that logits have a standard deviation of about 2.  The job is three tolerances at every cut of every head or channel
(and entropy apart).  Beside it the SVDs of a sample of cuts of one layer on the same device, extrapolated to all.  With
--layers N only the first N layers exist, and totals are not extrapolated.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TOLERANCES = (1e-1, 1e-3, 1e-5)

#: class of the configuration, and what differs from its defaults
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-3-8b": (
        "LlamaConfig",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
        },
    ),
    "falcon-mamba-7b": (
        "FalconMambaConfig",
        {
            "hidden_size": 4096,
            "intermediate_size": 8192,
            "num_hidden_layers": 64,
            "state_size": 16,
            "vocab_size": 65024,
        },
    ),
    "mamba2-2.7b": (
        "Mamba2Config",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 64,
            "num_heads": 80,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 1,
            "vocab_size": 50288,
        },
    ),
    "smollm2-135m": (
        "LlamaConfig",
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
        },
    ),
}


def build(name: str, device: str, layers: int | None) -> Any:
    """The model, with random weights on the device."""
    import transformers

    kind, values = SHAPES[name]
    config = getattr(transformers, kind)(**values | ({"num_hidden_layers": layers} if layers else {}))
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for path, module in model.named_modules():
            if path.endswith("q_proj"):
                width = module.weight.shape[1]
                module.weight.normal_(0, 2 / width**0.5)
            if path.endswith("k_proj"):
                module.weight.normal_(0, 1 / module.weight.shape[1] ** 0.5)
    return model


def measured(model: Any, ids: Any, entropy: bool) -> None:
    """Capture, verification and spectra of every operator at every cut."""
    from hf_ess.capturing import capture
    from hf_ess.spectra.ess import measure

    capture(model, ids, lambda layer: measure(layer.operator, TOLERANCES, entropy=entropy))


def seconds(device: str, run: Callable[[], object]) -> float:
    """Wall time of one call, with what it left on the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def svds(model: Any, ids: Any) -> float:
    """Seconds for all SVDs of all operators: a sample of cuts and 8 operators of one layer, extrapolated."""
    from hf_ess.capturing import capture

    found: list[float] = []

    def on_layer(layer: Any) -> None:
        op, L = layer.operator, layer.operator.length
        T = op[0:8].dense()
        cuts = list(range(L // 8, L, L // 8))
        torch.linalg.svdvals(T[:, L // 2 :, : L // 2])
        spent = seconds(str(T.device), lambda: [torch.linalg.svdvals(T[:, i:, :i]) for i in cuts])
        found.append(spent / len(cuts) / T.shape[0] * (L - 1) * op.count)

    layers = model.config.num_hidden_layers
    capture(model, ids, on_layer, layers={layers // 2})
    return found[0] * layers


def row(name: str, device: str, length: int, layers: int | None) -> str:
    """One row of the table."""
    model = build(name, device, layers)
    ids = torch.randint(10, model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    on_card = device.startswith("cuda")

    @torch.no_grad()
    def forward() -> None:
        model(input_ids=ids.to(device), use_cache=False)

    def peak(run: Callable[[], object]) -> tuple[float, str]:
        if not on_card:
            return seconds(device, run), "-"
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        spent = seconds(device, run)
        return spent, f"{(torch.cuda.max_memory_allocated() - held) / 2**30:.2f}"

    forward()
    base, above = peak(forward)
    measured(model, ids[:, :64], True)  # compiles what is compiled
    counts, more = peak(lambda: measured(model, ids, False))
    both, most = peak(lambda: measured(model, ids, True))
    dense = svds(model, ids)
    return (
        f"| {name}, {model.config.num_hidden_layers} layers | {length} | {base:.2f} ({above}) | {counts:.1f} "
        f"({more}), {counts / base:.0f} forward passes | {both:.1f} ({most}) | {dense / 3600:.1f} h |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["llama-3-8b", "falcon-mamba-7b"])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--layers", type=int, help="build only so many layers")
    parser.add_argument("--output", type=Path)
    a = parser.parse_args()
    from benchmarks.engines import processor

    where = torch.cuda.get_device_name() if a.device.startswith("cuda") else processor()
    lines = [
        f"{where}, torch {torch.__version__}, {datetime.date.today()}; seconds (GiB of device memory above weights)",
        "",
        "| shape | L | forward | three tolerances | and entropy | all SVDs, extrapolated |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for name in a.shapes:
        lines.append(row(name, a.device, a.length, a.layers))
        print(lines[-1], flush=True)
    if a.output:
        a.output.write_text("# Whole models of published shapes\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
