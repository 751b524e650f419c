"""What a file is, for people."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from traincast.formats.contract import Inspection
from traincast.report.terminal.parts import heading, indented, notes, number, table, text
from traincast.units import format_size, format_time

_SHOWN = 3
"""Files up to which each is shown."""


def view(inspections: Sequence[Inspection], *, whole: bool = False) -> Iterator[RenderableType]:
    """Yield what to print of files: of several a summary, then a block for each.

    Parameters
    ----------
    inspections : sequence of Inspection
        In the order of the files.
    whole : bool
        Whether to show every file, however many there are.
    """
    if len(inspections) > 1:
        yield text(_summary(inspections), "bold")
    hidden = () if whole or len(inspections) <= _SHOWN else inspections[1:-1]
    for position, each in enumerate(inspections):
        if not hidden or position in (0, len(inspections) - 1):
            if len(inspections) > 1:
                yield text("")
            yield from _block(each)
        elif position == 1:
            oddities = sum(len(inspection.oddities) for inspection in hidden)
            said = f"with {number(oddities, 'oddity', 'oddities')}" if oddities else "without oddities"
            yield text(f"\n... {number(len(hidden), 'file', 'files')} more, {said} (--all shows them)", "dim")


def _summary(inspections: Sequence[Inspection]) -> str:
    """Return how many files there are; of rank traces also how many ranks of the world."""
    files = number(len(inspections), "file", "files")
    if {each.format for each in inspections} != {"echo"}:
        return files
    found = [each.layout["rank"] for each in inspections if each.layout.get("rank") is not None]
    ranks, worlds = set(found), {each.layout.get("world_size") for each in inspections} - {None}
    if not ranks:
        return files
    traced = number(len(ranks), "rank", "ranks")
    if len(found) > len(ranks):
        again = number(sum(found.count(rank) > 1 for rank in ranks), "rank", "ranks")
        return f"{files}: traces of {traced}, of several runs: {again} more than once"
    if len(worlds) > 1:
        return f"{files}: traces of {traced}, of several worlds by the file names"
    return f"{files}: traces of {traced}" + (f" of {worlds.pop()} by the file names" if worlds else "")


def _block(inspection: Inspection) -> Iterator[RenderableType]:
    """Yield what to print of one file, from its format to its oddities; of what is no workload one line."""
    if not inspection.evidence:
        yield text(f"{inspection.path}: {inspection.generation}; {inspection.taken_by}")
        return
    yield text(inspection.path, "bold")
    yield text(f"{inspection.format}: {inspection.generation} ({inspection.confidence:.0%} sure)".replace("%", " %"))
    for reason in inspection.evidence:
        yield indented(text(reason, "dim"))
    if inspection.taken_by:
        yield indented(text(inspection.taken_by))
    if inspection.counts:
        yield heading("Contents")
        counts = (f"{count:,} {_named(what, count)}" for what, count in inspection.counts.items())
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
    yield from notes("Oddities", inspection.oddities, "yellow", [inspection.path])


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
