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
_TABLES = (
    "breakdown_s",
    "ranks",
    "job",
    "parallel",
    "collectives",
    "parts",
    "interval",
    "memory_bytes",
    "stragglers",
    "what_if",
)
"""Keys whose numbers are quantities by their names (`traincast.units`); others hold what a cluster or job says."""
_KINDS: Mapping[str, str] = {"stage": "rank", "count": "count", "represents": "degree", "breakdown_s": "time"}
"""Kinds of quantities of a result whose names no input has."""
_SIGNED = ("cost_s", "saving_s")
"""Differences: a change may make a step longer."""
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "interval": ("level", "low_s", "high_s"),
    "stragglers": ("rank", "stage", "slowdown", "cost_s"),
    "what_if": ("change", "iteration_time_s", "saving_s"),
}
"""Keys of objects that are written whole or not at all."""
_TOLERANCE = 1e-6
"""Share of the step by which a sum of its parts may be off: what rounding in another program leaves."""


def check_numbers(document: Mapping[str, Any], path: str) -> None:
    """Refuse a number that no result has: not finite, beyond any quantity, a time or count below zero.

    Parameters
    ----------
    document : mapping
        The document as JSON says it.
    path : str
        The file, for messages.

    Raises
    ------
    FormatError
        With the path of the key.
    """
    for key, value in document.items():
        named = key in _TABLES or key in ("iteration_time_s", "measured_s")
        for place, name, number in _numbers(value, f"$.{key}", key):
            lowest, highest, what = _bounds(name, named=named)
            if not lowest <= number <= highest:
                raise FormatError(f"{quoted(number)} at {place} is no value of a result; it must be {what}", path)


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
    """Refuse a result of which a part is missing, or whose parts do not add up.

    Parameters
    ----------
    result : Result
        As it was read; `check_numbers` has passed.
    path : str
        The file, for messages.

    Raises
    ------
    FormatError
        With the path of the key.
    """
    for key, needed in _NEEDED.items():
        value = getattr(result, key)
        entries = value if isinstance(value, tuple) else () if value is None else (value,)
        for index, entry in enumerate(entries):
            _check_keys(entry, needed, f"$.{key}[{index}]" if isinstance(value, tuple) else f"$.{key}", path)
    for name, value in result.parallel.items():
        if name != "schedule" and not isinstance(value, int):
            raise FormatError(f"{quoted(value)} at $.parallel.{name} is no whole number", path)
    _check_breakdown(result.breakdown_s, result.iteration_time_s, "$.breakdown_s", path)
    for index, rank in enumerate(result.ranks):
        _check_breakdown(rank.breakdown_s, result.iteration_time_s, f"$.ranks[{index}].breakdown_s", path)


def _check_keys(entry: Mapping[str, object], needed: tuple[str, ...], place: str, path: str) -> None:
    missing = [key for key in needed if key not in entry]
    if missing:
        raise FormatError(f"lacks {', '.join(missing)} at {place}", path)


def _check_breakdown(breakdown_s: Mapping[str, float], step_s: float, place: str, path: str) -> None:
    _check_keys(breakdown_s, BREAKDOWN_KEYS, place, path)
    total_s = math.fsum(breakdown_s[key] for key in BREAKDOWN_KEYS)
    if abs(total_s - step_s) > _TOLERANCE * step_s:
        raise FormatError(
            f"the parts at {place} sum to {total_s:.9g} s, but $.iteration_time_s is {step_s:.9g} s; "
            "the file was changed after it was written",
            path,
        )
