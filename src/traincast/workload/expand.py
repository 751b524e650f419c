"""Expand a workload into a program: sequences tiled over the simulated ranks, joined by their messages.

What must meet is joined (`traincast.workload.rendezvous`): the k-th collective of a rank on a group meets the k-th of
every other member. A message is known by its pipeline, direction, boundary between virtual stages, and microbatch.

Letters: L operations of one sequence, N of the program, E edges, R simulated ranks, G groups, J in rendezvous.
"""

from collections.abc import Mapping
from functools import cached_property
from operator import is_

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from traincast.errors import ProgramError
from traincast.schedules.plan import SchedulePlan
from traincast.workload.groups import Fold, GroupTable, group_colours
from traincast.workload.ops import BoolArray, FloatArray, IntArray, Op, OpTable, distinct
from traincast.workload.program import GroupInstance, Program
from traincast.workload.rendezvous import join_collectives, join_messages, keys, occurrences
from traincast.workload.sequence import Sequence, SequenceBuilder
from traincast.workload.words import Group, Kind, Phase, Stream
from traincast.workload.workload import Workload


class _Tile(Struct, frozen=True):
    """A sequence with its edges, ready to be repeated."""

    sequence: Sequence
    edge_src_E: IntArray
    edge_dst_E: IntArray


def expand(
    workload: Workload,
    plan: SchedulePlan,
    fold: Fold,
    tables: Mapping[Group, GroupTable],
    compute_factor_W: FloatArray | None = None,
) -> Program:
    """Lay out every simulated rank and join what must meet.

    Parameters
    ----------
    workload : Workload
        Templates.
    plan : SchedulePlan
        The pipeline order, for the workload's stages, virtual stages and microbatches.
    fold : Fold
        Which ranks are simulated.
    tables : mapping
        Groups of every kind that communicates.
    compute_factor_W : float array [W], optional
        Factor on the compute durations of each rank.

    Raises
    ------
    ProgramError
        If members of a collective disagree, or a message has no partner.
    """
    return expansion(workload, plan, fold, tables, compute_factor_W).program


class Expansion(Struct, frozen=True, dict=True):
    """A workload that was expanded, which serves any workload of the same order (`_order_of`)."""

    workload: Workload
    plan: SchedulePlan
    placed: tuple[object, ...]
    """Ranks and groups, told by the very objects."""
    program: Program
    added: tuple[Op, ...]
    """Operations of messages, which stand behind those of the workload in the table."""
    boundaries: tuple[int, ...]
    """The boundary between virtual stages that each of them is of, -1 for waits."""

    @cached_property
    def _order(self) -> tuple[object, ...]:
        return _order_of(self.workload, self.plan)

    def serves(self, workload: Workload, plan: SchedulePlan, fold: Fold, tables: Mapping[Group, GroupTable]) -> bool:
        """Tell whether a workload is expanded to the same program, but for its table of operations."""
        placed = (fold, *tables.values())
        same = len(placed) == len(self.placed) and all(map(is_, placed, self.placed))
        return same and self._order == _order_of(workload, plan)

    def with_estimates(self, workload: Workload) -> Program:
        """Return the program with the table of operations of a workload that it serves."""
        files = tuple(file.path for file in workload.inputs)
        sizes = workload.message_bytes_Q
        added = [
            op if boundary < 0 else replace(op, size_bytes=int(sizes[boundary]))
            for op, boundary in zip(self.added, self.boundaries, strict=True)
        ]
        return replace(self.program, ops=workload.ops.extended(added), files=files)


_OF_ORDER = ("kind_T", "phase_T", "blocking_T", "stream_T", "group_T", "operation_T", "unequal_T", "waits_for_T")
"""Columns that the order of a program depends on; of sizes it is which are equal, as those that meet must be."""


def _order_of(workload: Workload, plan: SchedulePlan) -> tuple[object, ...]:
    """Return by value everything that the order of a program depends on, but for ranks, groups and their factors."""
    columns = [column for each in workload.templates for column in astuple(each) if column is not None]
    sizes = (np.unique(each, return_inverse=True)[1] for each in (workload.ops.size_bytes_T, workload.message_bytes_Q))
    columns += [workload.template_W, *(getattr(workload.ops, name) for name in _OF_ORDER), *sizes, *workload.segments]
    said = [tuple(column is None for column in astuple(each)) for each in workload.templates]
    lengths = tuple(map(len, columns))
    return plan, workload.forward_only, said, lengths, b"".join(column.tobytes() for column in columns)


