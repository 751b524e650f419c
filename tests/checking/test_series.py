"""Steps of a run are judged: what is steady, what is left out and why, and how sure the mean is."""

import math

import numpy as np
import pytest

from traincast.checking.series import judged_series, spread_of_medians


def run_of(step_s, every=1):
    return np.arange(1, len(step_s) + 1) * every, np.asarray(step_s, float)


def noise(points, spread, seed=0, correlation=0.0):
    random = np.random.default_rng(seed)
    found, before = [], 0.0
    for each in random.normal(0, spread * math.sqrt(1 - correlation**2), points):
        before = correlation * before + each
        found.append(before)
    return np.array(found)


def left(series):
    return {each.reason: each.steps for each in series.left_out}


def test_each_reason_is_named_and_nothing_else_is_left_out():
    step_s = 1 + noise(200, 0.005)
    step_s[:3] = 20, 2, 1.3
    step_s[[50, 100, 150]] = 1.8
    step_s[[77, 120]] = 1.5, math.nan
    series = judged_series(*run_of(step_s), every={"checkpoint": 50})
    assert left(series) == {
        "not a number": (121,),
        "warm-up": (1, 2, 3),
        "checkpoint": (51, 101, 151),
        "spike": (78,),
    }
    assert series.points == 200 - 8 == series.steady.sum()
    assert series.mean_s == pytest.approx(1, abs=0.002)
    assert series.low_s < 1 < series.high_s


def test_what_the_log_tells_is_left_out_whatever_it_took():
    step_s = 1 + noise(60, 0.005)
    told = np.zeros(60, bool)
    told[30] = True
    assert left(judged_series(*run_of(step_s), told={"evaluation": told})) == {"evaluation": (31,)}


def test_a_first_level_without_updates_is_a_warm_up():
    """The search for a loss scale skips updates: such steps are faster."""
    step_s = 1 + noise(100, 0.003)
    step_s[:16] *= 0.95
    assert left(judged_series(*run_of(step_s)))["warm-up"] == tuple(range(1, 17))


def test_a_late_shift_is_not_left_out():
    step_s = 1 + noise(100, 0.003)
    step_s[60:] *= 1.1
    series = judged_series(*run_of(step_s))
    assert series.points == 100
    assert series.spread == pytest.approx(0.1, abs=0.01)


def test_noise_of_two_levels_is_not_spikes():
    step_s = np.where(np.random.default_rng(1).random(200) < 0.5, 1.0, 1.4)
    assert judged_series(*run_of(step_s)).points == 200


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_interval_holds_the_mean_as_often_as_it_says(correlation):
    held = []
    for seed in range(200):
        series = judged_series(*run_of(1 + noise(150, 0.02, seed, correlation)))
        held.append(series.low_s <= 1 <= series.high_s)
    assert 0.82 <= np.mean(held) <= 0.97


def test_neighbours_that_are_alike_widen_the_interval():
    independent = judged_series(*run_of(1 + noise(400, 0.02)))
    alike = judged_series(*run_of(1 + noise(400, 0.02, 0, 0.7)))
    assert alike.autocorrelation == pytest.approx(0.7, abs=0.15)
    assert alike.independent_points < independent.independent_points / 3


def test_spread_of_medians_falls_with_the_root_of_their_points():
    step_s = 1 + noise(20_000, 0.05)
    assert spread_of_medians(step_s) == pytest.approx(2.563 * 0.05 * 1.2533 / math.sqrt(10), rel=0.1)


@pytest.mark.parametrize("step_s", [[], [1.0], [math.nan], [1.0, 2.0], [1.0] * 30])
def test_few_points_are_no_error(step_s):
    series = judged_series(*run_of(step_s))
    assert series.points <= len(step_s)
    if series.points:
        assert series.low_s <= series.mean_s <= series.high_s


def test_a_million_points_take_linear_time():
    series = judged_series(*run_of(1 + np.random.default_rng(0).normal(0, 0.01, 300_000)))
    assert series.points > 299_000
