"""How far predictions are from measurements: validations and calibrations, for people."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from rich.console import RenderableType

from traincast.calibration.cluster_calibration import Calibration, Residuals
from traincast.calibration.collective_comparison import CollectiveComparison, MeasuredPair
from traincast.calibration.operator_calibration import FamilyResiduals, OperatorCalibration
from traincast.calibration.run_calibration import FittedRun, RunCalibration
from traincast.calibration.tables import Skipped
from traincast.calibration.validate import CountedOnce, GroupFigures, HeldOut, Statistics, Validation
from traincast.calibration.worst import WorstGroup, WorstRow
from traincast.estimate.operators.constants import FamilyConstants
from traincast.hardware.cluster import RunFactor
from traincast.report.terminal import layout as ui
from traincast.simulation.widths import Z
from traincast.units import GIGA, format_rate, format_share, format_size, format_time

_SHOWN_WORST = 5


class _Line(NamedTuple):
    """A line of errors: those of a group, or only its name over the groups by one thing."""

    name: str
    figures: Statistics | None = None


_ERRORS: tuple[ui.Column[Statistics], ...] = (
    ui.column("rows", "evaluated", ui.count),
    ui.column("mean", "mean_abs_error", ui.error),
    ui.column("median", "median_abs_error", ui.error),
    ui.column("p90", "p90_abs_error", ui.error),
    ui.column("p95", "p95_abs_error", ui.error),
    ui.column("bias", "bias", ui.bias),
    ui.column("rank corr.", "spearman", "{:.3f}".format),
)
_INTERVAL: ui.Column[Statistics] = ui.Column(
    "in 90 %", lambda each: "-" if each.interval_coverage is None else format_share(each.interval_coverage, 0)
)
"""How many measurements lie in their interval, where intervals were predicted."""
_WORST_GROUPS: tuple[ui.Column[WorstGroup], ...] = (
    ui.column("of all error", "share", ui.error),
    ui.column("rows", "rows", ui.count),
    ui.column("bias", "bias", ui.bias),
    ui.column("from", "lowest", ui.bias),
    ui.column("to", "highest", ui.bias),
    ui.column("group", "name", words=True),
)


@ui.printed
def print_validation(validation: Validation) -> ui.View:
    """Print how far predictions are from measurements, in total and by group, and what was skipped."""
    total = validation.total
    yield ui.text(_headline(total), "bold")
    yield ui.text(f"{validation.path}: {validation.title}")
    yield ui.text(
        f"{total.evaluated:,} of {ui.number(total.rows, 'row')} predicted "
        f"({ui.share(total.evaluated, total.rows)}); errors are fractions of the measured value"
    )
    yield ui.heading("Error")
    yield _errors(total, validation.groups)
    yield from _counted_once(validation.counted_once)
    if validation.held_out is not None:
        yield from _held_out(validation.held_out, validation)
    columns = _worst_columns(validation.path, validation.quantity)
    yield from ui.section("Worst rows", columns, validation.worst[:_SHOWN_WORST])
    yield from ui.section(_groups_heading(validation), _WORST_GROUPS, validation.worst_groups)
    yield from _skipped(validation.skipped, validation.path)
    yield from ui.diagnostics("Assumptions", validation.notes, files=[validation.path])


def _headline(total: Statistics) -> str:
    if total.median_abs_error is None or total.p90_abs_error is None:
        return "No row could be predicted"
    mean = "" if total.mean_abs_error is None else f", mean {ui.error(total.mean_abs_error)}"
    return f"Median error {ui.error(total.median_abs_error)}{mean}, p90 {ui.error(total.p90_abs_error)}"


def _errors(total: Statistics, groups: Sequence[GroupFigures]) -> RenderableType:
    known = _ERRORS if total.interval_coverage is None else (*_ERRORS, _INTERVAL)
    name: ui.Column[_Line] = ui.column("", "name", words=True)
    lines = [_Line("all", total)]
    for by, members in groupby(groups, key=lambda group: group.by):
        lines += [_Line(f"by {by}"), *(_Line(f"  {group.name}", group.figures) for group in members)]
    return ui.table((name, *(column.over(lambda line: line.figures) for column in known)), lines)


def _counted_once(figures: CountedOnce | None) -> ui.View:
    """Yield what the errors are where each source counts once, however many rows it has."""
    if figures is not None:
        inside = figures.interval_coverage
        covered = "" if inside is None else f", {format_share(inside, 0)} inside the interval"
        each = f"each of {figures.groups} {figures.by}s counted once"
        yield ui.indented(f"{each}: median error {ui.error(figures.median_abs_error)}{covered}")


def _held_out(held_out: HeldOut, validation: Validation) -> ui.View:
    """Yield the errors of constants that were not fitted to the rows, and why some rows have none."""
    if held_out.total.evaluated:
        yield ui.heading(f"Error where each group by {held_out.by} is left out of the fit")
        yield _errors(held_out.total, [group for group in held_out.groups if group.figures.evaluated])
        yield from _counted_once(held_out.counted_once)
    known = set(validation.skipped)
    more = [row for row in held_out.skipped if row not in known]
    yield from _skipped(more, validation.path, f"Skipped where each group by {held_out.by} is left out")


def _worst_columns(path: str, quantity: str) -> tuple[ui.Column[WorstRow], ...]:
    def value(number: float) -> str:
        if quantity.endswith("_bytes"):
            return format_size(number)
        return format_time(number) if quantity.endswith("_s") else f"{number:.4g}"

    return (
        ui.column("error", "error", ui.bias),
        ui.column("measured", "measured", value),
        ui.column("predicted", "predicted", value),
        ui.Column("what", _what, words=True),
        ui.Column("row", lambda row: _place(row.id, path), words=True),
    )


def _groups_heading(validation: Validation) -> str:
    """Return the title of the groups with most of all error."""
    by = "" if not validation.worst_groups else f", by {validation.worst_groups[0].by}"
    left_out = "" if validation.held_out is None else f", each group by {validation.held_out.by} left out"
    return f"Where the error is{by}{left_out}"


def _what(row: WorstRow) -> str:
    said = {name: value for name, value in row.details.items() if value is not None}
    words = []
    for name, value in said.items():
        if isinstance(value, str):
            words.append(value)
        elif name.endswith("_bytes"):
            # A message is what a row is about; of several sizes each says its name.
            several = sum(each.endswith("_bytes") for each in said) > 1
            size = format_size(value)
            words.append(f"{name.removesuffix('_bytes').replace('_', ' ')} {size}" if several else size)
        else:
            words.append(f"{value} {name.removesuffix('s') if value == 1 else name}")
    return ", ".join(words)


def _place(row: str, path: str) -> str:
    """Return a row's id without the path of the file that all is about."""
    line = row.removeprefix(f"{path}:")
    return row if line == row else f"line {line}"


