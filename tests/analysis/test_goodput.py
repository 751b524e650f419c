"""Goodput of long runs: the closed form against a simulation of failures, and the best interval against a search."""

import math

import numpy as np
import pytest

import traincast
from traincast.analysis.goodput import goodput, optimal_interval_s, share_useful
from traincast.errors import ConfigError
from traincast.job.failures import Failures, parse_failures

HOUR = 3600.0


def simulated_share(rate, downtime_s, checkpoint_s, interval_s, segments, seed):
    """Return the useful share of a run of some segments between checkpoints, with failures drawn one by one."""
    rng = np.random.default_rng(seed)
    clock = useful = 0.0
    for _ in range(segments):
        while True:
            failure = rng.exponential(1 / rate)
            if failure >= interval_s + checkpoint_s:
                clock += interval_s + checkpoint_s
                useful += interval_s
                break
            clock += failure
            while (again := rng.exponential(1 / rate)) < downtime_s:
                clock += again
            clock += downtime_s
    return useful / clock


@pytest.mark.parametrize(
    ("mtbf_s", "downtime_s", "checkpoint_s", "interval_s"),
    [(2.8 * HOUR, 600, 5, 320), (2.8 * HOUR, 900, 40, 900), (20 * HOUR, 1800, 120, 2 * HOUR), (HOUR, 600, 60, 1800)],
)
def test_the_closed_form_is_what_failures_drawn_one_by_one_give(mtbf_s, downtime_s, checkpoint_s, interval_s):
    form = share_useful(1 / mtbf_s, downtime_s, checkpoint_s, interval_s)
    drawn = simulated_share(1 / mtbf_s, downtime_s, checkpoint_s, interval_s, 20_000, seed=7)
    assert drawn == pytest.approx(form, rel=0.01)


@pytest.mark.parametrize("checkpoint_s", [0.1, 5.0, 60.0, 600.0, 7200.0])
@pytest.mark.parametrize("mtbf_s", [0.5 * HOUR, 3 * HOUR, 100 * HOUR])
def test_the_best_interval_is_that_of_a_search(checkpoint_s, mtbf_s):
    rate = 1 / mtbf_s
    tried = np.geomspace(0.01 * checkpoint_s, 20 * mtbf_s, 20_000)
    shares = [share_useful(rate, 600.0, checkpoint_s, interval) for interval in tried]
    best = optimal_interval_s(rate, checkpoint_s)
    assert best == pytest.approx(tried[int(np.argmax(shares))], rel=0.02)
    # Young's first approximation holds where checkpoints are cheap.
    if checkpoint_s < 1e-3 * mtbf_s:
        assert best == pytest.approx(math.sqrt(2 * checkpoint_s * mtbf_s), rel=0.05)


def test_a_run_as_that_of_llama_3_trains_more_than_nine_tenths_of_the_time():
    # 466 interruptions in 54 days on 16,384 GPUs, effective training time above 90 % (arXiv 2407.21783).
    told = goodput(Failures(mtbf_s=54 * 24 * HOUR * 16_384 / 466), 16_384, 10.0)
    assert told.mtbf_s == pytest.approx(54 * 24 * HOUR / 466)
    assert 0.90 <= told.goodput <= 0.97
    assert told.goodput + told.in_checkpoints + told.in_failures == pytest.approx(1.0)
    assert told.useful_step_s == pytest.approx(10.0 / told.goodput)


def test_goodput_falls_with_everything_that_costs():
    usual = goodput(Failures(), 4096, 10.0).goodput
    assert goodput(Failures(), 8192, 10.0).goodput < usual < goodput(Failures(), 8, 10.0).goodput < 1
    for worse in (
        Failures(mtbf_s=1e7),
        Failures(restart_s=3600),
        Failures(detection_s=3600),
        Failures(checkpoint_s=90),
    ):
        assert goodput(worse, 4096, 10.0).goodput < usual
    for interval_s in (60.0, 36_000.0):
        assert goodput(Failures(interval_s=interval_s), 4096, 10.0).goodput < usual
    assert goodput(Failures(mtbf_s=1.0, interval_s=1e6), 4096, 10.0).goodput == 0


def test_failures_are_read_and_what_is_none_is_refused():
    found = parse_failures("mtbf=50000h, restart=10min,checkpoint=30s,interval=optimal")
    assert found == Failures(mtbf_s=5e4 * HOUR, restart_s=600, checkpoint_s=30, interval_s=None)
    assert parse_failures("default") == Failures()
    for text in ("mtbf", "cost=3s", "restart=soon", "restart=1s,restart=2s", "mtbf=0s", "interval=0s"):
        with pytest.raises(ConfigError):
            parse_failures(text)


def test_a_result_tells_the_goodput_where_it_is_asked_for_and_runs_again_with_it():
    path = "examples/megatron_pp4_tp2"
    assert traincast.simulate(path).goodput is None
    result = traincast.simulate(path, failures=True)
    assert result.goodput == goodput(Failures(), 8, result.iteration_time_s)
    given = traincast.simulate(path, failures="mtbf=100h,interval=1h")
    assert given.goodput.interval_s == HOUR
    assert traincast.run_again(given).goodput == given.goodput
