"""Exact small plans, worked out by hand, and the textbook length of the step."""

import pytest
from msgspec.structs import replace

from support import in_flight
from traincast.errors import InfeasibleError
from traincast.schedules.check import check_plan, checked_plan
from traincast.schedules.gpipe import gpipe
from traincast.schedules.interleaved import interleaved
from traincast.schedules.one_f_one_b import one_f_one_b
from traincast.schedules.plan import SchedulePlan, with_pairs
from traincast.schedules.schedule import SCHEDULES
from traincast.schedules.slots import Slot, SlotKind, turns


def _orders(plan: SchedulePlan) -> list[str]:
    """Each stage as text: F and B (a whole backward), virtual stage, microbatch."""
    letter = {SlotKind.F: "F", SlotKind.BW: "B"}
    return [" ".join(f"{letter[s.kind]}{s.virtual_stage}.{s.microbatch}" for s in order) for order in plan.slots]


def _step(plan: SchedulePlan, virtual_stages: int, forward: int, backward: int) -> int:
    """Length of the step with free messages, by plain relaxation."""
    end: dict[tuple[bool, int, int], int] = {}
    clock, position, moved = [0] * len(plan.slots), [0] * len(plan.slots), True
    while moved:
        moved = False
        for stage, order in enumerate(plan.slots):
            while position[stage] < len(order):
                slot = order[position[stage]]
                back, q, m = slot.kind == SlotKind.BW, slot.virtual_stage, slot.microbatch
                before = (back, q + 1, m) if back and q + 1 < virtual_stages else (False, q if back else q - 1, m)
                if before[1] >= 0 and before not in end:
                    break
                clock[stage] = max(clock[stage], end.get(before, 0)) + (backward if back else forward)
                end[back, q, m] = clock[stage]
                position[stage] += 1
                moved = True
    assert position == [len(order) for order in plan.slots]
    return max(clock)


def test_gpipe() -> None:
    assert _orders(gpipe(2, 1, 3)) == ["F0.0 F0.1 F0.2 B0.0 B0.1 B0.2", "F1.0 F1.1 F1.2 B1.0 B1.1 B1.2"]


def test_1f1b_of_4_stages_and_8_microbatches() -> None:
    assert _orders(one_f_one_b(4, 1, 8)) == [
        "F0.0 F0.1 F0.2 F0.3 B0.0 F0.4 B0.1 F0.5 B0.2 F0.6 B0.3 F0.7 B0.4 B0.5 B0.6 B0.7",
        "F1.0 F1.1 F1.2 B1.0 F1.3 B1.1 F1.4 B1.2 F1.5 B1.3 F1.6 B1.4 F1.7 B1.5 B1.6 B1.7",
        "F2.0 F2.1 B2.0 F2.2 B2.1 F2.3 B2.2 F2.4 B2.3 F2.5 B2.4 F2.6 B2.5 F2.7 B2.6 B2.7",
        "F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F3.3 B3.3 F3.4 B3.4 F3.5 B3.5 F3.6 B3.6 F3.7 B3.7",
    ]


def test_a_pipeline_that_runs_empty_is_filled_in_the_same_order() -> None:
    assert _orders(checked_plan("1f1b", 2, 1, 5, drained_after=2)) == [
        "F0.0 F0.1 B0.0 B0.1 F0.2 F0.3 B0.2 B0.3 F0.4 B0.4",
        "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3 F1.4 B1.4",
    ]
    assert checked_plan("1f1b", 2, 1, 5, drained_after=8) == checked_plan("1f1b", 2, 1, 5)


