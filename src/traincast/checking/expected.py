"""What a step should take: by a forecast alone, by a forecast and a good run, or after a change of the job."""

import math
from typing import Literal

from msgspec import Struct

from traincast.analysis.summary import Ratio
from traincast.checking.base import BaseForecast
from traincast.checking.mean import Mean
from traincast.units import format_share, format_time

Basis = Literal["forecast", "baseline", "between"]


class Expected(Struct, frozen=True, kw_only=True):
    """An expected step with its interval."""

    basis: Basis
    """What it rests on: a forecast, a good run and the ratio of two forecasts, or two forecasts."""
    step_s: float
    low_s: float | None
    high_s: float | None
    """Where the step lies in 90 of 100 cases; None where that is not known."""
    forecast_s: float
    """The forecast of the job that is checked."""
    why: str
    """Where it is from, in a sentence."""


def by_forecast(base: BaseForecast) -> Expected:
    """Return what the forecast of a job expects."""
    known = base.result.interval
    return Expected(
        basis="forecast",
        step_s=base.step_s,
        low_s=None if known is None else known.low_s,
        high_s=None if known is None else known.high_s,
        forecast_s=base.step_s,
        why="the forecast of the job, with the interval of forecasts of runs like it",
    )


def by_baseline(forecast_s: float, good: Mean, ratio: Ratio) -> Expected:
    """Return what a good run, and the ratio of the forecast of this job to that of its own, expect."""
    step_s = good.step_s * ratio.ratio
    below = above = None
    if good.spread is not None:
        below = math.hypot(math.log(ratio.ratio / ratio.low), good.spread)
        above = math.hypot(math.log(ratio.high / ratio.ratio), good.spread)
    same = abs(ratio.ratio - 1) < 1e-9
    told = "the same job" if same else f"the ratio of two forecasts, {ratio.ratio:.3f}"
    return Expected(
        basis="baseline",
        step_s=step_s,
        low_s=None if below is None else step_s * math.exp(-below),
        high_s=None if above is None else step_s * math.exp(above),
        forecast_s=forecast_s,
        why=f"the baseline's step of {format_time(good.step_s)}, and {told}",
    )


def between(before: BaseForecast, ratio: Ratio) -> Expected:
    """Return what stands for a measured step where two forecasts are compared: that of the first job."""
    off = format_share((ratio.high / ratio.low) ** 0.5 - 1)
    return Expected(
        basis="between",
        step_s=before.step_s,
        low_s=before.step_s * ratio.ratio / ratio.high,
        high_s=before.step_s * ratio.ratio / ratio.low,
        forecast_s=before.step_s,
        why=f"the forecast of the first job; errors that both forecasts share cancel, which leaves {off}",
    )
