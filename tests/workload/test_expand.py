"""The three rules of program order, and how the operations of different ranks meet."""

from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from support import HandMade, collective, compute, expanded, plan_for, timed, wait
from traincast.errors import DeadlockError, ProgramError
from traincast.job.parallel import Parallel
from traincast.schedules.schedule import SCHEDULES
from traincast.workload.words import Group, Kind, Operation, Phase, Stream


def spans(ops, **more):
    """Run operations as the forward work of one rank and return (start, end) of each."""
    program = expanded(HandMade(Parallel()).template(forward=ops).workload(**more))
    times = timed(program)
    return list(zip(times.start_s_N.tolist(), times.end_s_N.tolist(), strict=True))


def test_a_blocking_operation_holds_back_what_follows_on_every_stream():
    assert spans([compute(3), collective(5), compute(1)]) == [(0, 3), (3, 8), (8, 9)]


def test_a_launch_holds_back_nothing_but_waits_for_the_last_blocking_operation():
    assert spans([compute(3), collective(5, blocking=False), compute(1)]) == [(0, 3), (3, 8), (3, 4)]


def test_a_wait_holds_back_until_its_stream_is_empty():
    ops = [compute(3), collective(5, blocking=False), compute(1), wait(), compute(1)]
    assert spans(ops)[-2:] == [(8, 8), (8, 9)]


def test_a_wait_for_another_stream_holds_nothing():
    ops = [compute(3), collective(5, blocking=False), compute(1), wait(Stream.DP), compute(1)]
    assert spans(ops)[-2:] == [(4, 4), (4, 5)]


def test_a_wait_is_for_what_was_launched_before_it():
    ops = [collective(5, blocking=False), wait(), collective(5, blocking=False), compute(1)]
    assert spans(ops) == [(0, 5), (5, 5), (5, 10), (5, 6)]


def test_a_wait_covers_every_launch_on_its_stream():
    ops = [collective(5, blocking=False), collective(4, blocking=False), wait(), compute(1)]
    assert spans(ops)[-1] == (9, 10)


def test_a_stream_is_in_order_and_streams_overlap():
    ops = [
        collective(5, blocking=False),
        collective(2, Group.DP, blocking=False),
        collective(1, blocking=False),
        compute(1),
    ]
    assert spans(ops) == [(0, 5), (0, 2), (5, 6), (0, 1)]


def test_a_blocking_operation_waits_for_its_own_stream():
    assert spans([collective(5, blocking=False), collective(1), compute(1)]) == [(0, 5), (5, 6), (6, 7)]


def test_a_step_is_start_forwards_after_forward_backwards_end():
    parts = ("start", "forward", "backward", "after_forward", "end")
    made = HandMade(Parallel(microbatches=2)).template(**{part: [compute(1, part)] for part in parts})
    program = expanded(made.workload(schedule="gpipe"))
    names = [program.ops.name_T[row] for row in program.row_N]
    assert names == ["start", "forward", "forward", "after_forward", "backward", "backward", "end"]
    assert program.microbatch_N.tolist() == [-1, 0, 1, -1, 0, 1, -1]
    assert program.virtual_stage_N.tolist() == [-1, 0, 0, -1, 0, 0, -1]
    assert program.peer_stage_N.tolist() == [-1] * 7
    assert timed(program).step_s == 7


def test_forward_only_has_no_backward():
    made = HandMade(Parallel(pp=2, microbatches=2)).template(forward=[compute(1)], backward=[compute(9)])
    program = expanded(made.workload(forward_only=True))
    assert not any(name.endswith("backward") for name in (program.ops.name_T[row] for row in program.row_N))
    assert timed(program).step_s == 3


def test_who_has_no_other_member_meets_nobody():
    program = expanded(HandMade(Parallel()).template(forward=[collective(5)]).workload())
    assert program.rendezvous_N.tolist() == [-1]


def test_members_start_together_and_wait_for_the_last():
    made = HandMade(Parallel(tp=2))
    made.template(forward=[compute(1), collective(4)]).template(forward=[compute(3), collective(4)])
    times = timed(expanded(made.workload([0, 1])))
    assert times.ready_s_N.tolist() == [0, 1, 0, 3]
    assert times.start_s_N.tolist() == [0, 3, 0, 3]
    assert times.end_s_N.tolist() == [1, 7, 3, 7]


