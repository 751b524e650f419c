"""What an algorithm says about a collective, and what the links make of it.

An algorithm is a function from an operation and a placement to the `Traffic` it causes,
or None where it cannot do the operation. It knows nothing of links: `curve` puts the same
cost on the traffic of every algorithm::

    time = base + hops * hop latency + step + fill + size * seconds per byte

Base, hop and bandwidth are the usual alpha-beta terms, kept apart per level. Step and fill
saturate with the size, limit / (1 + half / size): the step is what leaving the low-latency
protocol adds to the hops, the fill is what a pipeline of big chunks costs before all of it
flows. They stand for NCCL's switch from LL over LL128 to Simple without its jumps, so time
never falls with size. Source of the form: it follows all-reduces of 2 to 128 A100 with 4 %
median error, where alpha-beta alone is off by 20 % (nccl-tests logs in
github.com/NetX-lab/Echo; `studies/fit_links.py`).

Over PCIe there are only two protocols, LL of twice the bytes and Simple of longer steps::

    time = base + hops * hop latency + min(hops * longer, wire) + wire

That follows four collectives of 2 to 8 RTX PRO 6000 with 6 %, L40S with 9 % median error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.estimate.collectives.inside import STRAIGHT, halves_rate, rate_inside
from traincast.estimate.collectives.shape import shape_of
from traincast.estimate.collectives.tuning import switch_efficiency
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster
from traincast.registry import Registry
from traincast.workload.words import Operation

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Steps and loads of one communication; loads are bytes per byte of its size."""

    intra_hops: float = 0
    """Steps inside nodes that follow each other."""
    inter_hops: float = 0
    """Steps between nodes that follow each other."""
    port_load: float = 0.0
    """What the busiest rank sends inside its node."""
    nic_load: float = 0.0
    """What the busiest NIC sends."""
    node_load: float = 0.0
    """What all NICs of the busiest node send."""
    inside_load: float = 0.0
    """What all ranks of the busiest node send inside it."""
    halves_load: float = 0.0
    """What one half of the ranks of the busiest node sends to the other half."""
    messages: float = 0.0
    """Messages to other nodes that the busiest NIC takes one after the other."""
    copy_load: float = 0.0
    """What a rank keeps for itself and only moves to its place."""
    share: float = 1.0
    """Part of the data that one rank, or one direct message, works on at a time."""
    members: int = 0
    """Ranks of the busiest node; two alone may have a rate of their own, and many may crowd their links."""
    fewest: int = 0
    """Ranks of the emptiest node with several, where all nodes carry the same; it has the fewest links of a mesh."""
    one_peer: bool = False
    """A rank sends to one other at a time: of the links of a mesh it uses one."""
    direct: bool = False
    """Messages go straight to their receivers, all posted at once."""
    in_tree: bool = False
    """Steps inside nodes are those of the chains of a tree."""
    in_switch: bool = False
    """The switch of the node reduces and multicasts."""


Algorithm = Callable[[Operation, Placement], Traffic | None]
"""The plug-in: the traffic of an operation over a placement of two ranks or more."""

_OF_SHARES = frozenset(
    {
        Operation.ALL_GATHER,
        Operation.REDUCE_SCATTER,
        Operation.ALL_TO_ALL,
        Operation.GATHER,
        Operation.SCATTER,
    }
)
"""Operations in which the busiest rank keeps its own share of the size."""

ALGORITHMS: Registry[Algorithm] = Registry("collective algorithm", "traincast.estimate.collectives")


class Curve(NamedTuple):
    """Time over size: ``latency + size * slope``, two terms ``limit / (1 + half / size)``, one ``min(limit, ...)``."""

    latency_s: float
    seconds_per_byte: float
    step_s: float
    step_bytes: float
    fill_s: float
    fill_bytes: float
    switch_s: float = 0.0
    """Limit of what a protocol of twice the bytes costs: at most this, for then another takes over."""


