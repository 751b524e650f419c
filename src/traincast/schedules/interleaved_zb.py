"""Interleaved ZB-H1: several virtual stages per stage, whose weight gradients fill the bubbles."""

from traincast.model.numbers import Number, ceil_div, larger
from traincast.schedules.length import Pipeline, around, filled_bubbles
from traincast.schedules.plan import SchedulePlan, looped_placement, require_counts, weave_split
from traincast.schedules.schedule import Schedule, register
from traincast.schedules.slots import Slot, SlotKind
from traincast.schedules.zb_h1 import bubble_left


def interleaved_zb(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan interleaved 1F1B with a split backward pass, the InterleavedZeroBubble of PyTorch; any M runs.

    Virtual stage q = chunk*P + stage. Groups of G microbatches, the least number from P that leaves all groups alike,
    pass chunk 0, then chunk 1, ..; backwards pass the chunks in reverse. Stage s warms up with P - s - 1 + (V - 1)*G
    forwards, and its weight gradients come s input gradients after their own. With V = 1 the order is ZB-H1's.

    Notes
    -----
    Source: Qi et al. 2023, arXiv:2401.10241, section 2.2, over the virtual stages of Narayanan et al. 2021,
    arXiv:2104.04473; the order is that of PyTorch, torch/distributed/pipelining/schedules.py
    (ScheduleInterleavedZeroBubble), which refuses an M that does not divide into rounds of at least P. Here the last
    group is then smaller.
    """
    require_counts("interleaved_zb", stages, virtual_per_stage, microbatches)
    rounds = max(1, microbatches // stages)
    group = -(-microbatches // rounds)
    last_chunk = virtual_per_stage - 1
    turns = [
        (chunk, microbatch)
        for first in range(0, rounds * group, group)
        for chunk in range(virtual_per_stage)
        for microbatch in range(first, first + group)
    ]
    slots = []
    for stage in range(stages):
        forwards = [Slot(SlotKind.F, chunk * stages + stage, mb) for chunk, mb in turns]
        orders = {SlotKind.F: forwards} | {
            kind: [Slot(kind, (last_chunk - chunk) * stages + stage, mb) for chunk, mb in turns]
            for kind in (SlotKind.B, SlotKind.W)
        }
        order = weave_split(orders, stages - stage - 1 + last_chunk * group, delay=stage)
        # No dependency crosses microbatches, so what is left of an order that runs still runs.
        slots.append(tuple(slot for slot in order if slot.microbatch < microbatches))
    placement = looped_placement(stages, virtual_per_stage)
    return SchedulePlan(name="interleaved_zb", placement=(placement,), slots=tuple(slots), overlapped_p2p=True)


def _length(line: Pipeline) -> Number:
    """Take microbatches round in groups that are all as large, at least one for each stage where there are so many."""
    group = ceil_div(line.microbatches, larger(1, line.microbatches // line.stages))
    return filled_bubbles(line, bubble_left, around(line, group))


def _fewer(stages: int, microbatches: int, pairs: bool) -> int:  # noqa: ARG001
    """Return fewer microbatches in rounds as large as those of so many: two, or three where the last one is short."""
    rounds = max(1, microbatches // stages)
    size = -(-microbatches // rounds)
    fewer = 3 * size - 1 if rounds * size > microbatches else 2 * size
    alike = fewer < microbatches and -(-fewer // (fewer // stages)) == size
    return fewer if alike else microbatches


INTERLEAVED_ZB = register(Schedule(name="interleaved_zb", plan=interleaved_zb, fewer=_fewer, length=_length))
