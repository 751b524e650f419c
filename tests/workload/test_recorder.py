"""Recorded operations run as they were recorded: closed forms of two ranks, what was measured, and what is refused."""

import csv
import gzip
import io
import itertools
import json
import math

import numpy as np
import pytest

from support import ALONE
from traincast import api
from traincast.diagnostics import Notebook
from traincast.errors import ConfigError, DeadlockError, FormatError, InfeasibleError, ProgramError
from traincast.files import InputFile
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.report.chrome_trace import write_trace
from traincast.report.csv import write_csv
from traincast.simulation.result import BREAKDOWN_KEYS
from traincast.workload.builder import collective_op, compute_op
from traincast.workload.ops import Op
from traincast.workload.recorded_groups import Told, classified, group_named
from traincast.workload.recorded_program import recorded_tables
from traincast.workload.recorder import RankRecord, Recorder
from traincast.workload.words import Group, Kind, Operation, Phase, Stream

NAN = math.nan
COMPUTE, COMM = 0, 1
GEMM = compute_op("gemm", Phase.FORWARD)


def message(kind, size_bytes=1 << 20, name=None):
    stream = Stream.SEND_FORWARD if kind is Kind.SEND else Stream.RECV_FORWARD
    return Op(
        name=name or kind.name.lower(),
        kind=kind,
        phase=Phase.FORWARD,
        blocking=False,
        stream=stream,
        group=Group.PP,
        operation=Operation.SEND_RECV,
        size_bytes=size_bytes,
    )


def reduce(group=Group.TP, size_bytes=1 << 20, operation=Operation.ALL_REDUCE, name="reduce"):
    return collective_op(name, Phase.FORWARD, group, operation, size_bytes)


def recorder(world=2, **degrees):
    return Recorder("recorded", Parallel(**(degrees or {"dp": world})))


def run(workload, **more):
    return api.simulate(workload, cluster="h100", engine="reference", **{**ALONE, **more})


def late_rank(late_s=5e-3, transfer_s=1e-3, measured=False):
    """Two ranks that compute, the second for longer, reduce, and compute again."""
    made = recorder(tp=2)
    gemm, op = made.row(GEMM), made.row(reduce())
    group = made.group(Group.TP, (0, 1))
    for rank, first_s in enumerate((2e-3, late_s)):
        times = {"duration_s_L": [first_s, transfer_s, 1e-3]}
        if measured:
            begun = [0.0, first_s, late_s + transfer_s]
            times = {"start_s_L": begun, "end_s_L": [first_s, late_s + transfer_s, late_s + transfer_s + 1e-3]}
        made.add(
            RankRecord(
                rank=rank,
                row_L=[gemm, op, gemm],
                group_L=[-1, group, -1],
                queue_L=[COMPUTE, COMM, COMPUTE],
                edge_src_E=[0, 1],
                edge_dst_E=[1, 2],
                **times,
            )
        )
    return made


def test_a_collective_starts_with_its_last_member_and_ends_for_all():
    result = run(late_rank().workload())
    assert result.iteration_time_s == pytest.approx(7e-3)
    assert result.parallel.schedule == "recorded"
    early, late = result.ranks
    assert early.wait_s == pytest.approx(3e-3)
    assert late.wait_s == 0
    assert early.breakdown_s["exposed_tp"] == pytest.approx(4e-3)
    assert late.breakdown_s["exposed_tp"] == pytest.approx(1e-3)
    assert early.compute_s == pytest.approx(3e-3)
    for rank in result.ranks:
        assert set(rank.breakdown_s) == set(BREAKDOWN_KEYS)
        assert sum(rank.breakdown_s.values()) == pytest.approx(7e-3)
        assert rank.represents == 1


