"""Read NeuSight operator forecasts, tab-separated text or JSON: times in milliseconds, sizes in elements.

The text has a header with the names of the columns, in any order. The JSON is a list of objects, one a row, or an
object with a list (or an object by row number, as pandas writes it) a column. Source: NeuSight's operator forecasts,
exported with the row fields of AICB (``Work_Item`` of aliyun/aicb); the sizes stay NeuSight's shapes, in elements.
"""

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from traincast.diagnostics import FileWarnings, Note
from traincast.errors import FormatError
from traincast.formats import values
from traincast.formats.neusight.sniff import COLUMNS, is_json
from traincast.formats.values import COLLECTIVES, check_lines, check_width, filled_lines, shown
from traincast.workload.ops import OperatorCall
from traincast.workload.words import Group, Operation, Phase

NEUSIGHT_DTYPE = "fp32"
"""Type of the elements where the user says none; NeuSight forecasts no other."""
GRADIENT_SUFFIX = "_grad"
"""Ends the name of a row that reduces the gradient of the node after it."""
MILLISECONDS_PER_SECOND = 1e3
MAX_ELEMENTS = 2**50 - 1
"""Largest size in elements, so that its bytes are in range whatever the type."""

PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "weight_grad": Phase.WEIGHT_GRADIENT}
"""Parts of a row. The backward one has the kernels of both gradients, the last the accumulation of the weight's."""
_COLLECTIVES = {name: each for name, each in COLLECTIVES.items() if each is not Operation.REDUCE}
_ASYNC = "_ASYNC"
T = TypeVar("T")


class Cell(Struct, frozen=True):
    """One part of a row: a computation and the communication after it."""

    compute_s: float
    operation: Operation
    asynchronous: bool
    """Whether the communication overlaps with what follows (``_ASYNC``)."""
    elements: int
    """Size of the communication; may be non-zero where there is none."""
    group: Group
    """Who communicates; NONE for nobody."""
    calls: tuple[tuple[OperatorCall, float], ...] = ()
    """What the computation runs, and how often, where the file has operators in the place of a time."""
    comm_s: float | None = None
    """Seconds of the communication, where the file says them."""

    @property
    def computes(self) -> bool:
        """Whether it has a computation."""
        return self.compute_s > 0 or bool(self.calls)


class Row(Struct, frozen=True):
    """One row: an operator, or a communication."""

    number: int
    """1-based line of the text, or 0-based entry of the JSON form."""
    name: str
    """Node of the traced model, such as ``addmm_1`` or ``transformer_h_0_ln_1_grad``."""
    forward: Cell
    backward: Cell
    weight_grad: Cell
    process_s: float
    """Seconds after each communication; never filled by the exporter."""

    @property
    def cells(self) -> tuple[Cell, Cell, Cell]:
        """The three parts, in the order of `PHASES`."""
        return self.forward, self.backward, self.weight_grad

    @property
    def reductions(self) -> tuple[Cell, ...]:
        """Cells that reduce gradients over dp."""
        return tuple(cell for cell in self.cells[1:] if cell.group is Group.DP)

    @property
    def sends(self) -> bool:
        """Whether the row hands an activation, or its gradient, to the next stage."""
        return any(cell.group is Group.PP for cell in self.cells)


class Form(StrEnum):
    """Which of NeuSight's files it is."""

    FORECAST = "operator forecast"
    """What its exporter writes: times and communication."""
    GRAPH = "operator graph"
    """Operators with their shapes, without times."""
    PREDICTION = "prediction"
    """An operator graph with the times that NeuSight predicts."""


class NeusightFile(Struct, frozen=True, kw_only=True):
    """What a whole file says, with what is unusual about single values."""

    path: str
    rows: tuple[Row, ...]
    form: Form = Form.FORECAST
    entries: bool
    """Whether it is the JSON form, whose rows have no lines."""
    warnings: tuple[Note, ...] = ()

    @property
    def has_backward(self) -> bool:
        """Whether any row computes in the backward pass."""
        return any(row.backward.computes or row.weight_grad.computes for row in self.rows)

    def line(self, index: int) -> int | None:
        """Return the line of a row; None in the JSON form."""
        return None if self.entries else self.rows[index].number

    def place(self, index: int) -> str:
        """Return where a row stands: ``file:line``, or ``file[entry]`` in the JSON form."""
        number = self.rows[index].number
        return f"{self.path}[{number}]" if self.entries else f"{self.path}:{number}"


