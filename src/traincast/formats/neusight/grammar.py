"""Read NeuSight operator forecasts, as text or JSON: times in milliseconds, sizes in elements."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from traincast.diagnostics import Remarks
from traincast.errors import FormatError
from traincast.files import read_bytes
from traincast.formats.neusight.rows import Cell, Column, NeusightFile, Row, Token, elements, time_s, token
from traincast.formats.neusight.table import Record, read_table
from traincast.formats.values import check_lines, shown
from traincast.workload.words import Group, Operation

_HINT: dict[Callable[[str], object], str] = {
    time_s: "; write milliseconds, such as 9.98",
    elements: "; write a number of elements, such as 4919040",
}
"""What to do about a value that cannot be read, where its own message does not say."""

T = TypeVar("T")


def load(path: Path) -> NeusightFile:
    """Read a file from disk (see `parse`); undecodable bytes are replaced, and fail where they matter."""
    return parse(str(path), read_bytes(path).decode("utf-8", errors="replace"))


def parse(path: str, text: str) -> NeusightFile:
    """Read the text of a file.

    Parameters
    ----------
    path : str
        Where the text came from, for messages.
    text : str
        Tab-separated text or JSON (see `traincast.formats.neusight.table`).

    Returns
    -------
    NeusightFile

    Raises
    ------
    FormatError
        With the line (JSON: the entry), and the column and value, of the first thing that
        cannot be read.

    Notes
    -----
    Source: NeuSight's operator forecasts, exported with the row fields of AICB (``Work_Item``
    of aliyun/aicb); the sizes stay NeuSight's shapes, in elements.
    """
    check_lines(text, path)
    table = read_table(path, text)
    remarks = Remarks(path, entries=table.entries)
    reader = _RowReader(path, table.entries, remarks)
    rows = tuple(reader.row(record) for record in table.records)
    _check_stages(reader, rows)
    return NeusightFile(path=path, rows=rows, entries=table.entries, oddities=remarks.notes())


class _RowReader:
    """Reads the values of rows."""

    def __init__(self, path: str, entries: bool, remarks: Remarks) -> None:
        self.path, self.entries, self.remarks = path, entries, remarks
        self.names: set[str] = set()

    def error(self, number: int, message: str) -> FormatError:
        """Return the error of a row, with its line or entry."""
        if self.entries:
            return FormatError(f"entry [{number}]: {message}", self.path)
        return FormatError(message, self.path, number)

    def row(self, record: Record) -> Row:
        """Read one row."""
        number, name = record.number, record.values["name"]
        if not name:
            raise self.error(number, "column name is empty; write the name of the operator")
        if name in self.names:
            self.remarks.add(
                "name-repeated", f"the name {shown(name)} stands twice; traced nodes have one each", number
            )
        self.names.add(name)
        forward, backward, weight_grad = (self._cell(record, column) for column in Column)
        process_s = self._value(record, "process_time", time_s)
        if process_s:
            text = (
                "process_time is not 0 (its exporter never fills it); taken as ms after each communication of the row"
            )
            self.remarks.add("process-time", text, number)
        return Row(number, name, forward, backward, weight_grad, process_s)

    def _cell(self, record: Record, column: Column) -> Cell:
        compute_s = self._value(record, f"{column}_compute_time", time_s)
        kind = self._value(record, f"{column}_comm_type", token)
        size = self._value(record, f"{column}_comm_size", elements)
        group = _group(kind, column)
        if group is Group.PP and column is Column.WEIGHT_GRAD:
            raise self.error(
                record.number,
                f"column {column}_comm_type: SENDRECV hands over activations; write it in forward_comm_type or "
                "backward_comm_type",
            )
        if group is Group.NONE and size:
            text = f"a size stands beside None in column {column}_comm_size and is not used"
            self.remarks.add("size-beside-none", text, record.number)
        elif group is not Group.NONE and not size:
            text = f"column {column}_comm_size: a communication of 0 elements"
            self.remarks.add("zero-size", text, record.number)
        return Cell(compute_s, kind.operation, kind.asynchronous, size, group)

    def _value(self, record: Record, column: str, read: Callable[[str], T]) -> T:
        try:
            return read(record.values[column])
        except ValueError as problem:
            raise self.error(record.number, f"column {column}: {problem}{_HINT.get(read, '')}") from None


def _group(kind: Token, column: Column) -> Group:
    """Return who communicates: what overlaps or follows a weight gradient is dp, what blocks is tp."""
    if kind.operation is Operation.NONE:
        return Group.NONE
    if kind.operation is Operation.SEND_RECV:
        return Group.PP
    return Group.DP if kind.asynchronous or column is Column.WEIGHT_GRAD else Group.TP


def _check_stages(reader: _RowReader, rows: tuple[Row, ...]) -> None:
    """Refuse a stage without rows: SENDRECV separates two stages."""
    before = True
    for row in rows:
        if row.sends and before and not any(cell.compute_s for cell in row.cells):
            raise reader.error(row.number, "SENDRECV separates two stages, but no rows of a stage stand before it")
        before = row.sends
    if before:
        raise reader.error(rows[-1].number, "SENDRECV separates two stages, but no rows of a stage stand after it")
