"""What the explorer says first: who slows the step and what would help, each with the operations that it is about.

Letters: N operations, T template operations.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from traincast.errors import TraincastError
from traincast.job.changes import PEERS, FieldEdit, WorkEdit
from traincast.report.operations import simulated
from traincast.report.plain import Plain, encodable
from traincast.report.suggestions import change_of, placed_meaning
from traincast.simulation.edits import edited, work_of
from traincast.simulation.result import Result
from traincast.simulation.suggestions import SHORTENS
from traincast.units import format_share, format_time

if TYPE_CHECKING:
    from traincast.workload.ops import FloatArray, IntArray

_SHOWN = 3
_MOST = 0.9
"""Share of what is lost to a slow rank that lies in the part of the step that is shown of it."""


class _Line(Struct, frozen=True):
    """Something worth saying."""

    text: str
    edit: WorkEdit | None
    """What it is about; None: nothing that can be pointed at."""


def advice(result: Result, rows_T: "IntArray") -> list[Plain]:
    """Return what to say first of a result, in words, and what each sentence is about.

    Parameters
    ----------
    result : Result
        A step with its operations.
    rows_T : array
        Template operations of the page, ascending.

    Returns
    -------
    list
        Of each: ``text``; ``rows``, places in `rows_T` of the operations it is about, and ``ranks``, where they run
        (both empty: nothing); ``culprit``, whether these ranks or their stage are slower than others; and ``from_s``
        and ``to_s``, the part of the step to look at.
    """
    lines = [*_culprits(result), *_changes(result)][:_SHOWN]
    return [_about(result, line, rows_T) for line in lines]


def _culprits(result: Result) -> Iterator[_Line]:
    """Yield the slow ranks; of a measured step whose suggestions name no slow rank or stage, what its causes name."""
    for each in result.stragglers:
        impact = f"step-time impact {format_time(each.cost_s)}"
        text = f"rank {each.rank} is {each.slowdown:.2f} times slower than its peers: {impact}"
        yield _Line(text, WorkEdit(work="own", ranks=(each.rank,), like=PEERS))
    named = any(edit is not None and _is_slow(edit) for edit in map(_edit_of, (s.change for s in result.suggestions)))
    for cause in () if result.stragglers or named else result.causes:
        text = f"{cause.name}: {format_time(cause.saving_s)} of the step; {cause.evidence}"
        if cause.ranks or cause.stages:
            yield _Line(text, _edit_of(cause.change))


def _changes(result: Result) -> Iterator[_Line]:
    """Yield what-ifs that were tried, else advice, then suggestions, the best first; none of a rank that was named."""
    for advised in () if result.what_if else result.advice:
        if advised.taken and advised.same_numbers:
            share = format_share(advised.saving_s / result.iteration_time_s)
            between = _between(advised.saving_low_s, advised.saving_high_s)
            saves = f"saves {format_time(advised.saving_s)} ({share}){between}"
            yield _Line(f"{advised.name}: {saves}; {advised.spelled}", None)
    slow = {each.rank for each in result.stragglers}
    tried = [(each.change, each.saving_s, "") for each in result.what_if]
    suggested = [(each.change, each.saving_s, _between(each.low_s, each.high_s)) for each in result.suggestions]
    for change, saving_s, between in sorted(tried or suggested, key=lambda each: -each[1]):
        edit = _edit_of(change)
        if saving_s <= 0 or (edit is not None and _is_slow(edit) and slow.issuperset(edit.ranks or (-1,))):
            continue
        share = format_share(saving_s / result.iteration_time_s)
        yield _Line(f"{placed_meaning(change)}: saves {format_time(saving_s)} ({share}){between}", edit)


def _between(low_s: float, high_s: float) -> str:
    return f", between {format_time(low_s)} and {format_time(high_s)}" if low_s < high_s else ""


def _is_slow(edit: WorkEdit) -> bool:
    return edit.like == PEERS


def _edit_of(change: str) -> WorkEdit | None:
    """Return the work that a change is about; None where it is of no single kind of work."""
    edit = change_of(change)
    if not isinstance(edit, FieldEdit):
        return edit
    work = SHORTENS.get(edit.name)
    return None if work is None else WorkEdit(work=work, factor=1.0)


def _about(result: Result, line: _Line, rows_T: "IntArray") -> Plain:
    step = simulated(result)
    program, timeline = step.program, step.timeline
    nothing: dict[str, Plain] = {"text": encodable(line.text), "rows": [], "ranks": [], "culprit": False}
    if line.edit is None:
        return nothing
    try:
        chosen_N = work_of(program, line.edit)
    except TraincastError:
        return nothing  # a rank that another one stands for, or work that does not exist
    chosen_N &= timeline.end_s_N > timeline.ready_s_N
    rows = np.flatnonzero(np.isin(rows_T, program.row_N[chosen_N]))
    if not len(rows):
        return nothing
    slow = _is_slow(line.edit)
    from_s, to_s = _lost(result, line.edit, np.flatnonzero(chosen_N)) if slow else (0.0, timeline.step_s)
    ranks = np.unique(program.rank_N[chosen_N]).tolist()
    return {**nothing, "rows": rows.tolist(), "ranks": ranks, "culprit": slow, "from_s": from_s, "to_s": to_s}


def _lost(result: Result, edit: WorkEdit, at: "IntArray") -> tuple[float, float]:
    """Return the shortest part of the step in which a slow rank or stage loses most of what it loses to its peers."""
    step = simulated(result)
    program, timeline = step.program, step.timeline
    duration_s_N = timeline.end_s_N - timeline.start_s_N
    try:
        lost_s_N: FloatArray = duration_s_N - edited(program, duration_s_N, [edit])
    except TraincastError:
        lost_s_N = duration_s_N  # it has no peers
    at = at[np.argsort(timeline.start_s_N[at], kind="stable")]
    sums_s = np.cumsum(np.maximum(lost_s_N[at], 0.0))
    if sums_s[-1] <= 0:
        return 0.0, timeline.step_s
    before_s = np.concatenate(([0.0], sums_s[:-1]))
    last = np.searchsorted(sums_s, before_s + _MOST * sums_s[-1])
    begins = np.flatnonzero(last < len(at))
    ends_s = np.maximum.accumulate(timeline.end_s_N[at])[last[begins]]
    shortest = begins[np.argmin(ends_s - timeline.start_s_N[at[begins]])]
    return float(timeline.start_s_N[at[shortest]]), float(timeline.end_s_N[at[: last[shortest] + 1]].max())