def parse(path: str, text: str) -> NeusightFile:
    """Read the text of a file; `path` is where it came from, for messages.

    Raises
    ------
    FormatError
        With the line (JSON: the entry), and the column and value, of the first thing that cannot be read.
    """
    check_lines(text, path)
    entries = is_json(text)
    records = _entries(path, text) if entries else _lines(path, text)
    warnings = FileWarnings(path, entries=entries)
    reader = _RowReader(path, entries, warnings)
    rows = tuple(reader.row(number, record) for number, record in records)
    check_stages(rows, reader.error)
    return NeusightFile(path=path, rows=rows, entries=entries, warnings=warnings.notes())


# --- rows of text

_Records = list[tuple[int, dict[str, str]]]
"""The number of each row (see `Row.number`) and its values by column, as text."""


def _lines(path: str, text: str) -> _Records:
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
        found = _fields(content)
        check_width(found, names, "columns", path, line)
        records.append((line, dict(zip(names, found, strict=True))))
    if not records:
        raise FormatError("the file ends after its header; the rows are missing", path, first)
    return records


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


def _entries(path: str, text: str) -> _Records:
    # Deep nesting raises RecursionError, and a number of thousands of digits ValueError.
    try:
        data = json.loads(text.removeprefix("\ufeff").rstrip("\0 \t\r\n"))
    except json.JSONDecodeError as problem:
        raise FormatError(f"is not JSON: {problem.msg} (column {problem.colno})", path, problem.lineno) from None
    except (ValueError, RecursionError):
        raise FormatError("is not JSON of rows: a number is too long, or the nesting too deep", path) from None
    records = []
    for number, row in enumerate(_rows_of_columns(path, data) if isinstance(data, dict) else data):
        wrong = _wrong_columns(list(row)) if isinstance(row, dict) else "is not an object with a value per column"
        if wrong:
            raise FormatError(f"entry [{number}] {wrong}; it needs {', '.join(COLUMNS)}", path)
        records.append((number, {name: _as_text(value) for name, value in row.items()}))
    if not records:
        raise FormatError("has no rows", path)
    return records


def _rows_of_columns(path: str, data: dict[str, Any]) -> list[dict[str, Any]]:
    """Turn a list, or an object by row number, per column into an object per row."""
    if problem := _wrong_columns(list(data)):
        raise FormatError(f"the object {problem}; it needs a list for each of {', '.join(COLUMNS)}", path)
    wrong = [name for name in COLUMNS if not isinstance(data[name], (list, dict))]
    if wrong:
        raise FormatError(f"column {wrong[0]} is not a list of values, one per row", path)
    numbers = _row_numbers(data["name"])
    columns = {name: list(found.values()) if isinstance(found, dict) else found for name, found in data.items()}
    for name, found in columns.items():
        if len(found) != len(numbers):
            count = f"has {len(found)} values and column name has {len(numbers)}"
            raise FormatError(f"column {name} {count}; it needs one per row", path)
        if _row_numbers(data[name]) != numbers:
            raise FormatError(f"column {name} does not number its rows as column name does", path)
    return [dict(zip(columns, found, strict=True)) for found in zip(*columns.values(), strict=True)]


def _row_numbers(column: Sequence[object] | dict[str, object]) -> list[str]:
    return list(column) if isinstance(column, dict) else list(map(str, range(len(column))))


def _as_text(value: object) -> str:
    """Return a JSON value as it would stand in the text form."""
    if isinstance(value, str):
        # JSON can spell half a character, which no output could write.
        return value.strip().encode("utf-8", "replace").decode()
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return str(value)


# --- values


class _Token(NamedTuple):
    """What a kind of communication says."""

    operation: Operation
    asynchronous: bool


def _time_s(text: str) -> float:
    return values.time_s(text, MILLISECONDS_PER_SECOND, "ms")