def _skipped(skipped: Sequence[Skipped], path: str = "", title: str = "Skipped") -> ui.View:
    """Yield how many rows were skipped for each reason, the most frequent first."""
    if not skipped:
        return
    yield ui.heading(title)
    first = {row.reason: row.id for row in reversed(skipped)}
    for reason, count in Counter(row.reason for row in skipped).most_common():
        yield ui.indented(f"{ui.number(count, 'row')}: {reason} (first: {_place(first[reason], path)})")


@ui.printed
def print_collective_comparison(comparison: CollectiveComparison) -> ui.View:
    """Print measured collectives of two files side by side: a table of sizes for each operation and group."""
    pairs = comparison.pairs
    share = comparison.median_relative
    how = "the same" if share == 0 else f"{format_share(abs(share))} {'longer' if share > 0 else 'shorter'} than A"
    yield ui.text(f"B is {how} in the median of {ui.number(len(pairs), 'size')}", "bold")
    for label, name, only in (("A", comparison.a, comparison.only_a), ("B", comparison.b, comparison.only_b)):
        alone = f" ({ui.number(only, 'size')} not in the other)" if only else ""
        yield ui.text(f"{label}  {name}{alone}")
    for (op, ranks, nodes), lines in groupby(pairs, key=lambda pair: (pair.op, pair.ranks, pair.nodes)):
        where = f" on {ui.number(nodes, 'node')}" if nodes else ""
        yield from ui.section(f"{ui.operation(op)} over {ranks} ranks{where}, us and GB/s", _PAIRS, list(lines))
    yield from _skipped(comparison.skipped)


def _gb(rate_bytes_per_s: float) -> str:
    return f"{rate_bytes_per_s / GIGA:.4g}"


_PAIRS: tuple[ui.Column[MeasuredPair], ...] = (
    ui.column("size", "size_bytes", format_size),
    ui.Column("A", lambda pair: f"{pair.a_s * 1e6:,.4g}"),
    ui.Column("B", lambda pair: f"{pair.b_s * 1e6:,.4g}"),
    ui.column(" ", "relative", ui.change),
    ui.Column("busbw A", lambda pair: _gb(pair.busbw_bytes_per_s(pair.a_s))),
    ui.Column("busbw B", lambda pair: _gb(pair.busbw_bytes_per_s(pair.b_s))),
)
_BY_SIZE: tuple[ui.Column[Residuals], ...] = (
    ui.column("size", "name", words=True),
    ui.column("rows", "after.rows", ui.count),
    ui.column("median", "after.median_abs_error", ui.error),
    ui.column("base", "before.median_abs_error", ui.error),
    ui.column("p90", "after.p90_abs_error", ui.error),
    ui.column("base", "before.p90_abs_error", ui.error),
    ui.column("bias", "after.bias", ui.bias),
)


