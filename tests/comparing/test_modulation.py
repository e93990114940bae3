"""The statistics of delimiters: known answers, scipy's own, and the calibration of the interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hf_ess.comparing.modulation import LogRatio, effect, level_before, log_ratio, lowest
from hf_ess.operators import DenseOperator
from hf_ess.spectra.ess import tolerance_ess


def test_the_window_is_the_delimiters_own_cut_and_the_two_after_it():
    curve = np.arange(100.0, 200.0)  # cut i has 99 + i
    assert lowest(curve, [1, 10, 98]).tolist() == [100, 109, 197]
    assert lowest(-curve, [10]).tolist() == [-111]  # the last cut of the window, i = 12
    assert lowest(curve, [0]).tolist() == [100]  # there is no cut 0
    assert lowest(-curve, [100]).tolist() == [-199]  # the last token has one cut, L-1
    assert level_before(curve, [13, 12, 40]).tolist()[::2] == [99 + 5.5, 99 + 32.5]
    assert math.isnan(level_before(curve, [12])[0])  # cut 0 would be needed


def test_a_null_in_the_window_is_a_null():
    curve = np.array([1.0, np.nan, 3.0, 4.0, 5.0, 6.0])
    assert math.isnan(lowest(curve, [1])[0]) and lowest(curve, [3])[0] == 3


def test_places_without_control_are_left_out_and_counted():
    one = log_ratio(np.array([5.0, 3.0, np.nan, 9.0]), np.array([0.0, 6.0, 2.0, 3.0]))
    assert one == LogRatio(pytest.approx(math.log(12 / 9)), 2, 2)
    assert log_ratio(np.array([1.0]), np.array([0.0])) == LogRatio(None, 0, 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=2, max_size=30))
def test_the_effect_is_that_of_scipy(values):
    got = effect([LogRatio(v, 3, 1) for v in values])
    assert got.effect == pytest.approx(math.expm1(np.mean(values)), abs=1e-12)
    assert (got.prompts, got.places, got.left_out, got.emptied) == (len(values), 3 * len(values), len(values), 0)
    if np.std(values) > 1e-6:
        low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert got.low == pytest.approx(math.expm1(low)) and got.high == pytest.approx(math.expm1(high))
    if any(values):
        assert got.p_value == stats.wilcoxon(values).pvalue


def test_few_prompts_and_emptied_ones():
    one = effect([LogRatio(-0.5, 4, 0)])
    assert one.effect == pytest.approx(math.expm1(-0.5)) and (one.low, one.high, one.p_value) == (None, None, None)
    none = effect([LogRatio(None, 0, 4)])
    assert none.effect is None and none.prompts == 0 and none.left_out == 4
    same = effect([LogRatio(0.0, 4, 0)] * 5)
    assert (same.effect, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    emptied = effect([LogRatio(-math.inf, 4, 0)] + [LogRatio(-0.1, 4, 0)] * 6)
    assert (emptied.effect, emptied.emptied, emptied.low) == (-1, 1, None)
    assert emptied.p_value == stats.wilcoxon([-2] + [-0.1] * 6).pvalue


def _experiment(rng: np.random.Generator, noise: float, true: float, prompts: int = 20, places: int = 4):
    """Log-normal noise per prompt and per place, in the delimiter's runs and in the control's."""

    def values() -> np.ndarray:
        return 1000 * np.exp(noise * (rng.standard_normal((prompts, 1)) + rng.standard_normal((prompts, places))))

    return [log_ratio((1 + true) * m, c) for m, c in zip(values(), values())]


@pytest.mark.parametrize("noise", [0.1, 0.2])
def test_the_interval_covers_and_a_mean_of_ratios_would_not(noise):
    rng = np.random.default_rng(1)
    covered = biased = 0
    for _ in range(2000):
        ratios = _experiment(rng, noise, 0.0)
        found = effect(ratios)
        covered += found.low <= 0 <= found.high
        biased += np.mean([math.exp(r.value) for r in ratios]) - 1
    assert 0.93 <= covered / 2000 <= 0.97
    assert biased / 2000 == pytest.approx(1.25 * noise**2, rel=0.25)  # prompt 1, places 1/4


def test_a_planted_dip_is_found():
    rng = np.random.default_rng(2)
    found = [effect(_experiment(rng, 0.1, -0.2)) for _ in range(2000)]
    assert np.mean([f.high < 0 for f in found]) >= 0.9
    assert np.mean([f.p_value < 0.05 for f in found]) >= 0.9
    assert np.mean([f.effect for f in found]) == pytest.approx(-0.2, abs=0.01)


def test_a_reset_is_found_at_its_place_and_nowhere_else():
    """T = lower triangle of noise, its two halves cut apart at s: nothing is carried into token s."""
    length, reset = 80, 41
    T = torch.randn(3, length, length, dtype=torch.float64, generator=torch.manual_seed(0)).tril()
    wiped = T.clone()
    wiped[:, reset:, :reset] = 0

    def curve(operator: torch.Tensor) -> np.ndarray:
        return tolerance_ess(DenseOperator(operator), [1e-3])[0].sum(0).double().numpy()

    plain, cut = curve(T), curve(wiped)
    at = log_ratio(lowest(cut, [reset]), lowest(plain, [reset]))
    assert at.value == -math.inf
    # its left flank falls too, because fewer rows remain that read; cuts 21..60, not the ends (index i - 1)
    assert (plain - cut > 0).nonzero()[0].tolist() == list(range(20, 60))
    for place in (10, 65, 77):
        assert log_ratio(lowest(cut, [place]), lowest(plain, [place])).value == 0
