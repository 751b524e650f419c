"""Interleaved 1F1B: several virtual stages per stage, microbatches in groups of P.

Where M is not a multiple of P the last group is smaller. Megatron-LM refuses that;
here the order is that of the next multiple of P without the microbatches that do not exist.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.schedules.in_flight import settled
from traincast.schedules.length import interleaved_length
from traincast.schedules.one_f_one_b import one_f_one_b
from traincast.schedules.plan import SchedulePlan, looped_placement, require_counts, weave
from traincast.schedules.schedule import Pairing, Schedule, register
from traincast.schedules.slots import Slot, SlotKind
from traincast.units import counted

_Slots = tuple[tuple[Slot, ...], ...]


def interleaved(stages: int, virtual_per_stage: int, microbatches: int) -> SchedulePlan:
    """Plan Megatron's interleaved 1F1B with overlapped p2p; any M runs.

    Virtual stage q = chunk*P + stage. A group of P microbatches passes chunk 0, then chunk 1, ..; backwards pass the
    chunks in reverse. Stage s warms up with 2*(P - s - 1) + (V - 1)*P forwards, at most M*V. With V = 1 the order is
    1F1B's. Where Megatron-LM would refuse (V > 1 and M not a multiple of P) the plan has a warning.

    Notes
    -----
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Megatron-LM, megatron/core/
    pipeline_parallel/schedules.py, get_pp_rank_microbatches, get_schedule_table and
    forward_backward_pipelining_with_interleaving (also the refusals, for its default groups of P).
    """
    require_counts("interleaved", stages, virtual_per_stage, microbatches)
    if virtual_per_stage == 1:
        return replace(one_f_one_b(stages, 1, microbatches), name="interleaved", overlapped_p2p=True)
    warnings = (_refusal(stages, microbatches),) if microbatches % stages else ()
    full = _slots(stages, virtual_per_stage, microbatches + -microbatches % stages)
    # No dependency crosses microbatches, so what is left of an order that runs still runs.
    slots = tuple(tuple(slot for slot in order if slot.microbatch < microbatches) for order in full)
    placement = looped_placement(stages, virtual_per_stage)
    return SchedulePlan(name="interleaved", placement=(placement,), slots=slots, overlapped_p2p=True, warnings=warnings)


def _slots(stages: int, virtual_per_stage: int, microbatches: int) -> _Slots:
    """Return Megatron's order for a multiple of P."""
    table = list(_turns(stages, virtual_per_stage, microbatches))
    last_chunk = virtual_per_stage - 1
    slots = []
    for stage in range(stages):
        forwards = [Slot(SlotKind.F, chunk * stages + stage, mb) for chunk, mb in table]
        backwards = [Slot(SlotKind.BW, (last_chunk - chunk) * stages + stage, mb) for chunk, mb in table]
        warmup = 2 * (stages - stage - 1) + last_chunk * stages
        slots.append(weave(forwards, backwards, min(warmup, len(table))))
    return tuple(slots)


def _turns(stages: int, virtual_per_stage: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Yield (chunk, microbatch) in the order in which forwards take their turns."""
    for first in range(0, microbatches, stages):
        group = range(first, min(first + stages, microbatches))
        yield from ((chunk, microbatch) for chunk in range(virtual_per_stage) for microbatch in group)


def _refusal(stages: int, microbatches: int) -> Note:
    compared = "fewer than" if microbatches < stages else "not a multiple of"
    why = f"{counted(microbatches, 'microbatch is', 'microbatches are')} {compared} {stages} stages"
    text = (
        f"{why}: Megatron-LM refuses this interleaved schedule; run here with a last group of {microbatches % stages}"
    )
    return Note("megatron-would-refuse", text)


INTERLEAVED = register(
    Schedule(
        name="interleaved",
        plan=interleaved,
        pairing=Pairing.POSSIBLE,
        groups_of_stages=True,
        ends_on_first_stage=True,
        fewer=settled(2),
        length=interleaved_length,
    )
)
