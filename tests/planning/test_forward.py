"""The forward pass on meta against the same pass with numbers."""

import pytest
import torch

from hf_ess.planning.forward import LONGEST, Living, _peak, forward_bytes
from hf_ess.planning.skeleton import on_meta
from tests.tiny import tiny_config, tiny_model


@pytest.mark.parametrize("name", ["llama", "falcon_mamba", "qwen3_next", "mixtral", "gpt2"])
def test_peak_on_meta_is_that_of_a_real_pass(name):
    model = tiny_model(name)
    with torch.no_grad(), Living(model) as living:
        model(input_ids=torch.arange(4, 68)[None], use_cache=False)
    planned = _peak(on_meta(tiny_config(name), torch.float32).to("meta"), 64)
    assert planned == pytest.approx(living.peak, rel=0.15)  # of experts only those chosen run with numbers


def test_living_counts_what_lives():
    with Living(torch.nn.Linear(1, 1)) as living:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b.view(10, 100)  # shares its numbers
        d = torch.zeros(500)
    assert living.peak == 8000 and living.now == 6000
    del b, c, d
    assert living.now == 0


def test_beyond_the_longest_pass_attention_grows_with_the_square():
    config = tiny_config("llama", vocab_size=64)
    passed = forward_bytes(config, torch.float32, 4 * LONGEST)
    assert passed(LONGEST) == _peak(on_meta(config, torch.float32).to("meta"), LONGEST)
    assert 14 < passed(4 * LONGEST) / passed(LONGEST) < 16.5
    passed = forward_bytes(tiny_config("falcon_mamba"), torch.float32, 400)
    assert passed(1600) / passed(400) == pytest.approx(4, rel=0.03)


def test_what_depends_on_the_text_is_unknown():
    assert forward_bytes(tiny_config("dbrx"), torch.float32, 32) is None
