"""A calibration, for people."""

from collections.abc import Iterator

from rich.console import RenderableType

from traincast.calibrate.calibrate import Calibration
from traincast.report.terminal.parts import heading, table, text
from traincast.report.terminal.validation import error_percent, skipped_rows
from traincast.units import format_rate, format_size, format_time


def view(calibration: Calibration) -> Iterator[RenderableType]:
    """Yield the residuals by size, the fitted numbers beside those of the base, and what was skipped."""
    rows = calibration.residuals[0].after.rows
    yield text(f"{calibration.base.name} fitted to {rows:,} timings", "bold")
    yield heading("Error, in sample (base: before the fit)")
    lines = []
    for each in calibration.residuals:
        after, before = each.after, each.before
        errors = (after.median_abs_error, before.median_abs_error, after.p90_abs_error, before.p90_abs_error)
        lines.append(
            (
                each.name,
                f"{after.rows:,}",
                *("-" if e is None else f"{100 * e:.1f} %" for e in errors),
                error_percent(after.bias),
            )
        )
    yield table(("size", "rows", "median", "base", "p90", "base", "bias"), lines, labels=("size",))
    yield heading("Constants")
    constants = [
        (name, _number(calibration.base, name), _number(calibration.cluster, name)) for name in calibration.fitted
    ]
    yield table(("number", "base", "fitted"), constants, labels=("number",))
    if calibration.notes:
        yield heading("What the rows cannot tell apart")
        yield from (text(f"- {note}") for note in calibration.notes)
    yield from skipped_rows(calibration.skipped)


def _number(cluster: object, path: str) -> str:
    """Return a number of a cluster in the unit that its name ends in."""
    value = cluster
    for name in path.split("."):
        value = getattr(value, name)
    if not isinstance(value, int | float):
        return "-"
    for ending, show in (("_bytes_per_s", format_rate), ("_bytes", format_size), ("_s", format_time)):
        if path.endswith(ending):
            return show(value)
    return f"{value:.4g}"
