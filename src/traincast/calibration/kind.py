"""Kinds of measurements that predictions can be held against: how a file shows its kind, and what predicts its rows."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traincast.calibration.nccl_logs import is_nccl_log
from traincast.calibration.tables import MeasurementTable, Skipped, head_of, is_training_log, read_table
from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.files import csv_rows
from traincast.formats.recognise import Known, Teller
from traincast.hardware.cluster import Cluster
from traincast.job.draft import Draft
from traincast.registry import Registry

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Labels = tuple[str | int | float | None, ...]
ClusterLike = str | PathLike[str] | Cluster


class Grouping(Struct, frozen=True, kw_only=True):
    """One way to put rows into groups."""

    by: str
    """What is told apart: ``"gpu"``."""
    names: tuple[str, ...]
    """The groups, in the order to show them."""
    index: IntArray
    """Position in `names` of the group of each row."""

    @classmethod
    def from_labels(cls, by: str, labels: Sequence[str | int]) -> "Grouping":
        """Return the groups of equal labels; numbers rise, words are in their alphabet's order."""
        order = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
        position = {label: index for index, label in enumerate(order)}
        index = np.array([position[label] for label in labels], np.int64)
        return cls(by=by, names=tuple(map(str, order)), index=index)

    def within(self, outer: "Grouping") -> "Grouping":
        """Return the groups of both: each of `outer` is told apart by these."""
        pair = outer.index * len(self.names) + self.index
        names = tuple(f"{first}, {second}" for first in outer.names for second in self.names)
        return Grouping(by=f"{outer.by}+{self.by}", names=names, index=pair)


class Ratios(NamedTuple):
    """Ratios of pairs of rows that differ in one thing alone, ``"weak scaling"``; `predicted` is NaN without one."""

    name: str
    measured: FloatArray
    predicted: FloatArray


class Predictions(Struct, frozen=True, kw_only=True):
    """Measurements with what the models say to each of them; all columns have the same length."""

    ids: tuple[str, ...]
    measured: FloatArray
    predicted: FloatArray
    """The same quantity; NaN where a row has no prediction."""
    details: Mapping[str, Labels]
    """What a row is and how it was predicted, by column."""
    groupings: tuple[Grouping, ...]
    """All ways to group the rows."""
    skipped: tuple[Skipped, ...]
    """Every row without a prediction, those that could not be used at all, and are in no column, first."""
    rows: int
    """Rows in the file."""
    notes: tuple[Note, ...] = ()
    inside: BoolArray | None = None
    """Whether each measurement lies inside its prediction's interval."""
    ratios: tuple[Ratios, ...] = ()
    kept: object = None
    """What the kind needs to leave groups out without predicting every row again (`Request.kept`)."""


class Request(Struct, frozen=True):
    """What the user asks of a validation."""

    cluster: ClusterLike | None = None
    """Cluster of all rows; each row's own by default."""
    leave_out: str | None = None
    """A grouping, of `MeasurementKind.leaves_out`: each group is to be predicted by constants fitted to the others."""
    progress: Callable[[int, int], None] | None = None
    """Told how many rows are predicted, and of how many."""
    kept: object = None
    """`Predictions.kept` of the same table, where it has been predicted already."""
    job: Draft | None = None
    """What was trained, of files that do not say it."""


class MeasurementKind(Struct, frozen=True, kw_only=True):
    """A kind of measurements."""

    name: str
    title: str
    """What the rows are, for people."""
    quantity: str
    """What is measured, with its unit: ``"time_s"``."""
    fits: Callable[[Sequence[str]], bool]
    """Says from the columns of a file whether it is of this kind."""
    predict: Callable[[MeasurementTable, Request], Predictions]
    by: tuple[str, ...]
    """The groupings that `predict` gives."""
    leaves_out: tuple[str, ...] = ()
    """Those of them that `predict` can leave out; groups that share two as ``"source+chip"``."""
    shown: tuple[str, ...] = ()
    """Those of them that are shown where nothing else is asked for; all by default."""
    counted_once: str | None = None
    """The grouping over whose groups errors are averaged too, so that one with many rows counts as much as another."""
    worst_by: str | None = None
    """The grouping whose groups with most of all error are listed."""
    commands: str = "traincast validate takes it"
    """Commands that take such a file."""
    takes_job: bool = False
    """Whether a job says what was trained."""


KINDS: Registry[MeasurementKind] = Registry(
    "kind of measurements", "traincast.calibration.kinds", group="traincast.calibrate.kinds"
)


def kind_of(columns: Sequence[str]) -> MeasurementKind | None:
    """Return the kind of a file with these columns; None where it is of no known kind."""
    return next((kind for kind in KINDS.entries() if kind.fits(columns)), None)


def _nccl_log(path: Path, head: str) -> Known | None:
    """Tell a log of nccl-tests by its header."""
    if not is_nccl_log(head):
        return None
    rows = read_table(path).rows
    runs = sorted({(row.cells["op"], int(row.cells["ranks"])) for row in rows})
    shown = ", ".join(f"{op} over {ranks} ranks" for op, ranks in runs[:4]) + (", ..." if len(runs) > 4 else "")
    suspect = sum("suspect" in row.cells for row in rows)
    doubt = f", {suspect} of them not to be trusted" if suspect else ""
    what = f"log of nccl-tests ({shown}; {len(rows)} timings{doubt})"
    return Known("nccl-tests", what, KINDS.get("collectives").commands)


def _kind_of_table(head: str) -> MeasurementKind | None:
    """Return the kind of a table by the line of its columns."""
    try:
        _, first = next(csv_rows("".join(head.splitlines()[:1]), ""), (1, []))
    except FormatError:
        return None
    columns = tuple(name.strip().lower() for name in first)
    return kind_of(columns)


def _table(path: Path, head: str) -> Known | None:
    """Tell a table of measurements by its columns."""
    kind = _kind_of_table(head)
    if kind is None:
        return None
    return Known(kind.name, f"table of {kind.title} ({len(read_table(path).rows)} rows)", kind.commands)


def kind_of_file(path: Path) -> str | None:
    """Return the name of the kind of measurements that a file holds, by its beginning; None where it holds none."""
    try:
        head = head_of(path)
    except FormatError:
        return None
    if is_training_log(head):
        return "training-logs"
    if is_nccl_log(head):
        return "collectives"
    kind = None if head.lstrip().startswith("{") else _kind_of_table(head)
    return None if kind is None else kind.name


TELLERS: tuple[Teller, ...] = (_nccl_log, _table)
"""What `traincast.formats.recognise` is handed, to tell logs and tables of measurements from other files."""
