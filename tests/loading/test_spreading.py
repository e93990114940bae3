"""Weights on disk: any device map, the same numbers, the same fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hf_ess
from hf_ess.errors import BadInput
from hf_ess.loading import hashing, load
from hf_ess.loading.spreading import spread
from tests.adapters.contract import token_ids
from tests.tiny import tiny_checkpoint, tiny_model

MAPS = {
    "llama": {"": "cpu", "model.layers.1": "disk"},
    "falcon_mamba": {"": "disk", "backbone.layers.0": "cpu"},
    "jamba": {"": "cpu", "model.layers": "disk", "model.layers.1": "cpu"},
}


@pytest.fixture(scope="module", params=MAPS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, tiny_checkpoint(tmp_path_factory.mktemp(request.param) / "m", request.param)


def test_a_result_is_the_same_in_every_value_where_weights_stay_on_disk(checkpoint: tuple[str, Path]) -> None:
    name, folder = checkpoint
    ids = token_ids(tiny_model(name)).tolist()
    there = hf_ess.probe(str(folder), ids, norms=True)
    for device_map in (MAPS[name], {"": "disk"}):
        away = load(folder, device_map=device_map, with_tokenizer=False)
        assert "disk" in away.devices and any(p.is_meta for p in away.model.parameters())
        result = hf_ess.probe(away, ids, norms=True)
        assert result.ess.equals(there.ess) and result.layers == there.layers and result.skipped == []
        assert result.summary["verification"] == there.summary["verification"]
        for key in ("weights_hash", "config_hash", "model_dtype", "files"):
            assert result.summary["provenance"][key] == there.summary["provenance"][key]


def test_offloaded_weights_have_the_fingerprint_of_weights_in_memory(checkpoint: tuple[str, Path]) -> None:
    name, folder = checkpoint
    plain = hashing.hash_model(load(folder, with_tokenizer=False).model)
    away = load(folder, device_map=MAPS[name], with_tokenizer=False).model
    assert hashing.hash_model(away) == plain
    assert load(away).weights_hash == plain
    with torch.no_grad():
        other = load(folder, with_tokenizer=False).model
        next(other.parameters()).view(-1)[0] += 1
    assert hashing.hash_model(other) != plain


def test_weights_that_nobody_keeps_are_not_made_up() -> None:
    model = tiny_model("llama").to("meta")
    assert hashing.hash_model(model).startswith("sha256-sampled:")


def test_inner_entries_win_and_nothing_overlaps() -> None:
    model = tiny_model("llama")
    device_map = {"": "cpu", "model.layers": "disk", "model.layers.1.mlp": "cpu", "lm_head": "disk"}
    found = spread(device_map, model)
    for path, _ in model.named_parameters():
        above = [k for k in found if path == k or path.startswith(k + ".")]
        assert len(above) == 1
        rule = max((k for k in device_map if k == "" or path == k or path.startswith(k + ".")), key=len)
        assert found[above[0]] == device_map[rule]
    assert spread({"": "cpu"}, model) == {"": "cpu"} and spread("auto", model) == "auto"


@pytest.mark.parametrize(
    ("device_map", "message"),
    [
        ({"model.layers.1": "disk"}, r'no device to model\.embed_tokens\.weight and \d+ others: add "": "cpu"'),
        ({"": "cpu", "model.layers.7": "disk"}, r"'model\.layers\.7', which is no module.*'model\.layers\.0'"),
        ({"": "cpu", "layers": "disk"}, "'layers', which is no module"),
    ],
)
def test_maps_that_do_not_fit(device_map: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        spread(device_map, tiny_model("llama"))


def test_a_tied_tensor_has_one_place() -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    with pytest.raises(BadInput, match=r"are one tensor.*disk and cpu: give both the same"):
        spread({"": "cpu", "lm_head": "disk"}, model)
    assert spread({"": "cpu", "lm_head": "disk", "model.embed_tokens": "disk"}, model)["lm_head"] == "disk"


def test_a_map_may_be_a_file_and_offloaded_weights_may_have_a_folder(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "mixtral")  # experts are merged on loading, so they are written anew
    (tmp_path / "map.json").write_text('{"": "cpu", "model.layers.1": "disk"}', encoding="utf-8")
    away = load(folder, device_map=str(tmp_path / "map.json"), offload_folder=tmp_path / "off", with_tokenizer=False)
    assert away.devices == ["cpu", "disk"] and list((tmp_path / "off").rglob("*.safetensors"))
    ids = torch.arange(4, 24)[None]
    with torch.no_grad():
        assert torch.equal(away.model(ids).logits, load(folder, with_tokenizer=False).model(ids).logits)


def test_where_nothing_can_be(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", tokenizer=False)
    (tmp_path / "list.json").write_text("[1]")
    for device_map, message in (
        (str(tmp_path / "none.json"), r"no device map .*none\.json"),
        (str(tmp_path / "list.json"), "must be an object from modules to devices"),
        ({}, "device map is empty"),
        ("mps", "mps has no float64"),
        ({"": "cpu", "lm_head": "tpu9"}, "'tpu9' is not a device"),
    ):
        with pytest.raises(BadInput, match=message):
            load(folder, device_map=device_map, with_tokenizer=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot keep weights in"):
        load(folder, device_map={"": "disk"}, offload_folder=tmp_path / "file" / "x", with_tokenizer=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_number_is_a_cuda_device(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cuda:0 was asked for, but torch finds no CUDA device"):
        load(tiny_checkpoint(tmp_path, tokenizer=False), device_map='{"": 0}', with_tokenizer=False)
