"""Why a step took so long, for people: its critical path, who waits for whom, communication with skew, the roof."""

from typing import TypeVar

from traincast.analysis.summary import CommunicationRow, KeptWaiting, PathShare, RankOverlap, RooflineRow, WaitShare
from traincast.report.terminal import layout as ui
from traincast.simulation.result import Result
from traincast.units import format_rate, format_size, format_time

_SHOWN = 12
T = TypeVar("T")


def analysis(result: Result) -> ui.View:
    """Yield the tables of a result's analysis; a line that says why where it has none."""
    told = result.analysis
    if told is None:
        yield ui.text("\nno analysis: the step has too many operations, or an older version wrote the result")
        return
    unit = ui.TimeUnit.from_largest(result.iteration_time_s)
    path: tuple[ui.Column[PathShare], ...] = (
        ui.column("stage", "stage"),
        ui.column("work", "what", ui.spaced, words=True),
        ui.column(unit.name, "time_s", unit.text),
        ui.Column("share", lambda each: ui.share(each.time_s, result.iteration_time_s)),
    )
    yield from _table("Critical path: what made the step as long as it is", path, told.critical_path)
    late: tuple[ui.Column[KeptWaiting], ...] = (
        ui.column("rank", "rank"),
        ui.column("stage", "stage"),
        ui.column(unit.name, "time_s", unit.text),
    )
    yield from _table("Ranks that keep others waiting, sums over those who wait", late, told.kept_waiting)
    waits: tuple[ui.Column[WaitShare], ...] = (
        ui.column("rank", "rank"),
        ui.column("waits for", "other"),
        ui.column(unit.name, "time_s", unit.text),
    )
    yield from _table("Who waits for whom", waits, told.waits)
    yield from _table("Communication, transfer and skew apart", _COMMUNICATION, told.communication)
    overlap: tuple[ui.Column[RankOverlap], ...] = (
        ui.column("rank", "rank"),
        ui.column("comm", "comm_s", unit.text),
        ui.Column("overlapped", lambda each: ui.share(each.overlapped_s, each.comm_s)),
    )
    yield from _table(f"Overlap of communication with computation, {unit.name}", overlap, told.overlap)
    yield from _table("Computations of the rank that computes longest", _ROOFLINE, told.roofline)


def _table(title: str, columns: "tuple[ui.Column[T], ...]", lines: "tuple[T, ...]") -> ui.View:
    yield from ui.section(title, columns, lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield ui.indented(f"and {len(lines) - _SHOWN:,} more", "dim")


def _rate(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else format_rate(bytes_per_s)


_COMMUNICATION: tuple[ui.Column[CommunicationRow], ...] = (
    ui.column("group", "group", words=True),
    ui.column("operation", "op", ui.operation, words=True),
    ui.column("size", "size_bytes", format_size),
    ui.column("runs", "runs", ui.count),
    ui.column("transfer", "each_s", format_time),
    ui.Column("skew", lambda each: format_time(each.skew_s / each.runs)),
    ui.column("largest skew", "largest_skew_s", format_time, spare=2),
    ui.column("busbw", "busbw_bytes_per_s", _rate, spare=1),
)
_ROOFLINE: tuple[ui.Column[RooflineRow], ...] = (
    ui.column("computation", "name", words=True),
    ui.column("phase", "phase", ui.spaced, words=True, spare=2),
    ui.column("runs", "runs", ui.count),
    ui.column("time", "time_s", format_time),
    ui.Column("flop rate", lambda each: "-" if each.flops_per_s is None else f"{each.flops_per_s / 1e12:,.1f} TFLOP/s"),
    ui.column("memory rate", "bytes_per_s", _rate, spare=1),
    ui.column("intensity", "intensity", "{:,.0f}".format, spare=3),
)
