"""What a file is, for people."""

from collections.abc import Iterator

from rich.console import RenderableType

from traincast.formats.contract import Inspection
from traincast.report.terminal.parts import heading, indented, notes, table, text
from traincast.units import format_size, format_time


def view(inspection: Inspection) -> Iterator[RenderableType]:
    """Yield what to print of an inspection, from the file's format to its oddities."""
    yield text(inspection.path, "bold")
    yield text(f"{inspection.format}: {inspection.generation} ({inspection.confidence:.0%} sure)".replace("%", " %"))
    for reason in inspection.evidence:
        yield indented(text(reason, "dim"))
    if inspection.counts:
        yield heading("Contents")
        counts = (f"{count:,} {what.replace('_', ' ')}" for what, count in inspection.counts.items())
        yield indented(text(", ".join(counts)))
    yield from _layout(inspection)
    if inspection.totals:
        yield heading("Totals")
        rows = [
            (
                total.group,
                total.what.replace("_", " "),
                f"{total.count:,}",
                format_size(total.size_bytes) if total.size_bytes else "",
                "not said" if total.time_s is None else format_time(total.time_s),
            )
            for total in inspection.totals
        ]
        yield table(("group", "what", "count", "size", "time"), rows, labels=("group", "what"))
    yield from notes("Oddities", inspection.oddities, "yellow")


def _layout(inspection: Inspection) -> Iterator[RenderableType]:
    if not inspection.layout:
        return
    said = [f"{name} {value}" for name, value in inspection.layout.items() if value is not None]
    silent = [name for name, value in inspection.layout.items() if value is None]
    yield heading("Layout")
    if said:
        yield indented(text(", ".join(said)))
    if silent:
        yield indented(text(f"not said: {', '.join(silent)}", "dim"))
