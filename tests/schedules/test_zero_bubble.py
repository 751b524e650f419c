"""Schedules that split the backward pass, or run two ways at once: bubbles and memory of their papers."""

import numpy as np
import pytest

from support import HandMade, compute, expanded, in_flight, timed
from traincast.errors import InfeasibleError, ProgramError
from traincast.job.parallel import Parallel
from traincast.schedules.check import check_plan
from traincast.schedules.dualpipe import dualpipe
from traincast.schedules.dualpipe_v import dualpipe_v
from traincast.schedules.interleaved_zb import interleaved_zb
from traincast.schedules.looped_bfs import looped_bfs
from traincast.schedules.one_f_one_b import one_f_one_b
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.schedule import SCHEDULES
from traincast.schedules.slots import Slot, SlotKind, turns
from traincast.schedules.zb_h1 import zb_h1
from traincast.schedules.zb_v import zb_v
from traincast.workload.words import Kind, Phase

STAGES = (4, 8, 16)
EQUAL = (1.0, 1.0, 1.0)
UNEQUAL = (1.0, 1.2, 0.8)
"""Forward, input gradient and weight gradient of a virtual stage in s."""


def idle_s(schedule, stages, microbatches, times_s, virtual=1):
    """Return the step less the work of a stage, which is the same for all, messages being free."""
    forward_s, input_s, weight_s = times_s
    made = HandMade(Parallel(pp=stages, vpp=virtual, microbatches=microbatches))
    backward = compute(input_s, phase=Phase.BACKWARD), compute(weight_s, phase=Phase.WEIGHT_GRADIENT)
    workload = made.template(forward=[compute(forward_s)], backward=backward).workload(schedule=schedule)
    program = expanded(workload)
    timeline = timed(program)
    busy_R = [
        timeline.duration_s_N[mine][program.ops.kind_T[program.row_N[mine]] == Kind.COMPUTE].sum()
        for mine in map(program.rank_slice, range(stages))
    ]
    assert np.allclose(busy_R, virtual * microbatches * (forward_s + input_s + weight_s))
    return timeline.step_s - busy_R[0]


@pytest.mark.parametrize("times_s", [EQUAL, UNEQUAL])
@pytest.mark.parametrize("stages", STAGES)
def test_zb_h1_idles_as_its_paper_says(stages, times_s):
    """(P - 1)(f + b - w) for (P - 1)(f + b + w) of 1F1B: arXiv:2401.10241, table 1."""
    forward_s, input_s, weight_s = times_s
    for microbatches in (stages, 2 * stages + 1):
        found_s = idle_s("zb_h1", stages, microbatches, times_s)
        assert found_s == pytest.approx((stages - 1) * (forward_s + input_s - weight_s))
        assert idle_s("1f1b", stages, microbatches, times_s) == pytest.approx((stages - 1) * sum(times_s))


@pytest.mark.slow
@pytest.mark.parametrize("times_s", [EQUAL, UNEQUAL])
@pytest.mark.parametrize("virtual", [1, 2, 3])
@pytest.mark.parametrize("stages", STAGES[:2])
def test_virtual_stages_idle_for_their_part_of_the_bubble(stages, virtual, times_s):
    """With f, b and w of a virtual stage: of ZB-H1 interleaved, and of the breadth-first schedule as of GPipe."""
    forward_s, input_s, weight_s = times_s
    for microbatches in (stages, 2 * stages, 2 * stages + 2):
        found_s = idle_s("interleaved_zb", stages, microbatches, times_s, virtual)
        assert found_s == pytest.approx((stages - 1) * (forward_s + input_s - weight_s))
        found_s = idle_s("looped_bfs", stages, microbatches, times_s, virtual)
        assert found_s == pytest.approx((stages - 1) * sum(times_s))


def test_one_virtual_stage_is_the_plain_schedule():
    """Interleaved ZB-H1 is then ZB-H1; breadth-first runs GPipe's forwards, and its backwards from the last one."""
    for count in range(1, 12):
        assert interleaved_zb(4, 1, count).slots == zb_h1(4, 1, count).slots
        pairs = zip(looped_bfs(4, 1, count).slots, SCHEDULES.get("gpipe").plan(4, 1, count).slots, strict=True)
        assert all(one[:count] == other[:count] and set(one) == set(other) for one, other in pairs)


@pytest.mark.parametrize("virtual", [1, 2, 4])
@pytest.mark.parametrize("stages", STAGES)
def test_virtual_stages_in_flight(stages, virtual):
    """A group on each chunk but the last, and P on that, as ZB-H1 has; all microbatches of the breadth-first one."""
    for microbatches in (2 * stages, 2 * stages + 2):
        group = microbatches // 2
        held = in_flight(interleaved_zb(stages, virtual, microbatches))
        assert held == [(virtual - 1) * group + stages] * stages
        assert in_flight(looped_bfs(stages, virtual, microbatches)) == [virtual * microbatches] * stages


@pytest.mark.parametrize("stages", STAGES)
def test_zb_v_waits_only_for_its_first_microbatch(stages):
    """Stage s begins when s forwards have passed, and none waits after that: arXiv:2405.15362, section 3.1."""
    for microbatches in (2 * stages - 1, 2 * stages + 3):
        assert idle_s("zb_v", stages, microbatches, EQUAL, virtual=2) == pytest.approx(stages - 1)