def test_collectives_of_a_group_meet_in_their_order():
    """The k-th of a rank meets the k-th of the others, group by group; other groups do not count."""
    made = HandMade(Parallel(tp=2, dp=2))
    made.template(forward=[collective(1, size_bytes=1), collective(1, Group.DP), collective(1, size_bytes=2)])
    program = expanded(made.workload())
    met = Counter(zip(program.rendezvous_N.tolist(), program.ops.size_bytes_T[program.row_N].tolist(), strict=True))
    assert sorted(met.values()) == [2] * 6
    by_rendezvous = {
        rendezvous: (set(program.rank_N[program.rendezvous_N == rendezvous].tolist()), size) for rendezvous, size in met
    }
    pairs = Counter((frozenset(ranks), size) for ranks, size in by_rendezvous.values())
    expected = [({0, 1}, 1), ({0, 1}, 2), ({2, 3}, 1), ({2, 3}, 2), ({0, 2}, 8), ({1, 3}, 8)]
    assert pairs == Counter((frozenset(ranks), size) for ranks, size in expected)


@pytest.mark.parametrize(("schedule", "vpp"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 1), ("interleaved", 3)])
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 1), (2, 4), (3, 5), (4, 8)])
def test_every_send_meets_its_receive(schedule, vpp, pp, microbatches):
    made = HandMade(Parallel(tp=2, pp=pp, vpp=vpp, microbatches=microbatches))
    program = expanded(made.template(forward=[compute(1)], backward=[compute(2)]).workload(schedule=schedule))
    kind_N = program.ops.kind_T[program.row_N]
    messages = np.isin(kind_N, [Kind.SEND, Kind.RECV])
    all_rendezvous = np.unique(program.rendezvous_N[messages])
    # One message each way over every boundary between virtual stages, for each microbatch and pipeline.
    assert len(all_rendezvous) == 2 * (pp * vpp - 1) * microbatches * 2
    for rendezvous in all_rendezvous:
        at = np.flatnonzero(program.rendezvous_N == rendezvous)
        send, receive = sorted(at, key=lambda op: kind_N[op])
        assert [kind_N[send], kind_N[receive]] == [Kind.SEND, Kind.RECV]
        assert program.microbatch_N[send] == program.microbatch_N[receive]
        assert program.rank_N[send] % 2 == program.rank_N[receive] % 2, "a message leaves its pipeline"
        assert program.stage_N[send] == program.peer_stage_N[receive]
        assert program.stage_N[receive] == program.peer_stage_N[send]
        boundary = program.virtual_stage_N[send]
        assert boundary == program.virtual_stage_N[receive]
        ends = [int(boundary) % pp, int(boundary + 1) % pp]
        forward = program.ops.phase_T[program.row_N[send]] == Phase.FORWARD
        assert [program.stage_N[send], program.stage_N[receive]] == (ends if forward else ends[::-1])


def test_messages_carry_the_bytes_of_their_boundary():
    made = HandMade(Parallel(pp=3, microbatches=2)).template(forward=[compute(1)], backward=[compute(2)])
    workload = replace(made.workload(), message_bytes_Q=np.array([100, 200, 300]))
    program = expanded(workload)
    messages = np.isin(program.ops.kind_T[program.row_N], [Kind.SEND, Kind.RECV])
    sizes = program.ops.size_bytes_T[program.row_N[messages]]
    assert (sizes == 100 * (program.virtual_stage_N[messages] + 1)).all()
    assert sorted(set(sizes.tolist())) == [100, 200], "what leaves the last virtual stage is not a message"


def test_operations_of_one_table_are_shared_by_all_ranks():
    """A template is tiled, not copied: rows do not grow with microbatches or ranks."""
    small, large = (
        HandMade(Parallel(tp=tp, pp=2, microbatches=m)).template(forward=[compute(1)], backward=[compute(2)])
        for tp, m in ((1, 2), (4, 32))
    )
    assert len(expanded(small.workload()).ops) == len(expanded(large.workload()).ops)


def test_members_that_do_different_things_are_told_apart():
    made = HandMade(Parallel(tp=2))
    made.template(forward=[collective(1, name="left", size_bytes=64, line=7)])
    made.template(forward=[collective(1, name="right", size_bytes=64, operation=Operation.ALL_GATHER)])
    with pytest.raises(ProgramError) as error:
        expanded(made.workload([0, 1]))
    for word in ("disagree", "'left' (line 7), all_reduce of 64", "'right', all_gather of 64"):
        assert word in str(error.value)


