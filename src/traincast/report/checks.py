"""What a ``result.json`` must hold beyond the types of its keys, so that whatever is made of it is right.

Who writes such a file keeps to this; it was edited, cut or made by another program where it does not.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from traincast.errors import FormatError
from traincast.simulation.result import BREAKDOWN_KEYS, Result
from traincast.units import RANGES, quoted, range_of

_LARGEST = RANGES["FLOP rate"].highest
"""No number of a result is larger."""
_FREE = ("cluster", "run")
"""Keys that hold what a cluster or a job says; the numbers of all others are quantities by their names."""
_KINDS: Mapping[str, str] = {
    "stage": "rank",
    "count": "count",
    "represents": "degree",
    "breakdown_s": "time",
    "tokens": "training tokens",
    "tokens_per_step": "training tokens",
}
"""Kinds of quantities of a result whose names no input has."""
_SIGNED = ("cost_s", "saving_s", "saving_low_s", "saving_high_s", "alone_s", "more_bytes")
"""Differences: a change may make a step longer."""
_TOLERANCE = 1e-6
"""Share of the step by which a sum of its parts may be off: what rounding in another program leaves."""


def check_numbers(document: Mapping[str, Any], path: str) -> None:
    """Refuse a number that no result has: not finite, beyond any quantity, a time or count below zero.

    Raises
    ------
    FormatError
        With the path of the key in the document, as JSON says it.
    """
    for key, value in document.items():
        for place, name, number in _numbers(value, f"$.{key}", key):
            lowest, highest, what = _bounds(name, named=key not in _FREE)
            if not lowest <= number <= highest:
                raise FormatError(f"{quoted(number)} at {place} is not a value of a result; it must be {what}", path)


def _bounds(name: str, *, named: bool) -> tuple[float, float, str]:
    known = RANGES[_KINDS[name]] if name in _KINDS else range_of(name)
    if known is None or not named or name in _SIGNED:
        return -_LARGEST, _LARGEST, f"a finite number of at most {_LARGEST:g}"
    if known is RANGES["time"]:
        known = RANGES["step time"]
    return known.lowest, known.highest, str(known)


def _numbers(value: object, place: str, name: str) -> Iterator[tuple[str, str, int | float]]:
    """Yield every number of a value with its place and the name that says what it is.

    Numbers in a list, and those of a breakdown, are what the key of the whole says.
    """
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _numbers(each, f"{place}.{key}", name if name == "breakdown_s" else key)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _numbers(each, f"{place}[{index}]", name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, name, value


def check_whole(result: Result, path: str) -> None:
    """Refuse a result whose parts do not add up; `check_numbers` has passed.

    Raises
    ------
    FormatError
        With the path of the key.
    """
    _check_breakdown(result.breakdown_s, result.iteration_time_s, "$.breakdown_s", path)
    for index, rank in enumerate(result.ranks):
        _check_breakdown(rank.breakdown_s, result.iteration_time_s, f"$.ranks[{index}].breakdown_s", path)


def _check_breakdown(breakdown_s: Mapping[str, float], step_s: float, place: str, path: str) -> None:
    missing = [key for key in BREAKDOWN_KEYS if key not in breakdown_s]
    if missing:
        raise FormatError(f"lacks {', '.join(missing)} at {place}", path)
    total_s = math.fsum(breakdown_s[key] for key in BREAKDOWN_KEYS)
    if abs(total_s - step_s) > _TOLERANCE * step_s:
        raise FormatError(
            f"the parts at {place} sum to {total_s:.9g} s, but $.iteration_time_s is {step_s:.9g} s; "
            "the file was changed after it was written",
            path,
        )
