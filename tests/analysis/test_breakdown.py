"""One rank whose times are written by hand; every rule of who owns an instant."""

from pathlib import Path

import numpy as np
import pytest

from support import collective, compute, wait
from traincast import api
from traincast.analysis.breakdown import exposed_seconds, last_rank, rank_breakdown
from traincast.analysis.timed_program import timed_program
from traincast.simulation.result import BREAKDOWN_KEYS
from traincast.workload.ops import Op, table_of
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind, Operation, Phase, Stream

EXAMPLES = Path(__file__).parents[2] / "examples"
COMPUTE = compute(1)
GAP = Op(name="gap", kind=Kind.GAP, phase=Phase.FORWARD, duration_s=1.0)


def comm(group):
    return collective(1.0, group, blocking=False)


def message(kind=Kind.RECV):
    stream = Stream.RECV_FORWARD if kind is Kind.RECV else Stream.SEND_FORWARD
    return Op(
        name=kind.name.lower(),
        kind=kind,
        phase=Phase.FORWARD,
        stream=stream,
        group=Group.PP,
        operation=Operation.SEND_RECV,
        size_bytes=8,
    )


def ran(*runs, before=()):
    """Return a step of a rank that ran (operation, ready, start, end), behind one that ran `before`."""
    everything = [*before, *runs]
    count = len(everything)
    none = np.full(count, -1, dtype=np.int32)
    empty = np.zeros(0, dtype=np.int32)
    program = Program(
        ops=table_of([run[0] for run in everything]),
        row_N=np.arange(count),
        rank_N=np.array([0] * len(before) + [1] * len(runs)),
        microbatch_N=none,
        virtual_stage_N=none,
        peer_stage_N=none,
        group_N=none,
        rendezvous_N=none,
        edge_src_E=empty,
        edge_dst_E=empty,
        groups=(),
        rank_R=np.array([0, 1]),
        stage_R=np.array([0, 0]),
        represents_R=np.array([1, 1]),
        op_ptr_R1=np.array([0, len(before), count]),
    )
    ready, start, end = (np.array([run[place] for run in everything], dtype=np.float64) for place in (1, 2, 3))
    timeline = Timeline(ready_s_N=ready, start_s_N=start, end_s_N=end, duration_s_N=end - start)
    return timed_program(program, timeline)


def broken_down(*runs, step_s, before=()):
    """Break down a rank that ran (operation, ready, start, end), behind another rank that ran `before`."""
    found = rank_breakdown(ran(*runs, before=[*before, (GAP, 0, 0, step_s)]), 1)
    assert tuple(found.breakdown_s) == BREAKDOWN_KEYS
    assert sum(found.breakdown_s.values()) == step_s
    assert found.compute_s == found.breakdown_s["compute"]
    return {key: seconds for key, seconds in found.breakdown_s.items() if seconds}, found.wait_s


def test_compute_is_compute():
    assert broken_down((COMPUTE, 0, 0, 3), (COMPUTE, 3, 3, 5), step_s=5) == ({"compute": 5}, 0)


@pytest.mark.parametrize(
    ("group", "owner"),
    [
        (Group.TP, "exposed_tp"),
        (Group.ETP, "exposed_tp"),
        (Group.CP, "exposed_cp"),
        (Group.EP, "exposed_ep"),
        (Group.PP, "exposed_pp"),
        (Group.DP, "exposed_dp"),
        (Group.EDP, "exposed_dp"),
        (Group.WORLD, "exposed_dp"),
    ],
)
def test_every_group_has_an_owner_for_transfer_and_for_waiting(group, owner):
    """Members are awaited for 2 s, then 4 s are transferred; both are exposed, the first is also waiting."""
    found = broken_down((COMPUTE, 0, 0, 1), (comm(group), 1, 3, 7), step_s=7)
    assert found == ({"compute": 1, owner: 6}, 2)


