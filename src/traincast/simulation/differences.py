"""How sure the ratio of two forecasts is: what both are off by cancels, and what they differ in does not.

A forecast is off for independent reasons, each of which moves the logarithm of its step by so much
(`traincast.simulation.widths`): factors of classes of work, links, the machine and its day. Two forecasts are off
together by what they share, as far as the steps answer to it alike. In addition every difference of the jobs
themselves is modelled within an error of its own: that of a layout grows with every doubling of a degree, that of
software is there or not, and that of efficiency grows with what is forecast of it. So each forecast is a point in a
space with one axis for each reason, and the deviation of the logarithm of the ratio of two is how far their points are
apart: nothing for the same job, and the same both ways. What other software gains is off by a share of it besides.

How wide each term is stands in ``data/training/difference_widths.csv``, fitted to pairs of published runs of one source
that differ in one thing (`studies/fit_differences.py`).
"""

import csv
import io
import math
from collections.abc import Hashable, Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING

from traincast.analysis.summary import Ratio
from traincast.errors import ConfigError
from traincast.shipped import constant, shipped_text
from traincast.simulation.widths import LEVEL

if TYPE_CHECKING:
    from traincast.simulation.result import Result

TABLE = "training/difference_widths.csv"
MULTIPLE = "multiple"
"""Row of the table that is not a term: deviations to either side of the ratio that hold `LEVEL` of what is measured."""
EFFICIENCY, SOFTWARE, SOFTWARE_GAIN = "efficiency", "software", "software gain"
Doubts = Mapping[str, Mapping[Hashable, float]]
"""By term and reason by how many of its widths it moves the logarithm of a forecast's step."""


def deviation_between(one: Doubts, other: Doubts, widths: Mapping[str, float] | None = None) -> float:
    """Return the standard deviation of the logarithm of the ratio of two steps."""
    known = constant(_widths) if widths is None else widths
    return math.sqrt(sum(known[term] ** 2 * square for term, square in squares_between(one, other).items()))


def moves(doubts: Doubts) -> dict[Hashable, float]:
    """Return by how much each reason moves the logarithm of a forecast, if it is one deviation off.

    Of the ratio of two forecasts it is the difference of both, but for what other software gains, which is one of two.
    """
    known = constant(_widths)
    return {(term, reason): known[term] * by for term, reasons in doubts.items() for reason, by in reasons.items()}


def squares_between(one: Doubts, other: Doubts) -> dict[str, float]:
    """Return what multiplies the squared width of each term in the variance of the ratio of two steps."""
    found = {term: _square(one.get(term, {}), other.get(term, {})) for term in {**one, **other}}
    # What other software gains is modelled within a factor, so that the error grows with it.
    return found | {SOFTWARE_GAIN: found.get(EFFICIENCY, 0.0) if found.get(SOFTWARE, 0.0) > 0 else 0.0}


def _square(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> float:
    return math.fsum((one.get(reason, 0.0) - other.get(reason, 0.0)) ** 2 for reason in {**one, **other})


def difference_interval(before: "Result", after: "Result") -> Ratio:
    """Return how many times as long one forecast step is as another, with the interval of that.

    Raises
    ------
    ConfigError
        If one of them was not forecast here: a file says what was simulated, and a result that was read does not say
        what its forecast may be off by.
    """
    for each in (before, after):
        if each.doubts is None:
            name = each.inputs[0].path if each.inputs else "result"
            raise ConfigError("is not the forecast of a job, so that its errors are not known; forecast its job", name)
    return ratio_of(before.iteration_time_s, before.doubts or {}, after.iteration_time_s, after.doubts or {})


def ratio_of(before_s: float, before: Doubts, after_s: float, after: Doubts) -> Ratio:
    """Return how many times as long one step is as another, with what each may be off by."""
    deviation = deviation_between(before, after)
    ratio, spread = after_s / before_s, constant(_widths)[MULTIPLE] * deviation
    return Ratio(
        level=LEVEL,
        ratio=ratio,
        low=ratio * math.exp(-spread),
        high=ratio * math.exp(spread),
        chance_shorter=chance_of_less(ratio, deviation),
    )


def chance_of_less(ratio: float, deviation: float) -> float:
    """Return the probability that what is forecast to be so many times as much as another is less than it after all."""
    if deviation == 0:
        return 0.5 if ratio == 1 else float(ratio < 1)
    return NormalDist().cdf(-math.log(ratio) / deviation)


def difference_widths() -> dict[str, float]:
    """Return the width of each term, and of `MULTIPLE` how many deviations lie to either side."""
    return dict(constant(_widths))


def _widths() -> dict[str, float]:
    rows = csv.DictReader(io.StringIO(shipped_text(TABLE)))
    return {row["term"]: float(row["width"]) for row in rows}
