"""How many microbatches are in flight on the stages of a schedule: what decides which of them needs most memory.

Letters: P stages, V virtual stages per stage, Q all of them, M microbatches, A kinds of virtual stages, E moments.
"""

import math
from functools import cache
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.estimate.memory.activations import freed_first
from traincast.schedules.plan import SchedulePlan, with_pairs
from traincast.schedules.schedule import SCHEDULES
from traincast.schedules.slots import SlotKind
from traincast.workload.ops import FloatArray, IntArray


class Moments(Struct, frozen=True, eq=False):
    """Moments of the stages of one kind of which one has the largest sum of activations, whatever they keep."""

    count_EA: FloatArray
    """Microbatches of each kind of virtual stage that are saved; halves where weight gradients are still to come."""
    kind_E: IntArray
    """Kind of the virtual stage whose pass runs then."""
    forward_E: IntArray
    """1 for a forward pass, 0 for a backward pass, -1 for weight gradients."""


def enough(schedule: str, stages: int, microbatches: int, pairs: bool = False) -> int:
    """Return as few microbatches as have the same moments as these; `pairs` says that passes run as one."""
    return SCHEDULES.get(schedule).fewer(stages, microbatches, pairs)


class Flights:
    """What pipelines have in flight, each found once for all layouts of a space."""

    def __init__(self) -> None:
        self.plan = cache(plan_for_memory)
        """As `plan_for_memory`."""
        self._decisive = cache(self._found)
        self._pairs: dict[tuple[str, int, int, int], tuple[int, ...]] = {}

    def moments(
        self,
        schedule: str,
        stages: int,
        virtual: int,
        microbatches: int,
        kind_Q: tuple[int, ...],
        stage_P: tuple[int, ...],
        pairs: bool = False,
    ) -> tuple[Moments, ...]:
        """Return the moments that decide for each kind of stage.

        Parameters
        ----------
        kind_Q : tuple of int
            Kind of each virtual stage, 0, 1, ...
        stage_P : tuple of int
            Kind of each stage, 0, 1, ...
        """
        if SCHEDULES.get(schedule).holds_all:
            found = self._decisive((schedule, stages, virtual, 1, pairs), kind_Q, stage_P)
            return tuple(replace(each, count_EA=each.count_EA * microbatches) for each in found)
        few = enough(schedule, stages, microbatches, pairs)
        return self._decisive((schedule, stages, virtual, few, pairs), kind_Q, stage_P)

    def _found(
        self,
        pipeline: tuple[str, int, int, int, bool],
        kind_Q: tuple[int, ...],
        stage_P: tuple[int, ...],
    ) -> tuple[Moments, ...]:
        """Return the moments that decide for each kind of stage of a pipeline (`plan_for_memory`)."""
        slots = _slots(self.plan(*pipeline), pipeline[-1])
        rows = _moments(slots, np.asarray(kind_Q))
        kind_L = np.asarray(stage_P)[slots.stage_L]
        return tuple(_largest(rows[kind_L == each]) for each in range(max(stage_P) + 1))

    def pairs(self, schedule: str, stages: int, virtual: int, microbatches: int) -> tuple[int, ...]:
        """Return how often each stage runs a forward and a backward pass as one, [P]."""
        key = (schedule, stages, virtual, microbatches)
        if key not in self._pairs:
            few = enough(schedule, stages, microbatches, pairs=True)
            more = (microbatches - few) * virtual
            orders = self.plan(schedule, stages, virtual, few, True).slots
            self._pairs[key] = tuple(sum(slot.paired for slot in order) + more for order in orders)
        return self._pairs[key]


def plan_for_memory(schedule: str, stages: int, virtual: int, microbatches: int, pairs: bool = False) -> SchedulePlan:
    """Return the plan of a schedule with few microbatches: for what its stages hold. `pairs`: passes run as one."""
    plan = SCHEDULES.get(schedule).plan(stages, virtual, microbatches)
    return with_pairs(plan) if pairs else plan


class _Slots(Struct, frozen=True):
    """The slots of all stages of a schedule, one stage after the other."""

    stage_L: IntArray
    kind_L: IntArray
    virtual_L: IntArray


def _slots(plan: SchedulePlan, pairs: bool) -> _Slots:
    stage = np.repeat(np.arange(len(plan.slots)), [len(order) for order in plan.slots])
    kinds, passing, _, _, paired = zip(*chain.from_iterable(plan.slots), strict=True)
    order = freed_first(np.array(paired, dtype=np.int64)) if pairs else slice(None)
    return _Slots(stage, np.array(kinds, dtype=np.int64)[order], np.array(passing, dtype=np.int64)[order])


def _moments(slots: _Slots, kind_Q: IntArray) -> IntArray:
    """Return the moments of all slots as rows: kind, pass, twice the counts."""
    of_slot = kind_Q[slots.virtual_L]
    # Twice, as a virtual stage whose weight gradients are still to come keeps half. A stage ends with nothing saved,
    # and so one sum goes over all of them.
    change = _CHANGE[slots.kind_L]
    change_LA = np.zeros((len(of_slot), int(kind_Q.max()) + 1), dtype=np.int64)
    change_LA[np.arange(len(of_slot)), of_slot] = change
    after_LA = np.cumsum(change_LA, axis=0)
    during_LA = after_LA - np.minimum(change_LA, 0)
    return np.column_stack([of_slot, _PASSING[slots.kind_L], during_LA])


_CHANGE = np.zeros(len(SlotKind), dtype=np.int64)
_CHANGE[[SlotKind.F, SlotKind.B, SlotKind.W, SlotKind.BW]] = 2, -1, -1, -2
_PASSING = np.zeros(len(SlotKind), dtype=np.int64)
_PASSING[[SlotKind.F, SlotKind.W]] = 1, -1


def _largest(rows: IntArray) -> Moments:
    """Leave out moments of which another one of the same pass has at least as much of everything."""
    rows = _distinct(rows)
    kept = []
    for head in _distinct(rows[:, :2]):
        left = rows[(rows[:, :2] == head).all(axis=1)]
        while len(left):
            most = left[np.argmax(left[:, 2:].sum(axis=1))]
            kept.append(most)
            left = left[(left > most).any(axis=1)]
    table = np.stack(kept)
    return Moments(table[:, 2:] / 2.0, table[:, 0], table[:, 1])


def _distinct(rows: IntArray) -> IntArray:
    """Return the distinct rows of a table, by one number for each while these are small enough."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    if not math.prod((high - low + 1).tolist()) < 2**62:
        return np.unique(rows, axis=0)
    key = np.zeros(len(rows), dtype=np.int64)
    for column, first, last in zip(rows.T, low, high, strict=True):
        key = key * (last - first + 1) + (column - first)
    return rows[np.unique(key, return_index=True)[1]]
