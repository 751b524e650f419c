"""Measurements as a table of texts: named columns in any order, each row with its line in the file."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import fields, replace

from traincast.calibration.nccl_logs import is_nccl_log, read_nccl_log
from traincast.errors import ConfigError, FormatError, TraincastError
from traincast.files import MOST_TRACE_BYTES, csv_rows, decoded, read_head, read_unpacked, unpacked_head
from traincast.formats.training_log import TRAINING_LOG
from traincast.progress import advanced
from traincast.units import RANGES, Range, is_number, plain_number, quoted, range_of

T = TypeVar("T")

TIME_COLUMNS = {"time_s": 1.0, "time_ms": 1e-3, "ms": 1e-3, "time_us": 1e-6, "us": 1e-6}
"""Column to the seconds of its unit."""
_TOLD_EVERY = 256

LOG_COLUMN = "training_log"
"""The one column of a table that stands for a training log: its path."""
_HEAD_BYTES, _SURE_ENOUGH = 2**22, 0.5

MOST_TABLE_BYTES = 2**26
"""Largest table, unpacked: half a million rows, of which one computer predicts a few hundred in a second."""


class Skipped(Struct, frozen=True):
    """A row that is left out, and why; ``id`` is the row's own, or ``file:line``."""

    id: str
    reason: str


class Row(Struct, frozen=True):
    """One row of a file: its 1-based line, and its cells by column; blanks are stripped, empty cells absent."""

    path: str
    line: int
    cells: Mapping[str, str]

    @property
    def place(self) -> str:
        """Where the row stands: ``file:line``."""
        return f"{self.path}:{self.line}"

    @property
    def id(self) -> str:
        """The row's own id, or its place where it has none."""
        return self.cells.get("id", self.place)

    def column(self, names: Sequence[str]) -> str | None:
        """Return the first of some columns that this row fills; None where it fills none."""
        return next((name for name in names if name in self.cells), None)

    def wrong(self, column: str, what: str) -> FormatError:
        """Return the error that a cell has no value that its column can have."""
        return FormatError(f"column {column} is {quoted(self.cells[column])}; {what}", self.path, self.line)

    def number(self, name: str) -> float:
        """Return a cell as a positive number; a `FormatError` if it is not one, or out of range."""
        return self._checked(name, range_of(name) or RANGES["figure"], "number")

    def count(self, name: str) -> int:
        """Return a cell as a positive whole number; a `FormatError` if it is not one, or out of range."""
        return int(self._checked(name, range_of(name) or RANGES["count"], "whole number"))

    def time_s(self) -> float:
        """Return the time in seconds, by the unit of its column; a `TraincastError` where no column has one."""
        column = self.column([*TIME_COLUMNS])
        if column is None:
            raise TraincastError("the row has no time")
        return self.number(column) * TIME_COLUMNS[column]

    def _checked(self, name: str, known: Range, what: str) -> float:
        text = self.cells.get(name)
        if text is None:
            raise FormatError(f"column {name} is empty", self.path, self.line)
        value = plain_number(text) if is_number(text) else 0
        if not 0 < value < math.inf:
            raise self.wrong(name, f"it must be a positive {what}")
        if what == "whole number" and value != int(value):
            raise self.wrong(name, "it must be a whole number")
        try:
            return known.checked(value)
        except ConfigError as error:
            raise FormatError(f"column {name} {error}", self.path, self.line) from None


