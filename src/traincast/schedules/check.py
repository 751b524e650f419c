"""The checked plan of a job or workload; what every plan must keep: complete, in its place, free of deadlock."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice, product
from typing import Protocol

from traincast.errors import DeadlockError, ProgramError
from traincast.progress import advanced, announce
from traincast.schedules.plan import SchedulePlan, one_after_another, with_pairs
from traincast.schedules.runs import is_complete, runs_to_its_end
from traincast.schedules.schedule import planned
from traincast.schedules.slots import Slot, SlotKind, turns

Part = tuple[SlotKind, int, int]
"""F, B or W of one virtual stage and microbatch; a BW slot does two parts."""

_KINDS: dict[int, tuple[SlotKind, ...]] = {
    SlotKind.F: (SlotKind.F,),
    SlotKind.B: (SlotKind.B,),
    SlotKind.W: (SlotKind.W,),
    SlotKind.BW: (SlotKind.B, SlotKind.W),
}
_NAMED = 4
"""How many missing slots a message names."""
_LONG_SLOTS = 2**16
"""Slots of a plan from which it is announced before it is made."""


class _Degrees(Protocol):
    """The counts that a plan is made for."""

    @property
    def pp(self) -> int: ...
    @property
    def vpp(self) -> int: ...
    @property
    def microbatches(self) -> int: ...
    @property
    def drained_after(self) -> int | None: ...


class _Planned(Protocol):
    """What names a schedule and has a layout: a workload."""

    @property
    def schedule(self) -> str: ...
    @property
    def parallel(self) -> _Degrees: ...
    @property
    def pairs_passes(self) -> bool: ...


def plan_of(work: _Planned) -> SchedulePlan:
    """Return the checked pipeline plan of a workload.

    Raises
    ------
    TraincastError
        If the schedule is not known, or cannot run so many stages, virtual stages and microbatches.
    """
    return checked_plan(*counts_of(work.schedule, work.parallel, pairs=work.pairs_passes))


def counts_of(schedule: str, degrees: _Degrees, *, pairs: bool) -> tuple[str, int, int, int, bool, int | None]:
    """Return what `checked_plan` makes the plan of a layout from."""
    return schedule, degrees.pp, degrees.vpp, degrees.microbatches, pairs, degrees.drained_after


def checked_plan(
    schedule: str, stages: int, virtual: int, microbatches: int, pairs: bool = False, drained_after: int | None = None
) -> SchedulePlan:
    """Return the checked plan of a schedule by its name (errors as `plan_of`).

    `pairs`: passes run as one. `drained_after`: the pipeline runs empty after so many microbatches and is filled again.
    """
    slots = stages * virtual * microbatches
    if slots > _LONG_SLOTS:
        announce(f"scheduling {slots:,} slots (pp x vpp x microbatches), each with its work: tens of seconds")
    most = min(microbatches, drained_after or microbatches)
    counts = [most] * (microbatches // most) + [microbatches % most] * (microbatches % most > 0)
    plans = [planned(schedule, stages, virtual, count) for count in counts]
    plan = one_after_another([with_pairs(each) for each in plans] if pairs else plans)
    check_plan(plan, stages, virtual, microbatches)
    advanced(0.1)
    return plan


def check_plan(plan: SchedulePlan, stages: int, virtual_per_stage: int, microbatches: int) -> None:
    """Check that a plan for P, V and M is complete, keeps its placement and can be executed, in time O(slots).

    Raises
    ------
    ProgramError
        If a (virtual stage, microbatch) lacks exactly one F and exactly one BW or one B
        and one W, all in one model copy; if a slot is on another stage than the placement
        says; if the plan has another shape than P, V and M ask for.
    DeadlockError
        If the order cannot be executed; ``ops`` are the blocked slots, counted over
        the stages in turn.
    """
    virtual_stages = stages * virtual_per_stage
    _check_shape(plan, stages, virtual_per_stage)
    if not is_complete(plan, virtual_stages, microbatches):
        _check_parts(plan, virtual_stages, microbatches)
    if not runs_to_its_end(plan, virtual_stages, microbatches):
        stuck = _stuck_slots(plan.slots, virtual_stages)
        starts = [sum(map(len, plan.slots[:stage])) for stage in range(stages)]
        waits = "; ".join(
            f"stage {stage} at {_say(plan.slots[stage][position])} for {_say(part)}" for stage, position, part in stuck
        )
        raise DeadlockError(
            f"plan {plan.name} waits for ever: {waits}", [starts[stage] + position for stage, position, _ in stuck]
        )


def _stuck_slots(slots: Sequence[Sequence[Slot]], virtual_stages: int) -> list[tuple[int, int, Part]]:
    """Run the orders without times and return where they stick.

    F waits for F of the virtual stage before, B for its own F and for B of the virtual
    stage after, W for its own B; each stage keeps its order. Slots that run as one wait for what any of them needs.

    Each is a stage, the position of its first slot that never runs, and the part that this slot waits for.
    """
    done: set[Part] = set()
    waiting: dict[Part, list[int]] = {}
    position = [0] * len(slots)
    left = list(map(turns, slots))
    blocked: dict[int, tuple[Slot, ...]] = {}
    ready = list(range(len(slots)))
    while ready:
        stage = ready.pop()
        # Each turn ends at a part that is not done; that part wakes the stage up again.
        for together in chain([blocked.pop(stage, ())], left[stage]):
            needed = (need for slot in together for need in needs(slot, virtual_stages))
            missing = next((need for need in needed if need not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                blocked[stage] = together
                break
            position[stage] += len(together)
            for slot in together:
                for part in parts(slot):
                    done.add(part)
                    ready.extend(waiting.pop(part, ()))
    return sorted((stage, position[stage], part) for part, stuck in waiting.items() for stage in stuck)


def _check_shape(plan: SchedulePlan, stages: int, virtual_per_stage: int) -> None:
    if len(plan.slots) != stages:
        raise ProgramError(f"plan {plan.name} has slots for {len(plan.slots)} stages, not {stages}")
    expected = sorted(list(range(stages)) * virtual_per_stage)
    for copy, placement in enumerate(plan.placement):
        if sorted(placement) != expected:
            raise ProgramError(
                f"plan {plan.name}: placement of copy {copy} must give each of {stages} stages "
                f"{virtual_per_stage} virtual stages: {placement}"
            )


def _check_parts(plan: SchedulePlan, virtual_stages: int, microbatches: int) -> None:
    """Raise unless every part is there once, on its stage, and in one copy per microbatch."""
    found: set[Part] = set()
    copies: dict[int, int] = {}
    for stage, order in enumerate(plan.slots):
        for slot in order:
            _check_place(plan, slot, stage, virtual_stages, microbatches)
            if copies.setdefault(slot.microbatch, slot.copy) != slot.copy:
                raise ProgramError(
                    f"plan {plan.name}: microbatch {slot.microbatch} runs in two copies, at {_say(slot)}"
                )
            for part in parts(slot):
                if part in found:
                    raise ProgramError(f"plan {plan.name} does {_say(part)} twice, again in {_say(slot)}")
                found.add(part)
    missing = 3 * virtual_stages * microbatches - len(found)
    if missing:
        named = "; ".join(map(_say, islice(_absent(found, virtual_stages, microbatches), _NAMED)))
        raise ProgramError(f"plan {plan.name} lacks {missing} parts: {named}{'; ..' if missing > _NAMED else ''}")


def _check_place(plan: SchedulePlan, slot: Slot, stage: int, virtual_stages: int, microbatches: int) -> None:
    """Raise unless a slot exists for these counts and is on the stage that its placement says."""
    kind, virtual, microbatch, copy, _ = slot
    if not (
        0 <= kind <= SlotKind.BW
        and 0 <= virtual < virtual_stages
        and 0 <= microbatch < microbatches
        and 0 <= copy < len(plan.placement)
    ):
        raise ProgramError(f"plan {plan.name}: {_say(slot)}, copy {copy} on stage {stage} does not exist")
    home = plan.placement[copy][virtual]
    if home != stage:
        raise ProgramError(f"plan {plan.name}: {_say(slot)} is on stage {stage}, but its placement is stage {home}")


def _absent(found: set[Part], virtual_stages: int, microbatches: int) -> Iterator[Part]:
    every = product((SlotKind.F, SlotKind.B, SlotKind.W), range(virtual_stages), range(microbatches))
    return (part for part in every if part not in found)


def parts(slot: Slot) -> tuple[Part, ...]:
    """Return the parts that a slot does."""
    return tuple((kind, slot.virtual_stage, slot.microbatch) for kind in _KINDS[slot.kind])


def needs(slot: Slot, virtual_stages: int) -> tuple[Part, ...]:
    """Return the parts that must be done before a slot can run."""
    kind, virtual_stage, microbatch, *_ = slot
    if kind == SlotKind.F:
        return ((SlotKind.F, virtual_stage - 1, microbatch),) if virtual_stage else ()
    if kind == SlotKind.W:
        return ((SlotKind.B, virtual_stage, microbatch),)
    forward = (SlotKind.F, virtual_stage, microbatch)
    if virtual_stage == virtual_stages - 1:
        return (forward,)
    return forward, (SlotKind.B, virtual_stage + 1, microbatch)


def _say(what: Slot | Part) -> str:
    kind = SlotKind(what[0]).name if what[0] in _KINDS else f"kind {what[0]}"
    return f"{kind} of virtual stage {what[1]}, microbatch {what[2]}"