def test_a_row_takes_the_mean_of_what_its_operations_take():
    """A GEMM of 2 and 1 ms on one rank, of 5 and 1 ms on the other; the reduction takes 1 ms on both."""
    program = late_rank().workload().program
    gemm = program.ops.kind_T[program.row_N] == Kind.COMPUTE
    assert program.ops.duration_s_T[program.row_N[gemm]] == pytest.approx([2.25e-3] * 4)
    assert program.ops.duration_s_T[program.row_N[~gemm]] == pytest.approx([1e-3] * 2)
    assert program.recorded.duration_s_N.tolist() == [2e-3, 1e-3, 1e-3, 5e-3, 1e-3, 1e-3]


def test_a_communication_without_a_time_is_estimated_by_its_size_and_members():
    small, large = (run(_one_reduction(size_bytes).workload()).iteration_time_s for size_bytes in (1 << 20, 1 << 28))
    assert 0 < small < large
    given = {"tp": 1e9}
    forced = run(_one_reduction(1 << 28).workload(), busbw_bytes_per_s=given)
    # nccl-tests: an all-reduce over 2 ranks of rate busbw takes size / busbw.
    assert forced.iteration_time_s == pytest.approx((1 << 28) / 1e9, rel=1e-3)
    (reduced,) = forced.collectives
    assert (reduced.group, reduced.op, reduced.size_bytes, reduced.ranks) == ("tp", "all_reduce", 1 << 28, 2)


def _one_reduction(size_bytes):
    made = recorder(tp=2)
    op, group = made.row(reduce(size_bytes=size_bytes)), made.group(Group.TP, (0, 1))
    for rank in range(2):
        made.add(RankRecord(rank=rank, row_L=[op], group_L=[group]))
    return made


def test_a_send_meets_its_receive_and_the_wait_for_it_is_a_bubble():
    made = recorder(pp=2)
    gemm, send, receive = made.row(GEMM), made.row(message(Kind.SEND)), made.row(message(Kind.RECV))
    pair = made.pair(0, 1)
    for rank, rows in enumerate(([gemm, send], [receive, gemm])):
        group_L = [pair if row != gemm else -1 for row in rows]
        seconds = [2e-3 if row == gemm else 1e-3 for row in rows]
        made.add(
            RankRecord(rank=rank, row_L=rows, group_L=group_L, duration_s_L=seconds, edge_src_E=[0], edge_dst_E=[1])
        )
    result = run(made.workload())
    assert result.iteration_time_s == pytest.approx(5e-3)
    assert [rank.stage for rank in result.ranks] == [0, 1]
    assert result.ranks[1].breakdown_s["bubble"] == pytest.approx(2e-3)
    assert result.ranks[1].breakdown_s["exposed_pp"] == pytest.approx(1e-3)


def test_messages_of_one_pair_meet_by_tag_and_else_by_order():
    made = recorder(pp=2)
    rows = {kind: made.row(message(kind)) for kind in (Kind.SEND, Kind.RECV)}
    gemm, pair = made.row(GEMM), made.pair(0, 1)
    # Rank 0 sends tag 7 and then tag 9; rank 1 receives them the other way round, and computes after each.
    made.add(RankRecord(rank=0, row_L=[rows[Kind.SEND]] * 2, group_L=[pair] * 2, key_L=[7, 9], duration_s_L=[1.0, 3.0]))
    made.add(
        RankRecord(
            rank=1,
            row_L=[rows[Kind.RECV], gemm, rows[Kind.RECV], gemm],
            group_L=[pair, -1, pair, -1],
            key_L=[9, -1, 7, -1],
            duration_s_L=[3.0, 1.0, 1.0, 10.0],
            edge_src_E=[0, 2],
            edge_dst_E=[1, 3],
        )
    )
    program = made.workload().program
    assert program.rendezvous_N[0] == program.rendezvous_N[4]
    assert program.rendezvous_N[1] == program.rendezvous_N[2]
    assert run(made.workload()).iteration_time_s == pytest.approx(11.0)


def test_queues_are_in_order_and_run_side_by_side():
    made = recorder(1)
    gemm = made.row(GEMM)
    made.add(RankRecord(rank=0, row_L=[gemm] * 4, queue_L=[0, 0, 1, -1], duration_s_L=[1.0, 2.0, 2.5, 0.5]))
    workload = made.workload()
    assert run(workload).iteration_time_s == pytest.approx(3.0)
    assert len(set(workload.program.stream_N.tolist())) == 3