@ui.printed
def print_calibration(calibration: Calibration) -> ui.View:
    """Print a fit: its residuals by size, and the constants before and after."""
    yield ui.text(f"{calibration.base.name} fitted to {calibration.residuals[0].after.rows:,} timings", "bold")
    yield from ui.section("Error, in sample (base: before the fit)", _BY_SIZE, calibration.residuals)
    constants: tuple[ui.Column[str], ...] = (
        ui.Column("number", str, words=True),
        ui.Column("base", lambda name: _constant(calibration.base, name)),
        ui.Column("fitted", lambda name: _constant(calibration.cluster, name)),
    )
    yield from ui.section("Constants", constants, calibration.fitted)
    if calibration.notes:
        yield ui.heading("Identifiability: what the rows cannot tell apart")
        yield from (ui.text(f"- {note}") for note in calibration.notes)
    yield from _skipped(calibration.skipped)


_RUNS: tuple[ui.Column[FittedRun], ...] = (
    ui.column("run", "id", words=True),
    ui.column("measured", "measured_s", format_time),
    ui.column("forecast", "before_s", format_time),
    ui.Column("error", lambda each: ui.error(each.before_s / each.measured_s - 1, "+")),
    ui.column("fitted", "after_s", format_time),
    ui.Column("error", lambda each: ui.error(each.after_s / each.measured_s - 1, "+")),
)
_FACTORS: tuple[ui.Column[RunFactor], ...] = (
    ui.column("class of work", "cost_class", words=True),
    ui.column("factor", "factor", "{:.3f}".format),
    ui.Column("90 % within", lambda each: f"{each.factor / _spread(each):.3f} to {each.factor * _spread(each):.3f}"),
)


def _spread(factor: RunFactor) -> float:
    return math.exp(Z * factor.deviation)


@ui.printed
def print_run_calibration(calibration: RunCalibration) -> ui.View:
    """Print what runs on a cluster taught: each run before and after the fit, and the factors."""
    runs, title = calibration.counted_runs, "Passes (medians)" if calibration.of_passes else "Steps"
    yield ui.text(f"{calibration.base.name} fitted to {runs} of {calibration.framework}", "bold")
    yield from ui.section(title, _RUNS, calibration.runs)
    yield from ui.section(f"Factors on jobs of {calibration.framework}", _FACTORS, calibration.cluster.run_factors)
    yield from _skipped(calibration.skipped)
    yield from ui.diagnostics("Notes", calibration.notes, files=calibration.files)


def _constant(cluster: object, path: str) -> str:
    """Return a number of a cluster in the unit that its name ends in."""
    value = cluster
    for name in path.split("."):
        value = getattr(value, name)
    if not isinstance(value, int | float):
        return "-"
    for ending, written in (("_bytes_per_s", format_rate), ("_bytes", format_size), ("_s", format_time)):
        if path.endswith(ending):
            return written(value)
    return f"{value:.4g}"


_CONSTANTS: tuple[ui.Column[FamilyConstants], ...] = (
    ui.column("family", "family", words=True),
    ui.column("dtype", "dtype", words=True),
    ui.column("compute", "compute", "{:.3f}".format),
    ui.column("memory", "memory", "{:.3f}".format),
    ui.column("k fill", "k_fill", "{:.0f}".format),
    ui.column("wave", "wave", "{:.2f}".format),
)


@ui.printed
def print_operator_calibration(calibration: OperatorCalibration) -> ui.View:
    """Print a fit of operators' constants: its residuals by family, and the constants."""
    families = ui.number(len(calibration.constants), "family", "families")
    sure = {(row.family, row.dtype): row.confidence for row in calibration.constants}
    by_family: tuple[ui.Column[FamilyResiduals], ...] = (
        ui.column("family", "family", words=True),
        ui.column("dtype", "dtype", words=True),
        ui.column("rows", "after.rows", ui.count),
        ui.column("base", "before.median_abs_error", ui.error),
        ui.column("median", "after.median_abs_error", ui.error),
        ui.column("p90", "after.p90_abs_error", ui.error),
        ui.Column("held-out median", lambda each: ui.error(each.held_out.median_abs_error if each.held_out else None)),
        ui.Column("held-out p90", lambda each: ui.error(each.held_out.p90_abs_error if each.held_out else None)),
        ui.Column("confidence", lambda each: sure[each.family, each.dtype]),
    )
    yield ui.text(f"{calibration.gpu.name}: {families} fitted to {', '.join(calibration.files)}", "bold")
    yield from ui.section(
        "Error (base: before the fit; median and p90: in sample; held out: predicted without the row)",
        by_family,
        calibration.residuals,
    )
    yield from ui.section("Constants", _CONSTANTS, calibration.constants)
    yield from _skipped(calibration.skipped)
