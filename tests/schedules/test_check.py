"""Damaged plans are refused, and the slots are named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from traincast.errors import DeadlockError, ProgramError
from traincast.schedules.check import check_plan
from traincast.schedules.gpipe import gpipe
from traincast.schedules.interleaved import interleaved
from traincast.schedules.one_f_one_b import one_f_one_b
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.slots import Slot, SlotKind

F, B, W, BW = SlotKind


def _plan(*slots: list[Slot], placement=((0, 1),)) -> SchedulePlan:
    return SchedulePlan(name="by-hand", placement=placement, slots=tuple(map(tuple, slots)), overlapped_p2p=False)


def _with(plan: SchedulePlan, stage: int, order: list[Slot]) -> SchedulePlan:
    return replace(plan, slots=(*plan.slots[:stage], tuple(order), *plan.slots[stage + 1 :]))


def test_split_backward_is_accepted() -> None:
    check_plan(
        _plan([Slot(F, 0, 0), Slot(B, 0, 0), Slot(W, 0, 0)], [Slot(F, 1, 0), Slot(B, 1, 0), Slot(W, 1, 0)]), 2, 1, 1
    )


def test_missing_weight_gradient_is_named() -> None:
    plan = _plan([Slot(F, 0, 0), Slot(B, 0, 0)], [Slot(F, 1, 0), Slot(BW, 1, 0)])
    with pytest.raises(ProgramError, match="lacks 1 parts: W of virtual stage 0, microbatch 0"):
        check_plan(plan, 2, 1, 1)


def test_many_missing_slots_are_counted_and_the_first_named() -> None:
    with pytest.raises(ProgramError, match=r"lacks 24 parts: F of virtual stage 1, microbatch 0; .*; \.\."):
        check_plan(_with(one_f_one_b(2, 1, 8), 1, []), 2, 1, 8)


def test_weight_gradient_twice_is_named() -> None:
    plan = _plan([Slot(F, 0, 0), Slot(BW, 0, 0), Slot(W, 0, 0)], [Slot(F, 1, 0), Slot(BW, 1, 0)])
    with pytest.raises(ProgramError, match="does W of virtual stage 0, microbatch 0 twice"):
        check_plan(plan, 2, 1, 1)


def test_two_copies_run_in_both_directions() -> None:
    down, up = ([Slot(kind, q, m, m) for kind in (F, BW)] for q, m in ((0, 0), (1, 0)))
    mirrored = [Slot(F, 1, 1, 1), Slot(BW, 1, 1, 1)], [Slot(F, 0, 1, 1), Slot(BW, 0, 1, 1)]
    order = [down[0], mirrored[0][0], mirrored[0][1], down[1]], [mirrored[1][0], up[0], up[1], mirrored[1][1]]
    plan = _plan(*order, placement=((0, 1), (1, 0)))
    check_plan(plan, 2, 1, 2)
    damaged = [slot._replace(copy=0) if slot.copy and slot.kind == F else slot for slot in plan.slots[0]]
    with pytest.raises(ProgramError):
        check_plan(_with(plan, 0, damaged), 2, 1, 2)


def test_a_microbatch_in_two_copies_is_refused() -> None:
    plan = _plan([Slot(F, 0, 0, 0), Slot(BW, 0, 0, 1)], placement=((0,), (0,)))
    with pytest.raises(ProgramError, match="microbatch 0 runs in two copies"):
        check_plan(plan, 1, 1, 1)


def test_wrong_stage_is_named() -> None:
    plan = gpipe(2, 1, 2)
    with pytest.raises(ProgramError, match="F of virtual stage 1, microbatch 0 is on stage 0, but its placement is"):
        check_plan(replace(plan, slots=plan.slots[::-1]), 2, 1, 2)


@pytest.mark.parametrize("slot", [Slot(F, 2, 0), Slot(F, -1, 0), Slot(F, 0, 2), Slot(F, 0, 0, 1), Slot(7, 0, 0)])
def test_slot_that_does_not_exist(slot: Slot) -> None:
    plan = gpipe(2, 1, 2)
    with pytest.raises(ProgramError, match="does not exist"):
        check_plan(_with(plan, 0, [slot, *plan.slots[0]]), 2, 1, 2)


def test_another_shape_is_refused() -> None:
    with pytest.raises(ProgramError, match="slots for 2 stages, not 3"):
        check_plan(gpipe(2, 1, 2), 3, 1, 2)
    with pytest.raises(ProgramError, match="must give each of 2 stages 2 virtual stages"):
        check_plan(gpipe(2, 1, 2), 2, 2, 2)


@pytest.mark.parametrize("kinds", [(BW, F), (F, W, B)])
def test_swapped_slots_deadlock(kinds: tuple[SlotKind, ...]) -> None:
    plan = _plan([Slot(F, 0, 0), Slot(BW, 0, 0)], [Slot(kind, 1, 0) for kind in kinds])
    with pytest.raises(DeadlockError, match="stage 1 at") as caught:
        check_plan(plan, 2, 1, 1)
    assert caught.value.ops == (1, len(kinds))


def test_stages_that_wait_for_each_other_are_all_named() -> None:
    plan = _plan(
        [Slot(F, 0, 0), Slot(BW, 0, 0), Slot(F, 0, 1), Slot(BW, 0, 1)],
        [Slot(F, 1, 0), Slot(F, 1, 1), Slot(BW, 1, 0), Slot(BW, 1, 1)],
    )
    with pytest.raises(DeadlockError) as caught:
        check_plan(plan, 2, 1, 2)
    assert "stage 0 at BW of virtual stage 0, microbatch 0 for B of virtual stage 1, microbatch 0" in str(caught.value)
    assert "stage 1 at F of virtual stage 1, microbatch 1 for F of virtual stage 0, microbatch 1" in str(caught.value)
    assert caught.value.ops == (1, 5)


def _runs(plan: SchedulePlan, virtual_stages: int) -> bool:
    """The definition, slowly: take any slot that may run until none is left."""
    rest, done = [list(order) for order in plan.slots], set()
    while any(rest):
        for order in rest:
            if not order:
                continue
            kind, q, m, *_ = order[0]
            needs = {(F, q - 1, m)} if kind == F else {(F, q, m), (BW, q + 1, m)}
            if {need for need in needs if 0 <= need[1] < virtual_stages} <= done:
                done.add((kind, q, m))
                del order[0]
                break
        else:
            return False
    return True


CASES = [(one_f_one_b, 3, 1, 4), (gpipe, 2, 1, 3), (interleaved, 2, 2, 4), (interleaved, 3, 2, 4)]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CASES), st.sampled_from(["drop", "duplicate", "swap", "move"]), st.data())
def test_mutated_plans_hold_or_are_refused(case, mutation: str, data: st.DataObject) -> None:
    schedule, stages, virtual, microbatches = case
    plan = schedule(stages, virtual, microbatches)
    stage = data.draw(st.integers(0, stages - 1))
    order = list(plan.slots[stage])
    at, other = (data.draw(st.integers(0, len(order) - 1)) for _ in range(2))
    damaged = plan
    if mutation == "drop":
        damaged = _with(plan, stage, order[:at] + order[at + 1 :])
    elif mutation == "duplicate":
        damaged = _with(plan, stage, [*order[:other], order[at], *order[other:]])
    elif mutation == "swap":
        order[at], order[other] = order[other], order[at]
        damaged = _with(plan, stage, order)
    else:
        target = data.draw(st.integers(0, stages - 1).filter(lambda found: found != stage)) if stages > 1 else stage
        damaged = _with(_with(plan, stage, order[:at] + order[at + 1 :]), target, [*plan.slots[target], order[at]])
    if mutation == "swap" and _runs(damaged, stages * virtual):
        check_plan(damaged, stages, virtual, microbatches)
    else:
        with pytest.raises(DeadlockError if mutation == "swap" else ProgramError):
            check_plan(damaged, stages, virtual, microbatches)
