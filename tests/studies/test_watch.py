"""The study of `watch`: changes are put in where they are said to be, and CUSUM finds a shift."""

import numpy as np

from traincast.checking import level_shift
from traincast.checking.detector import Detector, LoggedStep
from watch import Cusum
from watching.confidence import said_and_true
from watching.injected import Run, alarms, long_enough, read_series, shift_outcomes, slower_alarms, spike_outcomes
from watching.lasting import changes
from watching.natural import holds_change
from watching.traded import VARIANTS, best_of, traded


def quiet(points=400, spread=0.003, name="family/run"):
    steps = np.arange(1, points + 1) * 5
    return Run(name, steps, 1 + np.random.default_rng(0).normal(0, spread, points))


def test_runs_are_those_of_the_table():
    runs = read_series()
    assert len(runs) == 464
    assert {run.family for run in runs} >= {"gpt", "moe", "t5"}
    assert all((np.diff(run.step) > 0).all() and (run.step_s > 0).all() for run in runs)
    assert len(long_enough(runs)) == 168


def test_a_shift_in_a_quiet_run_is_found_and_dated_and_the_run_itself_is_well():
    run = quiet()
    assert slower_alarms(alarms(run, Detector())) == []
    outcomes = list(shift_outcomes([run], lambda _: 0.05, 30))
    assert [each.found and each.dated for each in outcomes] == [True] * 3


def test_one_slow_step_in_fifty_is_named():
    assert all(each.found for each in spike_outcomes([quiet(900)]))


def test_a_shift_that_is_none_is_not_found():
    assert not any(each.found for each in shift_outcomes([quiet()], lambda _: 0.0, 30))


def test_cusum_alarms_on_a_shift_and_not_on_noise():
    assert alarms(quiet(), Cusum(20.0)) == []
    run = quiet()
    slower = run._replace(step_s=np.where(np.arange(400) >= 200, 1.05, 1.0) * run.step_s)
    assert alarms(slower, Cusum(20.0))[0].kind == "level shift"


def test_a_small_rise_at_a_checkpoint_that_is_told_is_none():
    run = quiet(100, name="gpt/some_resume_run")._replace(step=np.arange(1, 101))
    slower = run._replace(step_s=np.where(np.arange(100) >= 50, 1.05, 1.0) * run.step_s)
    assert slower_alarms(alarms(slower, Detector()))
    assert not slower_alarms(alarms(slower, Detector(), saves_told=True))
    assert Detector().feed(LoggedStep(step=1, step_s=1.0)) == []


def changed(run, factors):
    return run._replace(step_s=run.step_s * factors)


def test_a_run_with_a_change_put_in_holds_one_and_a_quiet_one_holds_none():
    run, points = quiet(), np.arange(400)
    assert not holds_change(run)
    assert holds_change(changed(run, np.where(points >= 200, 1.05, 1.0)))
    assert holds_change(changed(run, np.where((points >= 200) & (points < 212), 1.2, 1.0))), "twelve points of 20 %"
    assert not holds_change(changed(run, np.where((points >= 200) & (points < 207), 1.2, 1.0))), "seven are too few"
    assert holds_change(changed(run, 1 + 0.015 * np.maximum(0, points - 90) / 100)), "a drift"


def test_a_change_within_what_a_run_wanders_is_none():
    wave = 1 + 0.04 * np.sin(2 * np.pi * np.arange(400) / 80)
    assert not holds_change(changed(quiet(), wave))


def test_long_stretches_differ_where_they_do_and_not_where_a_run_scatters():
    run, late = quiet(100), np.arange(100) >= 50
    assert changes(changed(run, np.where(late, 1.04, 1.0)))
    assert not changes(changed(run, np.where(late, 1.02, 1.0)))
    turns = np.where(np.random.default_rng(1).random(100) < 0.4, 1.5, 1.0)
    assert not changes(changed(run, turns))


def test_a_change_right_after_a_checkpoint_that_is_told_is_left_out():
    run = quiet(100, name="gpt/some_resume_run")._replace(step=np.arange(1, 101))
    slower = changed(run, np.where(np.arange(100) >= 50, 1.05, 1.0))
    assert holds_change(slower)
    assert not holds_change(slower, saves_told=True)


def test_alarms_of_changes_that_were_put_into_quiet_runs_are_all_true():
    runs = [quiet(900), quiet(name="family/other")]
    found = list(said_and_true(runs, dict.fromkeys((run.name for run in runs), 0.001)))
    assert {each.kind for each in found} == {"level shift", "drift", "periodic spikes"}
    assert all(each.true == 1 for each in found)


def test_variants_trade_alarms_for_shifts_and_leave_the_constants_as_they_were():
    own = level_shift.LEAST_LONG, level_shift.UNREST_SHORT
    runs = [quiet(120), quiet(120, name="family/other")]
    rows = list(traded(runs, dict.fromkeys((run.name for run in runs), 0.001)))
    assert [row.name for row in rows] == list(VARIANTS)
    assert own == (level_shift.LEAST_LONG, level_shift.UNREST_SHORT)
    found = {row.name: row.of_half()[1] for row in rows}
    assert found["as it is"] == 1
    assert found["4 % at least"] < 0.5, "no shift of 3 % is found that way"
    assert best_of(rows, runs[0].half).name == "as it is"