def test_members_with_different_sizes_disagree():
    made = HandMade(Parallel(tp=2))
    made.template(forward=[collective(1, name="left", size_bytes=64)])
    made.template(forward=[collective(1, name="right", size_bytes=65)])
    with pytest.raises(ProgramError, match=r"'left', all_reduce of 64 bytes meets 'right', all_reduce of 65 bytes"):
        expanded(made.workload([0, 1]))


def test_a_member_that_does_not_come_is_missed():
    made = HandMade(Parallel(tp=3))
    made.template(forward=[collective(1), collective(1, name="second")]).template(forward=[collective(1)])
    with pytest.raises(ProgramError, match=r"'second', all_reduce of 8 bytes waits for 3 members, but only 2 take"):
        expanded(made.workload([0, 1, 0]))


def test_a_rank_outside_the_group_cannot_communicate():
    made = HandMade(Parallel(pp=3)).template(
        forward=[compute(1)], end=[collective(1, Group.EMB, name="embedding_grads")]
    )
    with pytest.raises(
        ProgramError, match="'embedding_grads' communicates over emb, but its rank is not in such a group"
    ):
        expanded(made.workload())


@pytest.mark.parametrize(("kind", "counts"), [("F", "1 sends and 0 receives"), ("BW", "0 sends and 1 receives")])
def test_a_message_without_its_partner_is_named(kind, counts):
    workload = HandMade(Parallel(pp=2, microbatches=3)).template(forward=[compute(1)], backward=[compute(1)]).workload()
    plan = plan_for(workload)
    last = tuple(slot for slot in plan.slots[1] if (slot.kind.name, slot.microbatch) != (kind, 1))
    with pytest.raises(ProgramError, match=rf"of microbatch 1 at virtual stage 0 has {counts}; it needs one of each"):
        expanded(workload, replace(plan, slots=(plan.slots[0], last)))


def test_collectives_in_crossed_order_wait_for_ever():
    """Every member takes part in both, but the ranks disagree about which comes first."""
    made = HandMade(Parallel(tp=2))
    orders = ([Group.TP, Group.WORLD], [Group.WORLD, Group.TP])
    for order in orders:
        made.template(forward=[collective(1, group) for group in order])
    program = expanded(made.workload([0, 1]))
    with pytest.raises(DeadlockError) as error:
        timed(program)
    assert {program.rank_N[op] for op in error.value.ops} == {0, 1}


def test_stages_that_disagree_about_the_order_wait_for_ever():
    """Stage 1 wants microbatch 1 first and blocks; stage 0 sends microbatch 0 first and blocks."""
    workload = HandMade(Parallel(pp=2, microbatches=2)).template(forward=[compute(1)], backward=[compute(1)]).workload()
    plan = SCHEDULES.get("gpipe").plan(2, 1, 2)
    swapped = (plan.slots[1][1], plan.slots[1][0], *plan.slots[1][2:])
    program = expanded(workload, replace(plan, slots=(plan.slots[0], swapped)))
    with pytest.raises(DeadlockError) as error:
        timed(program)
    names = {program.ops.name_T[program.row_N[op]] for op in error.value.ops}
    assert names <= {"send_forward", "recv_forward", "compute"}
    assert len(error.value.ops) >= 2


def test_a_program_without_communication_needs_no_groups():
    program = expanded(HandMade(Parallel(microbatches=3)).template(forward=[compute(1)]).workload())
    assert program.groups == ()
    assert timed(program).step_s == 3
    assert (program.rendezvous_N == -1).all()


def test_a_rank_with_nothing_to_do():
    program = expanded(HandMade(Parallel()).template().workload())
    assert len(program) == 0
    assert timed(program).step_s == 0


def test_streams_are_numbered_rank_by_rank():
    made = HandMade(Parallel(pp=2, microbatches=2)).template(forward=[compute(1), collective(2, blocking=False)])
    program = expanded(made.workload())
    rank_N = np.repeat(np.arange(len(program.rank_R)), np.diff(program.op_ptr_R1))
    assert len(program.rank_R) == 2
    assert program.stream_N.tolist() == (rank_N * len(Stream) + program.ops.stream_T[program.row_N]).tolist()
