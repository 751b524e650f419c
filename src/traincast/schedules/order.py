"""What several schedules share: the looped placement and the 1F1B way of weaving two lists."""

from collections.abc import Sequence

from traincast.errors import InfeasibleError
from traincast.schedules.plan import SchedulePlan, Slot, SlotKind


def require_counts(name: str, stages: int, virtual_per_stage: int, microbatches: int) -> None:
    """Refuse counts that leave nothing to schedule.

    Parameters
    ----------
    name : str
        The schedule, for the message.
    stages, virtual_per_stage, microbatches : int
        P, V and M.

    Raises
    ------
    InfeasibleError
        If one of them is below 1.
    """
    if min(stages, virtual_per_stage, microbatches) < 1:
        raise InfeasibleError(
            f"schedule {name} needs at least one stage, virtual stage and microbatch; "
            f"got pp {stages}, vpp {virtual_per_stage}, microbatches {microbatches}"
        )


def looped_placement(stages: int, virtual_per_stage: int) -> tuple[int, ...]:
    """Return the stage of each virtual stage when the model loops over the stages.

    Parameters
    ----------
    stages, virtual_per_stage : int
        P and V.

    Returns
    -------
    tuple of int
        0, 1, .., P-1, 0, 1, ..; length Q = P*V.
    """
    return tuple(range(stages)) * virtual_per_stage


def weave(forwards: Sequence[Slot], backwards: Sequence[Slot], warmup: int) -> tuple[Slot, ...]:
    """Order one stage as warmup forwards, then one forward and one backward in turn, then the rest.

    Parameters
    ----------
    forwards, backwards : sequence of Slot
        The stage's work, equally many of each, each in its own order.
    warmup : int
        How many forwards come before the first pair, 0..len(forwards).

    Returns
    -------
    tuple of Slot
        The stage's order: warmup, steady, cooldown.
    """
    steady = len(forwards) - warmup
    pairs = zip(forwards[warmup:], backwards[:steady], strict=True)
    return (*forwards[:warmup], *(slot for pair in pairs for slot in pair), *backwards[steady:])


def one_chunk_plan(name: str, virtual_per_stage: int, microbatches: int, warmups: Sequence[int]) -> SchedulePlan:
    """Plan a schedule that keeps one virtual stage per stage and microbatches in order.

    Parameters
    ----------
    name : str
        The schedule.
    virtual_per_stage, microbatches : int
        V and M.
    warmups : sequence of int
        Per stage: how many forwards come before the first pair.

    Returns
    -------
    SchedulePlan
        With blocking p2p.

    Raises
    ------
    InfeasibleError
        If V > 1: these schedules have no order for it.
    """
    require_counts(name, len(warmups), virtual_per_stage, microbatches)
    if virtual_per_stage > 1:
        raise InfeasibleError(
            f"schedule {name} runs one virtual stage per stage, not vpp {virtual_per_stage}; use schedule interleaved"
        )
    slots = []
    for stage, warmup in enumerate(warmups):
        forwards = [Slot(SlotKind.F, stage, microbatch) for microbatch in range(microbatches)]
        backwards = [Slot(SlotKind.BW, stage, microbatch) for microbatch in range(microbatches)]
        slots.append(weave(forwards, backwards, warmup))
    placement = looped_placement(len(warmups), 1)
    return SchedulePlan(name=name, placement=(placement,), slots=tuple(slots), overlapped_p2p=False)
