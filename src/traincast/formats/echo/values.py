"""Typed values of fields. Problems are ValueErrors; `grammar` adds the place."""

import math
import re
from functools import lru_cache

from traincast.formats.values import shown

MAX_MILLISECONDS = 1e15
"""Durations and clocks above it are damage: it is 30,000 years."""

_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_SHAPE = re.compile(r"\[(?:[0-9]{1,18}(?:, ?[0-9]{1,18})*+)?\]")
_MAX_SHAPES = 4096


def text_or_none(text: str | None) -> str | None:
    """Return a text, None where it is absent or Python's ``None``."""
    return None if text == "None" else text


def time_s(text: str | None, what: str) -> float | None:
    """Read a time in milliseconds.

    Parameters
    ----------
    text : str or None
        Milliseconds, ``None``, or None where the field is absent.
    what : str
        Name of the field, for the message.

    Returns
    -------
    float or None
        Seconds.

    Raises
    ------
    ValueError
        If it is no number, negative or absurd.
    """
    if text is None or text == "None":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # a NaN fails both comparisons
    if not 0.0 <= value <= MAX_MILLISECONDS or "_" in text or not text.isascii():
        raise ValueError(f"{what} is not a time in milliseconds: {shown(text)}")
    return value / 1e3


def resolved_s(elapsed_s: float, clock_s: float | None) -> float:
    """Return a difference of clock readings without the digits that come from the size of the clock alone.

    Clocks count from the boot of a host: 52 days are 4.5e6 s, which a double holds to 1e-9 s, so that
    a difference of two readings of 0.33 ms comes out as 0.330001 ms.

    Parameters
    ----------
    elapsed_s : float
        Difference of readings in seconds.
    clock_s : float or None
        One of the readings in seconds; None leaves the difference as it is.

    Returns
    -------
    float
        Seconds, rounded to the last decimal that four roundings of such a reading leave intact.
    """
    if not clock_s:
        return elapsed_s
    return round(elapsed_s, -math.ceil(math.log10(4 * math.ulp(clock_s))))


def whole(text: str | None, what: str) -> int | None:
    """Read a whole number; None where it is absent or ``None``.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    if text is None or text == "None":
        return None
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{what} is not a whole number: {shown(text)}")
    return int(text)


@lru_cache(_MAX_SHAPES)
def shape(text: str | None) -> tuple[int, ...] | None:
    """Read a shape such as ``[4096, 1, 5120]``; None where it is absent or ``None``.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    if text is None or text == "None":
        return None
    if _SHAPE.fullmatch(text) is None:
        raise ValueError(f"input__shape is not a list of whole numbers: {shown(text)}")
    return tuple(int(size) for size in text[1:-1].split(",") if size)


def dtype(text: str | None) -> str | None:
    """Return a data type's name without ``torch.``; None where it is absent or ``None``."""
    return None if text is None or text == "None" else text.removeprefix("torch.")
