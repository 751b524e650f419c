"""What stands out of a step: the dearest collectives, stragglers, and what would be faster."""

from collections.abc import Iterator

from rich.console import RenderableType

from traincast.report.terminal.parts import heading, indented, table, text
from traincast.simulation.result import CollectiveResult, Result
from traincast.units import format_size, format_time

_SHOWN = 8


def collectives(result: Result) -> Iterator[RenderableType]:
    """Yield the communications that take the longest in all, and how much the others take."""
    if not result.collectives:
        return
    dearest = sorted(result.collectives, key=_total_s, reverse=True)
    rows = [
        (
            entry.group,
            entry.op.replace("_", " "),
            format_size(entry.size_bytes),
            f"{entry.ranks}/{entry.nodes}",
            f"{entry.count:,}",
            format_time(entry.time_s),
            format_time(_total_s(entry)),
            entry.algorithm if entry.protocol is None else f"{entry.algorithm} {entry.protocol}",
        )
        for entry in dearest[:_SHOWN]
    ]
    headings = ("group", "operation", "size", "ranks/\nnodes", "count", "each", "total", "how")
    yield heading("Communication (transfer, hidden or not)")
    yield table(headings, rows, labels=("group", "operation", "how"), spare=("each", "how", "ranks/\nnodes"))
    others = dearest[_SHOWN:]
    if others:
        total_s = sum(_total_s(entry) for entry in others)
        yield indented(text(f"and {len(others):,} more, {format_time(total_s)} in all", "dim"))


def stragglers(result: Result) -> Iterator[RenderableType]:
    """Yield a line per straggler; nothing where there is none."""
    if not result.stragglers:
        return
    yield heading("Stragglers")
    rows = [
        (
            f"{entry['rank']:.0f}",
            f"{entry['stage']:.0f}",
            f"{entry['slowdown']:.2f}x",
            format_time(entry["cost_s"]),
        )
        for entry in result.stragglers
    ]
    yield table(("rank", "stage", "slowdown", "costs"), rows)


def what_if(result: Result) -> Iterator[RenderableType]:
    """Yield what the step would take after each change; nothing where none was asked for."""
    if not result.what_if:
        return
    yield heading("What if")
    rows = [
        (str(entry["change"]), _time(entry["iteration_time_s"]), _time(entry["saving_s"])) for entry in result.what_if
    ]
    yield table(("change", "step", "saves"), rows, labels=("change",))


def _total_s(entry: CollectiveResult) -> float:
    return entry.count * entry.time_s


def _time(value: object) -> str:
    return format_time(value) if isinstance(value, int | float) else ""