def test_awaiting_the_other_end_of_the_pipeline_is_bubble_and_reducing_with_it_exposed_pp():
    """Tied embeddings are reduced by the first and the last stage; the one that is done first waits for the drain."""
    found = broken_down((COMPUTE, 0, 0, 1), (comm(Group.EMB), 1, 3, 7), step_s=7)
    assert found == ({"compute": 1, "exposed_pp": 4, "bubble": 2}, 0)


@pytest.mark.slow
def test_without_data_parallelism_nothing_of_it_is_exposed():
    result = api.simulate(EXAMPLES / "megatron_pp4_tp2", cluster="h100")
    for rank in result.ranks:
        assert rank.breakdown_s["exposed_dp"] == 0
        assert sum(rank.breakdown_s.values()) == pytest.approx(result.iteration_time_s)
    assert result.breakdown_s["bubble"] > 0.4 * result.iteration_time_s


def test_the_optimizers_norm_is_other():
    assert broken_down((COMPUTE, 0, 0, 1), (comm(Group.MP), 1, 3, 7), step_s=7) == ({"compute": 1, "other": 6}, 0)


@pytest.mark.parametrize("kind", [Kind.SEND, Kind.RECV])
def test_awaiting_a_peers_message_is_bubble_and_its_transfer_exposed(kind):
    found = broken_down((COMPUTE, 0, 0, 1), (message(kind), 1, 4, 6), step_s=6)
    assert found == ({"compute": 1, "exposed_pp": 2, "bubble": 3}, 0)


def test_compute_wins_over_transfer_and_waiting():
    """Communication is exposed only where nothing is computed: 0-1 waiting, 1-2 transfer, then 5-6 transfer."""
    found = broken_down((COMPUTE, 0, 2, 5), (comm(Group.DP), 0, 1, 6), (message(), 0, 5, 6), step_s=6)
    assert found == ({"compute": 3, "exposed_pp": 1, "exposed_dp": 1, "bubble": 1}, 0)


def test_waiting_that_computing_hides_is_no_waiting():
    found = broken_down((COMPUTE, 0, 0, 4), (comm(Group.TP), 1, 3, 5), step_s=5)
    assert found == ({"compute": 4, "exposed_tp": 1}, 0)


def test_transfers_go_to_the_first_of_tp_cp_ep_pp_dp():
    """All begin at 0; tp ends at 1, cp at 2, ep at 3, a message at 4, dp at 5: each owns the second before its end."""
    order = [comm(Group.TP), comm(Group.CP), comm(Group.EP), message(), comm(Group.DP)]
    runs = [(op, 0, 0, end) for end, op in enumerate(order, 1)]
    owners = dict.fromkeys(("exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp", "exposed_dp"), 1)
    assert broken_down(*runs, step_s=5) == (owners, 0)
    assert broken_down(*reversed(runs), step_s=5) == (owners, 0)


def test_a_transfer_wins_over_waiting():
    """dp is last among transfers, but transferring comes before waiting for a message or for members of tp."""
    found = broken_down((comm(Group.DP), 0, 0, 2), (message(), 0, 3, 3), (comm(Group.TP), 0, 4, 4), step_s=4)
    assert found == ({"exposed_dp": 2, "bubble": 1, "exposed_tp": 1}, 1)


def test_an_awaited_message_wins_over_awaited_members():
    found = broken_down((comm(Group.TP), 0, 3, 4), (message(), 0, 2, 2), step_s=4)
    assert found == ({"bubble": 2, "exposed_tp": 2}, 1)


def test_awaited_members_go_to_the_first_of_tp_cp_ep_pp_dp():
    groups = [Group.TP, Group.CP, Group.EP, Group.PP, Group.DP]
    runs = [(comm(group), 0, start, start) for start, group in enumerate(groups, 1)]
    owners = dict.fromkeys(("exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp", "exposed_dp"), 1)
    assert broken_down(*runs, step_s=5) == (owners, 5)


def test_gaps_of_the_host_are_other():
    assert broken_down((COMPUTE, 0, 0, 1), (GAP, 1, 1, 3), (COMPUTE, 3, 3, 4), step_s=4) == (
        {"compute": 2, "other": 2},
        0,
    )


