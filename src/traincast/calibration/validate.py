"""Hold predictions against a file of measurements: the figures of ``traincast.validation/1``."""

from collections.abc import Callable, Sequence
from functools import reduce
from os import PathLike
from pathlib import Path

import numpy as np
from msgspec import Struct

from traincast.calibration.columns import read_measurements
from traincast.calibration.kind import (
    KINDS,
    BoolArray,
    ClusterLike,
    FloatArray,
    MeasurementKind,
    Predictions,
    Request,
    kind_of,
)
from traincast.calibration.tables import MeasurementTable, Skipped
from traincast.calibration.worst import WorstGroup, WorstRow, worst_groups, worst_rows
from traincast.diagnostics import Note
from traincast.errors import CalibrationError, ConfigError, FormatError
from traincast.job.draft import Draft
from traincast.names import known_names
from traincast.progress import announce
from traincast.units import counted, format_share

ANNOUNCED_ROWS = 10_000
"""Rows from which predicting them may take seconds: whole models take half a millisecond each."""


class Statistics(Struct, frozen=True, kw_only=True):
    """Figures over some rows. Errors are fractions of the measured value; None where there is nothing to count."""

    rows: int
    """Rows there are."""
    evaluated: int
    """Rows with a prediction."""
    coverage: float | None
    """Their share."""
    mean_abs_error: float | None = None
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    p95_abs_error: float | None = None
    bias: float | None = None
    """Signed median: positive where predictions are too long."""
    spearman: float | None = None
    """Rank correlation of predictions and measurements; None where either is the same for all rows."""
    interval_coverage: float | None = None
    """Share of the measurements inside the predicted interval; None where none was predicted."""


class GroupFigures(Struct, frozen=True):
    """The figures of one group: what is told apart and which this is, ``"op"``, ``"all_reduce"``."""

    by: str
    name: str
    figures: Statistics


class CountedOnce(Struct, frozen=True, kw_only=True):
    """Figures in which every group by something counts once, however many rows it has."""

    by: str
    """What is told apart: ``"source"``."""
    groups: int
    median_abs_error: float
    """Median over the groups of their median errors."""
    interval_coverage: float | None
    """Mean over the groups of their shares inside the predicted interval."""


class HeldOut(Struct, frozen=True):
    """The figures where each group is predicted by constants that were not fitted to it.

    `by` is what was left out in turn; groups are those of the validation, in the same order.
    """

    by: str
    total: Statistics
    groups: tuple[GroupFigures, ...]
    skipped: tuple[Skipped, ...]
    counted_once: CountedOnce | None = None


class Validation(Struct, frozen=True, kw_only=True):
    """Predictions held against one file of measurements."""

    path: str
    kind: str
    title: str
    quantity: str
    """Name, title and quantity of the `MeasurementKind` of its rows."""
    total: Statistics
    skipped: tuple[Skipped, ...]
    groups: tuple[GroupFigures, ...]
    """Grouping by grouping."""
    worst: tuple[WorstRow, ...]
    """The rows with the largest errors, the largest first."""
    worst_groups: tuple[WorstGroup, ...]
    """The groups with most of all error, the most first; where groups are left out, of those forecasts."""
    notes: tuple[Note, ...]
    """What was assumed."""
    predictions: Predictions
    held_out: HeldOut | None = None
    """The same with groups left out of the fit, where that was asked for."""
    counted_once: CountedOnce | None = None
    """The figures in which every source counts once, where rows have one."""

    def __repr__(self) -> str:
        """Say how far off predictions are, in a line."""
        error = self.total.median_abs_error
        off = "" if error is None else f", median error {format_share(error)}"
        return f"<Validation: {self.title}, {self.total.evaluated} of {counted(self.total.rows, 'row')}{off}>"