@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
def test_each_time_that_a_pipeline_runs_empty_costs_its_bubble(name: str) -> None:
    stages, chunks, forward, backward = 4, 1 + (name == "interleaved"), 1, 2
    for times in (1, 2, 4):
        plan = checked_plan(name, stages, chunks, 16, drained_after=16 // times)
        step = _step(plan, stages * chunks, forward, backward)
        assert step == (16 * chunks + times * (stages - 1)) * (forward + backward)
        assert max(in_flight(plan)) == max(in_flight(checked_plan(name, stages, chunks, 16 // times)))


def test_no_pass_is_paired_with_one_of_the_next_filling() -> None:
    plan = checked_plan("interleaved", 2, 2, 8, pairs=True, drained_after=4)
    for order in plan.slots:
        together = [{slot.microbatch // 4 for slot in turn} for turn in turns(order)]
        assert all(len(each) == 1 for each in together)
        assert any(slot.paired for slot in order)


def test_1f1b_with_fewer_microbatches_than_stages() -> None:
    assert _orders(one_f_one_b(4, 1, 2)) == [
        "F0.0 F0.1 B0.0 B0.1",
        "F1.0 F1.1 B1.0 B1.1",
        "F2.0 F2.1 B2.0 B2.1",
        "F3.0 B3.0 F3.1 B3.1",
    ]


def test_interleaved_of_2_stages_2_chunks_and_4_microbatches() -> None:
    assert _orders(interleaved(2, 2, 4)) == [
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3",
    ]


def test_interleaved_with_a_smaller_last_group() -> None:
    assert _orders(interleaved(2, 2, 3)) == [
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 B2.1 F2.2 B0.0 B0.1 B2.2 B0.2",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 B1.1 F3.2 B3.2 B1.2",
    ]


def test_interleaved_of_one_chunk_is_1f1b_with_overlapped_messages() -> None:
    assert interleaved(4, 1, 6) == replace(one_f_one_b(4, 1, 6), name="interleaved", overlapped_p2p=True)


def test_messages_block_unless_interleaved() -> None:
    assert [plan.overlapped_p2p for plan in (gpipe(2, 1, 2), one_f_one_b(2, 1, 2), interleaved(2, 2, 2))] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_one_chunk_schedules_point_to_interleaved(schedule) -> None:
    with pytest.raises(InfeasibleError, match="vpp 2; use schedule interleaved"):
        schedule(4, 2, 8)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_step_is_as_long_as_the_papers_say(stages: int) -> None:
    """(M + P - 1) turns; interleaved (V*M + P - 1) turns of 1/V: arXiv:2104.04473, sections 2.2.1 and 2.2.2."""
    microbatches = 2 * stages
    for schedule in (gpipe, one_f_one_b):
        assert _step(schedule(stages, 1, microbatches), stages, 1, 2) == 3 * (microbatches + stages - 1)
    for virtual in (2, 4):
        plan = interleaved(stages, virtual, microbatches)
        assert _step(plan, stages * virtual, 1, 2) == 3 * (virtual * microbatches + stages - 1)


@pytest.mark.parametrize(("stages", "virtual", "microbatches"), [(4, 2, 8), (1, 3, 5), (4, 1, 6), (2, 2, 2)])
def test_what_megatron_runs_has_no_warning(stages: int, virtual: int, microbatches: int) -> None:
    assert interleaved(stages, virtual, microbatches).warnings == ()


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((4, 2, 3), "3 microbatches are fewer than 4 stages"),
        ((4, 3, 9), "9 microbatches are not a multiple of 4 stages"),
        ((4, 3, 9), "last group of 1"),
    ],
)
def test_what_megatron_refuses_runs_with_a_warning(counts: tuple[int, int, int], words: str) -> None:
    (note,) = interleaved(*counts).warnings
    assert note.code == "megatron-would-refuse"
    assert words in note.text


def test_in_flight_counts_until_the_whole_backward() -> None:
    order = [Slot(kind, 0, microbatch) for kind in (SlotKind.F, SlotKind.B) for microbatch in (0, 1)]
    split = SchedulePlan(
        name="split", placement=((0,),), slots=((*order, Slot(SlotKind.F, 0, 2)),), overlapped_p2p=False
    )
    assert in_flight(split) == [3]
    assert in_flight(one_f_one_b(4, 1, 8)) == [4, 3, 2, 1]
    assert in_flight(interleaved(4, 2, 8)) == [11, 9, 7, 5]


@pytest.mark.parametrize(("stages", "virtual", "microbatches"), [(1, 1, 4), (4, 1, 9), (4, 1, 2), (4, 2, 8), (2, 3, 4)])
def test_pairs_are_a_backward_pass_and_a_later_forward_pass_of_the_same_stage(stages, virtual, microbatches):
    name = "1f1b" if virtual == 1 else "interleaved"
    plan = SCHEDULES.get(name).plan(stages, virtual, microbatches)
    found = with_pairs(plan)
    check_plan(found, stages, virtual, microbatches)
    assert with_pairs(found) == found
    assert found.overlapped_p2p
    for before, after in zip(plan.slots, found.slots, strict=True):
        assert sorted(before) == sorted(slot._replace(paired=False) for slot in after)
        each = list(turns(after))
        assert max(map(len, each)) <= 2
        for forward, backward in (pair for pair in each if len(pair) == 2):
            assert (forward.kind, backward.kind) == (SlotKind.F, SlotKind.BW)
            assert forward[1:3] != backward[1:3]
        # No backward pass is left alone while a forward pass is still to come.
        alone = [pair[0].kind for pair in each if len(pair) == 1]
        assert SlotKind.F not in alone[alone.index(SlotKind.BW) :]


@pytest.mark.parametrize(("stages", "most"), [(2, 5), (4, 9), (8, 17)])
@pytest.mark.parametrize("name", ["dualpipe", "dualpipe_v"])
def test_schedules_with_pairs_of_their_own_run_with_few_microbatches_too(name, stages, most):
    for microbatches in range(1, most):
        plan = SCHEDULES.get(name).plan(stages, 2 if name == "dualpipe_v" else 1, microbatches)
        found = with_pairs(plan)
        check_plan(found, stages, 2 if name == "dualpipe_v" else 1, microbatches)
        has_pairs = any(slot.paired for order in plan.slots for slot in order)
        if name == "dualpipe":
            assert found.slots == plan.slots
            assert has_pairs == (microbatches > stages)
            assert [note.code for note in found.warnings] == ([] if has_pairs else ["moe-a2a-overlap-unused"])


def test_each_stage_of_pairs_is_two_forward_passes_ahead_of_the_next():
    """With one, a pair would wait for the pair before it to come back from the next stage: half of the throughput."""
    found = with_pairs(one_f_one_b(4, 1, 16))
    ahead = [[len(pair) for pair in turns(order)].index(2) for order in found.slots]
    assert ahead == [7, 5, 3, 1]
    assert [note.code for note in found.warnings] == ["megatron-would-refuse"]
    assert not with_pairs(one_f_one_b(1, 1, 16)).warnings
    assert not with_pairs(interleaved(4, 2, 16)).warnings
