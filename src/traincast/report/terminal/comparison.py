"""Two steps side by side, for people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import RenderableType

from traincast.analysis.comparison import Comparison, Difference, Side, Unmatched
from traincast.report.terminal.parts import TimeUnit, heading, indented, number, signed, signed_percent, table, text
from traincast.report.terminal.runs import ALIKE, hidden_runs, legend, shorten
from traincast.report.terminal.utilisation import utilisation
from traincast.units import format_time

_LEAST_BASE = 1e-3
_MOST_RATIO = 10.0


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that every table of differences has: both sides, the difference, its share of the first.

    Parameters
    ----------
    a, b : str
        Headings of the two sides.
    unit : TimeUnit
        Unit of the times.
    step_s : float
        The longer of the two steps.
    """

    a: str
    b: str
    unit: TimeUnit
    step_s: float

    @classmethod
    def of(cls, comparison: Comparison, a: str, b: str) -> "Columns":
        """Return the columns in a unit finer than that of the steps, because differences are small."""
        step_s = max(comparison.step.a_s, comparison.step.b_s)
        return cls(a, b, TimeUnit.of(step_s / 100), step_s)

    @property
    def headings(self) -> list[str]:
        """Headings of the four columns."""
        return [self.a, self.b, "difference", " "]

    def cells(self, difference: Difference, ranks: int = 1) -> list[str]:
        """Return the four cells of a line; of a sum over several ranks with their number."""
        times = [self.unit.text(time_s) for time_s in (difference.a_s, difference.b_s)]
        share = share_that_matters(difference, self.step_s * ranks)
        return [*times, signed(self.unit.text(difference.difference_s)), signed_percent(share)]


def share_that_matters(difference: Difference, whole_s: float) -> float | None:
    """Return a difference as a share of side a, where that says something; None where it does not.

    A share of what is less than a thousandth of the whole says nothing of the step, nor does one of what became ten
    times as long; the difference in seconds does.
    """
    if difference.a_s < _LEAST_BASE * whole_s or difference.b_s >= _MOST_RATIO * difference.a_s:
        return None
    return difference.relative


def view(comparison: Comparison, *, ranks: bool) -> Iterator[RenderableType]:
    """Yield what to print of a comparison, from the steps to what only one side has.

    Parameters
    ----------
    comparison : Comparison
        The two steps.
    ranks : bool
        Whether to show the parts of each rank, too, and every rank's end.
    """
    columns = Columns.of(comparison, "A", "B")
    yield text(_headline(comparison.step), "bold")
    for label, side in (("A", comparison.a), ("B", comparison.b)):
        shares = utilisation(side.mfu, None, side.mfu_peak, side.mfu_16_bit)
        yield text(f"{label}  {side.name} ({', '.join(filter(None, (side.what, shares)))})")
    if comparison.breakdown is not None:
        yield from _breakdown(comparison.breakdown, columns)
    if comparison.parts:
        yield from parts(comparison, columns)
    if comparison.ends:
        yield heading(f"Ends, {columns.unit.name}")
        yield from ends(comparison, columns, elide=not ranks)
    if ranks:
        yield from _rank_parts(comparison, columns)
    yield from _only("A", comparison.a, comparison.only_a)
    yield from _only("B", comparison.b, comparison.only_b)


def over_ranks(comparison: Comparison) -> str:
    """Return over which ranks the parts are summed: ``sums over 8 ranks``."""
    return f"sums over {number(len(comparison.ends), 'rank', 'ranks')}"