def test_what_was_measured_is_replayed_with_its_gaps():
    made = recorder(1)
    gemm = made.row(GEMM)
    made.add(
        RankRecord(
            rank=0,
            row_L=[gemm] * 3,
            queue_L=[0, 0, -1],
            start_s_L=[10.0, 12.0, 11.5],
            end_s_L=[11.0, 13.0, 11.75],
            edge_src_E=[0],
            edge_dst_E=[2],
        )
    )
    workload = made.workload()
    result = run(workload)
    assert result.measured_s == pytest.approx(3.0)
    assert result.iteration_time_s == pytest.approx(3.0)
    gaps = [row for row in workload.program.row_N if workload.ops.kind_T[row] == Kind.GAP]
    assert len(gaps) == 2
    np.testing.assert_allclose(workload.timeline.end_s_N, [1.0, 2.0, 3.0, 1.5, 1.75])
    assert np.all(workload.timeline.ready_s_N <= workload.timeline.start_s_N)
    assert result.ranks[0].breakdown_s["other"] == pytest.approx(0.75)


def test_the_measured_wait_for_a_late_member_is_told_from_its_transfer():
    workload = late_rank(measured=True).workload()
    result = run(workload)
    assert result.iteration_time_s == pytest.approx(workload.timeline.step_s) == pytest.approx(7e-3)
    assert result.measured_s == pytest.approx(7e-3)
    assert [rank.measured_end_s for rank in result.ranks] == pytest.approx([7e-3, 7e-3])
    assert workload.measured.wait_s[0]["tp"] == pytest.approx(3e-3)
    assert workload.measured.wait_s[1]["tp"] == 0
    for rank in (0, 1):
        assert sum(workload.measured.part_s[rank].values()) == pytest.approx(7e-3)
    compared = api.compare(workload, result)
    assert compared.step.relative == pytest.approx(0, abs=1e-9)
    assert compared.parts["tp"].difference_s == pytest.approx(0, abs=1e-9)
    # The wait is for what the other rank computes; of the whole step the transfer alone is exposed.
    assert compared.breakdown["exposed_tp"].a_s == pytest.approx(1e-3)
    assert all(each.difference_s == pytest.approx(0, abs=1e-9) for each in compared.breakdown.values())


def test_ends_that_hosts_add_to_do_not_add_up():
    """Two ranks see each collective end now earlier, now later; each goes on when it has seen it."""
    rounds, transfer_s, later_s = 50, 2e-3, 0.5e-3
    made = recorder(tp=2)
    gemm, together, group = made.row(GEMM), made.row(reduce()), made.group(Group.TP, (0, 1))
    for rank in (0, 1):
        late_s = [later_s * ((number + rank) % 2) for number in range(rounds)]
        begin_s = np.arange(rounds) * (transfer_s + later_s + 1e-3)
        end_s = begin_s + transfer_s + late_s
        made.add(
            RankRecord(
                rank=rank,
                row_L=[together, gemm] * rounds,
                group_L=[group, -1] * rounds,
                queue_L=[COMPUTE] * 2 * rounds,
                start_s_L=np.stack([begin_s, end_s], axis=1).ravel(),
                end_s_L=np.stack([end_s, begin_s + transfer_s + later_s + 1e-3], axis=1).ravel(),
            )
        )
    workload = made.workload()
    result = run(workload)
    assert result.iteration_time_s == pytest.approx(rounds * 3.5e-3)
    transfers = workload.program.ops.kind_T[workload.program.row_N] == Kind.COLLECTIVE
    assert workload.timeline.duration_s_N[transfers] == pytest.approx(np.full(2 * rounds, transfer_s))


def test_measured_communication_is_estimated_again_where_that_is_asked_for():
    made = late_rank(measured=True)
    again = run(made.workload(measured_communication=False), busbw_bytes_per_s={"tp": 1e8})
    # 1 MiB over two ranks at 100 MB/s, once; all computations as measured.
    assert again.iteration_time_s == pytest.approx(6e-3 + (1 << 20) / 1e8, rel=1e-2)


