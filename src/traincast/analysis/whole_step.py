"""Where a whole step went, told so that what-ifs confirm it.

The breakdown of one rank (`traincast.analysis.breakdown`) says what that rank did; what it waits for is another rank's
work, and what it exchanges may overlap with what takes as long. Of the whole step, communication over a kind of group
has what the step would be shorter by without it. ``compute`` is what the rank that
computes longest computes. What is left is waiting for work of other ranks: ``bubble`` in a pipeline, and in other jobs
the communications that nothing overlaps with though the step is as long without one of them.

Letters: N operations, O owners.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from traincast.analysis.breakdown import EXPOSED, RankBreakdown, last_rank, rank_breakdown, transfer_owners
from traincast.analysis.timed_program import TimedProgram
from traincast.diagnostics import Note
from traincast.engine import run
from traincast.units import format_time
from traincast.workload.ops import BoolArray
from traincast.workload.program import Program, Timeline

_NEGLIGIBLE = 1e-12
"""Share of the step below which a time is rounding."""

_WORTH_SAYING = 0.03
"""Share of the step from which a part is held to what it saves."""

StepWithout = Callable[[BoolArray], float]
"""Returns the step in seconds if some transfers, [N], take no time."""


class WholeStep(NamedTuple):
    """Where a step went."""

    breakdown_s: dict[str, float]
    """Sums to the step."""
    saved_s: dict[str, float]
    """By ``exposed_*``: how much shorter the step is without that communication."""


def whole_step(
    program: Program, timeline: Timeline, ranks: Mapping[int, RankBreakdown], last: int, without: StepWithout
) -> WholeStep:
    """Break down a step.

    Parameters
    ----------
    program : Program
    timeline : Timeline
    ranks : mapping
        Breakdown of each simulated rank, by its index in `program.rank_R`.
    last : int
        Index of the rank whose pauses count: the lowest of those that end last.
    without : callable
        The step if some transfers took no time.
    """
    step_s, own = timeline.step_s, ranks[last].breakdown_s
    saved_s = _savings(program, timeline, without)
    without_s = max(step_s - sum(saved_s.values()), 0.0)
    other_s = min(own["other"], without_s)
    left_s = without_s - other_s
    compute_s = min(left_s, max(rank.compute_s for rank in ranks.values()))
    waits_s = left_s - compute_s
    if waits_s <= _NEGLIGIBLE * step_s:
        compute_s, waits_s = left_s, 0.0
    shares_s = {name: max(own[name] - saved_s[name], 0.0) for name in EXPOSED}
    shares_sum_s = sum(shares_s.values())
    pipelined = any(rank.breakdown_s["bubble"] > _NEGLIGIBLE * step_s for rank in ranks.values())
    parts_s = dict(saved_s)
    if not pipelined and shares_sum_s > 0:
        parts_s = {name: saved_s[name] + waits_s * shares_s[name] / shares_sum_s for name in EXPOSED}
        waits_s = 0.0
    return WholeStep({"compute": compute_s, **parts_s, "bubble": waits_s, "other": other_s}, saved_s)


def competing(where: WholeStep, step_s: float) -> tuple[Note, ...]:
    """Return a note for each large part without which the step is hardly shorter: what takes as long in parallel."""
    found = []
    for name in EXPOSED:
        part_s, saved_s = where.breakdown_s[name], where.saved_s[name]
        if part_s > _WORTH_SAYING * step_s and saved_s < part_s / 2:
            others = {each: time_s for each, time_s in where.breakdown_s.items() if each != name}
            other = max(others, key=others.__getitem__).replace("_", " ")
            shown = name.replace("_", " ")
            text = (
                f"without its {shown} the step is only {format_time(saved_s)} shorter: "
                f"{other} takes as long in parallel"
            )
            found.append(Note("competing-path", text))
    return tuple(found)


def _savings(program: Program, timeline: Timeline, without: StepWithout) -> dict[str, float]:
    """Return by how much the step is shorter without each communication.

    Where they sum to more than the step, as what slows each other down can, each has its share of it.
    """
    owner_N = transfer_owners(program)
    saved_s = dict.fromkeys(EXPOSED, 0.0)
    for number, name in enumerate(EXPOSED, 1):
        mine_N = owner_N == number
        if mine_N.any():
            shorter_s = timeline.step_s - without(mine_N)
            saved_s[name] = shorter_s if shorter_s > _NEGLIGIBLE * timeline.step_s else 0.0
    most = min(1.0, timeline.step_s / max(sum(saved_s.values()), _NEGLIGIBLE))
    return {name: saving_s * most for name, saving_s in saved_s.items()}


def measured_breakdown(step: TimedProgram) -> dict[str, float]:
    """Return where a step that was measured went, in seconds; its parts sum to the step."""
    program, timeline = step.program, step.timeline
    ranks = {index: rank_breakdown(step, index) for index in range(len(program.rank_R))}

    def without(gone_N: BoolArray) -> float:
        return float(run(step.graph, np.where(gone_N, 0.0, timeline.duration_s_N))[2].max(initial=0.0))

    return whole_step(program, timeline, ranks, last_rank(program, timeline), without).breakdown_s
