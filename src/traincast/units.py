"""Quantities: which values each may have, and how people write them (``400Gb/s``, ``80GiB``, ``2.5ms``).

Inside traincast every number is SI (seconds, bytes, bytes per second, FLOP). Text with units is read and written
here and nowhere else. What is out of range is refused where it is read: a quantity has a kind (`RANGES`, the table
``data/quantities.csv``), and the name of a field says its kind (`range_of`), some by themselves, the others by the unit
that they end with. Ranges are wide enough for any machine or model of the next ten years, and narrow enough that sums
and products of values in range stay finite in double precision; what can exceed 64-bit integers as a product is
checked where it is made.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.shipped import shipped_rows

GIGA = 1e9

LARGEST_WHOLE = 2**53 - 1
"""Largest whole number that JSON and double precision keep exactly (IEEE 754-2019, binary64)."""

SMALLEST = 1e-30
"""Least magnitude of a number that is not zero; below come those that lose digits (1e-308)."""

_LONGEST_SHOWN = 60
_LONGEST_NUMBER = 40
_WHOLE = re.compile(r"[-+]?[0-9]+(?:\.0*)?")


class Range(Struct, frozen=True):
    """The values that a kind of quantity may have."""

    kind: str
    """Its name in `RANGES`."""
    lowest: float
    highest: float
    unit: str
    """What is counted, or the unit."""
    whole: bool
    of: str
    """Examples of what has it."""

    def __str__(self) -> str:
        """Return it for a message: ``a whole number from 1 to 16,384``."""
        return f"a {'whole number' if self.whole else 'number'} from {self.span}"

    @property
    def span(self) -> str:
        """Lowest and highest value with the unit."""
        return f"{_plain(self.lowest)} to {_plain(self.highest)}{f' {self.unit}' if self.unit else ''}"

    def checked(self, raw: object, field: str | None = None, *, least: float | None = None) -> float:
        """Return a number that is in range, an int where the range has only whole numbers (``8.0`` is 8).

        Texts are not numbers here, truth values neither. `field` is its path or flag, for the message, `least` a lowest
        value of this field alone.

        Raises
        ------
        ConfigError
            If it is not a number, not finite, not whole where it must be, or out of range.
        """
        lowest = self.lowest if least is None else least
        # A whole number beyond the doubles compares exactly, and a NaN is in no range.
        if (
            isinstance(raw, bool)
            or not isinstance(raw, int | float)
            or not lowest <= raw <= self.highest
            or 0 < abs(raw) < SMALLEST
            or (self.whole and int(raw) != raw)
        ):
            tiny = isinstance(raw, float) and 0 < abs(raw) < SMALLEST
            also = f", and not so close to 0 as {SMALLEST:g}" if tiny else ""
            raise ConfigError(f"is {quoted(raw)}; it must be {replace(self, lowest=lowest)}{also}", field)
        return int(raw) if self.whole else float(raw)

    def parsed(self, text: str) -> float:
        """Return the number in range that a text is, with blanks around it or not.

        Raises
        ------
        ConfigError
            If it is not a plain decimal number, or out of range.
        """
        bare = text.strip()
        return self.checked(plain_number(bare) if is_number(bare) else bare)


def is_number(text: str) -> bool:
    """Say whether a text is a decimal number of a length that numbers have; NaN is not one."""
    # float() and int() also take underscores, the digits of other scripts, and any length.
    if len(text) > _LONGEST_NUMBER or not text.isascii() or "_" in text:
        return False
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def plain_number(text: str) -> int | float:
    """Return the number that a text is (`is_number`); whole ones stay exact."""
    return int(text.strip().partition(".")[0]) if _WHOLE.fullmatch(text.strip()) else float(text)


def count_of(text: str) -> int | None:
    """Return the whole number of at least 1 that a text is; None where it is not one."""
    return int(text) if is_number(text) and text.isdecimal() and int(text) >= 1 else None


def quoted(raw: object) -> str:
    """Return a value as a message shows it: in quotes where it is a text, cut where it is long."""
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) > 10**_LONGEST_NUMBER:
        # Python refuses to print numbers of thousands of digits.
        return f"a whole number of {raw.bit_length()} bits"
    if isinstance(raw, str) and len(raw) > _LONGEST_SHOWN:
        return f"{raw[:_LONGEST_SHOWN]!r}..."
    try:
        text = repr(raw)
    except (ValueError, RecursionError):
        return f"a {type(raw).__name__} that is too long to show"
    return text if len(text) <= 2 * _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def brief(text: str) -> str:
    """Return a text as a message shows it without quotes: cut where it is long."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _plain(value: float) -> str:
    if value == LARGEST_WHOLE:
        return "2^53 - 1"
    if not float(value).is_integer() or abs(value) > 1e13:
        return f"{value:g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.0f}"


