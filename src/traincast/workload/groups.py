"""Communication groups as tables of members, in Megatron's rank order, and which ranks must behave alike.

Ranks that must are folded onto one representative (symmetry reduction): they start with a colour for what they do
(stage, template, speed) and where each of their groups sits; then colours are refined by the colours of the members of
every group until nothing changes. Ranks of one colour see the same operations, the same costs and the same partners, so
every time of theirs is equal bit for bit (an equitable partition; Weisfeiler and Leman, 1968, colour refinement).

Letters: W ranks, C classes, G groups of one kind, K members of a group, L levels of location.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from traincast.job.parallel import Parallel
from traincast.workload.ops import BoolArray, IntArray, numbered
from traincast.workload.words import Group


class GroupTable(Struct, frozen=True, kw_only=True):
    """All groups of one kind."""

    kind: Group
    members_GK: IntArray
    """Members in the order of the group; rows of smaller groups end in -1."""
    group_of_rank_W: IntArray
    """Group of each rank; -1 for a rank that is in none."""
    ordered: bool = False
    """Whether members play different parts (the stages of a pipeline)."""

    @classmethod
    def from_members(cls, kind: Group, members_GK: IntArray, world_size: int, ordered: bool = False) -> "GroupTable":
        """Build a table from its members."""
        members = np.ascontiguousarray(members_GK, dtype=np.int32)
        group_W = np.full(world_size, -1, dtype=np.int32)
        index_GK = np.broadcast_to(np.arange(len(members), dtype=np.int32)[:, None], members.shape)
        real = members >= 0
        group_W[members[real]] = index_GK[real]
        return cls(kind=kind, members_GK=members, group_of_rank_W=group_W, ordered=ordered)


def rank_groups(
    parallel: Parallel, kinds: Iterable[Group], table_stages: tuple[int, ...] = ()
) -> dict[Group, GroupTable]:
    """Build the groups of the given kinds for a layout.

    Data parallel groups span context parallel ranks too: gradients are reduced over both. Source: Megatron-LM,
    megatron/core/parallel_state.py: order ``tp-cp-ep-dp-pp`` for dense and ``etp-ep-edp-pp`` for expert groups, which
    may leave ranks with the same experts between the members of an ``ep`` group (`Parallel.expert_stride`); the
    embedding group is the first and last stage, or the `table_stages`. Copies of the same layers are on stages
    as far from either end.
    """
    world = parallel.world_size
    tp, cp, dp, pp = parallel.tp, parallel.cp, parallel.dp, parallel.pp
    dense = np.arange(world, dtype=np.int32).reshape(pp, dp, cp, tp)
    etp, between = parallel.expert_tp, parallel.expert_stride // parallel.expert_tp
    expert = dense.reshape(pp, -1, parallel.ep, between, etp).transpose(0, 1, 3, 2, 4)
    expert = expert.reshape(pp, parallel.edp, parallel.ep, etp)
    stages = dense.reshape(pp, -1)
    replicas = dense.transpose(0, 3, 1, 2).reshape(-1, dp * cp)
    shards = replicas.reshape(len(replicas), -1, parallel.sharing)
    mirrored = np.stack([stages, stages[::-1]], axis=-1)[: pp // 2].reshape(-1, 2)
    members: dict[Group, IntArray] = {
        Group.TP: dense.reshape(-1, tp),
        Group.CP: dense.transpose(0, 1, 3, 2).reshape(-1, cp),
        Group.DP: replicas,
        Group.PP: stages.T,
        Group.ETP: expert.reshape(-1, etp),
        Group.EP: expert.transpose(0, 1, 3, 2).reshape(-1, parallel.ep),
        Group.EDP: expert.transpose(0, 2, 3, 1).reshape(-1, parallel.edp),
        Group.EMB: stages[list(table_stages or (0, -1))].T if pp > 1 else stages.T,
        Group.COPY: mirrored if pp % 2 == 0 else dense.reshape(-1, 1),
        Group.MP: dense.transpose(1, 2, 0, 3).reshape(-1, pp * tp),
        Group.WORLD: dense.reshape(1, -1),
        Group.SHARD: shards.reshape(-1, parallel.sharing),
        Group.REPLICA: shards.transpose(0, 2, 1).reshape(-1, dp * cp // parallel.sharing),
    }
    return {
        kind: GroupTable.from_members(kind, members[kind], world, ordered=kind is Group.PP)
        for kind in sorted(frozenset(kinds) - {Group.NONE})
    }


class Fold(Struct, frozen=True):
    """Which ranks are simulated and whom they stand for."""

    class_W: IntArray
    """Class of each rank; classes are numbered by their lowest rank."""
    rank_C: IntArray
    """Representative: the lowest rank of the class, or the lowest preferred one."""
    count_C: IntArray
    """Ranks of the class."""


def unfolded(world_size: int) -> Fold:
    """Return the partition in which every rank stands for itself."""
    ranks = np.arange(world_size, dtype=np.int32)
    return Fold(ranks, ranks, np.ones(world_size, dtype=np.int32))


def fold(
    start_W: IntArray,
    tables: Mapping[Group, GroupTable],
    location_LW: IntArray,
    preferred_W: BoolArray | None = None,
) -> Fold:
    """Find the coarsest partition in which all ranks of a class behave alike.

    Parameters
    ----------
    start_W : int array [W]
        What a rank does: equal numbers for equal stage, template and speed.
    tables : mapping
        Every group that communicates.
    location_LW : int array [L, W]
        Where each rank sits, per level (node, and above).
    preferred_W : bool array [W], optional
        Ranks that represent their class before lower ones (those that were measured).
    """
    colour_W: IntArray = np.unique(start_W, return_inverse=True)[1].astype(np.int64)
    for table in tables.values():
        for location_W in location_LW:
            colour_W = _refine(colour_W, table, _placement_ids(table, location_W))
    while True:
        before = int(colour_W.max()) + 1
        for table in tables.values():
            colour_W = _refine(colour_W, table, group_colours(table, colour_W))
        if int(colour_W.max()) + 1 == before:
            return _partition(colour_W, preferred_W)


def group_colours(table: GroupTable, class_W: IntArray) -> IntArray:
    """Return a number for each group of a kind, equal for equal classes of their members, [G].

    Members of an ordered group (a pipeline) are told apart by position.
    """
    return _row_ids(_member_values(table, class_W))


def _partition(colour_W: IntArray, preferred_W: BoolArray | None) -> Fold:
    _, first_C, inverse_W, count_C = np.unique(colour_W, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first_C, kind="stable")
    number_C = np.empty_like(order)
    number_C[order] = np.arange(len(order))
    class_W, rank_C = number_C[inverse_W], first_C[order]
    if preferred_W is not None and preferred_W.any():
        preferred = np.flatnonzero(preferred_W)[::-1]
        rank_C[class_W[preferred]] = preferred
    return Fold(class_W.astype(np.int32), rank_C.astype(np.int32), count_C[order].astype(np.int32))


def _refine(colour_W: IntArray, table: GroupTable, id_G: IntArray) -> IntArray:
    group_W = table.group_of_rank_W
    id_W = np.where(group_W >= 0, id_G[group_W], -1)
    return numbered(colour_W * (int(id_G.max(initial=0)) + 2) + id_W + 1)[1].astype(np.int64)


def _member_values(table: GroupTable, value_W: IntArray) -> IntArray:
    values_GK = np.where(table.members_GK >= 0, value_W[table.members_GK], -1)
    return values_GK if table.ordered else np.sort(values_GK, axis=1)


def _placement_ids(table: GroupTable, location_W: IntArray) -> IntArray:
    """Return a number for each group, equal where members are spread alike over locations, [G]."""
    values_GK = _member_values(table, location_W)
    if table.ordered:
        return _row_ids(_first_occurrence(values_GK))
    return _row_ids(_spread(values_GK))


def _first_occurrence(values_GK: IntArray) -> IntArray:
    """Replace each value by the position where it first occurs in its row."""
    # A stable sort puts equal values next to each other, the first one first; no K x K comparison.
    groups, size = values_GK.shape
    order_GK = np.argsort(values_GK, axis=1, kind="stable")
    sorted_GK = np.take_along_axis(values_GK, order_GK, axis=1)
    starts_GK = np.ones((groups, size), dtype=np.bool_)
    starts_GK[:, 1:] = sorted_GK[:, 1:] != sorted_GK[:, :-1]
    begin_GK = np.maximum.accumulate(np.where(starts_GK, np.arange(size), 0), axis=1)
    first_GK = np.empty((groups, size), dtype=np.int64)
    np.put_along_axis(first_GK, order_GK, np.take_along_axis(order_GK, begin_GK, axis=1), axis=1)
    return first_GK


def _spread(sorted_GK: IntArray) -> IntArray:
    """Count the members at each location of a sorted row, largest count first, padded with 0."""
    groups, size = sorted_GK.shape
    starts = np.ones((groups, size), dtype=np.bool_)
    starts[:, 1:] = sorted_GK[:, 1:] != sorted_GK[:, :-1]
    run_GK = np.cumsum(starts, axis=1) - 1
    count_GK = np.zeros((groups, size), dtype=np.int32)
    np.add.at(count_GK, (np.arange(groups)[:, None], run_GK), sorted_GK >= 0)
    return -np.sort(-count_GK, axis=1)


def _row_ids(rows_GK: IntArray) -> IntArray:
    """Return a number for each row, equal for equal rows, in the order in which they come first."""
    width = rows_GK.shape[1] * rows_GK.itemsize
    data = np.ascontiguousarray(rows_GK).tobytes()
    numbers: dict[bytes, int] = {}
    rows = (data[begin : begin + width] for begin in range(0, len(data), width))
    return np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64)