def test_a_straggler_is_found_and_has_an_impact():
    made = recorder(dp=4)
    gemm, op = made.row(GEMM), made.row(reduce(Group.DP))
    group = made.group(Group.DP, range(4))
    for rank in range(4):
        seconds = [2.0 if rank == 3 else 1.0, 0.5]
        made.add(RankRecord(rank=rank, row_L=[gemm, op], group_L=[-1, group], queue_L=[0, 0], duration_s_L=seconds))
    result = run(made.workload())
    assert [(each.rank, each.slowdown) for each in result.stragglers] == [(3, pytest.approx(2.0))]
    assert result.stragglers[0].cost_s == pytest.approx(1.0)
    slowed = run(made.workload(), compute_slowdown={0: 3.0})
    assert slowed.iteration_time_s == pytest.approx(3.5)


def test_collectives_and_messages_meet_apart():
    """Each of two stages of two ranks reduces, and the first sends to the second: four rendezvous of two."""
    made = recorder(tp=2, pp=2)
    op, send, receive = made.row(reduce()), made.row(message(Kind.SEND)), made.row(message(Kind.RECV))
    for rank in range(4):
        group = made.group(Group.TP, (rank // 2 * 2, rank // 2 * 2 + 1))
        pair = made.pair(rank % 2, rank % 2 + 2)
        rows, groups = ([op, send], [group, pair]) if rank < 2 else ([receive, op], [pair, group])
        made.add(RankRecord(rank=rank, row_L=rows, group_L=groups, queue_L=[0, 0], duration_s_L=[1.0, 1.0]))
    program = made.workload().program
    met = [np.flatnonzero(program.rendezvous_N == number) for number in np.unique(program.rendezvous_N)]
    meetings = {(tuple(program.rank_N[at]), tuple(program.row_N[at])) for at in met}
    assert {ranks for ranks, _ in meetings} == {(0, 1), (2, 3), (0, 2), (1, 3)}
    assert sorted(program.rendezvous_N.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert run(made.workload()).iteration_time_s == pytest.approx(3.0)


def test_what_is_in_no_queue_waits_for_nothing_but_its_edges():
    """Six operations of a second each on two ranks: three in queues of their own, three in none, all at once."""
    made = recorder(2)
    gemm = made.row(GEMM)
    for rank in range(2):
        made.add(RankRecord(rank=rank, row_L=[gemm] * 6, queue_L=[0, 1, 2, -1, -1, -1], duration_s_L=[1.0] * 6))
    program = made.workload().program
    assert len(set(program.stream_N.tolist())) == 12
    assert program.stream_N.min() == 0
    assert run(made.workload()).iteration_time_s == pytest.approx(1.0)


def test_only_recorded_members_are_waited_for_and_the_run_says_so():
    made = recorder(dp=4)
    op, group = made.row(reduce(Group.DP)), made.group(Group.DP, range(4))
    for rank in (1, 2):
        made.add(RankRecord(rank=rank, row_L=[op], group_L=[group], duration_s_L=[0.5]))
    result = run(made.workload())
    assert result.iteration_time_s == pytest.approx(0.5)
    assert [rank.rank for rank in result.ranks] == [1, 2]
    assert not [note for note in run(late_rank().workload()).assumptions if note.code == "ranks-not-recorded"]
    (note,) = [note for note in result.assumptions if note.code == "ranks-not-recorded"]
    assert "2 of 4 ranks are recorded; 2 communications do not wait" in note.text


def test_the_only_recorded_member_of_a_group_meets_nobody():
    made = recorder(dp=4)
    group = made.group(Group.DP, range(4))
    made.add(RankRecord(rank=2, row_L=[made.row(reduce(Group.DP))], group_L=[group], duration_s_L=[0.5]))
    assert made.workload().program.rendezvous_N.tolist() == [-1]


@pytest.mark.parametrize("first", [0, 4])
def test_records_cut_at_different_places_meet_by_their_numbers(first):
    made = recorder(dp=2)
    op, group = made.row(reduce(Group.DP)), made.group(Group.DP, range(2))
    made.add(
        RankRecord(
            rank=0,
            row_L=[op] * 2,
            group_L=[group] * 2,
            key_L=[first, first + 1],
            duration_s_L=[1.0, 1.0],
            queue_L=[0, 0],
        )
    )
    made.add(
        RankRecord(
            rank=1,
            row_L=[op] * 2,
            group_L=[group] * 2,
            key_L=[first + 1, first + 2],
            duration_s_L=[1.0, 1.0],
            queue_L=[0, 0],
        )
    )
    workload = made.workload()
    assert workload.program.rendezvous_N[1] == workload.program.rendezvous_N[2]
    assert run(workload).iteration_time_s == pytest.approx(3.0)
    (note,) = [note for note in workload.warnings if note.code == "members-missing"]
    assert "2 collectives of 3 communications lack recorded members, the first 'reduce'; only the recorded" in note.text


def test_the_first_collective_that_lacks_members_is_named():
    made = recorder(dp=2)
    rows = [made.row(reduce(Group.DP, name=name)) for name in ("early", "late")]
    group = made.group(Group.DP, range(2))
    for rank, (row_L, key_L) in enumerate((([rows[0], rows[1]], [4, 5]), ([rows[0]], [4]))):
        times = {"duration_s_L": [1.0] * len(row_L), "queue_L": [0] * len(row_L)}
        made.add(RankRecord(rank=rank, row_L=row_L, group_L=[group] * len(row_L), key_L=key_L, **times))
    (note,) = [note for note in made.workload().warnings if note.code == "members-missing"]
    assert "1 collective of 2 communications lack recorded members, the first 'late'" in note.text


def test_the_timeline_and_the_operations_are_written():
    made = recorder(tp=2)
    gemm, op, group = made.row(GEMM), made.row(reduce()), made.group(Group.TP, (0, 1))
    for rank in range(2):
        made.add(
            RankRecord(
                rank=rank,
                row_L=[gemm, gemm, gemm, op],
                group_L=[-1, -1, -1, group],
                queue_L=[0, 1, -1, -1],
                duration_s_L=[1.0 + rank, 2.0, 0.5, 0.25],
                line_L=[1, 2, 3, 4],
                edge_src_E=[0],
                edge_dst_E=[3],
            )
        )
    result = run(made.workload())
    with gzip.open(io.BytesIO(_written("trace", result))) as stream:
        events = json.load(stream)["traceEvents"]
    for rank in range(2):
        by_thread = {}
        for each in events:
            if each["ph"] == "X" and each["pid"] == rank:
                by_thread.setdefault(each["tid"], []).append((each["ts"], each["ts"] + each["dur"]))
        assert len(by_thread) == 4
        named = {each["tid"] for each in events if each["name"] == "thread_name" and each["pid"] == rank}
        assert named == set(by_thread)
        for spans in by_thread.values():
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sorted(spans)))
    lines = list(csv.DictReader(io.StringIO(_written("csv", result).decode())))
    assert len(lines) == 8
    assert [float(line["duration_s"]) for line in lines[:4]] == [1.0, 2.0, 0.5, 0.25]


def _written(name, result):
    stream = io.BytesIO()
    (write_trace if name == "trace" else write_csv)(result, stream)
    return stream.getvalue()


# --- what is refused


def two(rows_of, *, groups=1, **columns):
    made = recorder(tp=2)
    group = [made.group(Group.TP, (0, 1)), made.group(Group.TP, (1, 0))][:groups]
    for rank, ops in enumerate(rows_of):
        rows = [made.row(op) for op in ops]
        made.add(RankRecord(rank=rank, row_L=rows, group_L=[group[0]] * len(rows), **columns))
    return made


def test_a_rank_that_is_not_in_the_group_it_communicates_over_is_named():
    made = recorder(3)
    op, group = made.row(reduce(Group.DP)), made.group(Group.DP, (1, 2))
    for rank in range(3):
        made.add(RankRecord(rank=rank, row_L=[op], group_L=[group]))
    with pytest.raises(ProgramError, match=r"'reduce'.*: rank 0 is not in the group it communicates over"):
        made.workload()


def test_what_is_wrong_is_named_with_its_file_and_line():
    files = tuple(InputFile(f"{name}.json", "chakra", "") for name in "ab")
    made = Recorder("recorded", Parallel(tp=2), inputs=files)
    group = made.group(Group.TP, (0, 1))
    for rank, op in enumerate((reduce(), reduce(size_bytes=8))):
        row = made.row(op)
        made.add(RankRecord(rank=rank, row_L=[row], group_L=[group], file=rank, line_L=[4 + rank]))
    with pytest.raises(
        ProgramError, match=r"'reduce' \(a.json:4\).* meets 'reduce' \(b.json:5\), all_reduce of 8 bytes"
    ):
        made.workload()
    with pytest.raises(ProgramError, match=r"^a\.json: a group has members \[2\]"):
        made.group(Group.DP, (2,))
    for file in (0, 1):
        with pytest.raises(ProgramError, match=rf"^{'ab'[file]}\.json: rank 0 is recorded twice"):
            made.add(RankRecord(rank=0, row_L=[row], file=file))


def test_members_that_disagree_are_named():
    with pytest.raises(ProgramError, match=r"members of a collective disagree: 'reduce', all_reduce.*meets 'gather'"):
        two([[reduce()], [reduce(operation=Operation.ALL_GATHER, name="gather")]]).workload()


@pytest.mark.parametrize(("size_bytes", "shown"), [(0, "0 bytes"), (None, "unknown size")])
def test_sizes_of_members_that_disagree_are_shown(size_bytes, shown):
    with pytest.raises(
        ProgramError, match=rf"disagree: 'reduce', all_reduce of {shown} meets .*, all_reduce of 8 bytes"
    ):
        two([[reduce(size_bytes=size_bytes)], [reduce(size_bytes=8)]]).workload()


def test_a_missing_member_is_named():
    with pytest.raises(ProgramError, match=r"'reduce'.* waits for 2 members, but only 1 take part"):
        two([[reduce(), reduce()], [reduce()]]).workload()


def test_a_send_without_receive_is_named():
    made = recorder(pp=2)
    gemm, send = made.row(GEMM), made.row(message(Kind.SEND))
    made.add(RankRecord(rank=0, row_L=[send], group_L=[made.pair(0, 1)]))
    made.add(RankRecord(rank=1, row_L=[gemm], duration_s_L=[1.0]))
    with pytest.raises(ProgramError, match=r"'send'.* has 1 sends and 0 receives"):
        made.workload()


def test_ranks_that_wait_for_each_other_are_named():
    made = recorder(tp=2)
    one, other = made.row(reduce(name="one")), made.row(reduce(name="other"))
    groups = [made.group(Group.TP, (0, 1)), made.group(Group.TP, (1, 0))]
    for rank, rows in enumerate(([one, other], [other, one])):
        group_L = [groups[0] if row == one else groups[1] for row in rows]
        made.add(RankRecord(rank=rank, row_L=rows, group_L=group_L, queue_L=[0, 0], duration_s_L=[1.0, 1.0]))
    with pytest.raises(DeadlockError, match=r"one on rank . -> other on rank ."):
        run(made.workload())


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"duration_s_L": [1.0, -1.0]}, "'gemm' of rank 0 takes -1 s"),
        ({"start_s_L": [0.0, 2.0], "end_s_L": [1.0, 1.5]}, "begins at 2 s and ends at 1.5 s"),
        ({"start_s_L": [0.0, 0.5], "end_s_L": [1.0, 2.0], "queue_L": [3, 3]}, "begins 0.5 s before the end of 'gemm'"),
    ],
)
def test_impossible_times_are_refused(columns, words):
    made = recorder(1)
    with pytest.raises(FormatError, match=words) as error:
        made.add(RankRecord(rank=0, row_L=[made.row(GEMM)] * 2, line_L=[4, 5], **columns))
    assert error.value.line == 5