def expansion(
    workload: Workload,
    plan: SchedulePlan,
    fold: Fold,
    tables: Mapping[Group, GroupTable],
    compute_factor_W: FloatArray | None = None,
) -> Expansion:
    """Return the program of a workload (`expand`), in a form that serves others with other estimates."""
    stage_R = fold.rank_C // workload.parallel.ranks_per_stage
    builder = SequenceBuilder(workload, plan)
    ops, chosen = _tiles(builder, fold, stage_R)
    length_R = np.array([len(tile.sequence.row_L) for tile in chosen], dtype=np.int64)
    op_ptr_R1 = np.concatenate([[0], np.cumsum(length_R)])
    index_N = np.repeat(np.arange(len(chosen), dtype=np.int32), length_R)
    row_N = _gather([tile.sequence.row_L for tile in chosen])
    groups, group_RK = _group_instances(fold, tables)
    shift_R = op_ptr_R1[:-1].astype(np.int32)
    program = Program(
        ops=ops,
        row_N=row_N,
        rank_N=fold.rank_C[index_N],
        microbatch_N=_gather([tile.sequence.microbatch_L for tile in chosen]),
        virtual_stage_N=_gather([tile.sequence.virtual_stage_L for tile in chosen]),
        peer_stage_N=_gather([tile.sequence.peer_L for tile in chosen]),
        group_N=_groups_of_ops(group_RK, index_N, ops, row_N),
        rendezvous_N=np.full(len(row_N), -1, dtype=np.int32),
        files=tuple(file.path for file in workload.inputs),
        edge_src_E=_gather([tile.edge_src_E + shift for tile, shift in zip(chosen, shift_R, strict=True)]),
        edge_dst_E=_gather([tile.edge_dst_E + shift for tile, shift in zip(chosen, shift_R, strict=True)]),
        groups=groups,
        rank_R=fold.rank_C,
        stage_R=stage_R,
        represents_R=fold.count_C,
        op_ptr_R1=op_ptr_R1,
        compute_factor_N=None if compute_factor_W is None else compute_factor_W[fold.rank_C][index_N],
    )
    program = replace(program, rendezvous_N=_rendezvous_of(program, _simulated_members(groups, fold)))
    placed = fold, *tables.values()
    return Expansion(workload, plan, placed, program, tuple(builder.added), tuple(builder.boundaries))


def _tiles(builder: SequenceBuilder, fold: Fold, stage_R: IntArray) -> tuple[OpTable, list[_Tile]]:
    """Lay out each pair of template and stage once; return the table with its messages, and each rank's tile."""
    workload = builder.workload
    keys = [(int(workload.template_W[rank]), int(stage)) for rank, stage in zip(fold.rank_C, stage_R, strict=True)]
    sequences = {key: builder.sequence(workload.templates[key[0]], key[1]) for key in dict.fromkeys(keys)}
    ops = builder.table()
    tiles = {key: _tile(sequence, ops) for key, sequence in sequences.items()}
    return ops, [tiles[key] for key in keys]


def _gather(parts: list[IntArray]) -> IntArray:
    return np.concatenate([np.zeros(0, dtype=np.int32), *parts])


def _tile(sequence: Sequence, ops: OpTable) -> _Tile:
    """Make the rules of program order explicit: an edge from what each operation must follow."""
    row_L = sequence.row_L
    length = len(row_L)
    index_L = np.arange(length, dtype=np.int32)
    stream_L = ops.stream_T[row_L]
    launch_L = _last_before(ops.blocking_T[row_L], index_L)
    # A predecessor on the same stream is already in order.
    needed_L = (launch_L >= 0) & (stream_L[launch_L] != stream_L)
    sources, targets = [launch_L[needed_L]], [index_L[needed_L]]
    waits_L = np.where(ops.kind_T[row_L] == Kind.WAIT, ops.waits_for_T[row_L], Stream.NONE)
    for stream in distinct(waits_L[waits_L != Stream.NONE]):
        last_L = _last_before(stream_L == stream, index_L)
        held_L = (waits_L == stream) & (last_L >= 0) & (last_L != launch_L)
        sources.append(last_L[held_L])
        targets.append(index_L[held_L])
    # By source, then by target.
    edge_E = np.sort(np.concatenate(sources).astype(np.int64) * length + np.concatenate(targets))
    source_E, target_E = np.divmod(edge_E, max(length, 1))
    return _Tile(sequence, source_E.astype(np.int32), target_E.astype(np.int32))


