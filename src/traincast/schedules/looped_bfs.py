"""Breadth-first pipeline: every virtual stage runs all microbatches before the next one begins."""

from traincast.model.numbers import Number
from traincast.schedules.length import Pipeline, around, looped
from traincast.schedules.plan import SchedulePlan, looped_placement, require_counts
from traincast.schedules.schedule import Schedule, register
from traincast.schedules.slots import Slot, SlotKind


def looped_bfs(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan the breadth-first schedule with overlapped p2p, the LoopedBFS of PyTorch; any M runs.

    Virtual stage q = chunk*P + stage. A stage runs the forwards of all microbatches through its first chunk, then its
    second, ..; the backwards pass chunks and microbatches in reverse. It idles for 1/V of the bubble of GPipe, and
    holds the activations of all M microbatches.

    Notes
    -----
    Source: Lamy-Poirier 2022, arXiv:2211.05953, section 3; order of the backwards: PyTorch,
    torch/distributed/pipelining/schedules.py, ScheduleLoopedBFS.
    """
    require_counts("looped_bfs", stages, virtual_per_stage, microbatches)
    slots = []
    for stage in range(stages):
        each = [
            (chunk * stages + stage, microbatch)
            for chunk in range(virtual_per_stage)
            for microbatch in range(microbatches)
        ]
        forwards = (Slot(SlotKind.F, *one) for one in each)
        slots.append((*forwards, *(Slot(SlotKind.BW, *one) for one in reversed(each))))
    placement = looped_placement(stages, virtual_per_stage)
    return SchedulePlan(name="looped_bfs", placement=(placement,), slots=tuple(slots), overlapped_p2p=True)


def _length(line: Pipeline) -> Number:
    """Take all microbatches round together."""
    return looped(line) + around(line, line.microbatches)


LOOPED_BFS = register(Schedule(name="looped_bfs", plan=looped_bfs, holds_all=True, length=_length))
