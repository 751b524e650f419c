"""Turn results into plain values, and text from files into text that is safe to write."""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from traincast.errors import TraincastError

_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""Begins a formula in a spreadsheet (full-width signs do too), or one that is neutralised already."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

_LONG_VALUE = re.compile(r"(\S{160})(\S{100,}?)(\S{60})(?!\S)")

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
"""What JSON can say."""


def plain(value: object, place: str = "$") -> Plain:
    """Return a value as JSON can say it: records as objects, tuples as arrays.

    It may hold numbers (NumPy's too), text, None, and records (`msgspec.Struct`), mappings and sequences of them.

    Raises
    ------
    TraincastError
        If a number is NaN or infinite, or a value has no form in JSON; the message names its place.
    """
    kind = type(value)
    if kind in _SCALARS:
        return _scalar(value, place)
    names = getattr(kind, "__struct_fields__", None)  # without loading msgspec to say how a command is used
    if names is not None:
        value = _written(value, names)
    if isinstance(value, Mapping):
        return {encodable(str(key)): plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    return _scalar(value, place)


def _written(record: Any, names: Iterable[str]) -> dict[str, object]:  # noqa: ANN401 without loading msgspec
    """Return the fields of a record by name: without those that are None, in one that omits its defaults."""
    fields = {name: getattr(record, name) for name in names}
    if record.__struct_config__.omit_defaults:
        return {name: value for name, value in fields.items() if value is not None}
    return fields


_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Kinds of most values: they need not be compared with those of NumPy and of mappings, which takes longer."""


def _scalar(value: object, place: str) -> Plain:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, int | Integral):
        return int(value)
    if isinstance(value, float | Real):
        number = float(value)
        if math.isfinite(number):
            return number
        raise TraincastError(f"the result holds {number} at {place}, which is not a time or quantity; please report it")
    raise TraincastError(f"the result holds a {type(value).__name__} at {place}, which JSON cannot say")


def encodable(text: str) -> str:
    """Return text that UTF-8 can write; undecodable bytes of a file name are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def printable(text: str) -> str:
    """Return text without control characters, so that a file cannot steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode("ascii") for char in text
    )


def shown(text: str) -> str:
    """Return text from files and arguments as it may be shown: printable, and without the middle of a long value.

    A value is what has no blank in it.
    """
    return printable(_LONG_VALUE.sub(lambda match: f"{match[1]}[... {len(match[2]):,} characters ...]{match[3]}", text))


def spreadsheet_cell(text: str) -> str:
    """Return text as a cell that no spreadsheet takes for a formula: an apostrophe goes before what begins one.

    Numbers stay as they are.
    Source: OWASP, "CSV Injection" (owasp.org/www-community/attacks/CSV_Injection).
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def csv_line(cells: Iterable[object]) -> str:
    """Return a line of a CSV without its end: None is empty, and no text is a formula in a spreadsheet.

    Every table that is written goes through here, for names in it come from files that others wrote.
    """
    text = io.StringIO()
    safe = (spreadsheet_cell(encodable(cell)) if isinstance(cell, str) else cell for cell in cells)
    csv.writer(text, lineterminator="").writerow(safe)
    return text.getvalue()
