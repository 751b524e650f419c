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
    unit = ui.TimeUnit.of(result.iteration_time_s)
    path: tuple[ui.Column[PathShare], ...] = (
        ui.Column("stage", lambda each: str(each.stage)),
        ui.Column("work", lambda each: each.what.replace("_", " "), words=True),
        ui.Column(unit.name, lambda each: unit.text(each.time_s)),
        ui.Column("share", lambda each: ui.share(each.time_s, result.iteration_time_s)),
    )
    yield from _table("Critical path: what made the step as long as it is", path, told.critical_path)
    late: tuple[ui.Column[KeptWaiting], ...] = (
        ui.Column("rank", lambda each: str(each.rank)),
        ui.Column("stage", lambda each: str(each.stage)),
        ui.Column(unit.name, lambda each: unit.text(each.time_s)),
    )
    yield from _table("Ranks that keep others waiting, sums over those who wait", late, told.kept_waiting)
    waits: tuple[ui.Column[WaitShare], ...] = (
        ui.Column("rank", lambda each: str(each.rank)),
        ui.Column("waits for", lambda each: str(each.other)),
        ui.Column(unit.name, lambda each: unit.text(each.time_s)),
    )
    yield from _table("Who waits for whom", waits, told.waits)
    yield from _table("Communication, transfer and skew apart", _COMMUNICATION, told.communication)
    overlap: tuple[ui.Column[RankOverlap], ...] = (
        ui.Column("rank", lambda each: str(each.rank)),
        ui.Column("comm", lambda each: unit.text(each.comm_s)),
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
    ui.Column("group", lambda each: each.group, words=True),
    ui.Column("operation", lambda each: ui.operation(each.op), words=True),
    ui.Column("size", lambda each: format_size(each.size_bytes)),
    ui.Column("runs", lambda each: f"{each.runs:,}"),
    ui.Column("transfer", lambda each: format_time(each.each_s)),
    ui.Column("skew", lambda each: format_time(each.skew_s / each.runs)),
    ui.Column("largest skew", lambda each: format_time(each.largest_skew_s), spare=2),
    ui.Column("busbw", lambda each: _rate(each.busbw_bytes_per_s), spare=1),
)
_ROOFLINE: tuple[ui.Column[RooflineRow], ...] = (
    ui.Column("computation", lambda each: each.name, words=True),
    ui.Column("phase", lambda each: each.phase.replace("_", " "), words=True, spare=2),
    ui.Column("runs", lambda each: f"{each.runs:,}"),
    ui.Column("time", lambda each: format_time(each.time_s)),
    ui.Column("flop rate", lambda each: "-" if each.flops_per_s is None else f"{each.flops_per_s / 1e12:,.1f} TFLOP/s"),
    ui.Column("memory rate", lambda each: _rate(each.bytes_per_s), spare=1),
    ui.Column("intensity", lambda each: "-" if each.intensity is None else f"{each.intensity:,.0f}", spare=3),
)
