"""NCCL's own model: which algorithms and protocols it has, and which it prefers.

NCCL takes the (algorithm, protocol) whose modelled time is least,
``latency * pipeline steps + bytes / bandwidth``. The model is made to rank, not to
predict: time comes from our own fit (`links`), and NCCL's tables say what may run and
under which protocol. Source: NVIDIA/nccl, src/graph/tuning.cc, by version in `data/nccl`.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from traincast.errors import UnknownNameError
from traincast.estimate.collectives.algorithms import ALGORITHMS, BY_MESSAGES, PROTOCOLS, Algorithm
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster
from traincast.shipped import constant, shipped_names, shipped_toml
from traincast.workload.words import Operation

SWITCH_RANKS = 8
"""Ranks of a node from which on NCCL reduces in the switch.

Source: all-reduces of 4 GPUs of H100, H200, B200, B300, GB200 and GB300 reach the rate of
the ring, those of 8 exceed it (ai-dynamo/aiconfigurator, NCCL 2.27 to 2.29).
"""

_WITHOUT_ALGORITHM = frozenset(
    {Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER, Operation.SEND_RECV, Operation.NONE}
)
"""What NCCL has no algorithm for: it sends messages."""
_IN_SWITCH = ("nvls", "nvls_tree")
_BYTES_PER_US = 1000.0
"""Bytes that 1 GB/s moves in a microsecond."""
_P2P_LL_BYTES = 16384
"""NCCL_P2P_LL_THRESHOLD, src/enqueue.cc."""


def versions() -> list[str]:
    """Return the versions of NCCL whose tables are known, sorted."""
    return [name for name in constant(shipped_names, "nccl") if name != "fitted"]


def tables(version: str) -> Mapping[str, Any]:
    """Return the tuning tables of a version.

    Raises
    ------
    UnknownNameError
        If there are none of that version.
    """
    if version not in versions():
        raise UnknownNameError("NCCL version", version, versions())
    return constant(shipped_toml, f"nccl/{version}.toml", dict[str, Any])


def switch_efficiency(cluster: Cluster) -> float | None:
    """Return the share of the link rate NCCL expects of reduction in the switch; None where there is none."""
    if cluster.nccl is None or cluster.intra.kind != "nvswitch":
        return None
    efficiency = tables(cluster.nccl)["nvls_efficiency"].get(cluster.gpu.nccl_row)
    return None if efficiency is None else float(efficiency)


def reduces_in_switch(placement: Placement, cluster: Cluster) -> bool:
    """Say whether NCCL reduces in the switches of the nodes of a placement."""
    return placement.min_members >= SWITCH_RANKS and switch_efficiency(cluster) is not None


def protocol_of(
    algorithm: Algorithm, operation: Operation, size_bytes: int, placement: Placement, cluster: Cluster
) -> str | None:
    """Return the protocol that NCCL prefers for an algorithm; None where the cluster or the algorithm is not NCCL's."""
    if cluster.nccl is None or algorithm.since is None:
        return None
    if len(algorithm.protocols) == 1:
        return algorithm.protocols[0]
    if algorithm.protocols == BY_MESSAGES:
        share = size_bytes if operation is Operation.SEND_RECV else size_bytes / placement.ranks
        return BY_MESSAGES[share > _P2P_LL_BYTES]
    own = {
        protocol: time
        for (_, protocol), time in nccl_times_us(
            operation, size_bytes, placement, cluster, of=algorithm.tuned_as
        ).items()
    }
    return min(own, key=lambda protocol: own[protocol]) if own else None


def nccl_choice(
    operation: Operation, size_bytes: int, placement: Placement, cluster: Cluster
) -> tuple[str, str] | None:
    """Return the algorithm and protocol that NCCL's own model takes, or None where it has none.

    Ours may be another algorithm: NCCL's model jumps with the size, and a cost must not.
    """
    times = nccl_times_us(operation, size_bytes, placement, cluster)
    return min(times, key=lambda pair: times[pair]) if times else None


_EVERY = "every"


