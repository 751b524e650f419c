"""Read the lines and single numbers of a text file, and quote its text in messages.

What cannot be read of a number raises ValueError with a sentence about the value alone; the caller
knows the place and turns it into a FormatError. Numbers are in the ranges of `traincast.units`.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from traincast.errors import FormatError
from traincast.units import RANGES
from traincast.workload.words import Operation

MOST_LINES = 2**17
"""Lines of a workload or trace file: about ten seconds of reading; the longest known have some thousands."""

COLLECTIVES = {each.name.replace("_", ""): each for each in Operation if 0 <= each <= Operation.REDUCE}
"""Collectives as AICB and who follows it write them: ``ALLREDUCE`` to ``REDUCE``."""

_LONGEST_NUMBER = 40
_LONGEST_SHOWN = 40

T = TypeVar("T")


def shown(text: str) -> str:
    """Return text quoted for a message: ASCII, and cut where it is long."""
    return ascii(text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "...")


def check_lines(text: str, path: str, most: int = MOST_LINES) -> None:
    """Refuse a file of more lines than are read, before any of them is, by a FormatError with both numbers."""
    lines = max(text.count("\n"), text.count("\r"))
    if lines > most:
        raise FormatError(f"has {lines:,} lines, above the limit of {most:,}; cut it to fewer", path)


def filled_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that hold something, with their 1-based numbers.

    A byte-order mark, carriage returns and what pads the end of a file are not part of them.
    """
    text = text.removeprefix("\ufeff").rstrip("\0 \t\r\n").replace("\r\n", "\n").replace("\r", "\n")
    return [(place, line) for place, line in enumerate(text.split("\n"), 1) if line and not line.isspace()]


def read_cell(read: Callable[[str], T], text: str, column: str, path: str, line: int) -> T:
    """Return a value of a row as `read` reads it; what that cannot is a FormatError with column and place."""
    try:
        return read(text)
    except ValueError as problem:
        raise FormatError(f"column {column}: {problem}", path, line) from None


def check_width(found: Sequence[str], names: Sequence[str], called: str, path: str, line: int) -> None:
    """Refuse a row that has not one value for each of the names, which are called columns or fields."""
    if len(found) == len(names):
        return
    listed = ", ".join(map(shown, found[: len(names) + 2]))
    more = ", ..." if len(found) > len(names) + 2 else ""
    text = f"a row has {len(names)} {called} ({', '.join(names)}); found {len(found)}: {listed}{more}"
    raise FormatError(text, path, line)


def number(text: str) -> int | float:
    """Read a plain decimal number, or raise ValueError; integers stay exact."""
    # int() and float() also take underscores, other scripts' digits and any length.
    if len(text) > _LONGEST_NUMBER or not text.isascii() or "_" in text:
        raise ValueError(f"{shown(text)} is not a number")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is not a finite number")
    return value


def whole(
    text: str, kind: str = "degree", *, least: int | None = None, most: int | None = None, rounded: bool = False
) -> int:
    """Read a whole number, written as ``8``, ``8.0`` or ``8e0``; raise ValueError where it is not one, or out of range.

    The range is that of a kind of `RANGES`, or `least` and `most`; a fraction may be rounded instead of refused.
    """
    value, limits = number(text), RANGES[kind]
    if value != int(value) and not rounded:
        raise ValueError(f"{shown(text)} is not a whole number")
    lowest, highest = limits.lowest if least is None else least, limits.highest if most is None else most
    if not lowest <= value <= highest:
        what = f" of {limits.unit}" if limits.unit else ""
        raise ValueError(f"{shown(text)} is not a number{what} from {lowest:.0f} to {_power(highest)}")
    return round(value)


def time_s(text: str, per_second: float, unit: str) -> float:
    """Read a time in a unit with this symbol, of which a second has so many; return seconds.

    Raises ValueError for a negative one, or one above the range of durations of a file.
    """
    value, highest = number(text), RANGES["time"].highest * per_second
    if not 0 <= value <= highest:
        raise ValueError(f"{shown(text)} is not a time from 0 to {highest:g} {unit}")
    return value / per_second


def _power(limit: float) -> str:
    """Return a limit as people say it: ``2^53 - 1``."""
    above = int(limit) + 1
    return f"2^{above.bit_length() - 1} - 1" if above & (above - 1) == 0 else f"{limit:.0f}"
