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
from traincast.workload.ops import FloatArray, IntArray, Op, OpTable, distinct
from traincast.workload.program import GroupInstance, Program
from traincast.workload.rendezvous import join_collectives, join_messages, keys, occurrences
from traincast.workload.sequence import SequenceBuilder, Sequences
from traincast.workload.words import Group, Kind, Phase, Stream
from traincast.workload.workload import Workload


class _Tiles(Struct, frozen=True):
    """What ranks of some templates and stages do, one tile after another, with its edges, ready to be repeated."""

    sequences: tuple[Sequences, ...]
    ptr_K1: IntArray
    """Operations of each tile begin here, and the last ones end."""
    edge_ptr_K1: IntArray
    """Its edges, likewise."""
    edge_src_E: IntArray
    edge_dst_E: IntArray

    def columns(self, name: str, tile_R: IntArray) -> IntArray:
        """Return a column of the tiles of some ranks."""
        column_L = np.concatenate([getattr(each, name) for each in self.sequences])
        return _taken(column_L, self.ptr_K1, tile_R)

    def edges(self, tile_R: IntArray, begin_R: IntArray) -> tuple[IntArray, IntArray]:
        """Return the edges of the tiles of some ranks, whose operations begin there."""
        count_R = np.diff(self.edge_ptr_K1)[tile_R]
        shift_E = np.repeat((begin_R - self.ptr_K1[tile_R]).astype(np.int32), count_R)
        source_E, target_E = (
            _taken(each, self.edge_ptr_K1, tile_R) + shift_E for each in (self.edge_src_E, self.edge_dst_E)
        )
        return source_E, target_E


def _taken(column_L: IntArray, ptr_K1: IntArray, tile_R: IntArray) -> IntArray:
    """Return the parts of a column that belong to the tiles of some ranks, one after the other."""
    if np.array_equal(tile_R, np.arange(len(ptr_K1) - 1)):
        return column_L
    return np.concatenate([column_L[:0], *(column_L[ptr_K1[tile] : ptr_K1[tile + 1]] for tile in tile_R.tolist())])


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
    ops, tiles, tile_R = _tiles(builder, fold, stage_R)
    length_R = np.diff(tiles.ptr_K1)[tile_R]
    op_ptr_R1 = np.concatenate([[0], np.cumsum(length_R)])
    index_N = np.repeat(np.arange(len(tile_R), dtype=np.int32), length_R)
    row_N = tiles.columns("row_L", tile_R)
    groups, group_RK = _group_instances(fold, tables)
    edge_src_E, edge_dst_E = tiles.edges(tile_R, op_ptr_R1[:-1])
    program = Program(
        ops=ops,
        row_N=row_N,
        rank_N=fold.rank_C[index_N],
        microbatch_N=tiles.columns("microbatch_L", tile_R),
        virtual_stage_N=tiles.columns("virtual_stage_L", tile_R),
        peer_stage_N=tiles.columns("peer_L", tile_R),
        group_N=_groups_of_ops(group_RK, index_N, ops, row_N),
        rendezvous_N=np.full(len(row_N), -1, dtype=np.int32),
        files=tuple(file.path for file in workload.inputs),
        edge_src_E=edge_src_E,
        edge_dst_E=edge_dst_E,
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


def _tiles(builder: SequenceBuilder, fold: Fold, stage_R: IntArray) -> tuple[OpTable, _Tiles, IntArray]:
    """Lay out each pair of template and stage once; return the table with its messages, and the tile of each rank."""
    workload = builder.workload
    keys = list(zip(workload.template_W[fold.rank_C].tolist(), stage_R.tolist(), strict=True))
    stages_of: dict[int, list[int]] = {}
    for template, stage in dict.fromkeys(keys):
        stages_of.setdefault(template, []).append(stage)
    sequences = tuple(builder.sequences(workload.templates[each], stages) for each, stages in stages_of.items())
    known = ((template, stage) for template, stages in stages_of.items() for stage in stages)
    number = {key: tile for tile, key in enumerate(known)}
    ops = builder.table()
    return ops, _with_edges(sequences, ops), np.array([number[key] for key in keys])


def _with_edges(sequences: tuple[Sequences, ...], ops: OpTable) -> _Tiles:
    """Make the rules of program order explicit: an edge from what each operation must follow."""
    row_L = np.concatenate([each.row_L for each in sequences])
    length_K = np.concatenate([np.diff(each.ptr_P1) for each in sequences])
    ptr_K1 = np.concatenate([[0], np.cumsum(length_K)])
    begin_L = np.repeat(ptr_K1[:-1], length_K)
    stream_L, index_L = ops.stream_T[row_L], np.arange(len(row_L))
    launch_L = np.maximum.accumulate(np.where(ops.blocking_T[row_L], index_L, -1))
    launch_L = np.concatenate([np.full(1, -1), launch_L[:-1]])[: len(index_L)]
    # A predecessor on the same stream is already in order.
    needed = np.flatnonzero((launch_L >= begin_L) & (stream_L[launch_L] != stream_L))
    sources, targets = [launch_L[needed]], [needed]
    waits_L = np.where(ops.kind_T[row_L] == Kind.WAIT, ops.waits_for_T[row_L], Stream.NONE)
    for stream in distinct(waits_L[waits_L != Stream.NONE]):
        launched, held = np.flatnonzero(stream_L == stream), np.flatnonzero(waits_L == stream)
        last = np.concatenate([[-1], launched])[np.searchsorted(launched, held)]
        behind = (last >= begin_L[held]) & (last != launch_L[held])
        sources.append(last[behind])
        targets.append(held[behind])
    # By source, then by target.
    source_E, target_E = np.concatenate(sources), np.concatenate(targets)
    order = np.argsort(source_E * len(row_L) + target_E, kind="stable")
    source_E, target_E = source_E[order], target_E[order]
    edge_ptr_K1 = np.searchsorted(source_E, ptr_K1)
    return _Tiles(sequences, ptr_K1, edge_ptr_K1, source_E.astype(np.int32), target_E.astype(np.int32))


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
    loose_T = (ops.group_T < 0) & np.isin(ops.kind_T, (Kind.COLLECTIVE, Kind.SEND, Kind.RECV))
    loose = np.flatnonzero(loose_T[row_N])
    if len(loose):
        raise ProgramError(f"{ops.name_T[row_N[loose[0]]]!r} is a communication without a group")
    kind_N = ops.group_T[row_N]
    # What has no group (-1) finds the last column, which is of none.
    group_N: IntArray = np.pad(group_RK, ((0, 0), (0, 1)), constant_values=-1)[index_N, kind_N]
    missing = np.flatnonzero((group_N < 0) & (kind_N >= 0))
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
