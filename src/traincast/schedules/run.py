"""The length of a pipeline by running its order: of schedules that have no closed form.

Times are arrays over layouts, [K, Z, R], so that one run of an order serves all that have as many microbatches.
"""

from collections import deque

from msgspec.structs import replace

from traincast.model.numbers import Number, added, larger
from traincast.schedules.check import Part, checked_plan, needs, parts
from traincast.schedules.length import Pipeline
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.schedule import Schedule
from traincast.schedules.slots import Slot, SlotKind, turns


def length_of(schedule: Schedule, line: Pipeline) -> Number:
    """Return the seconds from the first pass of a pipeline to its last one: in closed form, or by running its order."""
    once_s = run_length(schedule, line) if schedule.length is None else schedule.length(line)
    return once_s * line.times


def run_length(schedule: Schedule, line: Pipeline) -> Number:
    """Return the same by running the order of each number of microbatches.

    Raises
    ------
    TraincastError
        If the schedule makes no plan of so many stages and microbatches, or one that cannot be executed.
    """
    import numpy as np

    virtual = len(line.kind_Q) // line.stages
    found: list[tuple[Number, Number]] = []
    counts_K = np.broadcast_to(line.microbatches, (line.backward_s_C.shape[1], 1, 1))[:, 0, 0]
    for count in np.unique(counts_K).tolist():
        plan = checked_plan(schedule.name, line.stages, virtual, count, pairs=bool(line.saved_s_C))
        at_K = np.flatnonzero(counts_K == count)
        found.append((at_K, run_plan(plan, _some(line, at_K))))
    length_s = np.empty((len(counts_K), *np.broadcast_shapes(*(each.shape[1:] for _, each in found))))
    for at_K, seconds in found:
        length_s[at_K] = seconds
    return length_s


def _some(line: Pipeline, at_K: Number) -> Pipeline:
    """Return the pipeline of some of its shares."""

    def at(value: Number) -> Number:
        return value[at_K] if getattr(value, "ndim", 0) == 3 else value

    return replace(
        line,
        forward_s_C=list(map(at, line.forward_s_C)),
        backward_s_C=line.backward_s_C[:, at_K],
        weight_s_C=list(map(at, line.weight_s_C)),
        saved_s_C=list(map(at, line.saved_s_C)),
        message_s=at(line.message_s),
        handover_s=at(line.handover_s),
    )


def run_plan(plan: SchedulePlan, line: Pipeline) -> Number:
    """Return when the last stage has ended a plan that can be executed.

    A pass begins when its stage is free and what it needs is there: a message is on its way while other work runs, or
    holds its receiver up where sends and receives block.
    """
    free_P: list[Number] = [0.0] * line.stages
    ended: dict[Part, Number] = {}
    left_P = [deque(turns(order)) for order in plan.slots]
    last = len(line.kind_Q)

    def begins(stage: int, slot: Slot, free_s: Number) -> Number:
        for need in needs(slot, last):
            if plan.placement[slot.copy][need[1]] == stage:
                free_s = larger(free_s, ended[need])
            elif plan.overlapped_p2p:
                free_s = larger(free_s, ended[need] + line.message_s)
            else:
                free_s = larger(free_s, ended[need]) + (line.message_s + line.handover_s)
        return free_s

    while any(left_P):
        for stage, left in enumerate(left_P):
            while left and all(need in ended for slot in left[0] for need in needs(slot, last)):
                together = left.popleft()
                for slot in together:
                    free_P[stage] = begins(stage, slot, free_P[stage])
                free_P[stage] = free_P[stage] + _seconds(together, line)
                ended |= {part: free_P[stage] for slot in together for part in parts(slot)}
    latest_s: Number = 0.0
    for free_s in free_P:
        latest_s = larger(latest_s, free_s)
    return latest_s


def _seconds(together: tuple[Slot, ...], line: Pipeline) -> Number:
    """Return the seconds of slots that run as one, without what they save by that."""
    total = added(_pass_s(slot, line) for slot in together)
    if len(together) == 1 or not line.saved_s_C:
        return total
    return total - added(line.saved_s_C[line.kind_Q[slot.virtual_stage]] for slot in together) / len(together)


def _pass_s(slot: Slot, line: Pipeline) -> Number:
    kind = line.kind_Q[slot.virtual_stage]
    if slot.kind is SlotKind.F:
        return line.forward_s_C[kind]
    if slot.kind is SlotKind.W:
        return line.weight_s_C[kind]
    whole = slot.kind is SlotKind.BW and line.splits_backward
    return line.backward_s_C[kind] + (line.weight_s_C[kind] if whole else 0.0)