def _quantities() -> Iterator[tuple[Range, list[str]]]:
    """Yield the range of each kind of quantity, and the fields that are of it by their names alone."""
    for row in shipped_rows("quantities.csv"):
        lowest, highest = plain_number(row["lowest"]), plain_number(row["highest"])
        yield Range(row["kind"], lowest, highest, row["unit"], bool(row["whole"]), row["of"]), row["names"].split()


_QUANTITIES = tuple(_quantities())
RANGES = {known.kind: known for known, _ in _QUANTITIES}
"""Kind to its range."""
_BY_NAME = {name: known for known, names in _QUANTITIES for name in names}
_BY_ENDING = (
    ("_flops_per_s", RANGES["FLOP rate"]),
    ("_bytes_per_s", RANGES["rate"]),
    ("_bytes", RANGES["bytes"]),
    ("_latency_s", RANGES["latency"]),
    ("_s", RANGES["time"]),
)


def range_of(name: str) -> Range | None:
    """Return the range of a field by its name, without the path before it; None where the name says no quantity."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((found for ending, found in _BY_ENDING if name.endswith(ending)), None)


def checked_field(name: str, raw: object, path: str | None = None, *, least: float | None = None) -> float:
    """Return a number in the range of the field of that name (`Range.checked`); else it must be a `figure`.

    Raises
    ------
    ConfigError
        If it is none, with the path of the field.
    """
    return (range_of(name) or RANGES["figure"]).checked(raw, path, least=least)


def check_given(owner: object, names: Iterable[str], prefix: str = "", *, least: float | None = None) -> None:
    """Refuse fields of an object that are not numbers or are out of range; None is left alone.

    Raises
    ------
    ConfigError
        With the path of the field: `prefix` and its name.
    """
    for name in names:
        value = getattr(owner, name)
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None:
                checked_field(name, each, f"{prefix}{name}", least=least)


_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIX = {**_DECIMAL, **_BINARY}
_SHOWN = {prefix: _DECIMAL[prefix] for prefix in "kMGT"}
"""Decimal prefixes that are written."""
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_TOKENS = re.compile(r"^\s*([0-9][0-9_,]*\.?[0-9]*)\s*([kKmM]?)\s*$")
_TOKEN_PREFIX = {"": 1, "k": 2**10, "m": 2**20}
_THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
"""Short scale, as papers count the tokens of a run."""
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
    """Read a number of bytes: ``1GiB``, ``512kB``, ``20971520``; a bare number is bytes.

    Raises
    ------
    ConfigError
        If the text is not a size, a negative one, or out of range.
    """
    value, unit = _split(text, "size", "64MiB")
    prefix = unit.removesuffix("B")
    if prefix not in _PREFIX or value < 0:
        raise ConfigError(f"{quoted(text)} is not a size; write it like 64MiB or 512kB")
    return round(_in_range(value * _PREFIX[prefix], RANGES["bytes"], text))


def parse_size_range(text: str) -> tuple[int, int]:
    """Read ``64MiB`` or ``1KiB..8GiB`` as its first and last size.

    Raises
    ------
    ConfigError
        If it is not a size above 0, or a range that falls.

    Examples
    --------
    >>> parse_size_range("1KiB..1MiB")
    (1024, 1048576)
    """
    first, dots, last = text.partition("..")
    sizes = parse_size(first), parse_size(last if dots else first)
    if not 0 < sizes[0] <= sizes[1]:
        raise ConfigError(f"{quoted(text)} is not a range of sizes above 0; write it like 1KiB..8GiB")
    return sizes


def parse_rate(text: str) -> float:
    """Read a data rate in bytes per second: ``400Gb/s``, ``300GB/s``, ``400Gbps``; ``b`` is bits and ``B`` bytes.

    Raises
    ------
    ConfigError
        If the text is not a rate, not a positive one, or out of range.
    """
    value, unit = _split(text, "rate", "300GB/s")
    for ending, bytes_per_unit in (("b/s", 0.125), ("bps", 0.125), ("B/s", 1.0), ("Bps", 1.0)):
        prefix = unit.removesuffix(ending)
        if prefix != unit and prefix in _PREFIX and value > 0:
            return _in_range(value * _PREFIX[prefix] * bytes_per_unit, RANGES["rate"], text)
    raise ConfigError(f"{quoted(text)} is not a rate; write it like 300GB/s or 400Gb/s")


def parse_tokens(text: str) -> int:
    """Read a number of tokens, such as ``8192``, ``8k``, ``128K`` or ``1M``; k is 1,024 and M 1,048,576.

    Raises
    ------
    ConfigError
        If the text is not a whole number of tokens, or out of range.

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