@pytest.mark.parametrize(
    "columns",
    [
        {"group_L": [3]},
        {"row_L": [9]},
        {"edge_src_E": [0], "edge_dst_E": [1]},
        {"edge_src_E": [0]},
        {"edge_src_E": [-1], "edge_dst_E": [0]},
        {"queue_L": [0, 1]},
        {"duration_s_L": [1.0, 2.0]},
        {"rank": 2},
        {"rank": -1},
    ],
)
def test_numbers_that_point_nowhere_are_refused(columns):
    made = recorder(1)
    with pytest.raises(ProgramError):
        made.add(RankRecord(**{"rank": 0, "row_L": [made.row(GEMM)], **columns}))


@pytest.mark.parametrize("members", [(), (-1, 0), (0, 2), (1, 1), (-2, -1)])
def test_a_group_of_other_than_different_ranks_of_the_world_is_refused(members):
    with pytest.raises(ProgramError, match=r"a group has members .*; they must be different ranks below 2"):
        recorder(2).group(Group.DP, members)


def test_a_computation_without_a_time_is_refused_by_name():
    made = recorder(1)
    made.add(RankRecord(rank=0, row_L=[made.row(GEMM)]))
    with pytest.raises(ProgramError, match="duration of 'gemm' is unknown"):
        run(made.workload())


