"""How much longer a run of one job takes than a run of another, and how sure that is."""

import math

from traincast.analysis.summary import Ratio
from traincast.checking.base import BaseForecast
from traincast.simulation.differences import difference_interval
from traincast.simulation.widths import LEVEL, Z

REPEATS = 0.015
"""Standard deviation of the logarithm of the ratio of two runs of one job: half of the pairs of published repeats are
within 1 % of each other (docs/published-runs.md, noise), which 1.5 % makes of a normal distribution."""


def of_same_job() -> Ratio:
    """Return the ratio of the steps of two runs of one job."""
    return _no_surer_than_repeats(Ratio(level=LEVEL, ratio=1.0, low=1.0, high=1.0, chance_shorter=0.5))


def ratio_of(before: BaseForecast, after: BaseForecast) -> Ratio:
    """Return the step of a run of one job over that of a run of another, by their forecasts."""
    return (
        of_same_job() if before is after else _no_surer_than_repeats(difference_interval(before.result, after.result))
    )


def _no_surer_than_repeats(known: Ratio) -> Ratio:
    """Return a ratio whose interval is at least as wide as that of two runs of one job."""
    least = math.exp(Z * REPEATS)
    low, high = min(known.low, known.ratio / least), max(known.high, known.ratio * least)
    return Ratio(level=known.level, ratio=known.ratio, low=low, high=high, chance_shorter=known.chance_shorter)
