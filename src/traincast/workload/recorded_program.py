"""The program of recorded ranks: their columns one after the other, what meets, and how long everything takes.

`traincast.workload.recorder` checks the records and makes the workload of it. Letters: as there.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ProgramError
from traincast.files import InputFile
from traincast.job.parallel import Parallel
from traincast.workload.groups import GroupTable
from traincast.workload.ops import BoolArray, FloatArray, IntArray, OpTable
from traincast.workload.parts import step_parts
from traincast.workload.program import GroupInstance, Program, Recorded, Said, Timeline
from traincast.workload.rendezvous import join_collectives, join_messages, keys, occurrences
from traincast.workload.words import Group, Kind, Provenance
from traincast.workload.workload import MeasuredStep


class RecordColumns(Struct, frozen=True):
    """A record, checked."""

    rank: int
    file: int
    row_L: IntArray
    group_L: IntArray
    queue_L: IntArray
    key_L: IntArray
    microbatch_L: IntArray
    line_L: IntArray
    said_L: IntArray
    span_s_L: FloatArray
    clock_s_L: FloatArray
    duration_s_L: FloatArray
    start_s_L: FloatArray | None
    end_s_L: FloatArray | None
    edge_src_E: IntArray
    edge_dst_E: IntArray


def recorded_tables(program: Program, world_size: int) -> dict[Group, GroupTable]:
    """Return the groups of a recorded program by kind, as far as they can communicate at the same time.

    Of groups of a kind that share a rank the first counts; of messages every pair does, as in a pipeline.
    """
    members: dict[Group, list[tuple[int, ...]]] = {}
    used: dict[Group, set[int]] = {}
    for group in program.groups:
        ranks = tuple(group.members.tolist())
        if group.kind is Group.PP:
            members.setdefault(group.kind, []).extend(pairwise(ranks))
        elif not used.setdefault(group.kind, set()).intersection(ranks):
            used[group.kind].update(ranks)
            members.setdefault(group.kind, []).append(ranks)
    tables = {}
    for kind, groups in sorted(members.items()):
        if groups:
            rows_GK = np.full((len(groups), max(map(len, groups))), -1, dtype=np.int32)
            for row, ranks in enumerate(groups):
                rows_GK[row, : len(ranks)] = ranks
            tables[kind] = GroupTable.from_members(kind, rows_GK, world_size, ordered=kind is Group.PP)
    return tables


def program_of(
    records: Sequence[RecordColumns],
    own: Recorded,
    ops: OpTable,
    groups: tuple[GroupInstance, ...],
    parallel: Parallel,
    inputs: tuple[InputFile, ...],
) -> Program:
    """Return the records one after the other; nothing meets yet."""
    rank_R = np.array([record.rank for record in records], dtype=np.int32)
    length_R = np.array([len(record.row_L) for record in records], dtype=np.int64)
    ptr_R1 = np.concatenate([[0], np.cumsum(length_R)])
    row_N, group_N = column(records, "row_L"), column(records, "group_L")
    program = Program(
        ops=ops,
        files=tuple(each.path for each in inputs),
        row_N=row_N.astype(np.int32),
        rank_N=np.repeat(rank_R, length_R),
        microbatch_N=column(records, "microbatch_L").astype(np.int32),
        virtual_stage_N=np.full(len(row_N), -1, dtype=np.int32),
        peer_stage_N=np.full(len(row_N), -1, dtype=np.int32),
        group_N=group_N.astype(np.int32),
        rendezvous_N=np.full(len(row_N), -1, dtype=np.int32),
        edge_src_E=np.concatenate([r.edge_src_E + at for r, at in zip(records, ptr_R1, strict=False)]).astype(np.int32),
        edge_dst_E=np.concatenate([r.edge_dst_E + at for r, at in zip(records, ptr_R1, strict=False)]).astype(np.int32),
        groups=groups,
        rank_R=rank_R,
        stage_R=rank_R // parallel.ranks_per_stage,
        represents_R=np.ones(len(records), dtype=np.int32),
        op_ptr_R1=ptr_R1,
        recorded=own,
    )
    kind_N = np.array([group.kind for group in groups] + [Group.NONE])[group_N]
    wrong = np.flatnonzero(kind_N != ops.group_T[row_N])
    if len(wrong):
        at = int(wrong[0])
        raise ProgramError(
            f"{ops.name_T[row_N[at]]!r}{program.place_of(at)} has a different kind of group than its row"
        )
    order_E = np.argsort(program.edge_src_E, kind="stable")
    return replace(program, edge_src_E=program.edge_src_E[order_E], edge_dst_E=program.edge_dst_E[order_E])


def own_columns(records: Sequence[RecordColumns], said: tuple[Said, ...]) -> Recorded:
    """Return what every operation of some records has of its own."""
    return Recorded(
        queue_N=column(records, "queue_L"),
        duration_s_N=column(records, "duration_s_L"),
        said_N=column(records, "said_L"),
        span_s_N=column(records, "span_s_L"),
        clock_s_N=column(records, "clock_s_L"),
        said=said,
        file_N=np.concatenate([np.full(len(record.row_L), record.file) for record in records]),
        line_N=column(records, "line_L"),
    )


def column(records: Sequence[RecordColumns], name: str) -> Any:  # noqa: ANN401
    """Return a column of some records, one after the other."""
    return np.concatenate([getattr(record, name) for record in records])


def previous_in_queue(queue_L: IntArray) -> IntArray:
    """Return the operation before each in its queue, -1 for none."""
    order = np.argsort(queue_L, kind="stable")
    same = (queue_L[order[1:]] == queue_L[order[:-1]]) & (queue_L[order[1:]] >= 0)
    previous_L = np.full(len(queue_L), -1, dtype=np.int64)
    previous_L[order[1:][same]] = order[:-1][same]
    return previous_L


def rendezvous_of(program: Program, key_N: IntArray) -> IntArray:
    """Return the rendezvous of every operation, [N]; -1 without another recorded member."""
    members_G = recorded_members(program)
    rendezvous_N = np.full(len(program), -1, dtype=np.int32)
    together_N = program.group_N >= 0
    together_N[together_N] = members_G[program.group_N[together_N]] > 1
    message_N = np.isin(program.ops.kind_T[program.row_N], (Kind.SEND, Kind.RECV))
    used = 0
    for chosen_N in (together_N & ~message_N, together_N & message_N):
        at = np.flatnonzero(chosen_N)
        if not len(at):
            continue
        _check_members(program, at)
        named_J = keys(program.group_N[at], key_N[at])
        rendezvous_J = keys(named_J, occurrences(keys(program.rank_N[at], named_J)))
        if message_N[at[0]]:
            found_J = join_messages(program, at, rendezvous_J)
        else:
            found_J = join_collectives(program, at, rendezvous_J, members_G, cut=bool((key_N[at] >= 0).all()))
        rendezvous_N[at] = found_J + used
        used += int(found_J.max()) + 1
    return rendezvous_N


def recorded_members(program: Program) -> IntArray:
    """Return how many members of each group were recorded, [G]."""
    recorded = set(program.rank_R.tolist())
    return np.array([len(recorded.intersection(group.members.tolist())) for group in program.groups], dtype=np.int32)


def _check_members(program: Program, at: IntArray) -> None:
    """Refuse what communicates over a group that its rank is not in."""
    pairs = np.unique(keys(program.group_N[at], program.rank_N[at]), return_index=True)[1]
    for place in at[pairs].tolist():
        if program.rank_N[place] not in program.groups[program.group_N[place]].members:
            name, rank = program.ops.name_T[program.row_N[place]], program.rank_N[place]
            raise ProgramError(
                f"{name!r}{program.place_of(place)}: rank {rank} is not in the group it communicates over"
            )


def measured_times(program: Program, records: Sequence[RecordColumns]) -> Timeline:
    """Return when everything ran; a communication starts when its last recorded member has begun."""
    begin_N = np.concatenate([record.start_s_L for record in records if record.start_s_L is not None])
    end_N = np.concatenate([record.end_s_L for record in records if record.end_s_L is not None])
    joined = np.flatnonzero(program.rendezvous_N >= 0)
    start_N = begin_N.copy()
    if len(joined):
        last_J = np.full(int(program.rendezvous_N.max()) + 1, -np.inf)
        np.maximum.at(last_J, program.rendezvous_N[joined], begin_N[joined])
        start_N[joined] = np.minimum(last_J[program.rendezvous_N[joined]], end_N[joined])
    return Timeline(ready_s_N=begin_N, start_s_N=start_N, end_s_N=end_N, duration_s_N=end_N - start_N)


def with_times(program: Program, own: Recorded, timeline: Timeline | None, measured_communication: bool) -> Program:
    """Return the program with the measured durations, or without those that are to be estimated.

    What is estimated is told by rows, so that an operation with a duration has a row with one: the mean of theirs.
    """
    duration_N = (own if timeline is None else timeline).duration_s_N.copy()
    joined = np.flatnonzero(program.rendezvous_N >= 0)
    if timeline is not None and len(joined):
        # All end together; what one record rounds off is not a shorter transfer.
        longest_J = np.zeros(int(program.rendezvous_N.max()) + 1)
        np.maximum.at(longest_J, program.rendezvous_N[joined], duration_N[joined])
        duration_N[joined] = longest_J[program.rendezvous_N[joined]]
    row_N, ops = program.row_N, program.ops
    if not measured_communication:
        sized_T = (ops.group_T != Group.NONE) & (ops.size_bytes_T >= 0)
        duration_N[sized_T[row_N]] = np.nan
        ops = replace(ops, duration_s_T=np.where(sized_T, np.nan, ops.duration_s_T))
    known_N: BoolArray = ~np.isnan(duration_N) & np.isnan(ops.duration_s_T[row_N])
    if known_N.any():
        rows, which = np.unique(row_N[known_N], return_inverse=True)
        mean_s = np.bincount(which, duration_N[known_N]) / np.bincount(which)
        provenance = np.full(len(rows), Provenance.FILE, dtype=ops.provenance_T.dtype)
        known = replace(ops.chosen(rows), duration_s_T=mean_s, provenance_T=provenance)
        row_N = row_N.copy()
        row_N[known_N] = len(ops) + which
        ops = ops.joined(known)
    return replace(program, ops=ops, row_N=row_N, recorded=replace(own, duration_s_N=duration_N))


def measured_run(program: Program, timeline: Timeline) -> MeasuredStep:
    """Return what a timeline means for each rank: its end, its parts, and what of them is waiting."""
    ends = {
        rank: float(timeline.end_s_N[program.rank_slice(index)].max(initial=0.0))
        for index, rank in enumerate(program.rank_R.tolist())
    }
    parts = dict(zip(ends, step_parts(program, timeline), strict=True))
    return MeasuredStep(
        step_s=timeline.step_s,
        end_s=ends,
        part_s={rank: {name: spent.time_s for name, spent in of.items()} for rank, of in parts.items()},
        wait_s={rank: {name: spent.wait_s for name, spent in of.items()} for rank, of in parts.items()},
    )