def curve(traffic: Traffic, cluster: Cluster) -> Curve:
    """Return what a traffic costs on the links of a cluster, over the size.

    Parameters
    ----------
    traffic : Traffic
        What an algorithm says.
    cluster : Cluster
        The links.

    Returns
    -------
    Curve
        Start, step and fill are those of the outermost level that is reached.
    """
    shape, across = shape_of(cluster), bool(traffic.inter_hops)
    link = cluster.inter if across else cluster.intra
    start_s, slope = latency_s(traffic, cluster), seconds_per_byte(traffic, cluster)
    if not across and link.kind == "pcie":
        return Curve(start_s, slope, 0.0, 1.0, 0.0, 1.0, shape.pcie_step_latency_s * traffic.intra_hops)
    if traffic.direct:
        step_s, step_bytes = shape.message_step_share * link.base_latency_s, shape.message_step_bytes / traffic.share
    elif across:
        step_s = shape.network_step_share * link.hop_latency_s * traffic.inter_hops
        step_bytes = shape.network_step_bytes
    else:
        step_s = shape.intra_step_share * link.hop_latency_s * traffic.intra_hops
        step_bytes = shape.intra_step_bytes / traffic.share
    if traffic.in_switch:
        step_bytes = 0.0  # there is no low-latency protocol through the switch
    fill_share = shape.message_fill_share if traffic.direct else shape.switch_fill_share if traffic.in_switch else 1.0
    return Curve(
        latency_s=start_s,
        seconds_per_byte=slope,
        step_s=step_s,
        step_bytes=step_bytes,
        fill_s=link.fill_latency_s * fill_share,
        fill_bytes=link.fill_bytes if across else link.fill_bytes / traffic.share,
    )


def evaluate(cost: Curve, size_bytes: npt.ArrayLike) -> FloatArray:
    """Return the seconds of a curve at each size; nothing is moved in no time.

    The fields of the curve may be arrays that broadcast against the sizes.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    at_least_one = np.maximum(size, 1.0)
    # limit / (1 + half / size) and not limit * size / (size + half): it stays monotone when rounded.
    step = cost.step_s / (1.0 + cost.step_bytes / at_least_one)
    fill = cost.fill_s / (1.0 + cost.fill_bytes / at_least_one)
    wire = size * cost.seconds_per_byte
    return np.where(size > 0, cost.latency_s + step + fill + np.minimum(cost.switch_s, wire) + wire, 0.0)


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
    return evaluate(curve(traffic, cluster), size_bytes)


def latency_s(traffic: Traffic, cluster: Cluster) -> float:
    """Return what a communication costs at any size: its start and its steps, in seconds."""
    link = cluster.inter if traffic.inter_hops else cluster.intra
    shape = shape_of(cluster)
    share = shape.tree_step_share if traffic.in_tree and traffic.inter_hops else 1.0
    inside = share * traffic.intra_hops * cluster.intra.hop_latency_s
    between = traffic.inter_hops * cluster.inter.hop_latency_s + traffic.messages * shape.message_latency_s
    return link.base_latency_s + inside + between


def seconds_per_byte(traffic: Traffic, cluster: Cluster) -> float:
    """Return what each byte of the size costs: the slowest level, for levels work at the same time."""
    intra, inter, copy_rate = cluster.intra, cluster.inter, cluster.gpu.copy_bytes_per_s
    rate = _rank_rate(traffic, cluster)
    port_load = traffic.port_load
    if traffic.in_switch:
        rate *= shape_of(cluster).switch_share * (switch_efficiency(cluster) or 1.0)
    if intra.kind == "pcie" and port_load:
        port_load += shape_of(cluster).pcie_copy_share * traffic.copy_load
    levels = [port_load / rate, traffic.nic_load / inter.bandwidth_bytes_per_s]
    limits = (
        (traffic.node_load, inter.node_bandwidth_bytes_per_s),
        (traffic.inside_load, intra.node_bandwidth_bytes_per_s),
        (traffic.halves_load, halves_rate(traffic.members, cluster)),
    )
    levels += [load / limit for load, limit in limits if limit is not None]
    return max(levels) + (0.0 if copy_rate is None else traffic.copy_load / copy_rate)


def _rank_rate(traffic: Traffic, cluster: Cluster) -> float:
    """Return what a rank gets inside its node, where links lead from rank to rank only those that are used."""
    rate = rate_inside(traffic.members, cluster)
    if cluster.intra.kind in STRAIGHT:
        rate = min(rate, rate_inside(traffic.fewest or traffic.members, cluster))
        rate = min(rate, rate_inside(2, cluster)) if traffic.one_peer else rate
    return rate


def bus_factor(operation: Operation, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines it.

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    if operation is Operation.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if operation in _OF_SHARES:
        return (ranks - 1) / ranks
    return 1.0


def tree_depth(members: int) -> int:
    """Return the levels of a binary tree over that many members: log2, rounded up."""
    return (members - 1).bit_length()
