"""Parse and print quantities: ``400Gb/s``, ``80GiB``, ``2.5ms``.

Inside traincast every number is SI (seconds, bytes, bytes per second, FLOP). Text
with units is read and written here and nowhere else.
"""

import math
import re

from traincast.errors import ConfigError
from traincast.ranges import RANGES, Range, is_number, quoted

GIGA = 1e9

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIX = {**_DECIMAL, **_BINARY}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_TOKENS = re.compile(r"^\s*([0-9][0-9_,]*\.?[0-9]*)\s*([kKmM]?)\s*$")
_TOKEN_PREFIX = {"": 1, "k": 2**10, "m": 2**20}
_QUANTITY = re.compile(r"^\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]*)\s*$")


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if match is None or not is_number(match[1]):
        raise ConfigError(f"{quoted(text)} is not a {what}; write it like {example}")
    return float(match[1]), match[2]


def _in_range(value: float, kind: Range, text: str) -> float:
    """Return a value that is in range; the message has the text that it was written as."""
    if not kind.lowest <= value <= kind.highest:
        raise ConfigError(f"{quoted(text)} is out of range; it must be {kind}")
    return value


def parse_size(text: str) -> int:
    """Read a number of bytes.

    Parameters
    ----------
    text : str
        ``1GiB``, ``512kB``, ``20971520``; a bare number is bytes.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    ConfigError
        If the text is no size, a negative one, or out of range (`traincast.ranges`).
    """
    value, unit = _split(text, "size", "64MiB")
    prefix = unit.removesuffix("B")
    if prefix not in _PREFIX or value < 0:
        raise ConfigError(f"{quoted(text)} is not a size; write it like 64MiB or 512kB")
    return round(_in_range(value * _PREFIX[prefix], RANGES["bytes"], text))


def parse_rate(text: str) -> float:
    """Read a data rate; ``b`` is bits and ``B`` bytes.

    Parameters
    ----------
    text : str
        ``400Gb/s``, ``300GB/s``, ``400Gbps``.

    Returns
    -------
    float
        Bytes per second.

    Raises
    ------
    ConfigError
        If the text is no rate, not a positive one, or out of range.
    """
    value, unit = _split(text, "rate", "300GB/s")
    for ending, bytes_per_unit in (("b/s", 0.125), ("bps", 0.125), ("B/s", 1.0), ("Bps", 1.0)):
        prefix = unit.removesuffix(ending)
        if prefix != unit and prefix in _PREFIX and value > 0:
            return _in_range(value * _PREFIX[prefix] * bytes_per_unit, RANGES["rate"], text)
    raise ConfigError(f"{quoted(text)} is not a rate; write it like 300GB/s or 400Gb/s")


def parse_tokens(text: str) -> int:
    """Read a number of tokens, such as the length of a sequence; k is 1,024 and M 1,048,576.

    Parameters
    ----------
    text : str
        ``8192``, ``8k``, ``128K``, ``1M``.

    Returns
    -------
    int
        Tokens.

    Raises
    ------
    ConfigError
        If the text is no whole number of tokens, or out of range.

    Examples
    --------
    >>> parse_tokens("128k")
    131072
    """
    match = _TOKENS.match(text)
    tokens = float(match[1].replace("_", "").replace(",", "")) * _TOKEN_PREFIX[match[2].lower()] if match else 0.0
    if not 1 <= tokens < math.inf or tokens != int(tokens):
        raise ConfigError(f"{quoted(text)} is not a number of tokens; write it like 8192, 8k (8,192) or 1M (1,048,576)")
    return int(_in_range(tokens, RANGES["sequence"], text))


def parse_time(text: str) -> float:
    """Read a duration; a bare number is seconds.

    Parameters
    ----------
    text : str
        ``2.5ms``, ``10us``, ``3``.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ConfigError
        If the text is no duration, a negative one, or out of range.
    """
    value, unit = _split(text, "duration", "2.5ms")
    if (unit or "s") not in _SECONDS or value < 0:
        raise ConfigError(f"{quoted(text)} is not a duration; write it like 2.5ms")
    return _in_range(value * _SECONDS[unit or "s"], RANGES["time"], text)


def format_time(time_s: float) -> str:
    """Write a duration for people: ``14.3 s``, ``326 us``."""
    if time_s == 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(time_s) >= scale:
            return f"{_digits(time_s / scale)} {unit}"
    return f"{_digits(time_s / 1e-9)} ns"


def format_size(size_bytes: float) -> str:
    """Write a number of bytes for people, in binary units: ``128 MiB``."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if abs(size_bytes) >= _BINARY[unit]:
            return f"{_digits(size_bytes / _BINARY[unit])} {unit}B"
    return f"{size_bytes:.0f} B"


def format_decimal_size(size_bytes: float) -> str:
    """Write a number of bytes for people in decimal units, as datasheets do: ``80 GB``."""
    for unit in ("T", "G", "M", "k"):
        if abs(size_bytes) >= _DECIMAL[unit]:
            return f"{_digits(size_bytes / _DECIMAL[unit])} {unit}B"
    return f"{size_bytes:.0f} B"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Write a number of things for people: ``1 layer``, ``1024 layers``.

    Parameters
    ----------
    count : int
        How many.
    one : str
        What one of them is called.
    many : str, optional
        What several are called; `one` with an s by default.
    """
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def format_share(share: float, digits: int = 1) -> str:
    """Write a fraction for people as a percentage: ``13.8 %``."""
    return f"{100 * share:.{digits}f} %"


def format_rate(rate_bytes_per_s: float) -> str:
    """Write a data rate for people: ``362 GB/s``."""
    for unit in ("T", "G", "M", "k"):
        if abs(rate_bytes_per_s) >= _DECIMAL[unit]:
            return f"{_digits(rate_bytes_per_s / _DECIMAL[unit])} {unit}B/s"
    return f"{_digits(rate_bytes_per_s)} B/s"


def _digits(value: float) -> str:
    """Four significant digits, without an exponent and without trailing zeros after a point."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:.{max(0, 3 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
