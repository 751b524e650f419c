"""Hold predictions against a file of measurements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from os import PathLike
from pathlib import Path

import numpy as np

from traincast.calibrate.contract import KINDS, Kind, Predictions, Request
from traincast.calibrate.measurements import Skipped
from traincast.calibrate.statistics import Statistics, relative_errors, statistics
from traincast.calibrate.tables import Table, read_table
from traincast.diagnostics import Note
from traincast.errors import CalibrationError, ConfigError, FormatError
from traincast.hardware.cluster import Cluster
from traincast.job.job import OLD_NAMES
from traincast.names import known_names
from traincast.progress import announce
from traincast.units import counted

ANNOUNCED_ROWS = 10_000
"""Rows from which predicting them may take seconds: whole models take half a millisecond each."""
WORST = 10
"""How many of the worst rows are listed."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """The figures of one group.

    Parameters
    ----------
    by, name : str
        What is told apart, and which group this is: ``"op"``, ``"all_reduce"``.
    figures : Statistics
        Over its rows.
    """

    by: str
    name: str
    figures: Statistics


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The figures where each group is predicted by constants that were not fitted to it.

    Parameters
    ----------
    by : str
        What was left out in turn: ``"ranks"``.
    total : Statistics
        Over all rows.
    groups : tuple of GroupFigures
        The same groups as those of the validation, in the same order.
    skipped : tuple of Skipped
        Rows without such a prediction, and why.
    """

    by: str
    total: Statistics
    groups: tuple[GroupFigures, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class WorstRow:
    """A row with a large error.

    Parameters
    ----------
    id : str
        The row.
    measured, predicted : float
        Both values.
    error : float
        Signed, a fraction of the measured value.
    details : dict
        What the row is.
    """

    id: str
    measured: float
    predicted: float
    error: float
    details: dict[str, str | int | float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Predictions held against one file of measurements.

    Parameters
    ----------
    path : str
        The file.
    kind : str
        Name in `KINDS`.
    title : str
        What the rows are, for people.
    quantity : str
        What was measured, with its unit.
    total : Statistics
        Over all rows.
    skipped : tuple of Skipped
        Rows without a prediction, and why.
    groups : tuple of GroupFigures
        Grouping by grouping.
    worst : tuple of WorstRow
        The rows with the largest errors, the largest first.
    notes : tuple of Note
        What was assumed.
    predictions : Predictions
        Every row.
    held_out : HeldOut or None
        The same with groups left out of the fit, where that was asked for.
    """

    path: str
    kind: str
    title: str
    quantity: str
    total: Statistics
    skipped: tuple[Skipped, ...]
    groups: tuple[GroupFigures, ...]
    worst: tuple[WorstRow, ...]
    notes: tuple[Note, ...]
    predictions: Predictions
    held_out: HeldOut | None = None


def validate(
    path: str | PathLike[str],
    cluster: str | PathLike[str] | Cluster | None = None,
    by: Sequence[str] = (),
    leave_out: str | None = None,
    *,
    kind: str | Kind | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Predict every measurement in a file and say how far off the predictions are.

    Parameters
    ----------
    path : path
        A CSV file, or a log of nccl-tests; its columns say of what kind it is.
    cluster : str, path or Cluster, optional
        Preset or TOML file that all rows ran on; by default each row says its own.
    by : sequence of str, optional
        Groupings to show, two at once as ``"gpu+op"``; all that the kind has by default.
    leave_out : str, optional
        A grouping: the constants are fitted again without each of its groups, and predict it.
    kind : str or Kind, optional
        What to predict, or its name in `KINDS`, where a file holds several things; its columns say by default.
    progress : callable, optional
        Told how many rows are predicted, and of how many.

    Returns
    -------
    Validation

    Raises
    ------
    FormatError
        If the file cannot be read, or is of no known kind.
    ConfigError
        If the kind has no such grouping or cannot leave it out, or the cluster is wrong.
    CalibrationError
        If no row can be used; the message gives the reason of the first.
    """
    table = read_table(Path(path))
    of = _kind_of(table) if kind is None else KINDS.get(kind) if isinstance(kind, str) else kind
    chosen = _groupings(of, by, leave_out)
    if table.size > ANNOUNCED_ROWS:
        announce(f"predicting {table.size:,} rows")
    found = of.predict(table, Request(cluster=cluster, progress=progress))
    _check_used(found)
    again = Request(cluster, leave_out, progress, found.kept)
    return Validation(
        path=table.path,
        kind=of.name,
        title=of.title,
        quantity=of.quantity,
        total=statistics(found.predicted, found.measured, found.rows, found.spread),
        skipped=found.skipped,
        groups=tuple(_groups(found, chosen)),
        worst=_worst(found),
        notes=found.notes,
        predictions=found,
        held_out=None if leave_out is None else _held_out(of, table, chosen, again),
    )


def _check_used(found: Predictions) -> None:
    if not found.ids and found.skipped:
        first, more = found.skipped[0], len(found.skipped) - 1
        others = f"; {counted(more, 'more row')} cannot either" if more else ""
        raise CalibrationError(f"no row can be used: {first.reason} ({first.id}){others}", rows=0, needed_rows=1)


def _held_out(kind: Kind, table: Table, chosen: Sequence[str], request: Request) -> HeldOut:
    found = kind.predict(table, request)
    total = statistics(found.predicted, found.measured, found.rows, found.spread)
    return HeldOut(request.leave_out or "", total, tuple(_groups(found, chosen)), found.skipped)


def _kind_of(table: Table) -> Kind:
    kind = next((kind for kind in KINDS.entries() if kind.fits(table.columns)), None)
    if kind is None:
        known = ", ".join(each.title for each in KINDS.entries())
        raise FormatError(
            f"holds no measurements of a known kind ({known}); its first columns are {', '.join(table.columns[:8])}",
            table.path,
            1,
        )
    return kind


def _groupings(kind: Kind, by: Sequence[str], leave_out: str | None) -> tuple[str, ...]:
    """Return the groupings to show, after a look at whether the kind has what is asked for."""
    by = ["+".join(OLD_NAMES.get(name, name) for name in each.split("+")) for each in by]
    unknown = next((name for each in by for name in each.split("+") if name not in kind.by), None)
    if unknown is not None:
        raise ConfigError(f"{kind.title} cannot be grouped by {unknown!r}; {known_names(unknown, kind.by)}", "by")
    if leave_out is not None and leave_out not in kind.leaves_out:
        known = known_names(leave_out, kind.leaves_out)
        raise ConfigError(f"{kind.title} cannot leave out {leave_out!r}; {known}", "cv")
    return tuple(dict.fromkeys(by)) or kind.shown or kind.by


def _groups(found: Predictions, chosen: Sequence[str]) -> list[GroupFigures]:
    groups = []
    by_name = {grouping.by: grouping for grouping in found.groupings}
    for by in chosen:
        outermost, *inner = (by_name[name] for name in by.split("+"))
        grouping = reduce(lambda outer, each: each.within(outer), inner, outermost)
        for position, name in enumerate(grouping.names):
            rows = grouping.index == position
            if rows.any():
                spread = None if found.spread is None else found.spread[rows]
                figures = statistics(found.predicted[rows], found.measured[rows], spread=spread)
                groups.append(GroupFigures(by, name, figures))
    ratios = [GroupFigures("ratio", each.name, statistics(each.predicted, each.measured)) for each in found.ratios]
    return [*groups, *ratios]


def _worst(found: Predictions) -> tuple[WorstRow, ...]:
    errors = relative_errors(found.predicted, found.measured)
    known = np.flatnonzero(~np.isnan(errors))
    # Stable: of equal errors the first in the file comes first.
    order = known[np.argsort(-np.abs(errors[known]), kind="stable")][:WORST]
    return tuple(
        WorstRow(
            id=found.ids[row],
            measured=float(found.measured[row]),
            predicted=float(found.predicted[row]),
            error=float(errors[row]),
            details={name: column[row] for name, column in found.details.items()},
        )
        for row in order
    )