class MeasurementTable(Struct, frozen=True):
    """A file of measurements: names of its columns in lower case, its rows, and lines that are not rows.

    A damaged line has more or fewer cells than the header.
    """

    path: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    damaged: tuple[Skipped, ...] = ()

    @property
    def size(self) -> int:
        """Rows in the file, damaged ones too."""
        return len(self.rows) + len(self.damaged)

    @property
    def is_one_file(self) -> bool:
        """Whether all rows are of the file that the table names."""
        return all(row.path == self.path for row in self.rows)

    def read(self, reader: Callable[[Row], T | Skipped]) -> tuple[list[tuple[Row, T]], tuple[Skipped, ...]]:
        """Return what the reader says of each row, and the rows that are left out with their reasons, no rows first.

        One that is wrong is left out, too: the reader may raise a `TraincastError`.
        """
        kept, skipped = [], list(self.damaged)
        for done, row in enumerate(self.rows):
            if done and done % _TOLD_EVERY == 0:
                advanced(done / len(self.rows))
            try:
                found = reader(row)
            except TraincastError as error:
                # Without its place, so that equal reasons are counted as one.
                found = Skipped(row.id, error.message if isinstance(error, FormatError) else str(error))
            if isinstance(found, Skipped):
                skipped.append(found)
            else:
                kept.append((row, found))
        return kept, tuple(skipped)


class Columns(Struct, frozen=True):
    """Measurements as columns of one length: all fields but those with a default."""

    def select(self, rows: npt.NDArray[np.bool_ | np.int64] | Sequence[int]) -> Self:
        """Return some of the rows, chosen by a mask or by their positions, in this order."""
        chosen = np.asarray(rows)
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.required}
        for name, column in found.items():
            found[name] = tuple(column[row] for row in chosen) if isinstance(column, tuple) else column[chosen]
        return replace(self, **found)


def head_of(path: Path) -> str:
    """Return the text of the beginning of a file, packed or not; undecodable bytes are replaced."""
    data = unpacked_head(read_head(path, _HEAD_BYTES, MOST_TRACE_BYTES), _HEAD_BYTES)
    return data.decode("utf-8-sig", errors="replace")


def is_training_log(head: str) -> bool:
    """Say whether a text is the beginning of a training log."""
    return TRAINING_LOG.looks_like(head).confidence > _SURE_ENOUGH


def read_table(path: Path) -> MeasurementTable:
    """Read a CSV file with a header, or a log, perhaps packed with gzip.

    A log of nccl-tests has the columns ``op ranks nodes size_bytes time_us gpu suspect``, a training log is one row of
    which `LOG_COLUMN` says the path.

    Raises
    ------
    FormatError
        If the file cannot be read, is neither, or has no rows.
    """
    shown = str(path)
    if is_training_log(head_of(path)):
        return MeasurementTable(shown, (LOG_COLUMN,), (Row(shown, 1, {"id": shown, LOG_COLUMN: shown}),))
    text = decoded(read_unpacked(path, MOST_TABLE_BYTES), shown, encoding="utf-8-sig")
    if is_nccl_log(text):
        rows = tuple(Row(shown, line, cells) for line, cells in read_nccl_log(text, shown))
        return MeasurementTable(shown, tuple(dict.fromkeys(name for row in rows for name in row.cells)), rows)
    lines = csv_rows(text, shown)
    columns = tuple(name.strip().lower() for name in next(lines, (1, []))[1])
    if not any(columns):
        raise FormatError("the file is empty", shown, 1)
    twice = next((name for name, times in Counter(filter(None, columns)).items() if times > 1), None)
    if twice is not None:
        raise FormatError(f"the header names the column {twice} twice", shown, 1)
    found = tuple(_rows(lines, columns, shown))
    rows = tuple(row for row in found if isinstance(row, Row))
    damaged = tuple(row for row in found if isinstance(row, Skipped))
    if not rows:
        what = f"no whole row; {damaged[0].reason}" if damaged else "no rows"
        raise FormatError(f"the file has {what}", shown, max(1, len(text.splitlines())))
    return MeasurementTable(shown, columns, rows, damaged)


def _rows(lines: Iterator[tuple[int, list[str]]], columns: tuple[str, ...], shown: str) -> Iterator[Row | Skipped]:
    for line, cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(columns):
            yield Skipped(f"{shown}:{line}", f"the row has {len(cells)} cells, the header {len(columns)}")
            continue
        filled = {name: cell.strip() for name, cell in zip(columns, cells, strict=True) if name and cell.strip()}
        yield Row(shown, line, filled)
