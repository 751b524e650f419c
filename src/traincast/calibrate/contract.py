"""The contract of a kind of measurements that predictions can be held against."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
import numpy.typing as npt

from traincast.calibrate.measurements import Skipped
from traincast.calibrate.tables import Table
from traincast.diagnostics import Note
from traincast.hardware.cluster import Cluster
from traincast.registry import Registry

FloatArray = npt.NDArray[np.float64]
Labels = tuple[str | int | float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """One way to put rows into groups.

    Parameters
    ----------
    by : str
        What is told apart: ``"gpu"``.
    names : tuple of str
        The groups, in the order to show them.
    index : array of int
        Position in `names` of the group of each row.
    """

    by: str
    names: tuple[str, ...]
    index: npt.NDArray[np.int64]

    @classmethod
    def of(cls, by: str, labels: Sequence[str | int]) -> "Grouping":
        """Return the groups of equal labels; numbers rise, words are in their alphabet's order."""
        order = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
        position = {label: index for index, label in enumerate(order)}
        return cls(
            by=by,
            names=tuple(str(label) for label in order),
            index=np.array([position[label] for label in labels], np.int64),
        )

    def within(self, outer: "Grouping") -> "Grouping":
        """Return the groups of both: each of `outer` is told apart by these."""
        pair = outer.index * len(self.names) + self.index
        names = tuple(f"{first}, {second}" for first in outer.names for second in self.names)
        return Grouping(by=f"{outer.by}+{self.by}", names=names, index=pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Ratios of pairs of rows that differ in one thing alone.

    Parameters
    ----------
    name : str
        The one thing: ``"weak scaling"``.
    measured, predicted : array of float
        The same ratios twice; `predicted` is NaN where a row has no prediction.
    """

    name: str
    measured: FloatArray
    predicted: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Measurements with what the models say to each of them.

    Parameters
    ----------
    ids : tuple of str
        A name per row.
    measured, predicted : array of float
        The same quantity twice; `predicted` is NaN where a row has no prediction.
    details : mapping
        What a row is and how it was predicted, by column.
    groupings : tuple of Grouping
        All ways to group the rows.
    skipped : tuple of Skipped
        Every row without a prediction, those that could not be used at all first.
    rows : int
        Rows in the file; those that could not be used at all are in no column and no group.
    notes : tuple of Note
        What was assumed.
    spread : array of float, optional
        Half the width of each prediction's interval, in logarithms.
    ratios : tuple of Ratios
        Ratios of rows that differ in one thing alone.
    kept : object
        What the kind needs to leave groups out without predicting every row again (`Request.kept`).
    """

    ids: tuple[str, ...]
    measured: FloatArray
    predicted: FloatArray
    details: Mapping[str, Labels]
    groupings: tuple[Grouping, ...]
    skipped: tuple[Skipped, ...]
    rows: int
    notes: tuple[Note, ...] = ()
    spread: FloatArray | None = None
    ratios: tuple[Ratios, ...] = ()
    kept: object = None


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks of a validation.

    Parameters
    ----------
    cluster : str, path or Cluster, optional
        Cluster of all rows; each row's own by default.
    leave_out : str, optional
        A grouping: each of its groups is to be predicted by constants fitted to the others.
    progress : callable, optional
        Told how many rows are predicted, and of how many.
    kept : object
        `Predictions.kept` of the same table, where it has been predicted already.
    """

    cluster: str | PathLike[str] | Cluster | None = None
    leave_out: str | None = None
    progress: Callable[[int, int], None] | None = None
    kept: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of measurements.

    Parameters
    ----------
    name : str
        Name in `KINDS`.
    title : str
        What the rows are, for people.
    quantity : str
        What is measured, with its unit: ``"time_s"``.
    fits : callable
        Says from the columns of a file whether it is of this kind.
    predict : callable
        Predicts every row of such a file.
    by : tuple of str
        The groupings that `predict` gives.
    leaves_out : tuple of str
        Those of them that `predict` can leave out.
    shown : tuple of str
        Those of them that are shown where nothing else is asked for; all by default.
    """

    name: str
    title: str
    quantity: str
    fits: Callable[[Sequence[str]], bool]
    predict: Callable[[Table, Request], Predictions]
    by: tuple[str, ...]
    leaves_out: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


KINDS: Registry[Kind] = Registry("kind of measurements", "traincast.calibrate.kinds")
