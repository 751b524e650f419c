"""Forecasts by fits that have not seen a group (`studies/refit.py`) are simulated, not carried on in a line."""

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from forecasts import shipped_forecasts, timed_rows
from refit import Fitted, Physics, runs_of, shipped_physics, simulated
from traincast.calibration.run_factors import Forecast
from traincast.estimate.factors import FactorTable, factors_on, shipped_factors

HIDDEN, ACROSS = "megatron-bridge-perf-summary-042", "megatron-bridge-perf-summary-088"
"""Runs of Qwen3 235B: one hides exchanges of tokens within its NVLink domain, the other has them across nodes."""


@cache
def runs():
    rows = [run for run in timed_rows() if run.id in (HIDDEN, ACROSS)]
    return runs_of(rows, shipped_forecasts(rows))


def forecasts(fit) -> dict[str, Forecast]:
    found = simulated(runs(), dict.fromkeys(range(len(runs().rows)), fit))
    return {runs().rows[place].id: each for place, each in found.items()}


def with_longer(by: float, cost_class: str) -> FactorTable:
    """Return the shipped factors with one that all GPUs and frameworks share some times as large."""
    key = ("all", "*", cost_class)
    old = shipped_factors().factors[key]
    changed = replace(old, factor=by * old.factor)
    return FactorTable(shipped_factors().factors | {key: changed})


def test_a_fit_that_finds_what_is_shipped_forecasts_what_is_shipped():
    found = forecasts(Fitted(shipped_factors(), shipped_physics()))
    for run, shipped in zip(runs().rows, runs().forecasts, strict=True):
        assert factors_on(run.cluster) == shipped_factors()
        assert found[run.id].step_s == pytest.approx(shipped.step_s)


def test_exchanges_come_out_from_behind_what_hides_them():
    """A step grows the faster with its exchanges the longer they are; in a line it would grow by its first slope."""
    times = np.array([1.0, 2.0, 64.0])
    found = [forecasts(Fitted(with_longer(by, "transfer ep inside"), shipped_physics())) for by in times]
    step_s = np.array([each[HIDDEN].step_s for each in found])
    growth = np.diff(step_s) / np.diff(times)
    assert growth[1] > 1.5 * growth[0] >= 0
    assert {each[ACROSS].step_s for each in found} == {found[0][ACROSS].step_s}


def test_a_lower_clock_lengthens_what_the_power_limit_throttles():
    shipped = forecasts(Fitted(shipped_factors(), shipped_physics()))
    more = Physics(shipped_physics().log_E + np.log(1.2))
    for place, run in enumerate(runs().rows):
        gpu = runs().gpus[place]
        slower = more.slowdown(gpu) / shipped_physics().slowdown(gpu)
        longer = forecasts(Fitted(shipped_factors(), more))[run.id].step_s / shipped[run.id].step_s
        assert longer == pytest.approx(slower ** runs().throttled_I[place])
        assert 0 < runs().throttled_I[place] < 1