def _size(text: str) -> int:
    return values.whole(text, "count", most=MAX_ELEMENTS)


def _token(text: str) -> _Token:
    """Read a kind of communication, in any case; ``None`` is text here."""
    name = text.upper()
    if name == "NONE":
        return _Token(Operation.NONE, asynchronous=False)
    if name == "SENDRECV":
        return _Token(Operation.SEND_RECV, asynchronous=False)
    collective = name.removesuffix(_ASYNC)
    if collective in _COLLECTIVES:
        return _Token(_COLLECTIVES[collective], asynchronous=name.endswith(_ASYNC))
    known = f"None, {', '.join(_COLLECTIVES)} (each also with {_ASYNC}), SENDRECV"
    raise ValueError(f"unknown communication {shown(text)}; write one of {known}")


_HINT: dict[Callable[[str], object], str] = {
    _time_s: "; write milliseconds, such as 9.98",
    _size: "; write a number of elements, such as 4919040",
}
"""What to do about a value that cannot be read, where its own message does not say."""


class _RowReader:
    """Reads the values of rows."""

    def __init__(self, path: str, entries: bool, warnings: FileWarnings) -> None:
        self.path, self.entries, self.warnings = path, entries, warnings
        self.names: set[str] = set()

    def error(self, number: int, message: str) -> FormatError:
        """Return the error of a row, with its line or entry."""
        if self.entries:
            return FormatError(f"entry [{number}]: {message}", self.path)
        return FormatError(message, self.path, number)

    def row(self, number: int, record: dict[str, str]) -> Row:
        """Read one row."""
        name = record["name"]
        if not name:
            raise self.error(number, "column name is empty; write the name of the operator")
        if name in self.names:
            text = f"the name {shown(name)} stands twice; traced nodes have one each"
            self.warnings.add("name-repeated", text, number)
        self.names.add(name)
        forward, backward, weight_grad = (self._cell(number, record, part) for part in PHASES)
        process_s = self._value(number, record, "process_time", _time_s)
        if process_s:
            text = (
                "process_time is not 0 (its exporter never fills it); taken as ms after each communication of the row"
            )
            self.warnings.add("process-time", text, number)
        return Row(number, name, forward, backward, weight_grad, process_s)

    def _cell(self, number: int, record: dict[str, str], part: str) -> Cell:
        compute_s = self._value(number, record, f"{part}_compute_time", _time_s)
        kind = self._value(number, record, f"{part}_comm_type", _token)
        elements = self._value(number, record, f"{part}_comm_size", _size)
        # What overlaps or follows a weight gradient is dp, what blocks is tp.
        group = Group.DP if kind.asynchronous or part == "weight_grad" else Group.TP
        if kind.operation in (Operation.NONE, Operation.SEND_RECV):
            group = Group.NONE if kind.operation is Operation.NONE else Group.PP
        if group is Group.PP and part == "weight_grad":
            text = "SENDRECV carries activations; write it in forward_comm_type or backward_comm_type"
            raise self.error(number, f"column {part}_comm_type: {text}")
        if group is Group.NONE and elements:
            text = f"None has a size in column {part}_comm_size, which is not used"
            self.warnings.add("size-beside-none", text, number)
        elif group is not Group.NONE and not elements:
            self.warnings.add("zero-size", f"column {part}_comm_size: a communication of 0 elements", number)
        return Cell(compute_s, kind.operation, kind.asynchronous, elements, group)

    def _value(self, number: int, record: dict[str, str], column: str, read: Callable[[str], T]) -> T:
        try:
            return read(record[column])
        except ValueError as problem:
            raise self.error(number, f"column {column}: {problem}{_HINT.get(read, '')}") from None


def check_stages(rows: tuple[Row, ...], error: Callable[[int, str], FormatError]) -> None:
    """Refuse a stage without rows, by the error of a row's number: SENDRECV separates two stages."""
    text = "SENDRECV separates two stages, but no rows of a stage stand"
    before = True
    for row in rows:
        if row.sends and before and not any(cell.computes for cell in row.cells):
            raise error(row.number, f"{text} before it")
        before = row.sends
    if before:
        raise error(rows[-1].number, f"{text} after it")
