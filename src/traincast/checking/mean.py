"""The mean of judged steps, and how sure it is."""

import math
from typing import NamedTuple

from traincast.checking.series import Series

_FEWEST = 2
"""Steady points from which on their mean has a confidence."""


class Mean(NamedTuple):
    """The mean of steps, and how sure it is."""

    step_s: float
    spread: float | None = 0.0
    """Half of the interval of its logarithm, 90 %; None where too few steps say it."""


def mean_of(series: Series) -> Mean:
    """Return the mean of judged steps."""
    if series.points < _FEWEST or not math.isfinite(series.high_s):
        return Mean(series.mean_s, None)
    return Mean(series.mean_s, math.log(series.high_s / series.mean_s))
