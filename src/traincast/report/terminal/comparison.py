"""Two steps side by side, for people."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct

from traincast.analysis.comparison import Comparison, Difference, Side, Unmatched
from traincast.analysis.summary import Ratio
from traincast.report.terminal import layout as ui
from traincast.report.terminal.training_run import training_runs
from traincast.units import format_share, format_time

T = TypeVar("T")

_LEAST_BASE = 1e-3
_MOST_RATIO = 10.0
_HALF = "16-bit"


class Differences(Struct, frozen=True):
    """What every table of differences shows: both sides, the difference, its share of the first."""

    a: str
    """Heading of this side."""
    b: str
    unit: ui.TimeUnit
    step_s: float
    """The longer of the two steps."""

    @classmethod
    def from_comparison(cls, comparison: Comparison, a: str, b: str) -> "Differences":
        """Return them in a unit finer than that of the steps, because differences are small."""
        step_s = max(comparison.step.a_s, comparison.step.b_s)
        return cls(a, b, ui.TimeUnit.from_largest(step_s / 100), step_s)

    def columns(self, of: Callable[[T], Difference], ranks: int = 1) -> tuple[ui.Column[T], ...]:
        """Return the four columns of lines that have a difference, each a sum over so many ranks."""
        whole_s, unit = self.step_s * ranks, self.unit
        return (
            ui.Column(self.a, lambda line: unit.text(of(line).a_s)),
            ui.Column(self.b, lambda line: unit.text(of(line).b_s)),
            ui.Column("difference", lambda line: ui.signed(unit.text(of(line).difference_s))),
            ui.Column(" ", lambda line: ui.change(_share_that_matters(of(line), whole_s))),
        )


def _share_that_matters(difference: Difference, whole_s: float) -> float | None:
    """Return a difference as a share of side a, where that says something; None where it does not.

    A share of what is less than a thousandth of the whole says nothing of the step, nor does one of what became ten
    times as long; the difference in seconds does.
    """
    if difference.a_s < _LEAST_BASE * whole_s or difference.b_s >= _MOST_RATIO * difference.a_s:
        return None
    return difference.relative


@ui.printed
def print_comparison(comparison: Comparison, *, ranks: bool = False) -> ui.View:
    """Print two steps side by side; with `ranks` every rank and its parts."""
    sides = Differences.from_comparison(comparison, "A", "B")
    yield ui.text(_headline(comparison.step), "bold")
    sides_of_it = (("A", comparison.a), ("B", comparison.b))
    for label, side in sides_of_it:
        shares = utilisation(side.mfu, None, side.mfu_peak, side.mfu_16_bit)
        facts = (side.what, side.how, _within(side), _tokens(side), shares)
        yield ui.text(f"{label}: {side.name} ({', '.join(filter(None, facts))})")
    if (verdict := _verdict(comparison) or interval_of_ratio(comparison.ratio)) is not None:
        yield ui.text(verdict)
    yield from training_runs(comparison.a.training_run, comparison.b.training_run)
    if comparison.breakdown is not None:
        yield from _breakdown(comparison.breakdown, sides)
    if comparison.parts:
        yield from parts(comparison, sides)
    if comparison.ends:
        yield ui.heading(f"Finish times, {sides.unit.name}")
        yield from finish_times(comparison, sides, elide=not ranks)
    if ranks:
        yield from _rank_parts(comparison, sides)
    # A log tells of the step alone; what it says of no rank is not worth a list.
    if comparison.b.end_s:
        yield from _only("A", comparison.a, comparison.only_a)
    if comparison.a.end_s:
        yield from _only("B", comparison.b, comparison.only_b)
    for label, side in sides_of_it:
        yield from ui.diagnostics(f"How {label} was measured", side.notes, "dim", [side.name])
        yield from ui.diagnostics("Warnings", side.warnings, "yellow", [side.name])


def parts(comparison: Comparison, sides: Differences, titled: str = "") -> ui.View:
    """Yield a table of what each part that both sides have took, and one of what it waited for other ranks.

    Of a part whose waiting a side does not know all of the time is in the first table.
    """
    ranks = len(comparison.ends)
    where = f"{sides.unit.name} (sums over {ui.number(ranks, 'rank')})"
    own = {
        part: whole if (wait := comparison.waits.get(part)) is None else whole.without(wait)
        for part, whole in comparison.parts.items()
    }
    waits = {part: wait for part, wait in comparison.waits.items() if part in own and (wait.a_s or wait.b_s)}
    names = (
        ("parts without waiting", "waiting for other ranks") if comparison.waits else ("parts, waiting included", "")
    )
    for name, lines in zip(names, (own, waits), strict=True):
        title = f"{titled}: {name}" if titled else name[:1].upper() + name[1:]
        yield from ui.section(f"{title}, {where}", (_PART, *sides.columns(lines.__getitem__, ranks)), lines)


_PART: ui.Column[str] = ui.Column("part", str, words=True)


def finish_times(
    comparison: Comparison, sides: Differences, *, stage_of: Mapping[int, int] | None = None, elide: bool = True
) -> ui.View:
    """Yield a table with a line per rank, with its stage where that is known; long runs of like ranks elided."""
    ends = comparison.ends
    hidden = ui.alike_runs([(each.a_s, each.b_s) for each in ends.values()], sides.step_s) if elide else []
    columns: list[ui.Column[int]] = [ui.Column("rank", str)]
    if stage_of is not None:
        columns.append(ui.Column("stage", lambda rank: str(stage_of[rank])))
    yield ui.table((*columns, *sides.columns(ends.__getitem__)), ends, hidden)
    yield from ui.legend("rank", list(ends), hidden)


def _within(side: Side) -> str:
    """Return where most of the steps of a side lie; nothing where that is not known."""
    if side.interval is None:
        return ""
    level, low_s, high_s = side.interval.level, side.interval.low_s, side.interval.high_s
    return f"{format_share(level, 0)} interval {format_time(low_s)} to {format_time(high_s)}"


def _tokens(side: Side) -> str:
    rate = side.tokens_per_s_per_gpu
    return "" if rate is None else f"{rate:,.0f} tokens/s/GPU"


def _verdict(comparison: Comparison) -> str | None:
    """Say whether a measured step lies where a forecast expects it; None where the sides are not such a pair."""
    pair = comparison.a, comparison.b
    forecast = next((side for side in pair if side.what == "simulated" and side.interval is not None), None)
    measured = next((side for side in pair if side.what != "simulated"), None)
    if forecast is None or measured is None or forecast.interval is None:
        return None
    inside = forecast.interval.low_s <= measured.step_s <= forecast.interval.high_s
    where = "within" if inside else "above" if measured.step_s > forecast.interval.high_s else "below"
    return f"The measured step is {where} the interval of the forecast."


def interval_of_ratio(ratio: Ratio | None) -> str | None:
    """Say how sure the difference of two forecasts is; None where it has no interval, or is none."""
    if ratio is None or ratio.low == ratio.high:
        return None
    ends = f"{format_share(ratio.low - 1, 1, '+')} to {format_share(ratio.high - 1, 1, '+')}"
    told = "" if ratio.is_told else ": too close to tell which is shorter"
    return f"{format_share(ratio.level, 0)} interval of the difference {ends}{told}"


def _headline(step: Difference) -> str:
    told = f"Step A {format_time(step.a_s)}, B {format_time(step.b_s)}"
    same = which_is_shorter(step.a_s, step.b_s)
    return f"{told}: {f'B is {same}' if step.difference_s else same}"


def which_is_shorter(a_s: float, b_s: float) -> str:
    """Return how the second of two steps differs from the first: ``1.2 s shorter (-10.00 %)``."""
    step = Difference(a_s, b_s)
    if step.difference_s == 0:
        return "the same"
    relative = _share_that_matters(step, max(a_s, b_s))
    share = f" ({ui.change(relative)})" if relative is not None else ""
    return f"{format_time(abs(step.difference_s))} {'longer' if step.difference_s > 0 else 'shorter'}{share}"


def _breakdown(breakdown: Mapping[str, Difference], sides: Differences) -> ui.View:
    empty = [key for key, each in breakdown.items() if each.a_s == each.b_s == 0]
    owner: ui.Column[str] = ui.Column("", ui.spaced, words=True)
    yield ui.heading(f"Where the time goes, {sides.unit.name}")
    yield ui.table((owner, *sides.columns(breakdown.__getitem__)), [key for key in breakdown if key not in empty])
    if empty:
        yield ui.indented(f"none: {', '.join(map(owner.cell, empty))}", "dim")


def _rank_parts(comparison: Comparison, sides: Differences) -> ui.View:
    lines = [(rank, part, each) for rank, known in comparison.rank_parts.items() for part, each in known.items()]
    named: tuple[ui.Column[tuple[int, str, Difference]], ...] = (
        ui.Column("rank", lambda line: str(line[0])),
        ui.Column("part", itemgetter(1), words=True),
    )
    yield from ui.section(
        f"Parts of each rank, waiting included, {sides.unit.name}",
        (*named, *sides.columns(lambda line: line[2])),
        lines,
    )


def _only(label: str, side: Side, only: Unmatched) -> ui.View:
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
        yield ui.heading(f"Only in {label}")
        yield from map(ui.indented, lines)


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in rising order as ``ranks 0-3, 7``."""
    spans = []
    for _, run in groupby(enumerate(ranks), key=lambda item: item[1] - item[0]):
        members = [rank for _, rank in run]
        spans.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(spans)}"


def utilisation(
    mfu: float | None,
    hfu: float | None,
    dtype: str | None,
    mfu_16_bit: float | None = None,
    hfu_16_bit: float | None = None,
) -> str:
    """Return MFU and HFU of the peak of a type, and of the 16-bit one where that is another; an empty text without.

    For example ``MFU 44.0 %, HFU 58.6 % of the fp8 peak (87.9 %, 117.2 % of the 16-bit peak)``; a `dtype` of None
    is the 16-bit one.
    """
    shares = _shares(mfu, hfu, ("MFU ", "HFU "))
    if not shares:
        return ""
    also = "" if dtype in (None, "bf16", "fp16") else _shares(mfu_16_bit, hfu_16_bit, ("", ""))
    half = f" ({also} of the {_HALF} peak)" if also else ""
    return f"{shares} of the {dtype or _HALF} peak{half}"


def _shares(mfu: float | None, hfu: float | None, names: tuple[str, str]) -> str:
    known = [f"{name}{format_share(share)}" for name, share in zip(names, (mfu, hfu), strict=True) if share is not None]
    return ", ".join(known)
