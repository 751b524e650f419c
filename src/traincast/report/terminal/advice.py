"""What to change of a job, in the words of its framework: what each change saves, needs and means."""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from rich.console import RenderableType

from traincast.analysis.summary import Advice
from traincast.report.terminal import layout as ui
from traincast.units import format_share, format_size, format_time

_MOST_OTHERS = 3
"""Changes that save by themselves alone which are told in full."""
_RISKY, _SURE = 0.01, 0.9
"""Chances that are told: of running out of memory from the first on, of saving anything below the second."""


class _Of(Enum):
    """What advice is of, as its heading says."""

    SAME = "What to change"
    NUMBERS = "What changes the numbers that a model learns from"


def advice(found: Sequence[Advice], step_s: float) -> ui.View:
    """Yield changes in the order to make them, those that change numbers apart, and what all of them save."""
    unit = ui.TimeUnit.from_largest(step_s)
    first = 1
    for kind in _Of:
        mine = [each for each in found if each.same_numbers == (kind is _Of.SAME)]
        lines, others = [each for each in mine if each.taken], [each for each in mine if not each.taken]
        if mine:
            yield ui.heading(f"{kind.value}, in this order ({mine[0].words_of})")
        if lines:
            yield _figures(lines, unit, first)
            for number, each in enumerate(lines, first):
                yield from _told(f"{number}", each.spelled, known(each))
            yield ui.indented(_sum(lines, step_s, of_numbers=kind is _Of.NUMBERS), "dim")
        for each in others[:_MOST_OTHERS]:
            says = f"{each.name}, alone {format_time(each.alone_s)} ({format_share(each.alone_s / step_s)}) less"
            yield from _told("-", f"{says}: {each.spelled}", known(each))
        if others[_MOST_OTHERS:]:
            names = ", ".join(each.name for each in others[_MOST_OTHERS:])
            yield ui.indented(f"and, by themselves: {names}", "dim")
        first += len(lines)


def _told(mark: str, text: str, known: Iterable[str]) -> Iterator[RenderableType]:
    """Yield how a change is said after a mark, and below it what else there is to know."""
    more = "; ".join(known)
    yield ui.indented(ui.hanging(mark, text))
    if more:
        yield ui.indented(ui.below(mark, more), "dim")


def _figures(lines: Sequence[Advice], unit: ui.TimeUnit, first: int) -> RenderableType:
    """Return a table of what changes save and need."""
    numbers = {each.name: number for number, each in enumerate(lines, first)}
    columns: tuple[ui.Column[Advice], ...] = (
        ui.Column("", lambda each: str(numbers[each.name])),
        ui.column("change", "name", words=True, least=22),
        ui.column(f"saves, {unit.name}", "saving_s", unit.text),
        ui.Column("90 % interval", lambda each: f"{unit.brief(each.saving_low_s)} to {unit.brief(each.saving_high_s)}"),
        ui.column(f"step, {unit.name}", "iteration_time_s", unit.text),
        ui.column("memory", "more_bytes", more, spare=2),
        ui.column(f"alone, {unit.name}", "alone_s", unit.text, spare=1),
    )
    return ui.table(columns, lines)


def more(size_bytes: float) -> str:
    """Return how much more memory a change needs: ``+1.2 GiB``."""
    return "as it is" if abs(size_bytes) < 1 else f"{'+' if size_bytes > 0 else '-'}{format_size(abs(size_bytes))}"


def known(each: Advice) -> Iterator[str]:
    """Yield what else there is to know of a change."""
    if each.numbers:
        yield f"numbers: {each.numbers}"
    if each.needs:
        yield f"needs {each.needs}"
    if not each.usual:
        yield "few published runs have it"
    if each.chance_faster < _SURE:
        yield f"is faster with {format_share(each.chance_faster, 0)} only"
    if each.more_bytes > 0 and each.chance_of_oom > _RISKY:
        yield f"then {format_size(each.peak_bytes)}, out of memory with {format_share(each.chance_of_oom, 0)}"


def _sum(lines: Sequence[Advice], step_s: float, *, of_numbers: bool) -> str:
    """Return what all of some changes save."""
    saved_s = sum(each.saving_s for each in lines)
    left = format_time(lines[-1].iteration_time_s)
    what = f"together {format_time(saved_s)} ({format_share(saved_s / step_s)}) less, {left} left"
    return f"{what}; --apply {'all-advice' if of_numbers else 'advice'} writes the job so"
