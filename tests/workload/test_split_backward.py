"""The schedule contract beyond what is built in: split backwards, and two copies of the model."""

import re

import numpy as np
import pytest

from support import HandMade, collective, compute, expanded, timed
from traincast.job.parallel import Parallel
from traincast.schedules.check import check_plan
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.slots import Slot, SlotKind
from traincast.workload.words import Group, Kind, Phase

ZERO_BUBBLE = [
    "F0 F1 B0 F2 B1 W0 F3 B2 W1 W2 B3 W3",
    "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3",
]
"""Two stages, four microbatches, in the way of ZB-H1 (Qi et al. 2023, arXiv:2401.10241)."""

ONE_F_ONE_B = ["F0 F1 BW0 F2 BW1 F3 BW2 BW3", "F0 BW0 F1 BW1 F2 BW2 F3 BW3"]

BOTH_WAYS = [
    "F0.0.0 F1.1.1 BW1.1.1 BW0.0.0",
    "F1.0.1 F0.1.0 BW0.1.0 BW1.0.1",
]
"""Two stages and two copies of the model, of which the second runs from stage 1 to stage 0 (DualPipe)."""


def plan_of(orders, *, placement=((0, 1),), overlapped=True):
    """Read orders of slots: kind and microbatch, and where it is not the stage in copy 0: .virtual stage.copy."""
    slots = []
    for stage, order in enumerate(orders):
        parts = [(word.rstrip("0123456789."), word.lstrip("FBW").split(".")) for word in order.split()]
        slots.append(
            tuple(
                Slot(SlotKind[kind], int(rest[0]) if rest else stage, int(microbatch), *map(int, rest[1:]))
                for kind, (microbatch, *rest) in parts
            )
        )
    return SchedulePlan(name="hand-made", placement=placement, slots=tuple(slots), overlapped_p2p=overlapped)


def split_workload(microbatches=4, **more):
    """Forward, input gradient and weight gradient of one second each; the last two written one after the other."""
    backward = [compute(1, "input", Phase.BACKWARD), compute(1, "weight", Phase.WEIGHT_GRADIENT)]
    made = HandMade(Parallel(pp=2, microbatches=microbatches))
    return made.template(forward=[compute(1, "forward")], backward=backward).workload(**more)


def story(program, timeline, stage):
    """Tell when each computation of a stage starts: name and microbatch -> second."""
    mine = (program.stage_N == stage) & (program.ops.kind_T[program.row_N] == Kind.COMPUTE)
    names = [program.ops.name_T[row] for row in program.row_N[mine]]
    return dict(
        zip(
            zip(names, program.microbatch_N[mine].tolist(), strict=True),
            timeline.start_s_N[mine].tolist(),
            strict=True,
        )
    )


def test_weight_gradients_fill_the_bubble():
    """12 turns of work and one of filling: 13, where 1F1B takes 15."""
    plan = plan_of(ZERO_BUBBLE)
    check_plan(plan, 2, 1, 4)
    program = expanded(split_workload(), plan)
    times = timed(program)
    assert times.step_s == 13
    assert story(program, times, 1) == {
        **{("forward", m): start for m, start in enumerate((1, 3, 6, 9))},
        **{("input", m): start for m, start in enumerate((2, 4, 7, 10))},
        **{("weight", m): start for m, start in enumerate((5, 8, 11, 12))},
    }
    assert story(program, times, 0) == {
        **{("forward", m): start for m, start in enumerate((0, 1, 4, 7))},
        **{("input", m): start for m, start in enumerate((3, 5, 8, 11))},
        **{("weight", m): start for m, start in enumerate((6, 9, 10, 12))},
    }


def test_the_whole_backward_in_one_slot_takes_15():
    assert timed(expanded(split_workload(), plan_of(ONE_F_ONE_B, overlapped=False))).step_s == 15


def test_splitting_a_slot_in_place_sends_earlier():
    """B and W one after the other are a whole backward; only its message leaves a turn earlier."""
    split = [re.sub(r"BW(\d)", r"B\1 W\1", order) for order in ONE_F_ONE_B]
    whole, parts = (expanded(split_workload(), plan_of(orders)) for orders in (ONE_F_ONE_B, split))
    counts = [np.bincount(program.row_N)[:3].tolist() for program in (whole, parts)]
    assert counts == [[8, 8, 8]] * 2
    assert timed(parts).step_s < timed(whole).step_s == 15


