"""A validation, for people."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType

from traincast.calibrate.measurements import Skipped
from traincast.calibrate.statistics import Statistics
from traincast.calibrate.validate import GroupFigures, HeldOut, Validation, WorstRow
from traincast.report.terminal.parts import heading, indented, notes, number, percent, table, text
from traincast.units import format_size, format_time

_SHOWN_WORST = 5
FIGURES = ("rows", "mean", "median", "p90", "p95", "bias", "rank corr.")
"""Headings of the figures of a line."""
INTERVAL = "in 90 %"
"""Heading of how many measurements lie in their interval, where intervals were predicted."""


def view(validation: Validation) -> Iterator[RenderableType]:
    """Yield what to print of a validation, from the figures in total to what was skipped."""
    total = validation.total
    yield text(_headline(total), "bold")
    yield text(f"{validation.path}: {validation.title}")
    yield text(
        f"{total.evaluated:,} of {number(total.rows, 'row', 'rows')} predicted "
        f"({percent(total.evaluated, total.rows)}); errors are fractions of the measured value"
    )
    yield heading("Error")
    yield _errors(total, validation.groups)
    if validation.held_out is not None:
        yield from _held_out(validation.held_out, validation)
    yield from _worst(validation.worst, validation.path, validation.quantity)
    yield from skipped_rows(validation.skipped, validation.path)
    yield from notes("Assumptions", validation.notes, files=[validation.path])


def _held_out(held_out: HeldOut, validation: Validation) -> Iterator[RenderableType]:
    """Yield the errors of constants that were not fitted to the rows, and why some rows have none."""
    if held_out.total.evaluated:
        yield heading(f"Error where each group by {held_out.by} is left out of the fit")
        yield _errors(held_out.total, [group for group in held_out.groups if group.figures.evaluated])
    known = set(validation.skipped)
    more = [row for row in held_out.skipped if row not in known]
    yield from skipped_rows(more, validation.path, f"Skipped where each group by {held_out.by} is left out")


def _errors(total: Statistics, groups: Sequence[GroupFigures]) -> RenderableType:
    headings = FIGURES if total.interval_coverage is None else (*FIGURES, INTERVAL)
    rows = [("all", *figures(total)[: len(headings)])]
    for by, members in groupby(groups, key=lambda group: group.by):
        rows.append((f"by {by}", *[""] * len(headings)))
        rows += [(f"  {group.name}", *figures(group.figures)[: len(headings)]) for group in members]
    return table(("", *headings), rows, labels=("",))


def figures(statistics: Statistics) -> tuple[str, ...]:
    """Return the cells under `FIGURES` and `INTERVAL`; ``-`` where there is no figure."""
    absolute = (
        statistics.mean_abs_error,
        statistics.median_abs_error,
        statistics.p90_abs_error,
        statistics.p95_abs_error,
    )
    return (
        f"{statistics.evaluated:,}",
        *("-" if error is None else f"{100 * error:.1f} %" for error in absolute),
        error_percent(statistics.bias),
        "-" if statistics.spearman is None else f"{statistics.spearman:.3f}",
        "-" if statistics.interval_coverage is None else f"{100 * statistics.interval_coverage:.0f} %",
    )


def error_percent(error: float | None) -> str:
    """Return a signed error as ``+12.3 %``."""
    return "-" if error is None else f"{100 * error:+.1f} %"


def _headline(total: Statistics) -> str:
    if total.median_abs_error is None or total.p90_abs_error is None:
        return "No row could be predicted"
    mean = "" if total.mean_abs_error is None else f", mean {100 * total.mean_abs_error:.1f} %"
    return f"Median error {100 * total.median_abs_error:.1f} %{mean}, p90 {100 * total.p90_abs_error:.1f} %"


def _worst(worst: Sequence[WorstRow], path: str, quantity: str) -> Iterator[RenderableType]:
    if not worst:
        return
    yield heading("Worst rows")
    rows = [
        (
            error_percent(row.error),
            _value(row.measured, quantity),
            _value(row.predicted, quantity),
            _what(row),
            _place(row.id, path),
        )
        for row in worst[:_SHOWN_WORST]
    ]
    yield table(("error", "measured", "predicted", "what", "row"), rows, labels=("what", "row"))


def _value(value: float, quantity: str) -> str:
    """Return a measured or predicted value in the unit that the name of its quantity says."""
    if quantity.endswith("_bytes"):
        return format_size(value)
    return format_time(value) if quantity.endswith("_s") else f"{value:.4g}"


def _what(row: WorstRow) -> str:
    said = {name: value for name, value in row.details.items() if value is not None}
    words = []
    for name, value in said.items():
        if name.endswith("_bytes") and not isinstance(value, str):
            size = format_size(value)
            # A message is what a row is about; of several sizes each says its name.
            several = sum(each.endswith("_bytes") for each in said) > 1
            words.append(f"{name.removesuffix('_bytes').replace('_', ' ')} {size}" if several else size)
        else:
            words.append(
                str(value) if isinstance(value, str) else f"{value} {name.removesuffix('s') if value == 1 else name}"
            )
    return ", ".join(words)


def _place(row: str, path: str) -> str:
    """Return a row's id without the path of the file that all is about."""
    line = row.removeprefix(f"{path}:")
    return row if line == row else f"line {line}"


def skipped_rows(skipped: Sequence[Skipped], path: str = "", title: str = "Skipped") -> Iterator[RenderableType]:
    """Yield how many rows were skipped for each reason, the most frequent first."""
    if not skipped:
        return
    yield heading(title)
    first = {row.reason: row.id for row in reversed(skipped)}
    for reason, count in Counter(row.reason for row in skipped).most_common():
        yield indented(text(f"{number(count, 'row', 'rows')}: {reason} (first: {_place(first[reason], path)})"))
