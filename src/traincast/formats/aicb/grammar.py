"""Read AICB and SimAI workload text: a header, the number of rows, and the rows.

Rows have 12 (``HYBRID_CUSTOMIZED``: 13) fields separated by any white space, with times in ns. Source: SimAI,
``astra-sim/workload/Workload.cc``, ``Workload::initialize_workload``.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from traincast.diagnostics import FileWarnings, Note
from traincast.errors import FormatError
from traincast.files import read_unpacked
from traincast.formats.aicb.header import COUNTED, Header, HeaderReader, policy, size_bytes
from traincast.formats.aicb.sniff import FIELDS
from traincast.formats.values import (
    COLLECTIVES,
    check_lines,
    check_width,
    filled_lines,
    read_cell,
    shown,
    time_s,
    whole,
)
from traincast.units import GIGA, counted
from traincast.workload.words import Group, Operation, Phase

PLACEHOLDER_S = 1 / GIGA
"""AICB writes 1 ns where nothing was measured."""
T = TypeVar("T")


class Column(StrEnum):
    """The three parts of a row; each has a compute time, a communication and its size."""

    FORWARD = "forward"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"


PHASES = {
    Column.FORWARD: Phase.FORWARD,
    Column.INPUT_GRAD: Phase.BACKWARD,
    Column.WEIGHT_GRAD: Phase.WEIGHT_GRADIENT,
}


class Cell(Struct, frozen=True):
    """One column of a row: a computation and the communication after it."""

    compute_s: float
    token: str
    """Communication as written, such as ``ALLREDUCE_DP_EP``."""
    operation: Operation
    """What the token does; NONE for no communication."""
    suffix: Group | None
    """Group that the token names; None where column and row decide (`traincast.formats.aicb.meaning.group_of`)."""
    size_bytes: int
    """Payload of the whole group: the gathered tensor of an all-gather, the tensor of an all-reduce, what leaves one
    rank in an all-to-all. May be non-zero with NONE."""


class Row(Struct, frozen=True):
    """One row of the file."""

    line: int
    name: str
    """Layer part, such as ``attention_column``."""
    dependency: int
    """As written; -1 in all but hand-made files, and used by no tool."""
    forward: Cell
    input_grad: Cell
    weight_grad: Cell
    process_s: float
    """Seconds after each communication; SimAI-Analytical ignores it."""
    policy: str | None
    """Policy of this row, in files of ``HYBRID_CUSTOMIZED`` only."""

    def cell(self, column: Column) -> Cell:
        """Return the cell of a column."""
        found: Cell = getattr(self, column)
        return found


class AicbFile(Struct, frozen=True, kw_only=True, dict=True):
    """A whole file."""

    path: str
    header: Header
    declared_rows: int | None
    """The count line; None where the file has none."""
    rows: tuple[Row, ...]
    """The declared rows, or those that are there where they are fewer or none is declared."""
    left_out: int | None = None
    """Line of the first row beyond the declared ones, where there are more; it and those after it are not read."""
    warnings: tuple[Note, ...] = ()
    """What is unusual but readable, each with its ``file:line``."""

    @cached_property
    def lowered(self) -> dict[object, dict[object, Any]]:
        """What its rows were made into before, by the groups that their columns stand for."""
        return {}

    @cached_property
    def communications(self) -> tuple[tuple[int, Column, Cell], ...]:
        """Every communication: its row, its column and its cell; what has no size too."""
        return tuple(
            (index, column, cell)
            for index, row in enumerate(self.rows)
            for column, cell in zip(Column, (row.forward, row.input_grad, row.weight_grad), strict=True)
            if cell.operation is not Operation.NONE
        )


def load(path: Path) -> AicbFile:
    """Read a file from disk (see `parse`); undecodable bytes are replaced, and fail where they matter."""
    return parse(str(path), read_unpacked(path).decode("utf-8", errors="replace"))


def parse(path: str, text: str) -> AicbFile:
    """Read the text of a file; `path` is where it came from, for messages.

    Raises
    ------
    FormatError
        With the line, and the column and value, of the first thing that cannot be read.
    """
    check_lines(text, path)
    lines = filled_lines(text)
    if not lines:
        raise FormatError("the file is empty", path)
    warnings = FileWarnings(path)
    header = HeaderReader(path, *lines[0], warnings).read()
    declared, first = _count(path, lines, warnings)
    reader = _RowReader(path, header.policy == "HYBRID_CUSTOMIZED", warnings)
    found = lines[first:]
    if not found:
        raise FormatError("the file has no rows", path, lines[-1][0])
    left_out = _left_out(found, declared, lines[1][0], warnings)
    # As SimAI does: what follows the declared rows is not read, whatever it is.
    rows = tuple(reader.row(line, content) for line, content in (found[:declared] if left_out else found))
    for key in COUNTED:
        outside = next((row for row in getattr(header, key) if row >= len(rows)), None)
        if outside is not None:
            message = f"header key '{key}': there is no row {outside}; the rows are 0 to {len(rows) - 1}"
            raise FormatError(message, path, lines[0][0])
    _check_placeholders(header, rows, warnings)
    return AicbFile(
        path=path, header=header, declared_rows=declared, rows=rows, left_out=left_out, warnings=warnings.notes()
    )


def _count(path: str, lines: list[tuple[int, str]], warnings: FileWarnings) -> tuple[int | None, int]:
    """Return the declared number of rows and the index in `lines` of the first row."""
    if len(lines) == 1:
        message = "the file ends after its header; the number of rows and the rows are missing"
        raise FormatError(message, path, lines[0][0])
    line, content = lines[1]
    fields = content.split(maxsplit=FIELDS)
    if len(fields) >= FIELDS:
        warnings.add("no-row-count", "the line with the number of rows is missing", line)
        return None, 1
    try:
        if len(fields) > 1:
            raise ValueError(f"{shown(content.strip())} is not one number")
        return whole(fields[0], least=0), 2
    except ValueError as problem:
        raise FormatError(f"the number of rows is expected here: {problem}", path, line) from None


def _left_out(found: list[tuple[int, str]], declared: int | None, line: int, warnings: FileWarnings) -> int | None:
    """Return the line of the first row beyond the declared ones; warn where the numbers differ."""
    if declared is None or declared == len(found):
        return None
    there = f"{len(found)} {'is' if len(found) == 1 else 'are'} there"
    left_out = found[declared][0] if 0 < declared < len(found) else None
    used = (
        "those that are there are used"
        if left_out is None
        else f"only the declared ones are used: line {left_out} is the first left out"
    )
    warnings.add("row-count", f"{counted(declared, 'row is', 'rows are')} declared and {there}; {used}", line)
    return left_out


def _check_placeholders(header: Header, rows: tuple[Row, ...], warnings: FileWarnings) -> None:
    """Warn of a file without compute times; a test of a collective computes nothing."""
    longest_s = max(max(row.forward.compute_s, row.input_grad.compute_s, row.weight_grad.compute_s) for row in rows)
    tests_a_collective = header.policy == "MICRO" or all(row.name == "micro_test" for row in rows)
    if longest_s <= PLACEHOLDER_S and not tests_a_collective:
        text = "no compute time in the file is above 1 ns: these are placeholders, not measurements"
        warnings.add("placeholder-compute", text, rows[0].line)


# --- values


class _Token(NamedTuple):
    """What a communication token says; `suffix` is None where it names no group."""

    operation: Operation
    suffix: Group | None


_SUFFIXES = {
    "EP": Group.EP,
    "DP_EP": Group.EDP,
    **{name: Group[name] for name in ("EDP", "TP", "DP", "CP", "PP", "ETP")},
}
_MOST_DEPENDENCY = 2**31 - 1
"""As SimAI stores it."""


def _time_s(text: str) -> float:
    return time_s(text, GIGA, "ns")


def _dependency(text: str) -> int:
    return whole(text, least=-_MOST_DEPENDENCY, most=_MOST_DEPENDENCY)


def _token(text: str) -> _Token:
    """Read a communication token, such as ``NONE`` or ``ALLGATHER_DP_EP``, in any case.

    SimAI takes an unknown one for no communication at all, or for one without a group, and gives it no time.
    """
    name = text.upper()
    if name == "NONE":
        return _Token(Operation.NONE, None)
    operation, _, suffix = name.partition("_")
    if operation in COLLECTIVES and (not suffix or suffix in _SUFFIXES) and not name.endswith("_"):
        return _Token(COLLECTIVES[operation], _SUFFIXES.get(suffix))
    known = f"NONE, {', '.join(COLLECTIVES)}, alone or with _{', _'.join(_SUFFIXES)}"
    raise ValueError(f"unknown communication {shown(text)}; known: {known}")


# --- rows

_PARTS = ("forward", "input-gradient", "weight-gradient")
_OF_PART = ("compute time", "communication", "size")
_NAMES = ("name", "dependency", *(f"{part} {what}" for part in _PARTS for what in _OF_PART), "process time", "policy")
FIRST_FIELD = {Column.FORWARD: 2, Column.INPUT_GRAD: 5, Column.WEIGHT_GRAD: 8}
_WARNINGS = {
    "token-case": "{token} is not in upper case",
    "size-beside-none": "NONE has a size, which is not used",
    "zero-size": "{token} of 0 bytes",
}


class _RowReader:
    """Reads rows; equal cells, which real files repeat by the thousand, are one object."""

    def __init__(self, path: str, customized: bool, warnings: FileWarnings) -> None:
        self.path, self.warnings = path, warnings
        self.names = _NAMES if customized else _NAMES[:FIELDS]
        self.cells: dict[tuple[str, ...], tuple[Cell, tuple[str, ...]]] = {}

    def row(self, line: int, content: str) -> Row:
        """Read one row."""
        fields = content.split()
        check_width(fields, self.names, "fields", self.path, line)
        return Row(
            line=line,
            name=fields[0],
            dependency=self._value(_dependency, line, fields, 1),
            forward=self._cell(line, fields, Column.FORWARD),
            input_grad=self._cell(line, fields, Column.INPUT_GRAD),
            weight_grad=self._cell(line, fields, Column.WEIGHT_GRAD),
            process_s=self._value(_time_s, line, fields, 11),
            policy=self._value(policy, line, fields, 12) if len(fields) > FIELDS else None,
        )

    def _cell(self, line: int, fields: list[str], column: Column) -> Cell:
        start = FIRST_FIELD[column]
        key = tuple(fields[start : start + 3])
        known = self.cells.get(key)
        if known is None:
            compute_s = self._value(_time_s, line, fields, start)
            meaning = self._value(_token, line, fields, start + 1)
            size = self._value(size_bytes, line, fields, start + 2)
            cell = Cell(compute_s, key[1], meaning.operation, meaning.suffix, size)
            known = self.cells[key] = cell, _warnings(cell)
        cell, codes = known
        for code in codes:
            kind = f"{cell.token.upper()} {column}"
            text = f"{_WARNINGS[code].format(token=cell.token)} (column {column}, row {shown(fields[0])})"
            self.warnings.add(code, text, line, kind)
        return cell

    def _value(self, read: Callable[[str], T], line: int, fields: list[str], index: int) -> T:
        return read_cell(read, fields[index], f"{index + 1} ({_NAMES[index]})", self.path, line)


def _warnings(cell: Cell) -> tuple[str, ...]:
    communicates = cell.operation is not Operation.NONE
    found = {
        "token-case": cell.token != cell.token.upper(),
        "size-beside-none": not communicates and cell.size_bytes > 0,
        "zero-size": communicates and cell.size_bytes == 0,
    }
    return tuple(code for code, holds in found.items() if holds)
