# ruff: noqa: S311
"""A detector says what became of a run, and nothing of one that is as it was."""

import math
import random
import time
import tracemalloc

import pytest

from traincast.checking.alarm import TRUE_SHARE
from traincast.checking.detector import Detector, LoggedStep


def noisy(points, spread=0.01, seed=0):
    draw = random.Random(seed)
    return [1.0 * math.exp(draw.gauss(0, spread)) for _ in range(points)]


def watched(step_s, every=1, memory=None, **more):
    detector = Detector()
    found = []
    for at, each in enumerate(step_s):
        bytes_ = math.nan if memory is None else memory[at]
        point = LoggedStep(step=(at + 1) * every, step_s=each, memory_bytes=bytes_, **more)
        found += detector.feed(point)
    return found


def kinds(found):
    return [each.kind for each in found]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_said_of_noise(seed):
    assert kinds(watched(noisy(1000, 0.02, seed))) == []


@pytest.mark.parametrize("spread", [0.002, 0.02, 0.1])
def test_a_shift_beyond_the_noise_is_found_soon_and_dated(spread):
    size = max(0.03, 8 * spread)
    step_s = noisy(300, spread)
    step_s = [each * (1 + size if at >= 200 else 1) for at, each in enumerate(step_s)]
    (alarm,) = watched(step_s, every=10)
    assert alarm.kind == "level shift"
    assert abs(alarm.began_step - 2010) <= 50
    assert alarm.noticed_step <= 2010 + 300
    assert alarm.size == pytest.approx(size, rel=0.35)
    assert alarm.confidence == pytest.approx(TRUE_SHARE["level shift"], abs=0.01), "far beyond the noise"


def test_a_shift_is_the_same_in_other_units():
    step_s = [each * (1.1 if at >= 100 else 1) for at, each in enumerate(noisy(200))]
    one, other = watched(step_s), watched([1000 * each for each in step_s])
    assert [each.began_step for each in one] == [each.began_step for each in other]
    assert one[0].size == pytest.approx(other[0].size)


def test_becoming_faster_is_no_alarm():
    assert kinds(watched([each * (0.8 if at >= 100 else 1) for at, each in enumerate(noisy(400))])) == []


def test_a_warm_up_is_no_alarm():
    """The search for a loss scale skips updates, which makes first steps faster."""
    step_s = noisy(200, 0.003)
    step_s[0] = 60.0
    assert kinds(watched([each * (0.94 if 0 < at < 16 else 1) for at, each in enumerate(step_s)])) == []


def test_a_single_slow_step_is_no_shift():
    step_s = noisy(200, 0.003)
    step_s[120] = 9.0
    step_s[150] = step_s[151] = 1.5
    assert kinds(watched(step_s)) == []


def test_slow_and_fast_steps_in_turns_are_seldom_a_shift():
    """Of runs whose every third step takes twice as long, at random, 31 had an alarm before points were ranked."""
    alarmed = 0
    for seed in range(40):
        draw = random.Random(seed)
        step_s = [each * (2.2 if draw.random() < 0.35 else 1) for each in noisy(100, 0.02)]
        alarmed += "level shift" in kinds(watched(step_s))
    assert alarmed <= 12


@pytest.mark.parametrize(("unrest", "told"), [(0.0, True), (0.06, False)])
def test_a_slow_phase_whose_steps_are_restless_is_no_new_level(unrest, told):
    """Others on the same machine make steps slower and unlike each other; a slower level makes them slower alone."""
    found = []
    for seed in range(10):
        draw = random.Random(seed)
        slow = [1.15 * math.exp(draw.gauss(0, unrest)) if 100 <= at < 114 else 1.0 for at in range(200)]
        step_s = [each * times for each, times in zip(noisy(200, 0.003, seed), slow, strict=True)]
        found.append("level shift" in kinds(watched(step_s)))
    assert sum(found) == 10 if told else sum(found) <= 2


def test_a_second_shift_soon_after_the_first_is_found():
    """The points before the first go on telling how the run scatters, so that nothing has to be learned again."""
    levels = [1.0] * 100 + [1.2] * 14 + [1.44] * 66
    alarms = watched([each * level for each, level in zip(noisy(180, 0.005), levels, strict=True)])
    found = [each for each in alarms if each.kind == "level shift"]
    assert [each.began_step for each in found] == [101, 115]
    assert [each.size for each in found] == pytest.approx([0.2, 0.2], rel=0.05)
    assert found[1].noticed_step <= 125


def test_a_drift_is_found():
    found = watched([each * (1 + 0.01 * max(0, at - 300) / 100) for at, each in enumerate(noisy(800, 0.005))])
    assert kinds(found)[0] == "drift"
    assert found[0].noticed_step <= 600


def test_a_burst_of_slow_steps_hides_no_drift():
    draw = random.Random(1)
    drifting = [each * (1 + 0.01 * max(0, at - 300) / 100) for at, each in enumerate(noisy(600, 0.005))]
    found = watched(
        [each * draw.choice((1.0, 1.2, 1.5)) if 400 <= at < 425 else each for at, each in enumerate(drifting)]
    )
    assert "drift" in kinds(found)