def nccl_times_us(
    operation: Operation, size_bytes: int, placement: Placement, cluster: Cluster, *, of: str | None = _EVERY
) -> dict[tuple[str, str], float]:
    """Return NCCL's modelled time of every legal algorithm, or of one, with each protocol, in microseconds.

    Empty where the cluster has no NCCL, its GPU is in none of the tables, or NCCL does the
    operation by messages. The rate of the links is that of the cluster; NCCL would take it
    from the machine.
    """
    if cluster.nccl is None or operation in _WITHOUT_ALGORITHM:
        return {}
    model = _Model(tables(cluster.nccl), operation, size_bytes, placement, cluster)
    if cluster.gpu.nccl_row not in model.table["channels"]:
        return {}
    of_sums = ("tree", "nvls" if placement.nodes == 1 else "nvls_tree") if operation is Operation.ALL_REDUCE else ()
    found = {}
    for name in ("ring", *of_sums):
        if of not in (_EVERY, name) or (name in _IN_SWITCH and not reduces_in_switch(placement, cluster)):
            continue
        for protocol in ALGORITHMS.get(name).protocols:
            if protocol != "LL128" or cluster.intra.kind != "pcie":
                wire_us = size_bytes / (_BYTES_PER_US * model.algorithm_gbps(name, protocol))
                found[name, protocol] = model.latency_us(name, protocol) + wire_us
    return found


class _Model(NamedTuple):
    """NCCL's model of one collective."""

    table: Mapping[str, Any]
    operation: Operation
    size_bytes: int
    placement: Placement
    cluster: Cluster

    @property
    def steps(self) -> int:
        """Steps of a ring: 2 (n - 1) of all-reduce, n - 1 of its halves, n of the others."""
        ranks = self.placement.ranks
        if self.operation is Operation.ALL_REDUCE:
            return 2 * (ranks - 1)
        return ranks - 1 if self.operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER) else ranks

    def latency_us(self, name: str, protocol: str) -> float:
        """Return the start and the steps of an algorithm with a protocol."""
        at, nodes, step_us = PROTOCOLS.index(protocol), self.placement.nodes, self.table["step_us"]
        inside = step_us["pcie" if self.cluster.intra.kind == "pcie" else "nvlink"]
        intra, inter = float(inside[name][at]), float(step_us["network"][name][at])
        base, levels = float(self.table["base_us"][name][at]), math.log2(nodes)
        if name == "ring":
            between = 0 if nodes == 1 else (2 if self.operation is Operation.ALL_REDUCE else 1) * (nodes - 1)
            return base + (self.steps - between) * intra + between * inter
        if name == "tree":
            return base + 2 * ((self.placement.max_members - 1) * intra + levels * inter)
        return intra + 2 * levels * inter

    def algorithm_gbps(self, name: str, protocol: str) -> float:
        """Return the algorithm bandwidth of an algorithm with a protocol."""
        table, kind, column = self.table, str(self.cluster.gpu.nccl_row), min(self.placement.nodes, 3) - 1
        channels, bus = float(table["channels"][kind]), self.bus_gbps
        ll_limit = float(table["ll_total_gbps"][kind if column == 0 else "volta"][column])
        ring_share = self.placement.ranks / self.steps
        if name == "ring":
            limit = {
                "LL": min(ll_limit, 0.5 * bus),
                "LL128": min(0.92 * bus, channels * table["ring_ll128_gbps"][kind][column]),
            }
            return float(limit.get(protocol, bus)) * ring_share
        if name in _IN_SWITCH:
            return bus * float(table["nvls_efficiency"][kind]) * 2 * (channels - 1) / channels * ring_share
        tree = min(0.92 * bus, channels * float(table["tree_gbps"][kind][column]))
        if protocol == "LL":
            tree = min(tree / 3.8, ll_limit)
        elif protocol == "LL128":
            factor = 7 / 9 if self.placement.nodes == 1 else 120 / 128
            tree = min(tree * factor, channels * float(table["tree_ll128_gbps"][kind][column]))
        factors = table["tree_correction"][protocol.lower()]
        power = max(0, int(math.log2(max(self.size_bytes, 64))) - 6)
        return 0.5 * tree * (float(factors[power]) if power < len(factors) else 1.0)

    @property
    def bus_gbps(self) -> float:
        """Bus bandwidth of the channels together: of a node's NICs where several nodes take part."""
        inside, inter = self.cluster.intra.bandwidth_bytes_per_s, self.cluster.inter
        if self.placement.nodes == 1:
            return inside / 1e9
        nics = self.placement.min_members * inter.bandwidth_bytes_per_s
        node = min(nics, inter.node_bandwidth_bytes_per_s or nics)
        return (min(inside, node) if self.placement.max_members > 1 else node) / 1e9
