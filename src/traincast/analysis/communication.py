"""What communication took: transfer apart from waiting for members, skew of their arrivals, overlap with computation.

A communication begins on each member when that is ready for it, transfers from when the last member is ready, and ends
for all together. *Skew* is the time between the first and the last member's readiness, *waiting* what all members spent
before the transfer; both are of the members that were simulated, of which one speaks for all that are alike. Rates are
those of nccl-tests (algorithm and bus bandwidth, NVIDIA/nccl-tests doc/PERFORMANCE.md), of the transfer alone, as
TraceLens tells it (AMD-AGI/TraceLens, nccl_analyser: skew in start time, algo bw, bus bw).

Letters: N operations, C communications that ran, D distinct ones, B borders between instants, R simulated ranks.
"""

import numpy as np

from traincast.analysis.breakdown import covered
from traincast.analysis.summary import CommunicationRow, RankOverlap
from traincast.workload.ops import BoolArray, FloatArray, IntArray, distinct, numbered
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Group, Kind, Operation

_COMMUNICATES = (Kind.COLLECTIVE, Kind.SEND, Kind.RECV)


def communication_table(program: Program, timeline: Timeline) -> tuple[CommunicationRow, ...]:
    """Return the distinct communications of a step that ran, the one of most transfer time first.

    Communications of an unknown size are left out, and those of a group of one member.
    """
    ops, row_N = program.ops, program.row_N
    members_G = np.array([len(group.members) for group in program.groups], dtype=np.int64)
    at = np.flatnonzero(np.isin(ops.kind_T[row_N], _COMMUNICATES) & (program.group_N >= 0))
    at = at[(members_G[program.group_N[at]] > 1) & (ops.size_bytes_T[row_N[at]] >= 0)]
    # One that no other simulated rank takes part in is a run of its own.
    alone = int(program.rendezvous_N.max(initial=-1)) + 1
    run_at = np.where(program.rendezvous_N[at] >= 0, program.rendezvous_N[at], alone + np.arange(len(at)))
    first_C, run_at = numbered(run_at)
    if not len(at):
        return ()
    count = len(first_C)
    ready_at, wait_at = timeline.ready_s_N[at], timeline.start_s_N[at] - timeline.ready_s_N[at]
    earliest_C, latest_C, transfer_C = np.full(count, np.inf), np.full(count, -np.inf), np.zeros(count)
    np.minimum.at(earliest_C, run_at, ready_at)
    np.maximum.at(latest_C, run_at, ready_at)
    np.maximum.at(transfer_C, run_at, timeline.end_s_N[at] - timeline.start_s_N[at])
    wait_C = np.bincount(run_at, wait_at, count)
    lead = at[first_C]
    message_C = np.isin(ops.kind_T[row_N[lead]], (Kind.SEND, Kind.RECV))
    size_C = np.zeros(count, dtype=np.int64)
    np.maximum.at(size_C, run_at, ops.size_bytes_T[row_N[at]])
    ranks_C = np.where(message_C, 2, members_G[program.group_N[lead]])
    operation_C = np.where(message_C, Operation.SEND_RECV, ops.operation_T[row_N[lead]])
    keys_CD = np.stack([ops.group_T[row_N[lead]], operation_C, size_C, ranks_C], axis=1).astype(np.int64)
    key_C = np.zeros(count, dtype=np.int64)
    for column_C in keys_CD.T:
        values, at_C = np.unique(column_C, return_inverse=True)
        key_C = key_C * len(values) + at_C
    first_K, which_C = numbered(key_C)
    skew_C = latest_C - earliest_C
    rows = []
    for index, (group, operation, size, ranks) in enumerate(keys_CD[first_K].tolist()):
        mine_C = which_C == index
        rows.append(
            CommunicationRow(
                group=Group(group).name.lower(),
                op=Operation(operation).name.lower(),
                size_bytes=size,
                ranks=ranks,
                runs=int(mine_C.sum()),
                transfer_s=float(transfer_C[mine_C].sum()),
                slowest_s=float(transfer_C[mine_C].max()),
                skew_s=float(skew_C[mine_C].sum()),
                largest_skew_s=float(skew_C[mine_C].max()),
                wait_s=float(wait_C[mine_C].sum()),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.transfer_s, row.group, row.op, row.size_bytes)))


def overlap_of_ranks(program: Program, timeline: Timeline) -> tuple[RankOverlap, ...]:
    """Return for each simulated rank how much of its communication is overlapped with computation."""
    return tuple(_overlap(program, timeline, index) for index in range(len(program.rank_R)))


def _overlap(program: Program, timeline: Timeline, index: int) -> RankOverlap:
    mine = program.rank_slice(index)
    kind_N, start_N, end_N = program.ops.kind_T[program.row_N[mine]], timeline.start_s_N[mine], timeline.end_s_N[mine]
    compute_N, comm_N = kind_N == Kind.COMPUTE, np.isin(kind_N, _COMMUNICATES)
    border_B = distinct(np.concatenate([start_N[compute_N | comm_N], end_N[compute_N | comm_N]]))
    length_B: FloatArray = np.diff(border_B)

    def runs(chosen_N: BoolArray) -> BoolArray:
        busy: IntArray = np.flatnonzero(chosen_N & (end_N > start_N))
        return covered(border_B, start_N[busy], end_N[busy])

    comm_B = runs(comm_N)
    return RankOverlap(
        rank=int(program.rank_R[index]),
        comm_s=float(length_B[comm_B].sum()),
        overlapped_s=float(length_B[comm_B & runs(compute_N)].sum()),
    )