def test_a_gap_does_not_hide_a_transfer():
    assert broken_down((GAP, 0, 0, 3), (comm(Group.TP), 1, 1, 2), step_s=3) == ({"exposed_tp": 1, "other": 2}, 0)


def test_waits_own_nothing_themselves():
    """What is waited for owns the time; a wait for nothing that runs leaves it to nobody."""
    found = broken_down((comm(Group.DP), 0, 0, 3), (wait(Stream.DP), 0, 3, 3), (COMPUTE, 3, 3, 4), step_s=4)
    assert found == ({"exposed_dp": 3, "compute": 1}, 0)


def test_before_the_start_and_after_the_end_is_other():
    assert broken_down((COMPUTE, 0, 2, 3), step_s=10) == ({"compute": 1, "other": 9}, 0)


def test_a_rank_that_does_nothing_is_all_other():
    assert broken_down(step_s=4) == ({"other": 4}, 0)


def test_operations_without_duration_own_nothing():
    assert broken_down((comm(Group.TP), 1, 1, 1), (COMPUTE, 1, 1, 2), step_s=2) == ({"compute": 1, "other": 1}, 0)


def test_a_step_of_no_time():
    assert broken_down((COMPUTE, 0, 0, 0), step_s=0) == ({}, 0)


def test_other_ranks_do_not_count():
    found = broken_down((COMPUTE, 0, 0, 1), step_s=3, before=[(comm(Group.TP), 0, 1, 3), (COMPUTE, 0, 0, 3)])
    assert found == ({"compute": 1, "other": 2}, 0)


def test_overlapping_transfers_of_one_owner_count_once():
    found = broken_down((comm(Group.TP), 0, 0, 3), (comm(Group.ETP), 0, 1, 4), step_s=4)
    assert found == ({"exposed_tp": 4}, 0)


def test_a_whole_story():
    """0-2 compute; 2-3 tp members awaited; 3-4 tp; 4-6 message awaited; 6-7 message; 7-9 compute; 9-10 dp; 12 end."""
    found = broken_down(
        (COMPUTE, 0, 0, 2),
        (comm(Group.TP), 2, 3, 4),
        (message(), 4, 6, 7),
        (COMPUTE, 7, 7, 9),
        (comm(Group.DP), 8, 8, 10),
        step_s=12,
    )
    assert found == (
        {"compute": 4, "exposed_tp": 2, "exposed_pp": 1, "exposed_dp": 1, "bubble": 2, "other": 2},
        1,
    )


def test_what_of_each_operation_is_exposed():
    """Of tp its wait and its transfer, of a message its transfer; of dp what no computation hides."""
    runs = [
        (COMPUTE, 0, 0, 2),
        (comm(Group.TP), 2, 3, 4),
        (message(), 4, 6, 7),
        (COMPUTE, 7, 7, 9),
        (comm(Group.DP), 8, 8, 10),
        (comm(Group.DP), 9, 9, 11),
        (GAP, 11, 11, 12),
        (comm(Group.TP), 12, 13, 15),
    ]
    step = ran(*runs, before=[(comm(Group.TP), 0, 3, 9)])
    found = exposed_seconds(step, 1)
    # Both of dp are there from 9 to 10.
    assert found.tolist() == [0, 2, 1, 0, 1, 2, 0, 3]
    assert exposed_seconds(step, 0).tolist() == [9]
    # Where one of a kind hides another in part, the kind's exposed time is counted for each.
    assert broken_down(*runs, step_s=15)[0]["exposed_dp"] == 2


@pytest.mark.parametrize(("first_s", "second_s", "index"), [(0.25, 0.5, 1), (0.5, 0.25, 0), (0.5, 0.5, 0)])
def test_the_last_rank_is_the_lowest_of_those_that_end_last(first_s, second_s, index):
    step = ran((COMPUTE, 0, 0, second_s), before=[(comm(Group.TP), 0, 0, first_s)])
    assert last_rank(step.program, step.timeline) == index
