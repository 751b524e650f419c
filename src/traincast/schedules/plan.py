"""The plan that a pipeline schedule makes, and what orders of several schedules share.

Letters: P stages, V virtual stages per stage, Q = P*V virtual stages in model order,
M microbatches.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import InfeasibleError
from traincast.schedules.columns import Fields, SlotColumns, columns_of, fields_of
from traincast.schedules.slots import Slot, SlotKind


class SchedulePlan(Struct, frozen=True, kw_only=True, dict=True):
    """What a schedule returns for (P, V, M)."""

    name: str
    placement: tuple[tuple[int, ...], ...]
    """Per model copy: the stage that holds each virtual stage, [copies][Q]."""
    slots: tuple[tuple[Slot, ...], ...]
    """Per stage: its slots in order, [P]."""
    overlapped_p2p: bool
    """Whether pipeline send/recv is overlapped with compute (interleaved) or blocks it (1F1B)."""
    warnings: tuple[Note, ...] = ()

    @cached_property
    def fields(self) -> Fields:
        """What the slots of all stages say, as columns."""
        return fields_of(self.slots)

    @cached_property
    def columns(self) -> SlotColumns:
        """The slots of all stages as columns."""
        return columns_of(self.placement, self.fields, len(self.slots))

    @cached_property
    def columns_P(self) -> tuple[SlotColumns, ...]:
        """The slots of each stage as columns, [P]."""
        bounds = accumulate(map(len, self.slots), initial=0)
        return tuple(self.columns.where(slice(*each)) for each in pairwise(bounds))

    @cached_property
    def splits_backward(self) -> bool:
        """Whether gradients of the weights run by themselves."""
        return any(slot.kind is SlotKind.W for order in self.slots for slot in order)

    def share_rank(self, first: int, second: int) -> bool:
        """Say whether two virtual stages, of whatever copies, are on one rank; so they are on every rank of either."""
        return not {each[first] for each in self.placement}.isdisjoint(each[second] for each in self.placement)


def with_pairs(plan: SchedulePlan) -> SchedulePlan:
    """Return a plan in which each backward pass runs as one with the forward pass that follows it.

    That is one forward pass more before the first pair than without, as a pass cannot be paired with its own gradient.
    Messages leave when both have ended and hold nobody back, so a stage warms up with two microbatches more than the
    next one, as with interleaving: with one, each pair would wait for the pair before it to come back. A plan that has
    pairs of its own stays as it is, and so does one of two copies of the model: its order is made for pairs, has none
    while microbatches only come in and go out, and waits for ever with others.

    Source: Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py, and schedules.py (get_pp_rank_microbatches:
    one more warmup microbatch with overlap_moe_expert_parallel_comm).
    """
    if any(slot.paired for order in plan.slots for slot in order):
        return plan
    if len(plan.placement) > 1:
        text = (
            f"schedule {plan.name} runs no two passes at once with so few microbatches: nothing hides exchanges with "
            f"experts; it takes more microbatches than pipeline stages ({len(plan.slots)})"
        )
        return replace(plan, warnings=(*plan.warnings, Note("moe-a2a-overlap-unused", text)))
    stages, orders, warnings = len(plan.slots), plan.slots, plan.warnings
    if 1 < stages == len(plan.placement[0]):
        orders = tuple(_warmed_up(order, 2 * (stages - stage - 1)) for stage, order in enumerate(orders))
        text = (
            "exchanges with experts are overlapped with one virtual stage per stage: Megatron-LM refuses that; "
            "run here with two more warmup microbatches on each earlier stage"
        )
        warnings = (*warnings, Note("megatron-would-refuse", text))
    slots = tuple(tuple(_paired(order)) for order in orders)
    return replace(plan, slots=slots, overlapped_p2p=True, warnings=warnings)


def one_after_another(plans: Sequence[SchedulePlan]) -> SchedulePlan:
    """Return the plan that runs several of one schedule in turn: each stage begins the next when it has ended one."""
    first, orders = plans[0], [[*order] for order in plans[0].slots]
    done = 1 + max(slot.microbatch for order in orders for slot in order)
    for plan in plans[1:]:
        for order, more in zip(orders, plan.slots, strict=True):
            order += [slot._replace(microbatch=slot.microbatch + done) for slot in more]
        done += 1 + max(slot.microbatch for slot in plan.slots[0])
    warnings = tuple(dict.fromkeys(note for plan in plans for note in plan.warnings))
    return replace(first, slots=tuple(map(tuple, orders)), warnings=warnings)


def _warmed_up(order: Sequence[Slot], warmup: int) -> tuple[Slot, ...]:
    """Return the order of one stage with so many forwards before the first pair."""
    forwards = [slot for slot in order if slot.kind is SlotKind.F]
    backwards = [slot for slot in order if slot.kind is not SlotKind.F]
    return weave(forwards, backwards, min(warmup, len(forwards)))


def _paired(order: Sequence[Slot]) -> Iterator[Slot]:
    """Yield the slots of a stage, each forward pass before the backward pass that it runs as one with."""
    slots = iter(pairwise([*order, None]))
    for slot, following in slots:
        if slot is None:
            break
        if slot.kind is not SlotKind.F and following is not None and following.kind is SlotKind.F:
            yield following._replace(paired=True)
            next(slots)
        yield slot


def require_counts(name: str, stages: int, virtual_per_stage: int, microbatches: int) -> None:
    """Refuse counts that leave nothing to schedule.

    Raises
    ------
    InfeasibleError
        If one of P, V, M is below 1.
    """
    if min(stages, virtual_per_stage, microbatches) < 1:
        raise InfeasibleError(
            f"schedule {name} needs at least one stage, virtual stage and microbatch; "
            f"got pp {stages}, vpp {virtual_per_stage}, microbatches {microbatches}"
        )


def looped_placement(stages: int, virtual_per_stage: int) -> tuple[int, ...]:
    """Return the stage of each virtual stage when the model loops over the stages: 0, 1, .., P-1, 0, 1, .. [Q]."""
    return tuple(range(stages)) * virtual_per_stage


def folded_placement(stages: int) -> tuple[int, ...]:
    """Return the stage of each of 2P virtual stages when the model runs down the stages and up again: a V, [Q]."""
    return (*range(stages), *reversed(range(stages)))


def weave(forwards: Sequence[Slot], backwards: Sequence[Slot], warmup: int) -> tuple[Slot, ...]:
    """Order one stage as warmup forwards, then one forward and one backward in turn (steady), then cooldown.

    Parameters
    ----------
    forwards, backwards : sequence of Slot
        The stage's work, equally many of each, each in its own order.
    warmup : int
        How many forwards come before the first pair, 0..len(forwards).
    """
    steady = len(forwards) - warmup
    pairs = zip(forwards[warmup:], backwards[:steady], strict=True)
    return (*forwards[:warmup], *(slot for pair in pairs for slot in pair), *backwards[steady:])


def weave_split(orders: Mapping[SlotKind, Sequence[Slot]], warmup: int, delay: int) -> tuple[Slot, ...]:
    """Order one stage as warmup forwards, then one forward, one input and one weight gradient in turn.

    Parameters
    ----------
    orders : mapping of SlotKind to sequence of Slot
        The stage's forwards, input gradients and weight gradients, equally many of each, each in its own order.
    warmup : int
        How many forwards come before the first input gradient's turn.
    delay : int
        How many turns a weight gradient comes after its input gradient.
    """
    count, found = len(orders[SlotKind.F]), [*orders[SlotKind.F][:warmup]]
    for turn in range(count + delay):
        for kind, index in ((SlotKind.F, turn + warmup), (SlotKind.B, turn), (SlotKind.W, turn - delay)):
            found += orders[kind][index : index + 1] if index >= 0 else []
    return tuple(found)


def one_chunk_plan(name: str, virtual_per_stage: int, microbatches: int, warmups: Sequence[int]) -> SchedulePlan:
    """Plan a schedule with blocking p2p that keeps one virtual stage per stage and microbatches in order.

    Parameters
    ----------
    name : str
        The schedule.
    virtual_per_stage, microbatches : int
        V and M.
    warmups : sequence of int
        Per stage: how many forwards come before the first pair.

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