def validate(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    cluster: ClusterLike | None = None,
    by: Sequence[str] = (),
    leave_out: str | None = None,
    *,
    kind: str | MeasurementKind | None = None,
    job: Draft | None = None,
    recipes: str | PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Predict every measurement in a file and say how far off the predictions are.

    Parameters
    ----------
    path : path, or sequence of paths
        A CSV file, whose columns say its kind, a log of nccl-tests, or a training log; or several of one kind.
    cluster, leave_out, job, progress
        As of `Request`.
    by : sequence of str, optional
        Groupings to show, two at once as ``"gpu+op"``; all that the kind has by default.
    kind : str or MeasurementKind, optional
        What to predict, or its name in `KINDS`; the columns say by default.
    recipes : path, optional
        A table of further columns of the rows, by their ``id``; what a row says itself wins.

    Raises
    ------
    FormatError
        If the file cannot be read, or is of no known kind.
    ConfigError
        If the kind has no such grouping or cannot leave it out, or the cluster is wrong.
    CalibrationError
        If no row can be used; the message gives the reason of the first.
    """
    table = _together([path] if isinstance(path, (str, PathLike)) else path, recipes)
    of = KINDS.get(kind) if isinstance(kind, str) else kind or _kind(table)
    chosen = _groupings(of, by, leave_out)
    if job is not None and not of.takes_job:
        raise ConfigError(f"rows of {of.title} say themselves what was trained", "job")
    if table.size > ANNOUNCED_ROWS:
        announce(f"predicting {table.size:,} rows")
    found = of.predict(table, Request(cluster=cluster, progress=progress, job=job))
    _check_used(found)
    without = None if leave_out is None else of.predict(table, Request(cluster, leave_out, progress, found.kept, job))
    return Validation(
        path=table.path,
        kind=of.name,
        title=of.title,
        quantity=of.quantity,
        total=_total(found),
        skipped=found.skipped,
        groups=tuple(_groups(found, chosen)),
        worst=worst_rows(found),
        worst_groups=worst_groups(without or found, of.worst_by),
        notes=found.notes,
        predictions=found,
        held_out=None if leave_out is None or without is None else _held_out(without, leave_out, chosen, of),
        counted_once=_counted_once(found, of),
    )


def _held_out(without: Predictions, leave_out: str, chosen: Sequence[str], kind: MeasurementKind) -> HeldOut:
    groups = tuple(_groups(without, chosen))
    return HeldOut(leave_out, _total(without), groups, without.skipped, _counted_once(without, kind))


def _counted_once(found: Predictions, kind: MeasurementKind) -> CountedOnce | None:
    """Return the figures in which each group counts once; None where the kind has no such groups or only one."""
    by = kind.counted_once
    figures = [] if by is None else [each.figures for each in _groups(found, [by]) if each.by == by]
    medians = [each.median_abs_error for each in figures if each.median_abs_error is not None]
    inside = [each.interval_coverage for each in figures if each.interval_coverage is not None]
    if by is None or len(medians) < 2:
        return None
    return CountedOnce(
        by=by,
        groups=len(medians),
        median_abs_error=float(np.median(medians)),
        interval_coverage=float(np.mean(inside)) if inside else None,
    )


def _together(paths: Sequence[str | PathLike[str]], recipes: str | PathLike[str] | None) -> MeasurementTable:
    """Return the rows of several files of one kind as one table, with the recipes of some."""
    settings = None if recipes is None else Path(recipes)
    tables = [read_measurements(Path(path), settings) for path in paths]
    first, *others = tables
    for other in others:
        if kind_of(other.columns) is not kind_of(first.columns):
            what = " and ".join(_kind(each).title for each in (first, other))
            raise FormatError(f"is of another kind than {first.path} ({what}); validate them one by one", other.path)
    return MeasurementTable(
        path=", ".join(table.path for table in tables),
        columns=tuple(dict.fromkeys(name for table in tables for name in table.columns)),
        rows=tuple(row for table in tables for row in table.rows),
        damaged=tuple(row for table in tables for row in table.damaged),
    )


def _check_used(found: Predictions) -> None:
    if not found.ids and found.skipped:
        first, more = found.skipped[0], len(found.skipped) - 1
        others = f"; {counted(more, 'more row')} cannot either" if more else ""
        raise CalibrationError(f"no row can be used: {first.reason} ({first.id}){others}", rows=0, needed_rows=1)


def _kind(table: MeasurementTable) -> MeasurementKind:
    kind = kind_of(table.columns)
    if kind is None:
        known = ", ".join(each.title for each in KINDS.entries())
        raise FormatError(
            f"holds no measurements of a known kind ({known}); its first columns are {', '.join(table.columns[:8])}; "
            "docs/data-files.md lists the columns of each",
            table.path,
            1,
        )
    return kind


def _groupings(kind: MeasurementKind, by: Sequence[str], leave_out: str | None) -> tuple[str, ...]:
    """Return the groupings to show, after a look at whether the kind has what is asked for."""
    unknown = next((name for each in by for name in each.split("+") if name not in kind.by), None)
    if unknown is not None:
        raise ConfigError(f"{kind.title} cannot be grouped by {unknown!r}; {known_names(unknown, kind.by)}", "by")
    if leave_out is not None and leave_out not in kind.leaves_out:
        known = known_names(leave_out, kind.leaves_out) if kind.leaves_out else "nothing here is fitted to them"
        raise ConfigError(f"{kind.title} cannot leave out {leave_out!r}; {known}", "cv")
    return tuple(dict.fromkeys(by)) or kind.shown or kind.by


def _total(found: Predictions) -> Statistics:
    return statistics(found.predicted, found.measured, found.rows, found.inside)


def _groups(found: Predictions, chosen: Sequence[str]) -> list[GroupFigures]:
    groups = []
    by_name = {grouping.by: grouping for grouping in found.groupings}
    for by in chosen:
        outermost, *inner = (by_name[name] for name in by.split("+"))
        grouping = reduce(lambda outer, each: each.within(outer), inner, outermost)
        for position, name in enumerate(grouping.names):
            rows = grouping.index == position
            if rows.any():
                inside = None if found.inside is None else found.inside[rows]
                figures = statistics(found.predicted[rows], found.measured[rows], inside=inside)
                groups.append(GroupFigures(by, name, figures))
    ratios = [GroupFigures("ratio", each.name, statistics(each.predicted, each.measured)) for each in found.ratios]
    return [*groups, *ratios]


def statistics(
    predicted: FloatArray, measured: FloatArray, rows: int | None = None, inside: BoolArray | None = None
) -> Statistics:
    """Return the error figures over the rows that have a prediction.

    Parameters
    ----------
    predicted : array of float
        Predictions; NaN where there is none.
    measured : array of float
        Positive measurements, one per prediction.
    rows : int, optional
        Rows there are, with those that are in neither array; the length of the arrays by default.
    inside : array of bool, optional
        Whether each measurement lies inside its prediction's interval.
    """
    known = ~np.isnan(predicted)
    evaluated, total = int(known.sum()), len(predicted) if rows is None else rows
    coverage = evaluated / total if total else None
    if not evaluated:
        return Statistics(rows=total, evaluated=0, coverage=coverage)
    predicted, measured = predicted[known], measured[known]
    errors = predicted / measured - 1.0
    median, p90, p95 = np.quantile(np.abs(errors), (0.5, 0.9, 0.95))
    share = None if inside is None else np.mean(inside[known])
    return Statistics(
        rows=total,
        evaluated=evaluated,
        coverage=coverage,
        mean_abs_error=float(np.mean(np.abs(errors))),
        median_abs_error=float(median),
        p90_abs_error=float(p90),
        p95_abs_error=float(p95),
        bias=float(np.median(errors)),
        spearman=spearman(predicted, measured),
        interval_coverage=None if share is None else float(share),
    )


def spearman(a: FloatArray, b: FloatArray) -> float | None:
    """Return the correlation of the ranks of two arrays; equal values share the mean of their ranks.

    None where there are fewer than two values, or one of the arrays is constant.
    """
    if len(a) < 2:
        return None
    first, second = (mean_ranks(values) - (len(values) + 1) / 2 for values in (a, b))
    norm = float(np.sqrt((first @ first) * (second @ second)))
    # Rounding must not make a perfect order more than perfect.
    return max(-1.0, min(1.0, float(first @ second) / norm)) if norm else None


def mean_ranks(values: FloatArray) -> FloatArray:
    """Return the rank of each value, from 1; equal values share the mean of their ranks."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    means: FloatArray = (last - (count - 1) / 2)[group.reshape(-1)]
    return means