def parts(comparison: Comparison, columns: Columns, sides: str = "") -> Iterator[RenderableType]:
    """Yield a table of what each part that both sides have took, and one of what it waited for other ranks.

    Of a part whose waiting a side does not know all of the time is in the first table.
    """
    where = f"{columns.unit.name} ({over_ranks(comparison)})"
    own = {
        part: whole if (wait := comparison.waits.get(part)) is None else whole.without(wait)
        for part, whole in comparison.parts.items()
    }
    waits = {part: wait for part, wait in comparison.waits.items() if part in own and (wait.a_s or wait.b_s)}
    names = (
        ("parts without waiting", "waiting for other ranks") if comparison.waits else ("parts, waiting included", "")
    )
    for name, rows in zip(names, (own, waits), strict=True):
        if rows:
            yield heading(f"{sides}: {name}, {where}" if sides else f"{name[0].upper()}{name[1:]}, {where}")
            ranks = len(comparison.ends)
            lines = [(part, *columns.cells(difference, ranks)) for part, difference in rows.items()]
            yield table(("part", *columns.headings), lines, labels=("part",))


def ends(
    comparison: Comparison, columns: Columns, *, stage_of: Mapping[int, int] | None = None, elide: bool = True
) -> Iterator[RenderableType]:
    """Yield a table with a line per rank, with its stage where that is known; long runs of like ranks elided."""
    times = [(each.a_s, each.b_s) for each in comparison.ends.values()]
    hidden = hidden_runs(times, ALIKE * max(comparison.step.a_s, comparison.step.b_s)) if elide else []
    rows = []
    for rank, difference in comparison.ends.items():
        stage = [] if stage_of is None else [str(stage_of[rank])]
        rows.append([str(rank), *stage, *columns.cells(difference)])
    yield table(["rank", *([] if stage_of is None else ["stage"]), *columns.headings], shorten(rows, hidden))
    yield from legend("rank", list(comparison.ends), hidden)


def _headline(step: Difference) -> str:
    told = f"Step A {format_time(step.a_s)}, B {format_time(step.b_s)}"
    if step.difference_s == 0:
        return f"{told}: the same"
    relative = share_that_matters(step, max(step.a_s, step.b_s))
    share = f" ({signed_percent(relative)})" if relative is not None else ""
    return (
        f"{told}: B is {format_time(abs(step.difference_s))} {'longer' if step.difference_s > 0 else 'shorter'}{share}"
    )


def _breakdown(breakdown: Mapping[str, Difference], columns: Columns) -> Iterator[RenderableType]:
    rows, empty = [], []
    for key, difference in breakdown.items():
        label = key.replace("_", " ")
        if difference.a_s == difference.b_s == 0:
            empty.append(label)
        else:
            rows.append((label, *columns.cells(difference)))
    yield heading(f"Where the time goes, {columns.unit.name}")
    yield table(("", *columns.headings), rows, labels=("",))
    if empty:
        yield indented(text(f"none: {', '.join(empty)}", "dim"))


def _rank_parts(comparison: Comparison, columns: Columns) -> Iterator[RenderableType]:
    rows = [
        (str(rank), part, *columns.cells(difference))
        for rank, each in comparison.rank_parts.items()
        for part, difference in each.items()
    ]
    if rows:
        yield heading(f"Parts of each rank, waiting included, {columns.unit.name}")
        yield table(("rank", "part", *columns.headings), rows, labels=("part",))


def _only(label: str, side: Side, only: Unmatched) -> Iterator[RenderableType]:
    """Yield what only one side has; nothing where there is nothing."""
    where: dict[str, list[int]] = {}
    for rank, alone in only.part_s.items():
        for part in alone:
            where.setdefault(part, []).append(rank)
    lines = [_ranks(only.ranks)] if only.ranks else []
    for part, ranks in where.items():
        total_s = sum(side.part_s[rank][part] for rank in ranks)
        lines.append(f"{part} on {_ranks(ranks)}, {format_time(total_s)}")
    if lines:
        yield heading(f"Only in {label}")
        for line in lines:
            yield indented(text(line))


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in rising order as ``ranks 0-3, 7``."""
    spans = []
    for _, run in groupby(enumerate(ranks), key=lambda item: item[1] - item[0]):
        members = [rank for _, rank in run]
        spans.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(spans)}"
