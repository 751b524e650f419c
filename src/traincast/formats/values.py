"""Read single numbers of a text file, and quote its text in messages.

What cannot be read raises ValueError with a sentence about the value alone; the caller
knows the place and turns it into a FormatError.
"""

import math

from traincast.errors import FormatError

MOST_LINES = 2**17
"""Lines of a workload or trace file: about ten seconds of reading; the longest known have some thousands."""

_LONGEST_NUMBER = 40
_LONGEST_SHOWN = 40


def shown(text: str) -> str:
    """Return text quoted for a message: ASCII, and cut where it is long."""
    return ascii(text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "...")


def check_lines(text: str, path: str) -> None:
    """Refuse a file of more lines than are read, before any of them is.

    Raises
    ------
    FormatError
        With the number of lines and the limit.
    """
    lines = max(text.count("\n"), text.count("\r"))
    if lines > MOST_LINES:
        raise FormatError(f"has {lines:,} lines, above the limit of {MOST_LINES:,}; cut it to fewer", path)


def number(text: str) -> int | float:
    """Read a plain decimal number; integers stay exact.

    Raises
    ------
    ValueError
        If the text is no finite number.
    """
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
