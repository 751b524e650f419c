"""Read AICB and SimAI workload text: a header, the number of rows, and the rows."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from traincast.diagnostics import Remarks
from traincast.errors import FormatError
from traincast.files import read_bytes
from traincast.formats.aicb.header import POLICIES, parse_header
from traincast.formats.aicb.rows import AicbFile, Cell, Column, Header, Row, size_bytes, time_s, token
from traincast.formats.values import check_lines, filled_lines, shown, whole
from traincast.units import GIGA, counted
from traincast.workload.words import Operation

FIELDS = 12
"""Fields of a row; files of ``HYBRID_CUSTOMIZED`` have a policy as one more."""

_CUSTOMIZED = "HYBRID_CUSTOMIZED"
_FIRST_FIELD = {Column.FORWARD: 2, Column.INPUT_GRAD: 5, Column.WEIGHT_GRAD: 8}
_COLUMNS = (
    "name",
    "dependency",
    "forward compute time",
    "forward communication",
    "forward size",
    "input-gradient compute time",
    "input-gradient communication",
    "input-gradient size",
    "weight-gradient compute time",
    "weight-gradient communication",
    "weight-gradient size",
    "process time",
    "policy",
)
_ODDITIES = {
    "token-case": "{token} is not in upper case",
    "size-beside-none": "NONE has a size, which is not used",
    "zero-size": "{token} of 0 bytes",
}
_PLACEHOLDER_S = 1 / GIGA
_MOST_DEPENDENCY = 2**31 - 1
"""As SimAI stores it."""
_MICRO_TEST = "micro_test"
"""Name of every row of a test of a collective, which computes nothing."""

T = TypeVar("T")


def load(path: Path) -> AicbFile:
    """Read a file from disk (see `parse`); undecodable bytes are replaced, and fail where they matter."""
    return parse(str(path), read_bytes(path).decode("utf-8", errors="replace"))


def parse(path: str, text: str) -> AicbFile:
    """Read the text of a file.

    Parameters
    ----------
    path : str
        Where the text came from, for messages.
    text : str
        Header, number of rows, rows of 12 (``HYBRID_CUSTOMIZED``: 13) fields separated by
        any white space. Empty lines, a byte-order mark, carriage returns and trailing NULs
        are passed over.

    Returns
    -------
    AicbFile
        The declared rows, or those that are there where they are fewer or none is declared;
        `oddities` says what is unusual.

    Raises
    ------
    FormatError
        With the line, and the column and value, of the first thing that cannot be read.

    Notes
    -----
    Source: SimAI, ``astra-sim/workload/Workload.cc``, ``Workload::initialize_workload``.
    """
    check_lines(text, path)
    lines = filled_lines(text)
    if not lines:
        raise FormatError("the file is empty", path)
    remarks = Remarks(path)
    header = parse_header(path, *lines[0], remarks)
    declared, first = _count(path, lines, remarks)
    reader = _RowReader(path, header.policy == _CUSTOMIZED, remarks)
    found = lines[first:]
    if not found:
        raise FormatError("the file has no rows", path, lines[-1][0])
    left_out = _left_out(found, declared, lines[1][0], remarks)
    # As SimAI does: what follows the declared rows is not read, whatever it is.
    rows = tuple(reader.row(line, content) for line, content in (found[:declared] if left_out else found))
    _check_checkpoints(path, lines[0][0], header, len(rows))
    _check_placeholders(header, rows, remarks)
    return AicbFile(
        path=path, header=header, declared_rows=declared, rows=rows, left_out=left_out, oddities=remarks.notes()
    )


def _count(path: str, lines: list[tuple[int, str]], remarks: Remarks) -> tuple[int | None, int]:
    """Return the declared number of rows and the index in `lines` of the first row."""
    if len(lines) == 1:
        message = "the file ends after its header; the number of rows and the rows are missing"
        raise FormatError(message, path, lines[0][0])
    line, content = lines[1]
    fields = content.split(maxsplit=FIELDS)
    if len(fields) >= FIELDS:
        remarks.add("no-row-count", "the line with the number of rows is missing", line)
        return None, 1
    try:
        if len(fields) > 1:
            raise ValueError(f"{shown(content.strip())} is not one number")
        return whole(fields[0], least=0), 2
    except ValueError as problem:
        raise FormatError(f"the number of rows is expected here: {problem}", path, line) from None


def _left_out(found: list[tuple[int, str]], declared: int | None, line: int, remarks: Remarks) -> int | None:
    """Return the line of the first row beyond the declared ones; remark it where the numbers differ."""
    if declared is None or declared == len(found):
        return None
    there = f"{len(found)} {'is' if len(found) == 1 else 'are'} there"
    text = f"{counted(declared, 'row is', 'rows are')} declared and {there}"
    left_out = found[declared][0] if 0 < declared < len(found) else None
    if left_out is None:
        remarks.add("row-count", f"{text}; those that are there are used", line)
    else:
        remarks.add(
            "row-count", f"{text}; only the declared ones are used: line {left_out} is the first left out", line
        )
    return left_out


def _check_checkpoints(path: str, line: int, header: Header, rows: int) -> None:
    for key in ("checkpoints", "checkpoint_initiates"):
        outside = next((row for row in getattr(header, key) if row >= rows), None)
        if outside is not None:
            message = f"header key '{key}': there is no row {outside}; the rows are 0 to {rows - 1}"
            raise FormatError(message, path, line)


def _check_placeholders(header: Header, rows: tuple[Row, ...], remarks: Remarks) -> None:
    """Remark a file without compute times: its generator writes 1 ns where nothing was measured."""
    longest_s = max(max(row.forward.compute_s, row.input_grad.compute_s, row.weight_grad.compute_s) for row in rows)
    tests_a_collective = header.policy == "MICRO" or all(row.name == _MICRO_TEST for row in rows)
    if longest_s <= _PLACEHOLDER_S and not tests_a_collective:
        text = "no compute time in the file is above 1 ns: these are placeholders, not measurements"
        remarks.add("placeholder-compute", text, rows[0].line)


class _RowReader:
    """Reads rows; equal cells, which real files repeat by the thousand, are one object."""

    def __init__(self, path: str, customized: bool, remarks: Remarks) -> None:
        self.path, self.customized, self.remarks = path, customized, remarks
        self.cells: dict[tuple[str, ...], tuple[Cell, tuple[str, ...]]] = {}

    def row(self, line: int, content: str) -> Row:
        fields = content.split()
        if len(fields) != FIELDS + self.customized:
            raise FormatError(self._miscounted(fields), self.path, line)
        return Row(
            line=line,
            name=fields[0],
            dependency=self._value(_dependency, line, fields, 1),
            forward=self._cell(line, fields, Column.FORWARD),
            input_grad=self._cell(line, fields, Column.INPUT_GRAD),
            weight_grad=self._cell(line, fields, Column.WEIGHT_GRAD),
            process_s=self._value(time_s, line, fields, 11),
            policy=self._value(_policy, line, fields, 12) if self.customized else None,
        )

    def _cell(self, line: int, fields: list[str], column: Column) -> Cell:
        start = _FIRST_FIELD[column]
        key = tuple(fields[start : start + 3])
        known = self.cells.get(key)
        if known is None:
            compute_s = self._value(time_s, line, fields, start)
            meaning = self._value(token, line, fields, start + 1)
            size = self._value(size_bytes, line, fields, start + 2)
            cell = Cell(compute_s, key[1], meaning.operation, meaning.suffix, size)
            known = self.cells[key] = cell, _oddities(cell)
        cell, oddities = known
        for code in oddities:
            kind = f"{cell.token.upper()} {column}"
            text = f"{_ODDITIES[code].format(token=cell.token)} (column {column}, row {shown(fields[0])})"
            self.remarks.add(code, text, line, kind)
        return cell

    def _value(self, read: Callable[[str], T], line: int, fields: list[str], index: int) -> T:
        try:
            return read(fields[index])
        except ValueError as problem:
            message = f"column {index + 1} ({_COLUMNS[index]}): {problem}"
            raise FormatError(message, self.path, line) from None

    def _miscounted(self, fields: list[str]) -> str:
        wanted = FIELDS + self.customized
        found = ", ".join(shown(field) for field in fields[: FIELDS + 2])
        more = ", ..." if len(fields) > FIELDS + 2 else ""
        return f"a row has {wanted} fields ({', '.join(_COLUMNS[:wanted])}); found {len(fields)}: {found}{more}"


def _dependency(text: str) -> int:
    return whole(text, least=-_MOST_DEPENDENCY, most=_MOST_DEPENDENCY)


def _policy(text: str) -> str:
    if text not in POLICIES:
        raise ValueError(f"unknown policy {shown(text)}; known: {', '.join(POLICIES)}")
    return text


def _oddities(cell: Cell) -> tuple[str, ...]:
    found = []
    if cell.token != cell.token.upper():
        found.append("token-case")
    if cell.operation is Operation.NONE and cell.size_bytes:
        found.append("size-beside-none")
    if cell.operation is not Operation.NONE and not cell.size_bytes:
        found.append("zero-size")
    return tuple(found)
