"""What is said of a step that was measured: as expected, slower, faster, or that nobody can tell.

The ratio of measured to expected step has an interval, in which the doubt about what is expected and the doubt about
the mean of the measured steps are added as independent ones. A step is slower where all of that interval lies above
what is allowed, faster where all of it lies below 1. It cannot be told where no interval is known, where no mean is,
or where the step is longer than is allowed and the interval reaches below that.
"""

import math
from enum import StrEnum

from msgspec import Struct

from traincast.checking.expected import Expected
from traincast.checking.mean import Mean
from traincast.simulation.widths import Z
from traincast.units import format_share

_WIDEST = 4.0
"""High over low end from which on an interval says nothing: a step may be half or twice of what is expected."""


class Word(StrEnum):
    """The verdict in a word or two."""

    AS_EXPECTED = "as expected"
    SLOWER = "slower"
    FASTER = "faster"
    CANNOT_TELL = "cannot tell"


class SpeedVerdict(Struct, frozen=True, kw_only=True):
    """How a measured step compares to the expected one."""

    word: Word
    ratio: float
    """Measured over expected."""
    low: float | None
    high: float | None
    """Where the ratio lies in 90 of 100 cases; None where that is not known."""
    allowed: float
    """Share by which a step may be longer than expected."""
    why: str
    """In a sentence."""


def judge(measured: Mean, expected: Expected, allowed: float | None = None) -> SpeedVerdict:
    """Return the verdict on a measured step; `allowed` is the share by which it may be longer, 0.05 for 5 %."""
    ratio = measured.step_s / expected.step_s
    low, high = _ends(measured, expected, ratio)
    word, why = _word(ratio, low, high, allowed)
    return SpeedVerdict(word=word, ratio=ratio, low=low, high=high, allowed=allowed or 0.0, why=why)


def _ends(measured: Mean, expected: Expected, ratio: float) -> tuple[float | None, float | None]:
    """Return the ends of the interval of the ratio."""
    if measured.spread is None or expected.low_s is None or expected.high_s is None:
        return None, None
    below = math.hypot(math.log(expected.high_s / expected.step_s), measured.spread)
    above = math.hypot(math.log(expected.step_s / expected.low_s), measured.spread)
    return ratio * math.exp(-below), ratio * math.exp(above)


_UNKNOWN = "no interval is known: too few steps count, or nothing says how sure the forecast is"


def _word(ratio: float, low: float | None, high: float | None, allowed: float | None) -> tuple[Word, str]:
    limit = 1 + (allowed or 0.0)
    longer = f"more than {format_share(allowed)} longer than expected" if allowed else "longer than expected"
    if low is None or high is None:
        return Word.CANNOT_TELL, _UNKNOWN
    if high / low > _WIDEST:
        return Word.CANNOT_TELL, f"the interval is too wide: from {low:.2f} to {high:.2f} times the expected step"
    if low > limit:
        return Word.SLOWER, f"all of the interval is {longer}"
    if high < 1:
        return Word.FASTER, "all of the interval is shorter than expected"
    if allowed is not None and ratio > limit:
        return Word.CANNOT_TELL, f"the step is {longer}, and the interval reaches below that"
    within = low <= 1 <= high
    return Word.AS_EXPECTED, "the interval holds the expected step" if within else f"the step is not {longer}"


def log_deviation(verdict: SpeedVerdict) -> float:
    """Return the standard deviation of the logarithm of the ratio; 0 where no interval is known."""
    return 0.0 if verdict.low is None or verdict.high is None else math.log(verdict.high / verdict.low) / 2 / Z