def test_a_dependency_that_the_times_contradict_is_left_out_with_a_warning():
    made = recorder(1)
    gemm = made.row(GEMM)
    times = {"start_s_L": [0.0, 0.5], "end_s_L": [1.0, 2.0]}
    made.add(RankRecord(rank=0, row_L=[gemm] * 2, edge_src_E=[0], edge_dst_E=[1], **times))
    workload = made.workload()
    assert any(note.code == "dependency-contradicted" for note in workload.warnings)
    assert run(workload).iteration_time_s == pytest.approx(2.0)


# --- groups


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", Group.TP),
        ("PIPELINE_MODEL_PARALLEL_GROUP", Group.PP),
        ("DATA_PARALLEL_GROUP_WITH_CP", Group.DP),
        ("CONTEXT_PARALLEL_GROUP", Group.CP),
        ("MODEL_PARALLEL_GROUP", Group.MP),
        ("EXPERT_MODEL_PARALLEL_GROUP", Group.EP),
        ("EXPERT_TENSOR_PARALLEL_GROUP", Group.ETP),
        ("EXPERT_DATA_PARALLEL_GROUP", Group.EDP),
        ("POSITION_EMBEDDING_GROUP", Group.EMB),
        ("mesh_tp", Group.TP),
        ("mesh_dp_shard", Group.SHARD),
        ("mesh_dp_replicate", Group.REPLICA),
        ("mesh_dp_cp", Group.DP),
        ("default_pg", Group.WORLD),
        ("undefined", None),
        ("", None),
    ],
)
def test_the_words_of_frameworks_for_groups(description, kind):
    assert group_named(description) is kind


