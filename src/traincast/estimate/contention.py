"""What a cluster's links are worth to groups that communicate at the same time.

All groups of one kind do the same thing at the same time in a step, so the slowest of them sets the
pace of all: each kind gets the cluster with its rates between nodes divided by the worst slowdown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from traincast.fabric.contention import network_factor
from traincast.fabric.contract import build_fabric
from traincast.spec.cluster import Cluster
from traincast.workload.groups import GroupTable
from traincast.workload.ops import IntArray, OpTable
from traincast.workload.words import Group, Operation


@dataclass(frozen=True, slots=True)
class Contention:
    """A kind of group on a shared fabric."""

    cluster: Cluster
    """The cluster as these groups see it."""
    factor: float
    """Worst slowdown of their transfers between nodes; 1 where nothing is shared."""
    bottleneck: str | None
    """Link that holds the slowest of them back."""


def contend(cluster: Cluster, tables: Mapping[Group, GroupTable], ops: OpTable) -> dict[Group, Contention]:
    """Work out how the groups of each kind share the cluster's fabric.

    Parameters
    ----------
    cluster : Cluster
        With its `fabric`; without one, or where communication takes no time, nothing is shared.
    tables : mapping
        All groups of every kind that communicates.
    ops : OpTable
        What they do.

    Returns
    -------
    dict
        Kind -> contention; empty where nothing is shared.

    Raises
    ------
    ConfigError
        If the fabric does not fit the world.
    """
    if cluster.fabric is None or cluster.ideal:
        return {}
    world = max(len(table.group_of_rank_W) for table in tables.values()) if tables else 0
    graph = build_fabric(cluster, world) if world else None
    found = {}
    for kind, table in tables.items():
        if graph is None or table.members_GK.shape[1] < 2:
            continue
        pattern, groups = _traffic(kind, table, ops)
        worst = max(network_factor(pattern, groups, graph), key=lambda each: each.factor)
        found[kind] = Contention(_slowed(cluster, worst.factor), worst.factor, worst.bottleneck)
    return found


def _traffic(kind: Group, table: GroupTable, ops: OpTable) -> tuple[str, list[IntArray]]:
    """Return who sends to whom among all groups of a kind."""
    if kind is Group.PP:
        pairs = np.stack([table.members_GK[:, :-1], table.members_GK[:, 1:]], axis=-1).reshape(-1, 2)
        return "send", list(pairs)
    exchanges = bool(np.any((ops.group_T == kind) & (ops.operation_T == Operation.ALL_TO_ALL)))
    return ("all-to-all" if exchanges else "ring"), [members[members >= 0] for members in table.members_GK]


def _slowed(cluster: Cluster, factor: float) -> Cluster:
    inter = cluster.inter
    limit = inter.node_bandwidth_bytes_per_s
    slowed = replace(
        inter,
        bandwidth_bytes_per_s=inter.bandwidth_bytes_per_s / factor,
        node_bandwidth_bytes_per_s=None if limit is None else limit / factor,
    )
    return replace(cluster, inter=slowed)
