"""What an algorithm says about a collective, and what the links make of it.

An algorithm is a function from an operation and a placement to the `Traffic` it causes,
or None where it cannot do the operation. It knows nothing of links: `transfer_time_s`
puts the same cost on the traffic of every algorithm::

    time = base + hops * hop latency + fill + size * seconds per byte + own share / copy rate

Base, hop and bandwidth are the usual alpha-beta terms, kept apart per level. Fill is the
cost of filling the pipeline of big chunks; it saturates with the size, because a library
moves small messages by protocols with small chunks.
Source of the form: a latency that grows with the members, a saturating fill and a
bandwidth per level follow all-reduces of 2 to 128 A100 with 6 % median error, where
alpha-beta alone is off by 20 % (fits to the nccl-tests logs in github.com/NetX-lab/Echo).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.fabric.placement import Placement
from traincast.registry import Registry
from traincast.spec.cluster import Cluster
from traincast.workload.words import Operation

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Steps and loads of one communication; loads are bytes per byte of its size."""

    intra_hops: int = 0
    """Steps inside nodes that follow each other."""
    inter_hops: int = 0
    """Steps between nodes that follow each other."""
    port_load: float = 0.0
    """What the busiest rank sends inside its node."""
    nic_load: float = 0.0
    """What the busiest NIC sends."""
    node_load: float = 0.0
    """What all NICs of the busiest node send."""
    copy_load: float = 0.0
    """What a rank keeps for itself and only moves to its place."""


Algorithm = Callable[[Operation, Placement], Traffic | None]
"""The plug-in: the traffic of an operation over a placement of two ranks or more."""

ALGORITHMS: Registry[Algorithm] = Registry("collective algorithm", "traincast.estimate.collectives")


def transfer_time_s(traffic: Traffic, size_bytes: npt.ArrayLike, cluster: Cluster) -> FloatArray:
    """Return the time of a communication, for one size or for many.

    Parameters
    ----------
    traffic : Traffic
        What an algorithm says.
    size_bytes : array of int, or int
        Sizes in bytes, as `Operation` defines them; nothing is moved in no time.
    cluster : Cluster
        The links.

    Returns
    -------
    array of float
        Seconds, in the shape of `size_bytes`.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    link = cluster.inter if traffic.inter_hops else cluster.intra
    # 1 / (1 + a / size) and not size / (size + a): it stays monotone when rounded.
    fill = link.fill_latency_s / (1.0 + link.fill_bytes / np.maximum(size, 1.0))
    time = latency_s(traffic, cluster) + fill + size * seconds_per_byte(traffic, cluster)
    return np.where(size > 0, time, 0.0)


def latency_s(traffic: Traffic, cluster: Cluster) -> float:
    """Return what a communication costs at any size: its start and its steps, in seconds."""
    link = cluster.inter if traffic.inter_hops else cluster.intra
    steps = traffic.intra_hops * cluster.intra.hop_latency_s + traffic.inter_hops * cluster.inter.hop_latency_s
    return link.base_latency_s + steps


def seconds_per_byte(traffic: Traffic, cluster: Cluster) -> float:
    """Return what each byte of the size costs: the slowest level, for levels work at the same time."""
    intra, inter, copy_rate = cluster.intra, cluster.inter, cluster.gpu.copy_bytes_per_s
    levels = [traffic.port_load / intra.bandwidth_bytes_per_s, traffic.nic_load / inter.bandwidth_bytes_per_s]
    if inter.node_bandwidth_bytes_per_s is not None:
        levels.append(traffic.node_load / inter.node_bandwidth_bytes_per_s)
    return max(levels) + (0.0 if copy_rate is None else traffic.copy_load / copy_rate)


def bus_factor(operation: Operation, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines it.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    if operation is Operation.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL):
        return (ranks - 1) / ranks
    return 1.0


def tree_depth(members: int) -> int:
    """Return the levels of a binary tree over that many members: log2, rounded up."""
    return (members - 1).bit_length()