@pytest.mark.parametrize("kind", [kind for kind in Group if kind is not Group.NONE])
def test_our_own_words_for_groups_are_known(kind):
    assert group_named(kind.name.lower()) is kind


def kinds(groups, world=8, **degrees):
    notes = Notebook("file")
    return classified(groups, LayoutOptions(**degrees), world, notes), notes


def test_groups_are_told_by_their_description_then_by_the_users_layout():
    found, notes = kinds({"a": Told((0, 1), "TENSOR_MODEL_PARALLEL_GROUP"), "b": Told((0, 2, 4, 6), "data parallel")})
    assert found.kind_of == {"a": Group.TP, "b": Group.DP}
    assert (found.parallel.tp, found.parallel.dp) == (2, 4)
    assert [note.code for note in notes.assumptions] == ["layout-supposed"]
    found, notes = kinds(
        {"a": Told((0, 1)), "b": Told((0, 2)), "c": Told((0, 4)), "d": Told(tuple(range(8)))}, tp=2, pp=2
    )
    assert found.kind_of == {"a": Group.TP, "b": Group.DP, "c": Group.PP, "d": Group.WORLD}
    assert not notes.assumptions


def test_groups_without_a_word_are_supposed_and_the_run_says_so():
    groups = {"a": Told((0, 1)), "b": Told(tuple(range(8))), "c": Told((0, 1, 2, 3), exchanges=True)}
    found, notes = kinds({**groups, "d": Told((0, 4), messages=True)})
    assert found.kind_of == {"a": Group.DP, "b": Group.WORLD, "c": Group.EP, "d": Group.PP}
    assert {note.code for note in notes.assumptions} == {"layout-supposed", "groups-supposed"}
    assert found.parallel.world_size == 8