def parse_token_count(text: str) -> float:
    """Read how many tokens a run trains on: ``300B``, ``15.6T``, ``1.4e12``; decimal, B is 10^9 and T is 10^12.

    Raises
    ------
    ConfigError
        If the text is not a number of tokens, or out of range.

    Examples
    --------
    >>> parse_token_count("15T")
    15000000000000.0
    """
    value, unit = _split(text, "number of tokens", "300B or 15T")
    if unit.upper() not in _THOUSANDS:
        raise ConfigError(f"{quoted(text)} is not a number of tokens; write it like 300B or 15T")
    return _in_range(value * _THOUSANDS[unit.upper()], RANGES["training tokens"], text)


def parse_amount(text: str) -> float:
    """Read a sum of money: ``250000``, ``1M``, ``2.5B``; decimal, without its currency.

    Raises
    ------
    ConfigError
        If the text is not a number above 0.

    Examples
    --------
    >>> parse_amount("1.5M")
    1500000.0
    """
    value, unit = _split(text, "sum of money", "250000 or 1M")
    if unit.upper() not in _THOUSANDS or value <= 0:
        raise ConfigError(f"{quoted(text)} is not a sum of money; write it like 250000 or 1M")
    return value * _THOUSANDS[unit.upper()]


def format_count(count: float) -> str:
    """Write a large number for people, decimal: ``15 T``, ``300 B``."""
    prefix = next((name for name, scale in reversed(_THOUSANDS.items()) if abs(count) >= scale), "")
    return f"{_digits(count / _THOUSANDS[prefix])} {prefix}".rstrip()


def parse_time(text: str) -> float:
    """Read a duration in seconds: ``2.5ms``, ``10us``, ``3``; a bare number is seconds.

    Raises
    ------
    ConfigError
        If the text is not a duration, a negative one, or out of range.
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
    return _scaled(size_bytes, _BINARY, "B", f"{size_bytes:.0f}")


def format_decimal_size(size_bytes: float) -> str:
    """Write a number of bytes for people in decimal units, as datasheets do: ``80 GB``."""
    return _scaled(size_bytes, _SHOWN, "B", f"{size_bytes:.0f}")


def format_rate(rate_bytes_per_s: float) -> str:
    """Write a data rate for people: ``362 GB/s``."""
    return _scaled(rate_bytes_per_s, _SHOWN, "B/s", _digits(rate_bytes_per_s))


def _scaled(value: float, prefixes: Mapping[str, float], unit: str, small: str) -> str:
    """Write a value with the largest prefix that it reaches; with none as `small`."""
    for prefix, scale in sorted(prefixes.items(), key=lambda each: -each[1]):
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {prefix}{unit}"
    return f"{small} {unit}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Write a number of things for people: ``1 layer``, ``1024 layers``; `many` is `one` with an s by default."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def parse_share(text: str, path: str | None = None) -> float:
    """Read a share as people write it: ``5%``, ``5 %`` or ``0.05``.

    Raises
    ------
    ConfigError
        If it is not a number, or out of range.
    """
    plain = text.strip().removesuffix("%").strip()
    if not is_number(plain):
        raise ConfigError(f"is {quoted(text)}; write a share such as 5% or 0.05", path)
    return RANGES["added share"].checked(plain_number(plain) / (100 if text.strip().endswith("%") else 1), path)


def format_share(share: float, digits: int | None = 1, sign: str = "") -> str:
    """Write a fraction for people as a percentage: ``13.8 %``; with the sign ``"+"`` as ``+13.8 %``.

    It has so many digits after the point; with None two significant digits, and whole percents above ten.
    """
    percent = 100 * share
    if digits is None:
        magnitude = math.floor(math.log10(abs(percent))) if percent else 0
        digits = max(0, 1 - magnitude)
    return f"{percent:{sign}.{digits}f} %"


def _digits(value: float) -> str:
    """Four significant digits, without an exponent and without trailing zeros after a point."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:.{max(0, 3 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
