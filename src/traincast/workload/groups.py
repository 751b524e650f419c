"""Communication groups as tables of members, in Megatron's rank order.

Letters: W ranks, G groups of one kind, K members of a group.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from traincast.job.parallel import Parallel
from traincast.workload.ops import IntArray
from traincast.workload.words import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """All groups of one kind."""

    kind: Group
    members_GK: IntArray
    """Members in the order of the group; rows of smaller groups end in -1."""
    group_of_rank_W: IntArray
    """Group of each rank; -1 for a rank that is in none."""
    ordered: bool = False
    """Whether members play different parts (the stages of a pipeline)."""

    @classmethod
    def of(cls, kind: Group, members_GK: IntArray, world_size: int, ordered: bool = False) -> "GroupTable":
        """Build a table from its members."""
        members = np.ascontiguousarray(members_GK, dtype=np.int32)
        group_W = np.full(world_size, -1, dtype=np.int32)
        index_GK = np.broadcast_to(np.arange(len(members), dtype=np.int32)[:, None], members.shape)
        real = members >= 0
        group_W[members[real]] = index_GK[real]
        return cls(kind=kind, members_GK=members, group_of_rank_W=group_W, ordered=ordered)


def rank_groups(parallel: Parallel, kinds: Iterable[Group]) -> dict[Group, GroupTable]:
    """Build the groups of the given kinds for a layout.

    Data parallel groups span context parallel ranks too: gradients are reduced over both. Source: Megatron-LM,
    megatron/core/parallel_state.py: order ``tp-cp-ep-dp-pp`` for dense and ``etp-ep-edp-pp`` for expert groups; the
    embedding group is the first and last stage.
    """
    world = parallel.world_size
    tp, cp, dp, pp = parallel.tp, parallel.cp, parallel.dp, parallel.pp
    dense = np.arange(world, dtype=np.int32).reshape(pp, dp, cp, tp)
    expert = dense.reshape(pp, parallel.edp, parallel.ep, parallel.expert_tp)
    stages = dense.reshape(pp, -1)
    replicas = dense.transpose(0, 3, 1, 2).reshape(-1, dp * cp)
    shards = replicas.reshape(len(replicas), -1, parallel.sharing)
    members: dict[Group, IntArray] = {
        Group.TP: dense.reshape(-1, tp),
        Group.CP: dense.transpose(0, 1, 3, 2).reshape(-1, cp),
        Group.DP: replicas,
        Group.PP: stages.T,
        Group.ETP: expert.reshape(-1, parallel.expert_tp),
        Group.EP: expert.transpose(0, 1, 3, 2).reshape(-1, parallel.ep),
        Group.EDP: expert.transpose(0, 2, 3, 1).reshape(-1, parallel.edp),
        Group.EMB: stages[[0, -1]].T if pp > 1 else stages.T,
        Group.MP: dense.transpose(1, 2, 0, 3).reshape(-1, pp * tp),
        Group.WORLD: dense.reshape(1, -1),
        Group.SHARD: shards.reshape(-1, parallel.sharing),
        Group.REPLICA: shards.transpose(0, 2, 1).reshape(-1, dp * cp // parallel.sharing),
    }
    wanted = sorted(set(kinds) - {Group.NONE})
    return {kind: GroupTable.of(kind, members[kind], world, ordered=kind is Group.PP) for kind in wanted}
