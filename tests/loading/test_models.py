"""Loading sound models by every route, and what is said of them."""

import hashlib
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_ess.errors import BadInput, UnsupportedModel
from hf_ess.loading import LoadedModel, hashing, load, load_tokenizer, sources
from hf_ess.loading.quieting import quiet
from tests.tiny import tiny_checkpoint, tiny_model, tiny_tokenizer

FAMILIES = ("llama", "mistral", "gemma2", "gpt_oss", "gpt2", "mamba", "falcon_mamba", "jamba", "zamba")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("loading") / "llama")


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(4, 24)[None], use_cache=False).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_as_it_was_saved(family: str, tmp_path: Path) -> None:
    original = tiny_model(family)
    loaded = load(tiny_checkpoint(tmp_path, family))
    assert torch.equal(logits(loaded.model), logits(original))
    assert loaded.dtype == "float32" and loaded.device == "cpu" and loaded.notes == []
    assert loaded.layers == original.config.num_hidden_layers
    assert loaded.model.config._attn_implementation == "eager" and not loaded.model.training


def test_provenance(llama: Path) -> None:
    loaded = load(llama)
    weights, config = (llama / "model.safetensors").read_bytes(), (llama / "config.json").read_bytes()
    assert loaded.files == ["model.safetensors"]
    assert loaded.weights_hash == "sha256:" + hashlib.sha256(weights).hexdigest()
    assert loaded.config_hash == "sha256:" + hashlib.sha256(config).hexdigest()
    assert (loaded.name, loaded.source, loaded.revision) == (str(llama), str(llama), None)
    assert loaded.geometry["num_attention_heads"] == 4 and loaded.geometry["head_dim"] == 16


def test_weights_can_wait(llama: Path) -> None:
    loaded = load(llama, with_model=False)
    assert loaded.model is None and loaded.weights_hash is None and len(loaded.tokenizer) == 384
    assert loaded.read_weights().model is loaded.model is not None
    before = loaded.model
    assert loaded.read_weights().model is before


@pytest.mark.parametrize(
    ("stored", "asked", "got"),
    [
        ("bfloat16", "auto", "bfloat16"),
        ("float16", "auto", "float16"),
        ("bfloat16", "float32", "float32"),
        ("float32", "bf16", "bfloat16"),
        ("float32", "half", "float16"),
        ("float32", torch.float64, "float64"),
    ],
)
def test_dtype_is_the_checkpoints_or_what_was_asked_for(stored: str, asked: object, got: str, tmp_path: Path) -> None:
    loaded = load(tiny_checkpoint(tmp_path, dtype=stored), dtype=asked)
    assert loaded.dtype == got
    assert loaded.model.lm_head.weight.dtype == getattr(torch, got)