@pytest.mark.parametrize(
    ("pairs", "stages"),
    [
        ([(0, 2), (2, 4), (4, 6), (1, 3)], 4),
        ([(0, 2), (2, 4), (4, 6), (6, 0)], 4),
        ([(0, 4), (4, 0)], 2),
        ([(0, 3)], 1),
        ([(0, 1), (0, 2)], 1),
        ([], 1),
    ],
)
def test_messages_tell_the_stages_of_a_pipeline(pairs, stages):
    found, _ = kinds({str(pair): Told(pair, messages=True) for pair in pairs})
    assert found.parallel.pp == stages
    assert found.parallel.world_size == 8


@pytest.mark.parametrize(("count", "names"), [(1, "'a'"), (3, "'a', 'b', 'c'"), (4, "'a', 'b', 'c', ...")])
def test_the_first_three_groups_of_unknown_purpose_are_named(count, names):
    _, notes = kinds({name: Told((place, place + 1)) for place, name in enumerate("abcd"[:count])})
    (note,) = [note for note in notes.assumptions if note.code == "groups-supposed"]
    assert f"({names}) taken as dp" in note.text


def test_degrees_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(InfeasibleError, match="8 ranks do not divide into tp 3"):
        kinds({}, tp=3)
    with pytest.raises(ConfigError, match="gpus: is 4"):
        kinds({}, gpus=4)
    assert kinds({}, gpus=8)[0].parallel.world_size == 8
    with pytest.raises(InfeasibleError, match="8 ranks do not divide into tp 2 x dp 3"):
        kinds({}, tp=2, dp=3)
    found, _ = kinds({"alone": Told((3,), "TENSOR_MODEL_PARALLEL_GROUP")})
    assert (found.parallel.tp, found.parallel.dp) == (1, 8)
    found, _ = kinds({}, tp=2, dp=4)
    assert (found.parallel.tp, found.parallel.dp) == (2, 4)


def test_groups_that_share_a_rank_do_not_communicate_at_once():
    made = recorder(4)
    op = made.row(reduce(Group.DP))
    groups = [made.group(Group.DP, members) for members in ((0, 1), (1, 2), (2, 3))]
    for rank, mine in enumerate((groups[:1], groups[:2], groups[1:], groups[2:])):
        made.add(
            RankRecord(
                rank=rank,
                row_L=[op] * len(mine),
                group_L=mine,
                duration_s_L=[1.0] * len(mine),
                queue_L=range(len(mine)),
            )
        )
    tables = recorded_tables(made.workload().program, 4)
    assert tables[Group.DP].members_GK.tolist() == [[0, 1], [2, 3]]


def test_groups_of_different_sizes_have_rows_of_one_table():
    made = recorder(5)
    op = made.row(reduce(Group.DP))
    for members in ((0, 1, 2), (3, 4)):
        group = made.group(Group.DP, members)
        for rank in members:
            made.add(RankRecord(rank=rank, row_L=[op], group_L=[group], duration_s_L=[1.0]))
    tables = recorded_tables(made.workload().program, 5)
    assert tables[Group.DP].members_GK.tolist() == [[0, 1, 2], [3, 4, -1]]
    assert tables[Group.DP].group_of_rank_W.tolist() == [0, 0, 0, 1, 1]
