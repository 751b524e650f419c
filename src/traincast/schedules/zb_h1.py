"""ZB-H1: 1F1B whose weight gradients fill the bubbles, in the memory of 1F1B."""

from traincast.errors import InfeasibleError
from traincast.model.numbers import Number
from traincast.schedules.in_flight import settled
from traincast.schedules.length import Pipeline, filled_bubbles
from traincast.schedules.plan import SchedulePlan, looped_placement, require_counts, weave_split
from traincast.schedules.schedule import Schedule, register
from traincast.schedules.slots import Slot, SlotKind


def zb_h1(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan ZB-H1 with overlapped p2p; any M runs.

    Forwards and input gradients keep the order of 1F1B. The weight gradient of a microbatch on stage s comes s input
    gradients after its own, so that every stage holds at most P microbatches, as the first one of 1F1B does. With
    M >= P stages whose forward, input and weight gradients take f, b and w, ``f = b = w``, idle for
    ``(P - 1)(f + b - w)``; 1F1B's do for ``(P - 1)(f + b + w)``.

    Raises
    ------
    InfeasibleError
        If V > 1.

    Notes
    -----
    Source: Qi et al. 2023, arXiv:2401.10241, section 2.2 and table 1.
    """
    require_counts("zb_h1", stages, virtual_per_stage, microbatches)
    if virtual_per_stage > 1:
        text = f"schedule zb_h1 runs one virtual stage per stage, not vpp {virtual_per_stage}; use schedule zb_v"
        raise InfeasibleError(text)
    slots = tuple(_order(stage, stages - stage - 1, microbatches) for stage in range(stages))
    return SchedulePlan(name="zb_h1", placement=(looped_placement(stages, 1),), slots=slots, overlapped_p2p=True)


def _order(stage: int, warmup: int, microbatches: int) -> tuple[Slot, ...]:
    """Return the order of a stage; a weight gradient comes as many turns late as the stage has others before it."""
    kinds = (SlotKind.F, SlotKind.B, SlotKind.W)
    orders = {kind: [Slot(kind, stage, microbatch) for microbatch in range(microbatches)] for kind in kinds}
    return weave_split(orders, warmup, delay=stage)


def bubble_left(stages: int, forward: Number, input_gradient: Number, weight_gradient: Number) -> Number:
    """Return what weight gradients leave of the bubbles (Qi et al. 2023, table 1)."""
    return (stages - 1) * (forward + input_gradient - weight_gradient)


def _length(line: Pipeline) -> Number:
    return filled_bubbles(line, bubble_left)


ZB_H1 = register(Schedule(name="zb_h1", plan=zb_h1, virtual_stages=1, fewer=settled(1, 1), length=_length))
