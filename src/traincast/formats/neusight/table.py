"""Bring both forms of a NeuSight file, tab-separated text and JSON, to the same rows of text."""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from traincast.errors import FormatError
from traincast.formats.contract import Sniff
from traincast.formats.values import filled_lines, shown

COLUMNS = (
    "name",
    "forward_compute_time",
    "forward_comm_type",
    "forward_comm_size",
    "backward_compute_time",
    "backward_comm_type",
    "backward_comm_size",
    "weight_grad_compute_time",
    "weight_grad_comm_type",
    "weight_grad_comm_size",
    "process_time",
)


_COLUMN_OBJECT = re.compile(r'\{\s*"name"\s*:\s*[\[{]')


class Record(NamedTuple):
    """One row as text."""

    number: int
    """1-based line of the text, or 0-based entry of the JSON form."""
    values: dict[str, str]
    """By column."""


class Table(NamedTuple):
    """All rows as text."""

    records: list[Record]
    entries: bool
    """Whether it is the JSON form."""


def is_json(text: str) -> bool:
    """Tell the JSON form from tab-separated text."""
    return text.lstrip("\ufeff \t\r\n")[:1] in ("[", "{")


def looks_like(head: str) -> Sniff:
    """Tell from the beginning of a file how sure it is a NeuSight operator forecast.

    Parameters
    ----------
    head : str
        First part of the file; its last line may be cut.

    Returns
    -------
    Sniff
        Near 1 where all column names are there.
    """
    if is_json(head):
        there = sum(f'"{name}"' in head for name in COLUMNS)
        if there == 1 and _COLUMN_OBJECT.match(head.lstrip("\ufeff \t\r\n")):
            return Sniff(0.3, "a JSON object that begins with a list of names")
    else:
        # A BOM and empty lines may come first.
        header = head.removeprefix("\ufeff").lstrip().split("\n", 1)[0].split()
        there = sum(name in header for name in COLUMNS)
    if there == len(COLUMNS):
        return Sniff(0.95, "all columns of a NeuSight operator forecast")
    if "forward_compute_time" in head and there > 1:
        return Sniff(0.6, f"{there} of the {len(COLUMNS)} columns of a NeuSight operator forecast")
    return Sniff(0.0, f"the columns are not {COLUMNS[0]}, {COLUMNS[1]} ...")


def read_table(path: str, text: str) -> Table:
    """Split a file into rows and columns; nothing is read into the values.

    Parameters
    ----------
    path : str
        Where the text came from, for messages.
    text : str
        Tab-separated text with a header; or JSON: a list of objects, one per row, or an object
        with a list (or an object by row number, as pandas writes it) per column.

    Returns
    -------
    Table

    Raises
    ------
    FormatError
        If header or number of columns are wrong, with the line; if the JSON is none, or its
        keys are wrong, with the entry.
    """
    return _json_table(path, text) if is_json(text) else _text_table(path, text)


def _text_table(path: str, text: str) -> Table:
    lines = filled_lines(text)
    if not lines:
        raise FormatError("the file is empty", path)
    first, header = lines[0]
    names = _fields(header)
    if problem := _wrong_columns(names):
        message = f"the header {problem}; it needs, separated by tabs: {', '.join(COLUMNS)}"
        raise FormatError(message, path, first)
    records = []
    for line, content in lines[1:]:
        values = _fields(content)
        if len(values) != len(names):
            found = ", ".join(shown(value) for value in values[: len(names) + 2])
            more = ", ..." if len(values) > len(names) + 2 else ""
            message = f"a row has {len(names)} columns ({', '.join(names)}); found {len(values)}: {found}{more}"
            raise FormatError(message, path, line)
        records.append(Record(line, dict(zip(names, values, strict=True))))
    if not records:
        raise FormatError("the file ends after its header; the rows are missing", path, first)
    return Table(records, entries=False)


def _fields(line: str) -> list[str]:
    # Editors replace tabs by spaces; no value has a space in it.
    return [value.strip() for value in line.split("\t")] if "\t" in line else line.split()


def _wrong_columns(names: Sequence[str]) -> str:
    """Say what is wrong with the names of the columns; nothing if they are right, in any order."""
    missing = [name for name in COLUMNS if name not in names]
    unknown = [name for name in names if name not in COLUMNS]
    if missing:
        return f"lacks {', '.join(missing)}"
    if unknown:
        return f"has the unknown {shown(unknown[0])}"
    return "" if len(names) == len(COLUMNS) else "has a column twice"


def _json_table(path: str, text: str) -> Table:
    # Deep nesting raises RecursionError, and a number of thousands of digits ValueError.
    try:
        data = json.loads(text.removeprefix("\ufeff").rstrip("\0 \t\r\n"))
    except json.JSONDecodeError as problem:
        raise FormatError(f"is not JSON: {problem.msg} (column {problem.colno})", path, problem.lineno) from None
    except (ValueError, RecursionError):
        raise FormatError("is not JSON of rows: a number is too long, or the nesting too deep", path) from None
    rows = _rows_of_columns(path, data) if isinstance(data, dict) else data
    records = []
    for number, row in enumerate(rows):
        wrong = _wrong_columns(list(row)) if isinstance(row, dict) else "is not an object with a value per column"
        if wrong:
            raise FormatError(f"entry [{number}] {wrong}; it needs {', '.join(COLUMNS)}", path)
        records.append(Record(number, {name: _as_text(value) for name, value in row.items()}))
    if not records:
        raise FormatError("has no rows", path)
    return Table(records, entries=True)


def _rows_of_columns(path: str, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Turn a list, or an object by row number, per column into an object per row."""
    if problem := _wrong_columns(list(data)):
        raise FormatError(f"the object {problem}; it needs a list for each of {', '.join(COLUMNS)}", path)
    wrong = [name for name in COLUMNS if not isinstance(data[name], (list, dict))]
    if wrong:
        raise FormatError(f"column {wrong[0]} is not a list of values, one per row", path)
    numbers = _row_numbers(data["name"])
    columns = {name: list(values.values()) if isinstance(values, dict) else values for name, values in data.items()}
    for name, values in columns.items():
        if len(values) != len(numbers):
            count = f"has {len(values)} values and column name has {len(numbers)}"
            raise FormatError(f"column {name} {count}; it needs one per row", path)
        if _row_numbers(data[name]) != numbers:
            raise FormatError(f"column {name} does not number its rows as column name does", path)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _row_numbers(column: Sequence[object] | dict[str, object]) -> list[str]:
    return list(column) if isinstance(column, dict) else [str(number) for number in range(len(column))]


def _as_text(value: object) -> str:
    """Return a JSON value as it would stand in the text form."""
    if isinstance(value, str):
        # JSON can spell half a character, which no output could write.
        return value.strip().encode("utf-8", "replace").decode()
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return str(value)
