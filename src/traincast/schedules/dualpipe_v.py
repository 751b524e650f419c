"""DualPipe-V: DualPipe cut in half: one copy of the model, down the pipeline and up again."""

from traincast.errors import InfeasibleError
from traincast.model.numbers import Number
from traincast.schedules.dualpipe import two_way_order
from traincast.schedules.in_flight import settled
from traincast.schedules.length import Pipeline, filled_bubbles
from traincast.schedules.plan import SchedulePlan, folded_placement, require_counts
from traincast.schedules.schedule import Pairing, Schedule, register
from traincast.schedules.slots import Slot


def dualpipe_v(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan DualPipe-V with overlapped p2p; any M runs.

    Virtual stage s runs on stage s, and 2P - 1 - s as well. With M >= 2P stages whose virtual stages pass a microbatch
    in f, backward in b, of which w for the weights, idle for ``(P - 1)(f + 2b - 3w)``. At most 2P + 1 virtual stages'
    activations are held.

    Raises
    ------
    InfeasibleError
        If V is not 2.

    Notes
    -----
    Source: Sea AI Lab, "DualPipe could be better without the Dual" (2025); the order is that of deepseek-ai/DualPipe,
    dualpipe/dualpipev.py (step), whose README has bubble and memory.
    """
    require_counts("dualpipe_v", stages, virtual_per_stage, microbatches)
    if virtual_per_stage != 2:
        text = f"schedule dualpipe_v runs two virtual stages per stage, not vpp {virtual_per_stage}; set vpp 2"
        raise InfeasibleError(text)
    slots = tuple(
        tuple(
            Slot(turn.kind, 2 * stages - 1 - stage if turn.way else stage, turn.number, paired=turn.paired)
            for turn in two_way_order(stage, stages, (microbatches, microbatches))
        )
        for stage in range(stages)
    )
    return SchedulePlan(name="dualpipe_v", placement=(folded_placement(stages),), slots=slots, overlapped_p2p=True)


def _length(line: Pipeline) -> Number:
    """Return the length with the bubbles that the source's README leaves; `b` is the gradient of the inputs alone."""
    return filled_bubbles(line, lambda p, f, b, w: (p - 1) * (f + 2 * b - w))


DUALPIPE_V = register(
    Schedule(
        name="dualpipe_v",
        plan=dualpipe_v,
        virtual_stages=2,
        pairing=Pairing.ALWAYS,
        fewer=settled(2, 1),
        length=_length,
    )
)
