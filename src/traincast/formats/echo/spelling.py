"""Write lines of a rank trace: the counterpart of `traincast.formats.echo.grammar`."""

import math
from collections.abc import Iterable, Mapping

from traincast.formats.echo.lines import Fields

_FEWEST_DECIMALS, _MOST_DECIMALS = 1, 6
"""The tracer writes milliseconds as Python prints them, rounded to hundredths; what is simulated is known to the
nanosecond."""


def milliseconds(time_s: float, clock_s: float = 0.0) -> str:
    """Return a time as the tracer writes it: with one decimal, or as many more as it has, up to nanoseconds.

    Decimals that a clock of `clock_s` seconds does not resolve are rounding and left out.
    """
    time_ms, resolution_ms = 1e3 * time_s, max(4e3 * math.ulp(clock_s), 0.5 * 10**-_MOST_DECIMALS)
    for decimals in range(_FEWEST_DECIMALS, _MOST_DECIMALS):
        text = f"{time_ms:.{decimals}f}"
        if abs(float(text) - time_ms) <= resolution_ms:
            return text
    return f"{time_ms:.{_MOST_DECIMALS}f}"


def spelled(fields: Fields, values: Mapping[str, str]) -> str:
    """Return fields as text, those that differ between alike lines with the values given."""
    return ",".join([f"{key}={values.get(key, text)}" for key, text in fields])


def listed(texts: Iterable[str]) -> str:
    """Return the list of sub-operations: the representation of a Python list of strings."""
    return repr(list(texts))
