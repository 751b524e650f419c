"""How sure the ratio of two forecasts is: what both steps spend alike cancels."""

import math
from typing import NamedTuple

from traincast.checking.base import Base
from traincast.simulation.advice import surety
from traincast.simulation.widths import Z

REPEATS = 0.015
"""Standard deviation of the logarithm of the ratio of two runs of one job: half of the pairs of published repeats are
within 1 % of each other (docs/published-runs.md, noise), which 1.5 % makes of a normal distribution."""


class Ratio(NamedTuple):
    """The ratio of two steps, with the interval in which it lies in 90 of 100 cases."""

    value: float
    low: float
    high: float


def of_same_job() -> Ratio:
    """Return the ratio of the steps of two runs of one job."""
    return _with_repeats(1.0, 1.0, 1.0)


def ratio_of(before: Base, after: Base) -> Ratio:
    """Return the step of a run of one job over that of a run of another, by their forecasts."""
    if before is after:
        return of_same_job()
    low_s, high_s, _ = surety(before.done, after.done, after.table)
    before_s = before.step_s
    return _with_repeats(after.step_s / before_s, (before_s - high_s) / before_s, (before_s - low_s) / before_s)


def _with_repeats(value: float, low: float, high: float) -> Ratio:
    """Return a ratio whose interval holds what runs of one job differ by, too."""
    least = 1e-3 * value
    below = math.hypot(math.log(value / max(low, least)), Z * REPEATS)
    above = math.hypot(math.log(max(high, value) / value), Z * REPEATS)
    return Ratio(value, value * math.exp(-below), value * math.exp(above))