def test_every_phase_but_the_weight_gradient_lands_in_b():
    backward = [
        compute(1, "again", Phase.RECOMPUTE),
        compute(1, "input", Phase.BACKWARD),
        compute(1, "weight", Phase.WEIGHT_GRADIENT),
        collective(1, Group.DP, "reduce", phase=Phase.WEIGHT_GRADIENT, blocking=False),
    ]
    made = HandMade(Parallel(microbatches=2)).template(forward=[compute(1, "forward")], backward=backward)
    program = expanded(made.workload(), plan_of(["F0 F1 B1 B0 W0 W1"], placement=((0,),)))
    names = [(program.ops.name_T[row], int(m)) for row, m in zip(program.row_N, program.microbatch_N, strict=True)]
    assert names == [
        *[("forward", 0), ("forward", 1), ("again", 1), ("input", 1), ("again", 0), ("input", 0)],
        *[("weight", 0), ("reduce", 0), ("weight", 1), ("reduce", 1)],
    ]


def test_a_backward_without_weight_gradients_has_empty_w_slots():
    made = HandMade(Parallel()).template(forward=[compute(1)], backward=[compute(1, phase=Phase.BACKWARD)])
    assert timed(expanded(made.workload(), plan_of(["F0 B0 W0"], placement=((0,),)))).step_s == 2


def test_messages_leave_after_the_input_gradient():
    """Stage 1 sends its gradient after B; its W runs beside the message of 1 s."""
    program = expanded(split_workload(1), plan_of(["F0 B0 W0", "F0 B0 W0"]))
    times = timed(program, message_s=1)
    assert story(program, times, 1) == {("forward", 0): 2, ("input", 0): 3, ("weight", 0): 4}
    assert story(program, times, 0) == {("forward", 0): 0, ("input", 0): 5, ("weight", 0): 6}


@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("message_s", [0, 0.5])
def test_two_copies_leave_no_bubble(overlapped, message_s):
    """Each stage is first in one copy and last in the other: F F BW BW without a gap but for the messages."""
    plan = plan_of(BOTH_WAYS, placement=((0, 1), (1, 0)), overlapped=overlapped)
    check_plan(plan, 2, 1, 2)
    program = expanded(split_workload(2), plan)
    times = timed(program, message_s)
    assert times.step_s == 6 + 2 * message_s
    first = {("forward", 0): 0, ("forward", 1): 1 + message_s}
    second = {("input", 1): 2 + message_s, ("weight", 1): 3 + message_s}
    third = {("input", 0): 4 + 2 * message_s, ("weight", 0): 5 + 2 * message_s}
    assert story(program, times, 0) == {**first, **second, **third}
    mirrored = {(name, 1 - microbatch): start for (name, microbatch), start in story(program, times, 1).items()}
    assert mirrored == story(program, times, 0)


def test_two_copies_of_more_stages_meet_in_the_middle():
    """Four stages, one microbatch from each end: both walk four stages there and back, crossing on the way."""
    orders = [
        "F0.0.0 F1.3.1 BW1.3.1 BW0.0.0",
        "F0.1.0 F1.2.1 BW1.2.1 BW0.1.0",
        "F1.1.1 F0.2.0 BW0.2.0 BW1.1.1",
        "F1.0.1 F0.3.0 BW0.3.0 BW1.0.1",
    ]
    plan = plan_of(orders, placement=((0, 1, 2, 3), (3, 2, 1, 0)))
    check_plan(plan, 4, 1, 2)
    made = HandMade(Parallel(pp=4, microbatches=2)).template(forward=[compute(1)], backward=[compute(2)])
    assert timed(expanded(made.workload(), plan)).step_s == 12


def test_a_message_to_one_neighbour_does_not_hold_back_one_to_the_other():
    """The middle stage sends activations both ways; stage 2 takes its own only after a long turn."""
    orders = [
        "F0.0.0 F1.2.1 BW1.2.1 BW0.0.0",
        "F0.1.0 F1.1.1 BW1.1.1 BW0.1.0",
        "F1.0.1 BW1.0.1 F0.2.0 BW0.2.0",
    ]
    plan = plan_of(orders, placement=((0, 1, 2), (2, 1, 0)))
    check_plan(plan, 3, 1, 2)
    backward = [compute(1, "input", Phase.BACKWARD), compute(1, "weight", Phase.WEIGHT_GRADIENT)]
    made = HandMade(Parallel(pp=3, microbatches=2)).template(forward=[compute(1, "forward")], backward=backward)
    program = expanded(made.workload(), plan)
    assert timed(program).step_s >= 6
    assert len(story(program, timed(program), 2)) == 6
