"""Split ``key=value,key=value`` where values are unquoted and may hold commas, and read the values.

A key starts at the beginning or after a comma outside square brackets, so the commas of a
shape and of a description are no separators. Problems are ValueErrors; `grammar` adds the place.
"""

import math
import re
from functools import lru_cache

from traincast.formats.echo.vocabulary import AFTER_DESCRIPTION, ALIASES
from traincast.formats.values import shown

_MARK = re.compile(r"([\[\]]|, *+)(?:([A-Za-z_][A-Za-z0-9_.]*+)=)?", re.ASCII)
_FIRST = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*+)=", re.ASCII)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}

Pairs = tuple[tuple[str, str], ...]


def split_fields(body: str) -> tuple[Pairs, tuple[str, ...]]:
    """Split the fields of a line or of a sub-operation.

    Parameters
    ----------
    body : str
        The value of ``sub_operations`` runs to its end; in that of ``description`` only known keys count.

    Returns
    -------
    fields : tuple of (str, str)
        Keys and values as written.
    gaps : tuple of str
        What stands before each field but the first: a comma and spaces.

    Raises
    ------
    ValueError
        If it does not start with a key, or a bracket stays open.
    """
    first = _FIRST.match(body)
    if first is None:
        raise ValueError(f"expected key=value, found {shown(body)}")
    key, value, depth = first[1], first.end(), 0
    fields, gaps = [], []
    for mark in _MARK.finditer(body, value):
        if key == "sub_operations":
            break
        gap, following = mark.groups()
        if gap == "[":
            depth += 1
        elif gap == "]":
            depth = max(0, depth - 1)
        elif following is not None and depth == 0 and (key != "description" or following in AFTER_DESCRIPTION):
            fields.append((key, body[value : mark.start()]))
            gaps.append(gap)
            key, value = following, mark.end()
    if depth:
        raise ValueError("a square bracket stays open")
    return (*fields, (key, body[value:])), tuple(gaps)


def by_key(fields: Pairs) -> dict[str, str]:
    """Return the fields by the usual spelling of their keys.

    Raises
    ------
    ValueError
        If a key comes twice.
    """
    found = dict(fields)
    if not found.keys().isdisjoint(ALIASES):
        found = {ALIASES.get(key, key): text for key, text in fields}
    if len(found) < len(fields):
        keys = [ALIASES.get(key, key) for key, _ in fields]
        raise ValueError(f"field {shown(next(key for key in keys if keys.count(key) > 1))} comes twice")
    return found


def list_of_strings(text: str) -> list[str]:
    """Read the representation of a Python list of strings, such as ``['a', 'b']``.

    Raises
    ------
    ValueError
        If it is none; nothing is evaluated.
    """
    if text == "[]":
        return []
    if "\\" in text or '"' in text:
        return _any_list_of_strings(text)
    if not (len(text) > 3 and text.startswith("['") and text.endswith("']")):
        raise ValueError(f"sub_operations is not a list of strings: {shown(text)}")
    found = text[2:-2].split("', '")
    if text.count("'") != 2 * len(found):
        raise ValueError("sub_operations is not a list of strings: a quote is missing or left over")
    return found


def _any_list_of_strings(text: str) -> list[str]:
    """Read a list in which strings have escapes or double quotes, one string after the other."""
    if not (text.startswith("[") and text.endswith("]")):
        raise ValueError(f"sub_operations is not a list of strings: {shown(text)}")
    found, place, end = [], 1, len(text) - 1
    while place < end:
        quote = text[place]
        close = _closing_quote(text, place)
        if quote not in "'\"" or not 0 < close < end:
            raise ValueError(f"sub_operations: expected a quoted string, found {shown(text[place:])}")
        found.append(_unescape(text[place + 1 : close]))
        place = close + 1
        if place < end:
            if text[place : place + 2] != ", " or place + 2 >= end:
                raise ValueError(f"sub_operations: expected ', ' or ']', found {shown(text[place:])}")
            place += 2
    return found


def _closing_quote(text: str, opening: int) -> int:
    """Return where the string that opens there closes, -1 where it does not."""
    close = text.find(text[opening], opening + 1)
    while close > 0:
        before = close - 1
        while text[before] == "\\":
            before -= 1
        if (close - 1 - before) % 2 == 0:
            return close
        close = text.find(text[opening], close + 1)
    return -1


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_escaped, text) if "\\" in text else text


def _escaped(match: re.Match[str]) -> str:
    *codes, plain = match.groups()
    code = next((code for code in codes if code), None)
    if code is not None and int(code, 16) <= 0x10FFFF:
        return chr(int(code, 16))
    if plain not in _PLAIN_ESCAPES:
        raise ValueError(f"sub_operations: unknown escape {shown(match[0])}")
    return _PLAIN_ESCAPES[plain]


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