def _last_before(mask_L: BoolArray, index_L: IntArray) -> IntArray:
    """Return for each position the last earlier position where the mask holds, -1 for none."""
    last_L = np.maximum.accumulate(np.where(mask_L, index_L, -1).astype(np.int32))
    return np.concatenate([np.full(1, -1, dtype=np.int32), last_L[:-1]])[: len(index_L)]


def _group_instances(fold: Fold, tables: Mapping[Group, GroupTable]) -> tuple[tuple[GroupInstance, ...], IntArray]:
    """Return one group for each kind and set of member classes, and the group of each simulated rank by kind."""
    instances: list[GroupInstance] = []
    group_RK = np.full((len(fold.rank_C), len(Group)), -1, dtype=np.int32)
    for kind, table in tables.items():
        colour_G = group_colours(table, fold.class_W)
        number: dict[int, int] = {}
        for index, rank in enumerate(fold.rank_C):
            group = int(table.group_of_rank_W[rank])
            if group < 0:
                continue
            colour = int(colour_G[group])
            if colour not in number:
                members = table.members_GK[group]
                number[colour] = len(instances)
                instances.append(GroupInstance(kind, members[members >= 0]))
            group_RK[index, kind] = number[colour]
    return tuple(instances), group_RK


def _groups_of_ops(group_RK: IntArray, index_N: IntArray, ops: OpTable, row_N: IntArray) -> IntArray:
    kind_N = ops.group_T[row_N]
    loose = np.flatnonzero((kind_N < 0) & np.isin(ops.kind_T[row_N], (Kind.COLLECTIVE, Kind.SEND, Kind.RECV)))
    if len(loose):
        raise ProgramError(f"{ops.name_T[row_N[loose[0]]]!r} is a communication without a group")
    group_N: IntArray = np.where(kind_N >= 0, group_RK[index_N, kind_N], -1)
    missing = np.flatnonzero((kind_N >= 0) & (group_N < 0))
    if len(missing):
        name, kind = ops.name_T[row_N[missing[0]]], Group(int(kind_N[missing[0]]))
        raise ProgramError(f"{name!r} communicates over {kind.name.lower()}, but its rank is not in such a group")
    return group_N


def _simulated_members(groups: tuple[GroupInstance, ...], fold: Fold) -> IntArray:
    """Return how many simulated ranks stand for the members of each group, [G]."""
    return np.array([len(distinct(fold.class_W[group.members])) for group in groups], dtype=np.int32)


def _rendezvous_of(program: Program, members_G: IntArray) -> IntArray:
    """Return the rendezvous of every operation, [N], -1 without another simulated one; `members_G` are simulated."""
    rendezvous_N = np.full(len(program), -1, dtype=np.int32)
    kind_N = program.ops.kind_T[program.row_N]
    collective = np.flatnonzero(kind_N == Kind.COLLECTIVE)
    collective = collective[members_G[program.group_N[collective]] > 1]
    used = 0
    if len(collective):
        group_J = program.group_N[collective]
        key_J = keys(group_J, occurrences(keys(program.rank_N[collective], group_J)))
        rendezvous_N[collective] = join_collectives(program, collective, key_J, members_G)
        used = int(rendezvous_N.max()) + 1
    messages = np.flatnonzero((kind_N == Kind.SEND) | (kind_N == Kind.RECV))
    if len(messages):
        backward_J = program.ops.phase_T[program.row_N[messages]] == Phase.BACKWARD
        columns = program.group_N, program.virtual_stage_N, program.microbatch_N
        key_J = keys(*(column_N[messages] for column_N in columns), backward_J)
        rendezvous_N[messages] = join_messages(program, messages, key_J) + used
    return rendezvous_N
