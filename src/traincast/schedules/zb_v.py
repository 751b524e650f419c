"""ZB-V: two virtual stages per stage, down the pipeline and up again, whose weight gradients fill the bubbles."""

from collections.abc import Iterator

from traincast.errors import InfeasibleError
from traincast.model.numbers import Number
from traincast.schedules.in_flight import settled
from traincast.schedules.length import Pipeline, filled_bubbles
from traincast.schedules.plan import SchedulePlan, folded_placement, require_counts
from traincast.schedules.schedule import Schedule, register
from traincast.schedules.slots import Slot, SlotKind


def zb_v(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan ZB-V with overlapped p2p; any M runs.

    Virtual stage s runs on stage s, and 2P - 1 - s as well: the loss is on the first stage. Every stage holds the
    activations of at most 2P virtual stages, as many bytes as the first stage of 1F1B. Where forward, input and weight
    gradients take equally long and M >= 2P - 1, no stage waits between its first and its last slot.

    Raises
    ------
    InfeasibleError
        If V is not 2.

    Notes
    -----
    Source: Qi et al. 2024, arXiv:2405.15362, section 3.1 and figure 3; the order is that of PyTorch,
    torch/distributed/pipelining/schedules.py (ScheduleZBVZeroBubble).
    """
    require_counts("zb_v", stages, virtual_per_stage, microbatches)
    if virtual_per_stage != 2:
        text = f"schedule zb_v runs two virtual stages per stage, not vpp {virtual_per_stage}; set vpp 2"
        raise InfeasibleError(text)
    # With fewer microbatches the order is that of the fewest which fill the pipeline, without those that are missing.
    full = max(microbatches, 2 * stages - 1)
    slots = tuple(
        tuple(slot for slot in _order(stage, stages, full) if slot.microbatch < microbatches) for stage in range(stages)
    )
    return SchedulePlan(name="zb_v", placement=(folded_placement(stages),), slots=slots, overlapped_p2p=True)


def _order(stage: int, stages: int, microbatches: int) -> Iterator[Slot]:
    """Yield the order of a stage for at least 2P - 1 microbatches."""
    down, up = stage, 2 * stages - 1 - stage
    count = dict.fromkeys((kind, each) for kind in SlotKind for each in (down, up))
    done = dict.fromkeys(count, 0)

    def run(virtual_stage: int, *kinds: SlotKind) -> Iterator[Slot]:
        for kind in kinds:
            yield Slot(kind, virtual_stage, done[kind, virtual_stage])
            done[kind, virtual_stage] += 1

    both = (SlotKind.B, SlotKind.W)
    for _ in range(2 * (stages - stage) - 1):
        yield from run(down, SlotKind.F)
    for _ in range(stage):
        yield from run(up, SlotKind.F)
        yield from run(down, SlotKind.F)
    for _ in range(stages - stage):
        yield from run(up, SlotKind.F, *both)
    while done[SlotKind.F, up] < microbatches:
        if done[SlotKind.F, down] < microbatches:
            yield from run(down, SlotKind.F)
        yield from run(down, *both)
        yield from run(up, SlotKind.F, *both)
    for _ in range(stage):
        yield from run(down, SlotKind.B)
        yield from run(up, SlotKind.B)
    for _ in range(stages - stage):
        yield from run(down, *both)
    for virtual_stage in (up, down):
        while done[SlotKind.W, virtual_stage] < microbatches:
            yield from run(virtual_stage, SlotKind.W)


def _length(line: Pipeline) -> Number:
    """Return the length with the bubbles that section 3 of the source leaves."""
    return filled_bubbles(line, lambda p, f, b, w: (p - 1) * (f + b - 2 * w))


ZB_V = register(Schedule(name="zb_v", plan=zb_v, virtual_stages=2, fewer=settled(2, 1), length=_length))
