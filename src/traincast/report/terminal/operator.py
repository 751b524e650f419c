"""The price of one operator with its explanation, and a fit of operators' constants."""

from collections.abc import Iterator

from rich.console import RenderableType

from traincast.calibrate.operator_calibration import RESIDUAL_HEADINGS, OperatorCalibration, residual_lines
from traincast.estimate.operator_price import OperatorPrice
from traincast.report.terminal.parts import heading, notes, number, table, text
from traincast.report.terminal.validation import skipped_rows
from traincast.units import format_decimal_size, format_rate, format_time

_FLOPS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))


def view(priced: OperatorPrice) -> Iterator[RenderableType]:
    """Yield what to print of a price: time, bound, utilisation, source, and every term behind it."""
    call, price = priced.call, priced.price
    shape = " x ".join(map(str, call.shape))
    what = "" if call.direction == "forward" else f" {call.direction}"
    yield text(f"{call.family.replace('_', ' ')}{what} {shape}, {call.dtype}, on {priced.gpu}", "bold")
    yield text(f"{format_time(price.time_s)}, bound by {price.bound}: {100 * price.utilisation:.1f} % of its peak")
    yield heading("Why")
    lines = [
        ("FLOP", _flop(price.flops)),
        ("bytes", format_decimal_size(price.bytes_moved)),
        ("FLOP per byte", f"{price.flops / max(price.bytes_moved, 1):.4g}"),
        ("FLOP/s reached", f"{_flop(price.flops / price.time_s)}/s"),
        ("bytes/s reached", format_rate(price.bytes_moved / price.time_s)),
        *((name.removesuffix(" s"), _term(name, value)) for name, value in price.terms),
    ]
    yield table(("term", "value"), lines, labels=("term",))
    yield text(f"Source: {price.source} (confidence: {price.confidence})")
    yield from notes("Assumptions", priced.assumptions)


def calibration_view(calibration: OperatorCalibration) -> Iterator[RenderableType]:
    """Yield the residuals of a fit by family, the constants, and what was skipped."""
    families = number(len(calibration.constants), "family", "families")
    yield text(f"{calibration.gpu.name}: {families} fitted to {', '.join(calibration.files)}", "bold")
    yield heading("Error (base: before the fit; median and p90: in sample; held out: predicted without the row)")
    yield table(RESIDUAL_HEADINGS, list(residual_lines(calibration)), labels=("family", "dtype"))
    yield heading("Constants")
    rows = [
        (row.family, row.dtype, f"{row.compute:.3f}", f"{row.memory:.3f}", f"{row.k_fill:.0f}", f"{row.wave:.2f}")
        for row in calibration.constants
    ]
    yield table(("family", "dtype", "compute", "memory", "k fill", "wave"), rows, labels=("family", "dtype"))
    yield from skipped_rows(calibration.skipped)


def _flop(flops: float) -> str:
    for prefix, scale in _FLOPS:
        if flops >= scale:
            return f"{flops / scale:.4g} {prefix}FLOP"
    return f"{flops:.0f} FLOP"


def _term(name: str, value: float) -> str:
    if name.endswith(" s"):
        return format_time(value)
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"
