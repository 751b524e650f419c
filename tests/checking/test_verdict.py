"""The verdict on a step: what interval, allowance and doubt about the mean make of it."""

import math

import pytest

from traincast.checking.difference import REPEATS, of_same_job, ratio_of
from traincast.checking.expected import Expected, between, by_baseline, by_forecast
from traincast.checking.mean import Mean, mean_of
from traincast.checking.series import judged_series
from traincast.checking.verdict import Word, judge, log_deviation
from traincast.simulation.widths import Z


def expected(low_s=0.9, high_s=1.1):
    return Expected(basis="forecast", step_s=1.0, low_s=low_s, high_s=high_s, forecast_s=1.0, why="")


@pytest.mark.parametrize(
    ("step_s", "allowed", "word"),
    [
        (1.0, None, Word.AS_EXPECTED),
        (1.09, None, Word.AS_EXPECTED),
        (1.12, None, Word.SLOWER),
        (0.88, None, Word.FASTER),
        (1.12, 0.05, Word.CANNOT_TELL),
        (1.04, 0.05, Word.AS_EXPECTED),
        (1.2, 0.05, Word.SLOWER),
    ],
)
def test_a_step_is_slower_where_all_of_the_interval_is_beyond_what_is_allowed(step_s, allowed, word):
    assert judge(Mean(step_s), expected(), allowed).word is word


def test_nothing_is_told_without_an_interval_or_with_one_that_says_nothing():
    assert judge(Mean(1.3), expected(None, None)).word is Word.CANNOT_TELL
    assert judge(Mean(1.3, None), expected()).word is Word.CANNOT_TELL
    assert judge(Mean(1.3, 2.0), expected()).word is Word.CANNOT_TELL


def test_doubts_about_mean_and_forecast_add_as_independent_ones():
    verdict = judge(Mean(1.0, 0.03), expected(math.exp(-0.04), math.exp(0.04)))
    assert verdict.low == pytest.approx(math.exp(-0.05))
    assert verdict.high == pytest.approx(math.exp(0.05))
    assert log_deviation(verdict) == pytest.approx(0.05 / Z)


def test_a_surer_mean_never_makes_a_verdict_less_sure():
    ratios = [judge(Mean(1.05, spread), expected(0.98, 1.02)).low for spread in (0.0, 0.01, 0.05, 0.2)]
    assert ratios == sorted(ratios, reverse=True)


def test_one_point_has_no_confidence():
    assert mean_of(judged_series([7], [1.5])).spread is None
    assert mean_of(judged_series([1, 2, 3, 4, 5, 6], [1.0, 1.1, 1.0, 1.1, 1.0, 1.1])).spread > 0


def test_runs_of_one_job_differ_by_no_less_than_repeats():
    known = of_same_job()
    assert known.ratio == 1
    assert math.log(known.high) == pytest.approx(Z * REPEATS)
    found = by_baseline(2.0, Mean(4.0), known)
    assert (found.step_s, found.forecast_s) == (4.0, 2.0)
    assert found.high_s / found.step_s == pytest.approx(found.step_s / found.low_s)


def test_a_baseline_of_another_job_is_taken_times_the_ratio_of_forecasts(base):
    again = base.again({"global_batch": 128}, base.setting)
    ratio = ratio_of(base, again)
    assert ratio.ratio == pytest.approx(again.step_s / base.step_s)
    assert by_baseline(again.step_s, Mean(3.0), ratio).step_s == pytest.approx(3.0 * ratio.ratio)
    assert ratio_of(base, base) == of_same_job()


def test_a_difference_is_surer_than_a_forecast(base):
    again = base.again({"overlap_grad_reduce": False}, base.setting)
    alone, of_both = by_forecast(again), between(base, ratio_of(base, again))
    assert of_both.high_s / of_both.low_s < alone.high_s / alone.low_s
    verdict = judge(Mean(again.step_s), of_both)
    assert verdict.ratio == pytest.approx(again.step_s / base.step_s)
    assert verdict.low == pytest.approx(ratio_of(base, again).low)