@pytest.mark.parametrize(
    "settings",
    [
        {"attn_implementation": "flash_attention_2", "_attn_implementation": "flash_attention_2"},
        {"attn_implementation": "sdpa", "output_attentions": True},
        {"return_dict": False},
        {"architectures": None},
    ],
)
def test_settings_that_are_no_part_of_the_model_do_not_matter(
    settings: dict[str, object], llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(llama, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    loaded = load(tmp_path / "model")
    assert torch.equal(logits(loaded.model), logits(load(llama).model))
    assert loaded.model.config._attn_implementation == "eager"


def test_composite_checkpoints_are_read_for_their_text(tmp_path: Path) -> None:
    loaded = load(tiny_checkpoint(tmp_path, "qwen3_5", dtype="bfloat16"), dtype="float32")
    assert loaded.dtype == "float32" and loaded.layers == 2


def test_tied_weights_are_not_missing(tmp_path: Path) -> None:
    assert load(tiny_checkpoint(tmp_path, tie_word_embeddings=True)).notes == []


def test_dropout_is_off(tmp_path: Path) -> None:
    loaded = load(tiny_checkpoint(tmp_path, attention_dropout=0.5))
    assert torch.equal(logits(loaded.model), logits(loaded.model))


REMOTE_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class LampConfig(LlamaConfig):
    model_type = "lamp"

class LampForCausalLM(LlamaForCausalLM):
    config_class = LampConfig
    MAGIC = {magic!r}
"""


def remote(folder: Path, llama: Path, magic: str) -> Path:
    shutil.copytree(llama, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    auto_map = {"AutoConfig": "modeling_lamp.LampConfig", "AutoModelForCausalLM": "modeling_lamp.LampForCausalLM"}
    config.update(model_type="lamp", architectures=["LampForCausalLM"], auto_map=auto_map)
    path.write_text(json.dumps(config))
    (folder / "modeling_lamp.py").write_text(REMOTE_CODE.format(magic=magic))
    return folder


def test_code_in_the_checkpoint_runs_only_when_trusted(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    folders = {magic: remote(tmp_path / magic / "sub", llama, magic) for magic in "AB"}
    with pytest.raises(BadInput, match="--trust-remote-code"):
        load(folders["A"])
    for magic, folder in folders.items():  # both folders have the same last name
        loaded = load(folder, trust_remote_code=True)
        assert magic == loaded.model.MAGIC
        assert torch.equal(logits(loaded.model), logits(load(llama).model))


def gguf(path: Path, llama: Path) -> Path:
    """The tiny Llama as a GGUF file, with the rows of q and k in llama.cpp's order."""
    from gguf import GGUFWriter
    from safetensors.torch import load_file

    loaded = load(llama)
    config, vocabulary = loaded.config, loaded.tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.get)
    merges = json.loads((llama / "tokenizer.json").read_text())["model"]["merges"]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "model.layers": "blk",
    }  # fmt: skip
    for name, tensor in load_file(llama / "model.safetensors").items():
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        if "q_proj" in name or "k_proj" in name:
            halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_gives_the_same_model(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    path = gguf(tmp_path / "llama.gguf", llama)
    capsys.readouterr()
    expected = logits(load(llama).model)
    for loaded in (load(path), load(tmp_path), load(tmp_path, gguf_file="llama.gguf")):
        assert torch.allclose(logits(loaded.model), expected, atol=1e-6)
        assert loaded.files == ["llama.gguf"] and loaded.source == str(path)
        assert any("rebuilt from llama.gguf" in note for note in loaded.notes)
    assert load(path, tokenizer=llama).notes == []
    assert capsys.readouterr().err == ""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(BadInput, match=r"cut\.gguf is cut off or damaged"):
        load(cut)
    with pytest.raises(BadInput, match=r"no GGUF file other\.gguf .* there is cut\.gguf, llama\.gguf"):
        load(tmp_path, gguf_file="other.gguf")


def test_a_model_in_memory_is_taken_at_its_word(llama: Path) -> None:
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    loaded = load(model, tokenizer=tokenizer)
    assert loaded.model is model and loaded.tokenizer is tokenizer and loaded.files == []
    assert load(model).tokenizer is None
    assert len(load(model, tokenizer=llama).tokenizer) == 384
    same, other = load(tiny_model("llama")).weights_hash, load(tiny_model("llama", seed=1)).weights_hash
    assert loaded.weights_hash == same != other


def test_what_is_no_model(llama: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    for thing in (3, torch.nn.Linear(2, 2), object()):
        with pytest.raises(BadInput, match="a folder, a Hub id or a transformers model"):
            load(thing)
    with pytest.raises(BadInput, match="compile"):
        load(torch.compile(tiny_model("llama")))
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        load(t5)


@pytest.mark.parametrize(
    ("name", "options", "pattern"),
    [
        ("", {}, "empty"),
        ("/no/such/folder", {}, "no file or folder /no/such/folder"),
        ("./runs", {}, r"no file or folder \./runs"),
        ("a/b/c", {}, "no file or folder a/b/c"),
        ("model.gguf", {}, r"no file or folder model\.gguf"),
        ("demo:nothing", {}, "no demo checkpoint 'nothing'"),
        ("demo:../llama", {}, "no demo checkpoint"),
        ("FOLDER", {"revision": "main"}, "belongs to a Hub id"),
        ("FOLDER/config.json", {}, "is a file: give the folder"),
        ("FOLDER", {"gguf_file": "x.gguf"}, r"no GGUF file x\.gguf"),
        ("FOLDER", {"dtype": "int8"}, "'int8' is not a dtype"),
        ("FOLDER", {"dtype": "quick"}, "'quick' is not a dtype"),
        ("FOLDER", {"device_map": "gpu"}, "'gpu' is not a device"),
        ("FOLDER", {"device_map": "{cpu"}, "device map is not valid JSON"),
        ("FOLDER", {"device_map": "meta"}, "holds no weights"),
        ("FOLDER", {"tokenizer": 3}, "a tokenizer must be"),
        ("FOLDER", {"tokenizer": "./nothing"}, r"no file or folder \./nothing"),
    ],
)
def test_bad_names_and_options(name: str, options: dict[str, object], pattern: str, llama: Path) -> None:
    with pytest.raises(BadInput, match=pattern):
        load(name.replace("FOLDER", str(llama)), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(llama: Path) -> None:
    with pytest.raises(BadInput, match="no CUDA device"):
        load(llama, device_map="cuda:0")


def test_layers_on_disk(llama: Path) -> None:
    device_map = dict.fromkeys(("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb"), "cpu")
    loaded = load(llama, device_map={**device_map, "lm_head": "cpu", "model.layers.1": "disk"})
    assert loaded.devices == ["cpu", "disk"]
    assert torch.equal(logits(loaded.model), logits(load(llama).model))
    assert load(llama, device_map='{"": "cpu"}').devices == ["cpu"]


def test_odd_paths(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(llama, tmp_path / "dir with spaces é 灯")
    monkeypatch.chdir(tmp_path)
    assert load("dir with spaces é 灯").layers == 2
    assert load(Path("dir with spaces é 灯")).layers == 2


def test_tokenizers_by_every_route(llama: Path) -> None:
    tokenizer = tiny_tokenizer()
    assert load_tokenizer(tokenizer) is tokenizer
    for name in (llama, str(llama), llama / "tokenizer.json"):
        assert len(load_tokenizer(name)) == 384


def test_demo_checkpoints_are_found(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "DEMOS", tmp_path)
    with pytest.raises(BadInput, match="ships none"):
        load("demo:llama")
    shutil.copytree(llama, tmp_path / "llama")
    loaded = load("demo:llama")
    assert (loaded.name, loaded.source, loaded.model.config._name_or_path) == (
        "demo:llama", str(tmp_path / "llama"), "demo:llama",
    )  # fmt: skip
    with pytest.raises(BadInput, match="there is demo:llama"):
        load("demo:other")


def test_loading_is_silent_and_leaves_verbosity_alone(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging as voice

    voice.set_verbosity_info()
    before = (
        voice.get_verbosity(), voice.is_progress_bar_enabled(), are_progress_bars_disabled(),
        logging.getLogger("accelerate").level, logging.getLogger("transformers.modeling_utils").level,
    )  # fmt: skip
    try:
        load(llama)
        with pytest.raises(BadInput):
            load("./nothing")
        after = (
            voice.get_verbosity(), voice.is_progress_bar_enabled(), are_progress_bars_disabled(),
            logging.getLogger("accelerate").level, logging.getLogger("transformers.modeling_utils").level,
        )  # fmt: skip
    finally:
        voice.set_verbosity_warning()
    assert after == before
    assert capfd.readouterr() == ("", "")


def test_quiet_gives_the_voice_back_after_an_error() -> None:
    from transformers.utils import logging as voice

    before = voice.get_verbosity()
    with pytest.raises(RuntimeError), quiet():
        assert voice.get_verbosity() == logging.CRITICAL
        raise RuntimeError
    assert voice.get_verbosity() == before


def test_large_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(1_000_000))
    monkeypatch.setattr(hashing, "FULL", 1000)
    monkeypatch.setattr(hashing, "BLOCK", 100)
    first = hashing.hash_files([path])
    assert first.startswith("sha256-sampled:") and first == hashing.hash_files([path])
    path.write_bytes(bytes(999_999) + b"x")  # the last byte is in the sample
    assert hashing.hash_files([path]) != first


def test_the_hubs_own_hash_is_used(tmp_path: Path) -> None:
    blobs, digest = tmp_path / "blobs", "ab" * 32
    blobs.mkdir()
    (blobs / digest).write_bytes(b"weights")
    (tmp_path / "model.safetensors").symlink_to(blobs / digest)
    assert hashing.hash_files([tmp_path / "model.safetensors"]) == f"sha256:{digest}"


@pytest.mark.parametrize("alibi", [False, True])
def test_falcon_is_the_model_that_transformers_runs(alibi: bool, tmp_path: Path) -> None:
    """Its eager code adds ALiBi twice, so eager attention would be another model."""
    from transformers import AutoModelForCausalLM

    folder = tiny_checkpoint(tmp_path / "falcon", "falcon", alibi=alibi)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(folder)(ids, use_cache=False).logits
        ours = load(folder).model(ids, use_cache=False).logits
    assert torch.allclose(ours, plain, atol=1e-5 * float(plain.abs().max()))


def test_importing_is_cheap():
    code = (
        "import sys\n"
        "import hf_ess.loading, hf_ess.text.delimiters, hf_ess.text.limits, hf_ess.text.reading, hf_ess.text.tokens\n"
        "print([m for m in ('torch', 'transformers', 'datasets', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_loaded_models_can_be_made_by_hand() -> None:
    model = tiny_model("llama")
    loaded = LoadedModel("m", "memory", model.config, "sha256:0", model=model)
    assert loaded.read_weights() is loaded and loaded.layers == 2
