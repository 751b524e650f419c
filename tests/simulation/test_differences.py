"""The interval of a ratio of two forecasts: what both are off by cancels, and what they differ in adds up."""

import math

import pytest

import traincast
from traincast.errors import ConfigError
from traincast.simulation.differences import (
    SOFTWARE_GAIN,
    chance_of_less,
    deviation_between,
    difference_interval,
    difference_widths,
    moves,
    squares_between,
)
from traincast.simulation.doubts import KNOWN

JOB = {"model": "llama3.2-1b", "gpus": 16, "seq_length": 4096, "global_batch": 64, "micro_batch": 1}


def forecast(cluster="h100", **said):
    return traincast.predict(cluster=cluster, suggest=False, **{**JOB, "tp": 1, "pp": 1, **said})


@pytest.fixture(scope="module")
def plain():
    return forecast()


@pytest.fixture(scope="module")
def others():
    return {
        "tp 2": forecast(tp=2),
        "tp 8": forecast(tp=8),
        "pipeline": forecast(tp=2, pp=2),
        "recomputed": forecast(recompute="full"),
        "fp8": forecast(precision="fp8"),
        "more GPUs": forecast(gpus=64, global_batch=256),
        "other chip": forecast("b200"),
    }


def test_a_job_takes_as_long_as_itself_for_certain(plain):
    again = forecast()
    told = difference_interval(plain, again)
    assert (told.ratio, told.low, told.high, told.chance_shorter) == (1.0, 1.0, 1.0, 0.5)
    assert deviation_between(plain.doubts, again.doubts) == 0
    assert not told.is_told


def test_both_ways_say_the_same(plain, others):
    for other in others.values():
        one, back = difference_interval(plain, other), difference_interval(other, plain)
        assert one.ratio * back.ratio == pytest.approx(1)
        assert one.low * back.high == pytest.approx(1)
        assert one.high * back.low == pytest.approx(1)
        assert one.chance_shorter + back.chance_shorter == pytest.approx(1)


def test_the_ratio_is_that_of_the_steps_and_within_its_interval(plain, others):
    for other in others.values():
        told = difference_interval(plain, other)
        assert told.ratio == other.iteration_time_s / plain.iteration_time_s
        assert told.low < told.ratio < told.high
        assert told.is_told == (told.high < 1 or told.low > 1)
        assert (told.chance_shorter > 0.5) == (told.ratio < 1)


def test_what_differs_more_is_less_certain(plain, others):
    def width(name):
        return deviation_between(plain.doubts, others[name].doubts)

    assert 0 < width("tp 2") < width("tp 8")
    assert width("tp 2") < width("pipeline")
    assert width("more GPUs") < width("other chip")


def test_a_detour_is_no_shorter_than_the_way(plain, others):
    # But for what other software gains, which is no way.
    alike = [each for each in others.values() if squares_between(plain.doubts, each.doubts)[SOFTWARE_GAIN] == 0]
    assert len(alike) > 1
    for one in alike:
        for other in alike:
            way = deviation_between(plain.doubts, other.doubts)
            assert (
                way <= deviation_between(plain.doubts, one.doubts) + deviation_between(one.doubts, other.doubts) + 1e-12
            )


def test_every_doubling_adds_its_variance():
    steps = [forecast(gpus=gpus, global_batch=4 * gpus) for gpus in (16, 32, 64)]
    of_gpus = [{"GPUs": each.doubts["GPUs"]} for each in steps]
    one, two = (deviation_between(of_gpus[0], each) for each in of_gpus[1:])
    assert one == pytest.approx(difference_widths()["GPUs"])
    assert two**2 == pytest.approx(2 * one**2)


def test_a_difference_is_more_certain_than_two_steps_of_their_own(plain, others):
    for name in ("tp 2", "more GPUs", "recomputed"):
        alone = [math.log(each.interval.high_s / each.interval.low_s) / 2 for each in (plain, others[name])]
        told = difference_interval(plain, others[name])
        assert math.log(told.high / told.low) / 2 < math.hypot(*alone)


def test_moves_are_as_far_apart_as_the_forecasts(plain, others):
    one = moves(plain.doubts)
    for other in others.values():
        moved, squares = moves(other.doubts), squares_between(plain.doubts, other.doubts)
        apart = math.hypot(*(one.get(name, 0.0) - moved.get(name, 0.0) for name in {**one, **moved}))
        gain = difference_widths()[SOFTWARE_GAIN] * math.sqrt(squares[SOFTWARE_GAIN])
        assert math.hypot(apart, gain) == pytest.approx(deviation_between(plain.doubts, other.doubts))
    assert all(isinstance(term, str) for term, _ in one) and KNOWN in {term for term, _ in one}


def test_chances_are_those_of_a_normal_distribution():
    assert chance_of_less(1.0, 0.1) == pytest.approx(0.5)
    assert chance_of_less(math.exp(-0.1), 0.1) == pytest.approx(0.8413, abs=1e-4)
    assert chance_of_less(0.9, 0.0) == 1 and chance_of_less(1.1, 0.0) == 0


def test_what_was_not_forecast_has_no_interval(plain):
    replayed = traincast.simulate("examples/megatron_pp4_tp2")
    with pytest.raises(ConfigError, match=r"is not the forecast of a job.*forecast its job"):
        difference_interval(plain, replayed)
