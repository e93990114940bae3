"""Damaged checkpoints: each is refused with one sentence that names the file, or loaded with a note that says so."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_ess.errors import BadInput, UnsupportedModel
from hf_ess.loading import load
from hf_ess.loading.checkpoints import check_gguf, check_safetensors, find_weights
from tests.tiny import tiny_checkpoint, tiny_tokenizer

SAFE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sound")
    return {
        "single": tiny_checkpoint(root / "single"),
        "sharded": tiny_checkpoint(root / "sharded", shards=True),
        "mixture": tiny_checkpoint(root / "mixture", "mixtral"),
    }


def edit(folder: Path, **values: object) -> None:
    """Change config.json; None removes an entry."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors in model.safetensors."""
    state = load_file(folder / SAFE)
    change(state)
    save_file(state, folder / SAFE, metadata={"format": "pt"})


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def header(path: Path, text: bytes) -> None:
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def only(folder: Path, *names: str) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def pickled(folder: Path) -> None:
    """A pytorch_model.bin that would make a folder when it is unpickled."""

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(folder / "evil"),)

    (folder / SAFE).unlink()
    torch.save(Evil(), folder / "pytorch_model.bin")


# name: (checkpoint, what is done to it, patterns in the sentence)
REFUSED: dict[str, tuple[str, Callable[[Path], object], list[str]]] = {
    "empty folder": ("single", lambda d: only(d), ["no config.json in"]),
    "no config": ("single", lambda d: (d / "config.json").unlink(), ["no config.json in"]),
    "config cut": ("single", lambda d: cut(d / "config.json", 200), ["config.json is not valid JSON"]),
    "config a list": ("single", lambda d: (d / "config.json").write_text("[1]"), ["config.json", "list"]),
    "no model_type": ("single", lambda d: edit(d, model_type=None), ["no model_type"]),
    "unknown type": ("single", lambda d: edit(d, model_type="lamp"), ["'lamp'", r"transformers \d"]),
    "mamba_ssm": ("single", lambda d: edit(d, model_type=None, d_model=8, n_layer=2), ["mamba_ssm", "-hf"]),
    "own code": (
        "single",
        lambda d: edit(d, model_type="lamp", auto_map={"AutoConfig": "lamp.Lamp"}),
        ["--trust-remote-code"],
    ),
    "no layers": ("single", lambda d: edit(d, num_hidden_layers=0), ["no layers"]),
    "wrong value": ("single", lambda d: edit(d, hidden_size="wide"), ["hidden_size", "expected int"]),
    "heads": ("single", lambda d: edit(d, num_attention_heads=7), ["not a multiple", r"\(7\)"]),
    "adapter": (
        "single",
        lambda d: (
            only(d),
            (d / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}'),
        ),
        ["adapter for owner/base"],
    ),
    "quantised": (
        "single",
        lambda d: edit(d, quantization_config={"quant_method": "lampquant"}),
        ["lampquant", "does not know"],
    ),
    "bitsandbytes": (
        "single",
        lambda d: edit(d, quantization_config={"load_in_4bit": True}),
        [r"quantised \(bitsandbytes\)", "pip install"],
    ),
    "quantised in no way": ("single", lambda d: edit(d, quantization_config={}), ["names no quant_method"]),
    "no weights": ("single", lambda d: (d / SAFE).unlink(), ["no weights in", SAFE, "pytorch_model.bin"]),
    "zero bytes": ("single", lambda d: cut(d / SAFE, 0), [SAFE, "empty"]),
    "four bytes": ("single", lambda d: cut(d / SAFE, 4), [SAFE, "not a safetensors file"]),
    "cut in the header": ("single", lambda d: cut(d / SAFE, 100), [SAFE, "cut off"]),
    "cut in the data": ("single", lambda d: cut(d / SAFE, 20000), [SAFE, "cut off", "20000"]),
    "trailing bytes": (
        "single",
        lambda d: (d / SAFE).write_bytes((d / SAFE).read_bytes() + b"x" * 7),
        [SAFE, "7 bytes follow"],
    ),
    "garbage": ("single", lambda d: (d / SAFE).write_bytes(b"\xff" * 999), [SAFE, "not a safetensors"]),
    "garbled header": ("single", lambda d: header(d / SAFE, b'{"a": [1, '), [SAFE, "garbled"]),
    "overlap": (
        "single",
        lambda d: header(d / SAFE, b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}1234'),
        [SAFE, "garbled"],
    ),
    "html": ("single", lambda d: (d / SAFE).write_text("<!DOCTYPE html><p>Log in</p>"), [SAFE, "HTML"]),
    "lfs pointer": (
        "single",
        lambda d: (d / SAFE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        [SAFE, "Git LFS pointer"],
    ),
    "missing tensor": (
        "single",
        lambda d: tensors(d, lambda s: s.pop("model.layers.1.self_attn.q_proj.weight")),
        ["model.layers.1.self_attn.q_proj.weight", "random"],
    ),
    "missing head": (
        "single",
        lambda d: tensors(d, lambda s: s.pop("lm_head.weight")),
        ["lm_head.weight", "random"],
    ),
    "more layers": ("single", lambda d: edit(d, num_hidden_layers=3), ["layers.2", "random"]),
    "other shape": (
        "single",
        lambda d: edit(d, intermediate_size=80),
        ["mlp", r"\(64, 96\) in the file", r"\(64, 80\) by the configuration"],
    ),
    "missing expert": (
        "mixture",
        lambda d: tensors(d, lambda s: s.pop(next(k for k in s if "experts" in k))),
        ["experts", "one is missing"],
    ),
    "shard missing": (
        "sharded",
        lambda d: min(d.glob("model-00002-of-*")).unlink(),
        ["1 of the .* is missing", "model-00002-of"],
    ),
    "shard cut": ("sharded", lambda d: cut(min(d.glob("model-00002-of-*")), 500), ["model-00002-of", "cut off"]),
    "index cut": ("sharded", lambda d: cut(d / INDEX, 300), [INDEX, "not valid JSON"]),
    "index empty": ("sharded", lambda d: (d / INDEX).write_text("{}"), [INDEX, "no weight_map"]),
    "pickle": ("single", pickled, ["pytorch_model.bin", "run code", "safetensors"]),
    "tokenizer cut": ("single", lambda d: cut(d / "tokenizer.json", 900), ["tokenizer.json is not valid"]),
    "no tokenizer": (
        "single",
        lambda d: [path.unlink() for path in d.glob("tok*")],
        ["no tokenizer in", "--tokenizer", "token ids"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, sound: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start, damage, patterns = REFUSED[case]
    folder = tmp_path / "model"
    shutil.copytree(sound[start], folder)
    damage(folder)
    with pytest.raises(BadInput) as caught:
        load(folder)
    sentence = str(caught.value)
    assert "\n" not in sentence and len(sentence) < 600
    assert "weights_only" not in sentence
    for pattern in patterns:
        assert re.search(pattern, sentence), (pattern, sentence)
    assert not (folder / "evil").exists()
    assert capsys.readouterr().err == ""


# name: (checkpoint, what is done to it, patterns in the notes)
NOTED: dict[str, tuple[str, Callable[[Path], object], list[str]]] = {
    "fewer layers": (
        "single",
        lambda d: edit(d, num_hidden_layers=1),
        ["unused", "it has 1 layers, the files have 2", "layers.1"],
    ),
    "extra tensor": (
        "single",
        lambda d: tensors(d, lambda s: s.update(lamp=torch.zeros(3))),
        ["unused", "lamp"],
    ),
    "two sets": (
        "sharded",
        lambda d: shutil.copy(d.parent.parent / "single" / SAFE, d / SAFE),
        ["two sets", "model.safetensors was read", "index.json ignored"],
    ),
    "index out of date": (
        "sharded",
        lambda d: (d / INDEX).write_text(_swapped((d / INDEX).read_text())),
        ["out of date", "wrong file"],
    ),
    "rounded by its config": (
        "single",
        lambda d: edit(d, dtype="float16"),
        ["stored in float32 and were rounded to float16", "--dtype float32"],
    ),
    "other class": (
        "single",
        lambda d: edit(d, architectures=["MistralForCausalLM"]),
        ["names MistralForCausalLM", "loaded as LlamaForCausalLM"],
    ),
    "base model": (
        "single",
        lambda d: (
            edit(d, architectures=["LlamaModel"]),
            tensors(d, lambda s: s.pop("lm_head.weight")),
        ),
        ["no output head", "LlamaModel"],
    ),
}


def _swapped(index: str) -> str:
    """The index with one tensor moved to another shard."""
    content = json.loads(index)
    names = content["weight_map"]
    files = list(names.values())
    moved = next(name for name, file in names.items() if files.count(file) > 1)  # its file is still read
    names[moved] = next(file for file in files if file != names[moved])
    return json.dumps(content)


@pytest.mark.parametrize("case", NOTED)
def test_noted(case: str, sound: dict[str, Path], tmp_path: Path) -> None:
    start, damage, patterns = NOTED[case]
    shutil.copytree(sound["single"], tmp_path / "single")
    folder = tmp_path / "case" / "model"
    shutil.copytree(sound[start], folder)
    damage(folder)
    notes = " | ".join(load(folder).notes)
    for pattern in patterns:
        assert re.search(pattern, notes), (pattern, notes)


def test_a_sound_checkpoint_has_no_notes(sound: dict[str, Path]) -> None:
    for folder in sound.values():
        assert load(folder).notes == []


def test_files_are_chosen_as_transformers_does(sound: dict[str, Path]) -> None:
    assert [path.name for path in find_weights(sound["single"]).files] == [SAFE]
    shards = find_weights(sound["sharded"])
    assert len(shards.files) > 2 and shards.index is not None and shards.safetensors


def test_the_header_tells_names_and_shapes(sound: dict[str, Path]) -> None:
    state = load_file(sound["single"] / SAFE)
    expected = {name: ("F32", tuple(tensor.shape)) for name, tensor in state.items()}
    assert check_safetensors(sound["single"] / SAFE) == expected


def test_a_folder_of_checkpoints_names_them(sound: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(sound["single"], tmp_path / "checkpoint-500")
    with pytest.raises(BadInput, match="there is one in checkpoint-500"):
        load(tmp_path)


def test_weights_in_pickle_format_are_read(sound: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound["single"], folder)
    torch.save(load_file(folder / SAFE), folder / "pytorch_model.bin")
    (folder / SAFE).unlink()
    loaded = load(folder)
    assert loaded.files == ["pytorch_model.bin"]
    cut(folder / "pytorch_model.bin", 5000)
    with pytest.raises(BadInput, match=r"pytorch_model\.bin is cut off"):
        load(folder)


def test_gguf_files_are_checked(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>")
    (tmp_path / "text.gguf").write_text("GGML is older")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 40)
    for name, pattern in (("page", "HTML"), ("text", "not a GGUF file"), ("cut", "cut off or damaged")):
        with pytest.raises(BadInput, match=pattern):
            check_gguf(tmp_path / f"{name}.gguf")
    with pytest.raises(BadInput, match="several GGUF files"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert", "bert-generation", "xlnet", "reformer"])
def test_encoders_are_refused_by_config_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    (tmp_path / SAFE).write_bytes(b"")  # never looked into
    with pytest.raises(UnsupportedModel, match="is an encoder"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["bart", "t5", "marian", "whisper", "prophetnet"])
def test_encoder_decoders_are_refused_by_config_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    (tmp_path / SAFE).write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        load(tmp_path)


@pytest.mark.parametrize("values", [{"is_causal": False}, {"use_bidirectional_attention": True}, {"model_type": "vit"}])
def test_other_models_without_causality_are_refused(
    values: dict[str, object], sound: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound["single"], folder)
    edit(folder, **values)
    with pytest.raises(UnsupportedModel, match=r"not (a )?causal"):
        load(folder)


def test_an_encoder_family_set_up_as_a_decoder_loads(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "bert", "bert")
    assert load(folder).model.config.is_decoder
    edit(folder, is_decoder=None)
    with pytest.raises(UnsupportedModel, match="is_decoder not set"):
        load(folder)


def test_a_tokenizer_may_be_absent_where_ids_are_given(sound: dict[str, Path], tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model", tokenizer=False)
    assert load(folder, with_tokenizer=False).tokenizer is None
    assert len(load(folder, tokenizer=sound["single"]).tokenizer) == len(tiny_tokenizer())
