"""probe() end to end: every number against an independent computation, every failure kept apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hf_ess
from hf_ess import BadInput, UnsupportedModel
from hf_ess.spectra.reference import all_spectra, entropy_ess
from hf_ess.text.limits import check_memory
from tests.adapters.contract import captured, token_ids
from tests.tiny import tiny_checkpoint, tiny_model, tiny_tokenizer

TEXT = "The lamp was out. Nobody had paid.\n\nfunction lamp(a) { return a > 1; }\n"


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama")


@pytest.fixture(scope="module")
def result(llama):
    return hf_ess.probe(llama, TEXT, tokenizer=tiny_tokenizer(), norms=True)


def test_every_unit_value_is_the_one_of_a_plain_svd(llama, result):
    ids = result.tokens["id"].to_pylist()
    layers, _ = captured(llama, torch.tensor(ids))
    for layer in layers:
        spectra = all_spectra(layer.operator.dense())
        for tol in (1e-1, 1e-3, 1e-5):
            expected = torch.stack([(s >= tol).sum(-1) for s in spectra], -1)
            for head in range(layer.operator.count):
                (row,) = result.rows(layer=layer.layer, unit=head, metric="tolerance", tolerance=tol)
                assert row["values"] == expected[head].tolist()
            (mean,) = result.rows(layer=layer.layer, reduction="mean", metric="tolerance", tolerance=tol)
            assert np.allclose(mean["values"], expected.double().mean(0))
            (total,) = result.rows(layer=layer.layer, reduction="sum_channels", metric="tolerance", tolerance=tol)
            assert np.allclose(total["values"], expected.sum(0) * layer.operator.multiplicity)
        (norm,) = result.rows(layer=layer.layer, unit=0, metric="norm")
        assert np.allclose(norm["values"], [float(s[0, 0]) for s in spectra], rtol=1e-5)
        exact = entropy_ess(spectra)
        (entropy,) = result.rows(layer=layer.layer, unit=0, metric="entropy")
        got = np.array(entropy["values"], dtype=float)
        quiet = np.array([float(s[0, 0]) < 1e-5 for s in spectra])
        assert (np.isnan(got) == quiet).all()
        assert np.allclose(got[~quiet], exact[0].numpy()[~quiet], rtol=4e-3)


def test_layer_summary_agrees_with_the_rows(llama, result):
    for info in result.layers:
        assert info["status"] == "verified" and info["error"] <= info["error_bound"]
        assert info["operators"] == llama.config.num_attention_heads
        for k, tol in enumerate(result.tolerances):
            (row,) = result.rows(layer=info["layer"], reduction="mean", metric="tolerance", tolerance=tol)
            assert info["ess"][k] == pytest.approx(np.mean(row["values"]))
            (bound,) = result.rows(layer=info["layer"], reduction="mean", metric="bound")
            assert all(v <= b + 1e-9 for v, b in zip(row["values"], bound["values"]))


def test_totals_sum_over_layers_and_say_how(result):
    per_layer = result.rows(reduction="sum_channels", metric="tolerance", tolerance=1e-3)
    total = np.sum([row["values"] for row in per_layer], axis=0)
    (summed,) = result.rows(reduction="sum_channels_layers", metric="tolerance", tolerance=1e-3)
    (mean,) = result.rows(reduction="sum_channels_mean_layers", metric="tolerance", tolerance=1e-3)
    assert summed["layer"] is None
    assert np.allclose(summed["values"], total) and np.allclose(mean["values"], total / len(per_layer))


def test_tokens_and_delimiters_are_marked(result):
    rows = result.tokens.to_pylist()
    marked = {name: [r["position"] for r in rows if name in r["delimiter"]] for name in (".", "}", ">", "\n", "eos")}
    counts = result.summary["prompts"][0]["delimiters"]
    assert counts == {name: len(places) for name, places in marked.items()}
    assert counts["."] == 2 and counts["}"] == 1 and counts[">"] == 1 and counts["eos"] == 0
    assert result.summary["prompts"][0]["bos_added"] is True


def test_a_result_says_where_it_comes_from(result):
    origin = result.summary["provenance"]
    assert origin["model_class"] == "LlamaForCausalLM" and origin["model_dtype"] == "float32"
    assert origin["operator_dtype"] == "float64"
    assert origin["versions"]["torch"] == torch.__version__
    assert result.summary["options"]["tolerances"] == [1e-1, 1e-3, 1e-5]


def test_known_answer_uniform_attention_has_ess_one():
    model = tiny_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    result = hf_ess.probe(model, token_ids(model))
    for row in result.rows(reduction=None, metric="tolerance", tolerance=1e-3):
        assert set(row["values"]) == {1.0}
    for row in result.rows(reduction=None, metric="entropy"):
        assert np.allclose(row["values"], 1.0, rtol=4e-3)


def test_known_answer_window_of_one_has_ess_zero_and_null_entropy():
    model = tiny_model("mistral", sliding_window=1)
    result = hf_ess.probe(model, token_ids(model))
    for info in result.layers:
        assert info["ess"] == [0.0, 0.0, 0.0] and info["entropy"] is None
        assert info["tss"] == 0 and info["utilisation"] == [None, None, None]


def test_recurrent_ess_stays_within_the_state():
    model = tiny_model("falcon_mamba")
    n = model.config.state_size
    result = hf_ess.probe(model, token_ids(model), keep="reductions")
    assert result.rows(reduction=None) == []
    for row in result.rows(reduction="max", metric="tolerance"):
        assert max(row["values"]) <= n
    assert {info["tss"] for info in result.layers} == {float(n)}


def test_hybrid_has_each_layer_with_its_kind():
    model = tiny_model("jamba")
    result = hf_ess.probe(model, token_ids(model))
    assert [info["layer"] for info in result.layers] == list(range(model.config.num_hidden_layers))
    assert {info["kind"] for info in result.layers} == {"mamba", "softmax"}


def test_a_layer_that_is_not_finite_is_kept_apart():
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = float("nan")
    result = hf_ess.probe(model, token_ids(model))
    assert [info["status"] for info in result.layers] == ["verified", "not finite"]
    assert result.summary["verification"]["not_finite"] == 1
    assert all(row["values"] is None for row in result.rows(layer=1))
    (total,) = [
        t
        for t in result.summary["totals"]
        if t["metric"] == "tolerance" and t["tolerance"] == 1e-1 and t["reduction"] == "sum_channels_layers"
    ]
    assert total["layers"] == 1


def test_a_layer_that_fails_its_verification_has_no_values(monkeypatch):
    from hf_ess.adapters import softmax

    model = tiny_model("llama")
    build = softmax.SoftmaxAttention
    monkeypatch.setattr(softmax, "SoftmaxAttention", lambda q, k, s, **kw: build(q, k, s * 1.1, **kw))
    result = hf_ess.probe(model, token_ids(model))
    assert result.summary["verification"]["failed"] == 2
    assert all(row["values"] is None for row in result.rows(metric="tolerance"))


def test_no_layer_at_all_is_refused_with_the_reason(monkeypatch):
    from hf_ess import capturing

    monkeypatch.setattr(capturing, "adapters", list)
    model = tiny_model("gpt2")
    with pytest.raises(UnsupportedModel, match=r"no layer of .* could be measured \(GPT2Attention"):
        hf_ess.probe(model, token_ids(model))


def test_several_texts_in_one_result():
    texts = [TEXT, "The sea was high.", TEXT[:40]]
    tokenizer = tiny_tokenizer()
    model = tiny_model("llama")
    together = hf_ess.probe(model, texts, tokenizer=tokenizer)
    for number, text in enumerate(texts):
        alone = hf_ess.probe(model, text, tokenizer=tokenizer)
        a = [(r["layer"], r["unit"], r["metric"], r["values"]) for r in alone.rows(prompt=0)]
        b = [(r["layer"], r["unit"], r["metric"], r["values"]) for r in together.rows(prompt=number)]
        assert a == b


def test_relative_tolerances_do_not_see_the_scale():
    model = tiny_model("llama")
    ids = token_ids(model)
    result = hf_ess.probe(model, ids, tolerances=[0.5], relative=True)
    layers, _ = captured(model, ids)
    for layer in layers:
        sigma = all_spectra(layer.operator.dense())
        top = torch.stack([s[:, 0] for s in sigma]).amax(0)
        for head in range(layer.operator.count):
            (row,) = result.rows(layer=layer.layer, unit=head, metric="tolerance")
            assert row["values"] == [float((s[head] >= 0.5 * top[head]).sum()) for s in sigma]


def test_output_is_resumed_layer_by_layer(tmp_path, llama):
    ids = token_ids(llama)
    out = tmp_path / "out"
    calls = 0

    def stop(prompt, prompts, done, layers, module):
        nonlocal calls
        calls += 1
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hf_ess.probe(llama, ids, output=out, progress=stop)
    assert not out.exists() and len(list((tmp_path / "out.partial").glob("layer-*.parquet"))) == 1
    resumed = hf_ess.probe(llama, ids, output=out)
    assert resumed.summary["reused_layers"] == 1
    plain = hf_ess.probe(llama, ids)
    assert resumed.ess.equals(plain.ess)
    saved = hf_ess.load_result(out)
    assert saved.ess.equals(plain.ess) and saved.summary == resumed.summary
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerances": []}, "above 0"),
        ({"tolerances": [0.0]}, "above 0"),
        ({"tolerances": [float("nan")]}, "above 0"),
        ({"gate": -1.0}, "gate"),
        ({"keep": "everything"}, "keep must be"),
    ],
)
def test_bad_options(llama, options, message):
    with pytest.raises(BadInput, match=message):
        hf_ess.probe(llama, [1, 2, 3], **options)


@pytest.mark.parametrize("text", [[], [7], "text without a tokenizer", [1, "two"], [10**6, 1]])
def test_bad_text(llama, text):
    with pytest.raises(BadInput):
        hf_ess.probe(llama, text)


def test_what_cannot_fit_into_memory_is_refused_with_a_length_that_can(llama):
    check_memory(1000, llama)
    with pytest.raises(BadInput, match=r"100000 tokens.*--max-tokens \d+"):
        check_memory(100000, llama, available=2**34)
    check_memory(100000, tiny_model("falcon_mamba"), available=2**34)


def test_from_a_folder_in_half_precision(tmp_path):
    folder = tiny_checkpoint(tmp_path / "m", "llama", dtype="bfloat16")
    result = hf_ess.probe(str(folder), TEXT)
    assert result.summary["provenance"]["model_dtype"] == "bfloat16"
    assert all(info["status"] == "verified" and 0 < info["rounding"] < 0.05 for info in result.layers)


def test_same_numbers_with_one_and_two_threads(llama):
    ids = token_ids(llama)
    one = hf_ess.probe(llama, ids)
    torch.set_num_threads(2)
    try:
        two = hf_ess.probe(llama, ids)
    finally:
        torch.set_num_threads(1)
    assert one.ess.equals(two.ess)


def test_pictures_that_fail_do_not_end_a_finished_measurement(tmp_path, llama, monkeypatch):
    from hf_ess import plots

    def fail(result, folder):
        raise RuntimeError("no ink")

    monkeypatch.setattr(plots, "save_all", fail)
    hf_ess.probe(llama, token_ids(llama), output=tmp_path / "out", plots=True)
    assert "no ink" in hf_ess.load_result(tmp_path / "out").summary["notes"][0]


def test_ids_as_a_tokenizer_returns_them(llama):
    ids = token_ids(llama)
    assert hf_ess.probe(llama, ids[None]).ess.equals(hf_ess.probe(llama, ids.tolist()).ess)
    with pytest.raises(BadInput, match="no text"):
        hf_ess.probe(llama, None)
