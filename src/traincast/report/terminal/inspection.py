"""What a file is, and what files were written, for people."""

from collections.abc import Sequence

from traincast.formats.contract import Inspection, Total
from traincast.formats.writer import Conversion
from traincast.report.terminal import layout as ui
from traincast.report.terminal.step import gpu_time
from traincast.units import format_share, format_size, format_time

_SHOWN = 3
"""Files up to which each is shown."""


@ui.printed
def print_inspections(inspections: Sequence[Inspection], *, whole: bool = False) -> ui.View:
    """Print what files are: of several a summary, then each; of many only the first and the last, unless `whole`."""
    if len(inspections) > 1:
        yield ui.text(_summary(inspections), "bold")
    hidden = () if whole or len(inspections) <= _SHOWN else inspections[1:-1]
    for position, each in enumerate(inspections):
        if not hidden or position in (0, len(inspections) - 1):
            if len(inspections) > 1:
                yield ui.text("")
            yield from _block(each)
        elif position == 1:
            warnings = sum(len(inspection.oddities) for inspection in hidden)
            said = f"with {ui.number(warnings, 'warning')}" if warnings else "without warnings"
            yield ui.text(f"\n... {ui.number(len(hidden), 'file')} more, {said} (--all shows them)", "dim")


def _summary(inspections: Sequence[Inspection]) -> str:
    """Return how many files there are; of rank traces also how many ranks of the world."""
    files = ui.number(len(inspections), "file")
    if {each.format for each in inspections} != {"echo"}:
        return files
    found = [each.layout["rank"] for each in inspections if each.layout.get("rank") is not None]
    ranks, worlds = set(found), {each.layout.get("world_size") for each in inspections} - {None}
    if not ranks:
        return files
    traced = ui.number(len(ranks), "rank")
    if len(found) > len(ranks):
        again = ui.number(sum(found.count(rank) > 1 for rank in ranks), "rank")
        return f"{files}: traces of {traced}, of several runs: {again} more than once"
    if len(worlds) > 1:
        return f"{files}: traces of {traced}, of several worlds by the file names"
    return f"{files}: traces of {traced}" + (f" of {worlds.pop()} by the file names" if worlds else "")


def _block(inspection: Inspection) -> ui.View:
    """Yield what to print of one file, from its format to its warnings; of what is not a workload one line."""
    if not inspection.evidence:
        yield ui.text(f"{inspection.path}: {inspection.generation}; {inspection.taken_by}")
        return
    yield ui.text(inspection.path, "bold")
    yield ui.text(f"{inspection.format}: {inspection.generation} (confidence {format_share(inspection.confidence, 0)})")
    for reason in inspection.evidence:
        yield ui.indented(reason, "dim")
    if inspection.taken_by:
        yield ui.indented(inspection.taken_by)
    if inspection.counts:
        yield ui.heading("Contents")
        counts = (f"{count:,} {_named(what, count)}" for what, count in inspection.counts.items())
        yield ui.indented(", ".join(counts))
    yield from _layout(inspection)
    yield from ui.section("Totals", _TOTALS, inspection.totals)
    # Whoever prints no trace needs no numpy.
    from traincast.analysis.gpu_intervals import recorded_gpu_time

    yield from gpu_time(recorded_gpu_time(inspection.recorded))
    yield from ui.diagnostics("Warnings", inspection.oddities, "yellow", [inspection.path])


_TOTALS: tuple[ui.Column[Total], ...] = (
    ui.column("group", "group", words=True),
    ui.column("what", "what", ui.operation, words=True),
    ui.column("count", "count", ui.count),
    ui.Column("size", lambda total: format_size(total.size_bytes) if total.size_bytes else ""),
    ui.Column("time", lambda total: "not specified" if total.time_s is None else format_time(total.time_s)),
)


def _named(what: str, count: int) -> str:
    """Return the words of a count's name, in the singular where there is one: ``layer per microbatch``."""
    words = what.split("_")
    return " ".join(map(_single, words) if count == 1 else words)


def _single(word: str) -> str:
    if word.endswith("ches"):
        return word.removesuffix("es")
    if word == "leaves":
        return "leaf"
    return word if word.endswith("ss") else word.removesuffix("s")


def _layout(inspection: Inspection) -> ui.View:
    if not inspection.layout:
        return
    said = [f"{name} {value}" for name, value in inspection.layout.items() if value is not None]
    silent = [name for name, value in inspection.layout.items() if value is None]
    yield ui.heading("Layout")
    if said:
        yield ui.indented(", ".join(said))
    if silent:
        yield ui.indented(f"not specified: {', '.join(silent)}", "dim")


@ui.printed
def print_conversion(conversion: Conversion) -> ui.View:
    """Print what was written, and what of the run the format cannot say."""
    first, count = conversion.files[0], len(conversion.files)
    several = "" if count == 1 else f" and {ui.number(count - 1, 'file')} more"
    yield ui.text(f"wrote {first}{several} ({format_size(conversion.size_bytes)})", "bold")
    yield from ui.diagnostics("Not in the format", conversion.lost, "yellow")
    yield from ui.diagnostics("Assumptions", conversion.assumptions)
    yield from ui.diagnostics("Warnings", conversion.warnings, "yellow")