@pytest.mark.slow
@pytest.mark.parametrize("times_s", [EQUAL, UNEQUAL, (1.0, 1.0, 0.5)])
@pytest.mark.parametrize("stages", STAGES)
def test_dualpipe_idles_as_its_report_says(stages, times_s):
    """(P/2 - 1)(FB + B - 3W), backward passes with their weight gradients: arXiv:2412.19437, table 2.

    DualPipe-V has that of twice as many stages. A forward and a backward pass that run as one take the sum of both.
    """
    forward_s, input_s, weight_s = times_s
    unit_s = forward_s + 2 * (input_s + weight_s) - 3 * weight_s
    for microbatches in (2 * stages, 4 * stages):
        assert idle_s("dualpipe", stages, microbatches, times_s) == pytest.approx((stages / 2 - 1) * unit_s)
    found_s = idle_s("dualpipe_v", stages, 2 * stages + 1, times_s, virtual=2)
    assert found_s == pytest.approx((stages - 1) * unit_s)


@pytest.mark.parametrize("stages", STAGES)
def test_activations_and_parameters_are_those_of_the_papers(stages):
    """In microbatches of a stage: P of 1F1B and ZB-H1, P of ZB-V (in halves), P + 1 of DualPipe, (2P + 1)/2 of -V."""
    count = 3 * stages
    assert in_flight(one_f_one_b(stages, 1, count)) == list(range(stages, 0, -1))
    assert in_flight(zb_h1(stages, 1, count)) == [stages] * stages
    assert in_flight(zb_v(stages, 2, count)) == [2 * stages] * stages
    assert max(in_flight(dualpipe(stages, 1, 2 * count))) == stages + 1
    assert max(in_flight(dualpipe_v(stages, 2, count))) == 2 * stages + 1
    copies = {
        name: len(SCHEDULES.get(name).plan(stages, virtual, count).placement) for name, virtual in VIRTUAL.items()
    }
    assert copies == {"zb_h1": 1, "zb_v": 1, "dualpipe": 2, "dualpipe_v": 1}


VIRTUAL = {"zb_h1": 1, "zb_v": 2, "dualpipe": 1, "dualpipe_v": 2}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "virtual"), VIRTUAL.items())
def test_any_number_of_microbatches_runs(name, virtual):
    for stages in (2, 4, 6):
        for microbatches in range(1, 15):
            check_plan(SCHEDULES.get(name).plan(stages, virtual, microbatches), stages, virtual, microbatches)
            assert idle_s(name, stages, microbatches, UNEQUAL, virtual) >= 0 or name == "dualpipe"


def test_both_ends_of_dualpipe_are_fed():
    plan = dualpipe(4, 1, 9)
    first = {slot.microbatch for slot in plan.slots[0] if slot.copy == 0}
    assert first == set(range(5))
    assert {slot.microbatch for slot in plan.slots[0] if slot.copy == 1} == set(range(5, 9))
    assert [order[0] for order in plan.slots] == [
        Slot(SlotKind.F, 0, 0),
        Slot(SlotKind.F, 1, 0),
        Slot(SlotKind.F, 1, 5, 1),
        Slot(SlotKind.F, 0, 5, 1),
    ]


def test_pairs_of_dualpipe_are_a_forward_and_another_microbatch_backward():
    for plan in (dualpipe(8, 1, 32), dualpipe_v(4, 2, 16)):
        pairs = [each for order in plan.slots for each in turns(order) if len(each) > 1]
        assert pairs
        for forward, backward in pairs:
            assert (forward.kind, backward.kind) == (SlotKind.F, SlotKind.BW)
            assert forward[1:4] != backward[1:4]


def test_slots_that_run_as_one_wait_for_both_and_send_together():
    """Stage 0 runs F of microbatch 1 with the backward of 0: both begin when that gradient has come."""
    first = (
        Slot(SlotKind.F, 0, 0),
        Slot(SlotKind.F, 0, 1, paired=True),
        Slot(SlotKind.BW, 0, 0),
        Slot(SlotKind.BW, 0, 1),
    )
    second = tuple(Slot(kind, 1, microbatch) for microbatch in (0, 1) for kind in (SlotKind.F, SlotKind.BW))
    plan = SchedulePlan(name="paired", placement=((0, 1),), slots=(first, second), overlapped_p2p=True)
    check_plan(plan, 2, 1, 2)
    made = HandMade(Parallel(pp=2, microbatches=2))
    workload = made.template(forward=[compute(1.0)], backward=[compute(2.0, phase=Phase.BACKWARD)]).workload()
    timeline = timed(expanded(workload, plan))
    # F0 0-1 | F0' 1-2, B0' 2-4 | F1 4-5, B0 5-7 | F1' 7-8, B1' 8-10 | B1 10-12
    assert timeline.step_s == 12.0


def test_a_pair_that_needs_itself_is_refused():
    first = Slot(SlotKind.F, 0, 0, paired=True), Slot(SlotKind.BW, 0, 0)
    second = Slot(SlotKind.F, 1, 0), Slot(SlotKind.BW, 1, 0)
    plan = SchedulePlan(name="paired", placement=((0, 1),), slots=(first, second), overlapped_p2p=True)
    with pytest.raises(ProgramError, match="waits for ever"):
        check_plan(plan, 2, 1, 1)


@pytest.mark.parametrize(
    ("schedule", "counts", "words"),
    [
        (zb_h1, (4, 2, 8), "use schedule zb_v"),
        (zb_v, (4, 1, 8), "set vpp 2"),
        (zb_v, (4, 3, 8), "not vpp 3"),
        (dualpipe, (4, 2, 8), "leave vpp out"),
        (dualpipe, (5, 1, 8), "even number of stages, not pp 5"),
        (dualpipe_v, (4, 1, 8), "set vpp 2"),
    ],
)
def test_what_a_schedule_cannot_run_is_refused(schedule, counts, words):
    with pytest.raises(InfeasibleError, match=words):
        schedule(*counts)
