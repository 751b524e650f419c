"""Whether a plan is complete and runs to its end, told by its columns: a yes is quick, and a no says nothing of why.

Letters: S slots of all stages, Q virtual stages in model order, M microbatches.
"""

from traincast.schedules.plan import SchedulePlan
from traincast.schedules.slots import SlotKind


def is_complete(plan: SchedulePlan, virtual_stages: int, microbatches: int) -> bool:
    """Tell whether every part is there once, on its stage, and in one copy per microbatch."""
    # Names of schedules are listed and completed without arrays.
    import numpy as np

    kind_S, virtual_S, microbatch_S, copy_S, _, stage_S = plan.fields
    placement_CQ = np.array(plan.placement)
    limits = ((kind_S, SlotKind.BW + 1), (virtual_S, virtual_stages), (microbatch_S, microbatches))
    if any(((column_S < 0) | (column_S >= limit)).any() for column_S, limit in (*limits, (copy_S, len(placement_CQ)))):
        return False
    copy_M = np.zeros(microbatches, dtype=copy_S.dtype)
    copy_M[microbatch_S] = copy_S
    if (copy_M[microbatch_S] != copy_S).any() or (placement_CQ[copy_S, virtual_S] != stage_S).any():
        return False
    at_S, count = virtual_S.astype(np.int64) * microbatches + microbatch_S, virtual_stages * microbatches
    doers = (kind_S == SlotKind.F, (kind_S & 1) == 1, kind_S >= SlotKind.W)
    return all((np.bincount(at_S[does_S], minlength=count) == 1).all() for does_S in doers)


def runs_to_its_end(plan: SchedulePlan, virtual_stages: int, microbatches: int) -> bool:
    """Tell whether no stage waits for ever: a complete plan's orders are run without times.

    F waits for F of the virtual stage before, B for its own F and for B of the virtual stage after, W for its own B;
    each stage keeps its order. Slots that run as one wait for what any of them needs.
    """
    import numpy as np

    kind_S, virtual_S, microbatch_S, _, paired_S, stage_S = plan.fields
    count = virtual_stages * microbatches
    nothing, unread = 2 * count, 2 * count + 1
    forward_S = virtual_S.astype(np.int64) * microbatches + microbatch_S
    backward_S = forward_S + count
    is_f, is_w = kind_S == SlotKind.F, kind_S == SlotKind.W
    first, last = virtual_S == 0, virtual_S == virtual_stages - 1
    needs_S = np.where(is_f, np.where(first, nothing, forward_S - microbatches), np.where(is_w, backward_S, forward_S))
    also_S = np.where(is_f | is_w | last, nothing, backward_S + microbatches)
    makes_S = np.where(is_f, forward_S, np.where(is_w, unread, backward_S))
    ends_S = (paired_S == 0) | (np.diff(stage_S, append=-1) != 0)
    until_S = (np.flatnonzero(ends_S) + 1)[np.cumsum(ends_S) - ends_S]
    needs, also, makes, until = (each.tolist() for each in (needs_S, also_S, makes_S, until_S))

    done = bytearray(2 * count + 2)
    done[nothing] = 1
    stops = np.cumsum(np.bincount(stage_S, minlength=len(plan.slots))).tolist()
    position = [0, *stops[:-1]]
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(stops)))
    while ready:
        stage = ready.pop()
        at, stop = position[stage], stops[stage]
        while at < stop:
            end, missing = until[at], -1
            # Most slots run by themselves, and of these there may be a million.
            for slot in (at,) if end == at + 1 else range(at, end):
                if not (done[needs[slot]] and done[also[slot]]):
                    missing = also[slot] if done[needs[slot]] else needs[slot]
            if missing >= 0:
                waiting.setdefault(missing, []).append(stage)
                break
            for slot in (at,) if end == at + 1 else range(at, end):
                made = makes[slot]
                done[made] = 1
                if made in waiting:
                    ready += waiting.pop(made)
            at = end
        position[stage] = at
    return bool(position == stops)