def test_a_burst_of_slow_steps_is_no_drift():
    for seed in range(10):
        draw = random.Random(seed)
        burst = [
            each * draw.choice((1.0, 1.2, 1.5)) if 300 <= at < 325 else each
            for at, each in enumerate(noisy(600, 0.005))
        ]
        assert "drift" not in kinds(watched(burst))


@pytest.mark.parametrize("period", [10, 50, 64])
def test_periodic_spikes_are_named_with_their_period(period):
    step_s = [each * (1.4 if at % period == 7 else 1) for at, each in enumerate(noisy(10 * period + 100))]
    (alarm,) = watched(step_s, every=5)
    assert alarm.kind == "periodic spikes"
    assert alarm.period_steps == 5 * period
    assert alarm.size == pytest.approx(0.4 / period, rel=0.2)


def test_spikes_at_random_have_no_period():
    draw = random.Random(3)
    assert kinds(watched([each * (1.5 if draw.random() < 0.03 else 1) for each in noisy(3000)])) == []


def test_a_spread_that_grows_is_found():
    assert kinds(watched(noisy(200, 0.01) + noisy(200, 0.08, 1)))[0] == "growing spread"


def test_memory_that_creeps_is_found_and_memory_that_settles_is_not():
    step_s = noisy(1000)
    creeping = [60e9 * (1 + 2e-4 * at) for at in range(1000)]
    (alarm,) = watched(step_s, memory=creeping)[:1]
    assert alarm.kind == "memory creep" and not alarm.of_speed
    assert kinds(watched(step_s, memory=[60e9 if at < 40 else 64e9 for at in range(1000)])) == []


def test_a_stall_is_told_once_and_counts_steps_of_a_line():
    detector = Detector()
    for at in range(60):
        detector.feed(LoggedStep(step=10 * at, step_s=2.0, steps=10))
    assert detector.stalled(300) is None, "a line comes every twenty seconds"
    assert detector.stalled(500).kind == "stall"
    assert detector.stalled(600) is None


@pytest.mark.parametrize(("levels", "expected"), [((1.0, 1.05), []), ((1.0, 1.2), ["level shift"]), ((1.2, 1.0), [])])
def test_another_start_is_learned_again_and_told_where_it_is_much_slower(levels, expected):
    detector, found = Detector(), []
    for start, level in enumerate(levels):
        for at, each in enumerate(noisy(150, 0.005, start)):
            found += detector.feed(LoggedStep(step=at + 100 * start + 1, step_s=level * each, start=start))
    assert kinds(found) == expected
    if expected:
        assert found[0].began_step == 101
        assert "the restart before step 101" in found[0].explained_by[0]


def test_a_small_rise_at_checkpoints_is_told_once_it_adds_up():
    detector, found = Detector(), []
    for at, each in enumerate(noisy(500, 0.003)):
        level = 1.05 if 200 < at <= 350 else 1.1 if at > 350 else 1.0
        found += detector.feed(LoggedStep(step=at, step_s=level * each, interrupted=at in (201, 351)))
    (alarm,) = found
    assert alarm.began_step >= 350 and alarm.size == pytest.approx(0.05, abs=0.01)
    assert "checkpoint before step 351" in alarm.explained_by[0]


def test_a_short_slow_phase_is_no_shift():
    step_s = [each * (1.06 if 200 <= at < 213 else 1) for at, each in enumerate(noisy(400, 0.005))]
    assert kinds(watched(step_s)) == []


def test_a_drift_that_each_start_ends_is_found_within_one():
    step_s = [each * (1 + 0.1 * (at % 100) / 100) for at, each in enumerate(noisy(400, 0.003))]
    assert "drift" in kinds(watched(step_s))
    assert watched(step_s)[0].noticed_step < 300


def test_an_interruption_explains_what_follows_it():
    detector, found = Detector(), []
    for at, each in enumerate(noisy(300, 0.005)):
        found += detector.feed(LoggedStep(step=at, step_s=each * (1.1 if at > 200 else 1), interrupted=at == 201))
    assert "checkpoint before step 201" in found[0].explained_by[0]


@pytest.mark.parametrize("step_s", [math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_time_is_passed_over(step_s):
    detector = Detector()
    assert detector.feed(LoggedStep(step=1, step_s=step_s)) == []
    assert detector.seen == 0


@pytest.mark.slow
def test_memory_is_flat_and_a_point_takes_no_time():
    detector, draw = Detector(), random.Random(0)
    tracemalloc.start()
    sizes, begin_s = [], time.process_time()
    for at in range(30_000):
        detector.feed(LoggedStep(step=at, step_s=math.exp(draw.gauss(0, 0.02)), memory_bytes=6e10))
        if at % 10_000 == 9_999:
            sizes.append(tracemalloc.get_traced_memory()[0])
    taken_s = time.process_time() - begin_s
    tracemalloc.stop()
    assert sizes[-1] < sizes[0] + 10_000
    # Half a per cent of a core at two lines a second, and tracing makes all slower.
    assert taken_s / 30_000 < 0.0025
