"""How sure the ratio of two forecasts is: what both steps spend alike cancels."""

from typing import NamedTuple

from traincast.checking.base import Base
from traincast.simulation.advice import surety


class Ratio(NamedTuple):
    """The ratio of two steps, with the interval in which it lies in 90 of 100 cases."""

    value: float
    low: float
    high: float


def ratio_of(before: Base, after: Base) -> Ratio:
    """Return the forecast step of one job over that of another."""
    low_s, high_s, _ = surety(before.done, after.done, after.table)
    before_s = before.step_s
    return Ratio(after.step_s / before_s, (before_s - high_s) / before_s, (before_s - low_s) / before_s)
