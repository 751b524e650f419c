"""How many microbatches are in flight on the stages of a schedule: what decides which of them needs most memory.

Letters: P stages, V virtual stages per stage, Q all of them, M microbatches, A kinds of virtual stages, E moments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from traincast.schedules.plan import SCHEDULES, SchedulePlan, SlotKind
from traincast.workload.ops import FloatArray, IntArray

_PERIODS = 4
"""Microbatches per stage after which no built-in order has more in flight than before (GPipe has all)."""
_ALL_IN_FLIGHT = "gpipe"


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of the stages of one kind of which one has the largest sum of activations, whatever they keep."""

    count_EA: FloatArray
    """Microbatches of each kind of virtual stage that are saved; halves where weight gradients are still to come."""
    kind_E: IntArray
    """Kind of the virtual stage whose pass runs then."""
    forward_E: IntArray
    """1 for a forward pass, 0 for a backward pass, -1 for weight gradients."""


@lru_cache(maxsize=4096)
def plan_for_memory(schedule: str, stages: int, virtual: int, microbatches: int) -> SchedulePlan:
    """Return the plan of a schedule, with no more microbatches than its first periods have."""
    return SCHEDULES.get(schedule)(stages, virtual, microbatches)


def enough(stages: int, microbatches: int) -> int:
    """Return as few microbatches as have the same moments as these."""
    if microbatches <= _PERIODS * stages:
        return microbatches
    return (_PERIODS - 1) * stages + (microbatches % stages or stages)


@lru_cache(maxsize=65536)
def moments_of(
    schedule: str, stages: int, virtual: int, microbatches: int, kind_Q: tuple[int, ...], stage_P: tuple[int, ...]
) -> tuple[Moments, ...]:
    """Return the moments that decide for each kind of stage.

    Parameters
    ----------
    kind_Q : tuple of int
        Kind of each virtual stage, 0, 1, ...
    stage_P : tuple of int
        Kind of each stage, 0, 1, ...
    """
    if schedule == _ALL_IN_FLIGHT:
        found = moments_of("1f1b", stages, virtual, 1, kind_Q, stage_P)
        return tuple(replace(each, count_EA=each.count_EA * microbatches) for each in found)
    plan = plan_for_memory(schedule, stages, virtual, enough(stages, microbatches))
    kinds = max(kind_Q) + 1
    return tuple(
        _largest([_moments(plan, stage, kind_Q, kinds) for stage in range(stages) if stage_P[stage] == each])
        for each in range(max(stage_P) + 1)
    )


def _moments(plan: SchedulePlan, stage: int, kind_Q: Sequence[int], kinds: int) -> IntArray:
    """Return the distinct moments of a stage as rows: kind, pass, twice the counts."""
    slots = np.array([(slot.kind, slot.virtual_stage) for slot in plan.slots[stage]], dtype=np.int64)
    if not len(slots):
        return np.zeros((0, 2 + kinds), dtype=np.int64)
    of_slot = np.asarray(kind_Q)[slots[:, 1]]
    is_forward, is_input, is_weight = (slots[:, 0] == each for each in (SlotKind.F, SlotKind.B, SlotKind.W))
    # Twice, as a virtual stage whose weight gradients are still to come keeps half.
    change = np.select([is_forward, is_input, is_weight], [2, -1, -1], -2)
    change_LA = np.zeros((len(slots), kinds), dtype=np.int64)
    change_LA[np.arange(len(slots)), of_slot] = change
    after_LA = np.cumsum(change_LA, axis=0)
    during_LA = np.where(is_forward[:, None], after_LA, after_LA - change_LA)
    passing = np.select([is_forward, is_weight], [1, -1], 0)
    return np.unique(np.column_stack([of_slot, passing, during_LA]), axis=0)


def _largest(found: Sequence[IntArray]) -> Moments:
    """Leave out moments of which another one of the same pass has at least as much of everything."""
    rows = np.unique(np.concatenate(found), axis=0)
    kept = []
    for head in np.unique(rows[:, :2], axis=0):
        counts = rows[(rows[:, :2] == head).all(axis=1)][:, 2:]
        counts = counts[np.argsort(-counts.sum(axis=1), kind="stable")]
        chosen: list[IntArray] = []
        for row in counts:
            if not any((row <= other).all() for other in chosen):
                chosen.append(row)
        kept += [np.concatenate([head, row]) for row in chosen]
    table = np.array(kept)
    return Moments(table[:, 2:] / 2.0, table[:, 0], table[:, 1])
