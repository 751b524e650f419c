"""What the links of a cluster make of the traffic of an algorithm: its time over the size.

::

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

from math import ceil, inf, isqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traincast.estimate.collectives.algorithms import Traffic
from traincast.estimate.collectives.tuning import switch_efficiency
from traincast.hardware.cluster import Cluster
from traincast.shipped import constant, shipped_toml
from traincast.workload.ops import FloatArray

STRAIGHT = ("mesh", "torus", "torus_2d")
"""Kinds of links that lead from rank to rank without a switch."""
_DIMENSIONS = {"torus": 3, "torus_2d": 2}
"""Of a torus; a chip has two links in each."""
_CLOSED = {"torus": 4, "torus_2d": 16}
"""Chips in a row from which on its ends are joined; of two dimensions the whole pod of 16 x 16 (Google Cloud
documentation, TPU v5e and v6e).

Source: Jouppi et al., TPU v4: An optically reconfigurable supercomputer for machine learning,
ISCA 2023: blocks of 4 x 4 x 4 chips, whose faces are joined by optical switches.
"""


class ProtocolShape(Struct, frozen=True, kw_only=True):
    """The form of NCCL's protocols; the defaults are one protocol for everything.

    These are not constants of a GPU: they say how much longer a step becomes once a message leaves the low-latency
    protocol, and from which size on. `Link` has the rest.
    """

    intra_step_share: float = 0.0
    """A step of a ring or tree inside a node grows by this share outside the low-latency protocol."""
    intra_step_bytes: float = 1.0
    """Half of that is paid where a rank works on so much."""
    network_step_share: float = 0.0
    """The same for a step between nodes."""
    network_step_bytes: float = 1.0
    """Half of that is paid where a node works on so much."""
    tree_step_share: float = 1.0
    """A step inside a node on the way of a tree over nodes, over that of a ring."""
    message_step_share: float = 0.0
    """A direct message pays this share of its start outside the low-latency protocol."""
    message_step_bytes: float = 1.0
    """Half of that is paid where one peer gets so much."""
    message_latency_s: float = 0.0
    """What each message of many to other nodes costs the one process that serves the NIC."""
    message_fill_share: float = 1.0
    """Pipeline fill of direct messages over that of a ring."""
    switch_fill_share: float = 1.0
    """Pipeline fill of a reduction in the switch over that of a ring."""
    switch_share: float = 1.0
    """What a reduction in the switch reaches of the limit in NCCL's tables."""
    pcie_step_latency_s: float = 0.0
    """Over PCIe: what a step takes longer with Simple than with LL, which sends twice the bytes instead."""
    pcie_copy_share: float = 0.0
    """Over PCIe: a rank's own share takes its buffers this part of the time of one that is sent."""


def fitted() -> ProtocolShape:
    """Return the form fitted to measured collectives (`data/nccl/fitted.toml`)."""
    return constant(shipped_toml, "nccl/fitted.toml", ProtocolShape)


def shape_of(cluster: Cluster) -> ProtocolShape:
    """Return the form of the protocols of a cluster: the fitted one where it runs NCCL."""
    return ProtocolShape() if cluster.nccl is None else fitted()


class Curve(NamedTuple):
    """Time over size: ``latency + size * slope``, two terms ``limit / (1 + half / size)``, one ``min(limit, ...)``."""

    latency_s: float
    seconds_per_byte: float
    step_s: float = 0.0
    step_bytes: float = 1.0
    fill_s: float = 0.0
    fill_bytes: float = 1.0
    switch_s: float = 0.0
    """Limit of what a protocol of twice the bytes costs: at most this, for then another takes over."""
    most_bytes: float = inf
    """Largest size that the algorithm is made for; beyond it the time is infinite."""


def curve(traffic: Traffic, cluster: Cluster, most_bytes: float = inf) -> Curve:
    """Return what a traffic costs on the links of a cluster, over the size; step and fill are the outermost level's."""
    shape, across = shape_of(cluster), bool(traffic.inter_hops)
    link = cluster.inter if across else cluster.intra
    start_s, slope = latency_s(traffic, cluster), seconds_per_byte(traffic, cluster)
    if not across and link.kind == "pcie":
        switch_s = shape.pcie_step_latency_s * traffic.intra_hops
        return Curve(start_s, slope, switch_s=switch_s, most_bytes=most_bytes)
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
        most_bytes=most_bytes,
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
    time_s = np.where(size > 0, cost.latency_s + step + fill + np.minimum(cost.switch_s, wire) + wire, 0.0)
    return np.where(size > cost.most_bytes, inf, time_s) if np.min(cost.most_bytes) < inf else time_s


def seconds(cost: Curve, size_bytes: float) -> float:
    """Return the seconds of a curve at one size, as `evaluate` does."""
    if not size_bytes > 0:
        return 0.0
    if size_bytes > cost.most_bytes:
        return inf
    at_least_one = max(size_bytes, 1.0)
    step = cost.step_s / (1.0 + cost.step_bytes / at_least_one)
    fill = cost.fill_s / (1.0 + cost.fill_bytes / at_least_one)
    wire = size_bytes * cost.seconds_per_byte
    return cost.latency_s + step + fill + min(cost.switch_s, wire) + wire


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
    copy_rate = cluster.gpu.copy_bytes_per_s
    slowest = max(load / rate for _, load, rate in _levels(traffic, cluster))
    return slowest + (0.0 if copy_rate is None else traffic.copy_load / copy_rate)


def slowest_level(traffic: Traffic, cluster: Cluster) -> tuple[str, float]:
    """Return what limits the rate of a traffic, in words, and the rate of that in bytes per second."""
    name, _, rate = max(_levels(traffic, cluster), key=lambda each: each[1] / each[2])
    return name, rate


def _levels(traffic: Traffic, cluster: Cluster) -> list[tuple[str, float, float]]:
    """Return each level that may limit a traffic: its name, what it carries for each byte of the size, its rate."""
    intra, inter = cluster.intra, cluster.inter
    rate, port_load = rate_inside(traffic.members, cluster), traffic.port_load
    if intra.kind in STRAIGHT:
        # Links lead from rank to rank: only those count that are used.
        rate = min(rate, rate_inside(traffic.fewest, cluster)) if traffic.as_ring and traffic.fewest else rate
        rate = min(rate, rate_inside(2, cluster)) if traffic.one_peer else rate
    if traffic.in_switch:
        rate *= shape_of(cluster).switch_share * (switch_efficiency(cluster) or 1.0)
    if intra.kind == "pcie" and port_load:
        port_load += shape_of(cluster).pcie_copy_share * traffic.copy_load
    levels = [
        ("the links of a GPU inside its node", port_load, rate),
        ("the network card of a GPU", traffic.nic_load, inter.bandwidth_bytes_per_s),
    ]
    limits = (
        ("the network cards of a node together", traffic.node_load, inter.node_bandwidth_bytes_per_s),
        ("the links of a node together", traffic.inside_load, intra.node_bandwidth_bytes_per_s),
        ("the links between the halves of a node", traffic.halves_load, halves_rate(traffic.members, cluster)),
    )
    levels += [(name, load, limit) for name, load, limit in limits if limit is not None]
    return levels


def rate_inside(members: int, cluster: Cluster) -> float:
    """Return what each of some ranks of a node gets of the links inside it, in bytes per second.

    Two alone may have a rate of their own; where host bridges are crowded, each doubling of the
    members takes the same factor off. In a mesh m ranks have m - 1 links each, in a torus those of
    the dimensions that they span.

    Notes
    -----
    Rings use all of the m - 1 links of a mesh at once: the links of m ranks fall apart into m - 1
    rings (Tillson, A Hamiltonian decomposition of K*_2m, 1980), but for 4 and 6 ranks, where more
    rings than that, each with a part of the data, do it.
    """
    link = cluster.intra
    if link.kind in STRAIGHT:
        kind = link.kind or ""
        links = members - 1 if kind == "mesh" else sum(_links(each, kind) for each in _extents(members, kind))
        return min(link.bandwidth_bytes_per_s, max(links, 1) * one_link(cluster))
    island = _bridged(cluster)
    if members <= max(island, 2):
        return link.pair_bandwidth_bytes_per_s or link.bandwidth_bytes_per_s
    return island * link.bandwidth_bytes_per_s * float((2 / members) ** (link.crowding or 0.0))


def _bridged(cluster: Cluster) -> int:
    """Return how many cards over PCIe have a bridge; 1 where none do, as where nothing says that two are faster.

    Rings over several such islands are as many as their cards, and each crosses between islands by another one, at the
    rate of its own slot (NCCL, src/graph/search.cc: channels that differ in the GPUs that they leave by).
    """
    link = cluster.intra
    faster = (link.pair_bandwidth_bytes_per_s or 0.0) > link.bandwidth_bytes_per_s
    return (cluster.gpu.domain or 1) if link.kind == "pcie" and faster else 1


def one_link(cluster: Cluster) -> float:
    """Return the rate of one link of a mesh or a torus, in bytes per second: that of two ranks alone."""
    link = cluster.intra
    all_links = 2 * _DIMENSIONS.get(link.kind or "", 0) or max(cluster.gpus_per_node - 1, 1)
    return link.pair_bandwidth_bytes_per_s or link.bandwidth_bytes_per_s / all_links


def halves_rate(members: int, cluster: Cluster) -> float | None:
    """Return what one half of some ranks of a node can send to the other half; None where nothing limits it.

    In a torus those are the links that a cut through the longest dimension meets.
    """
    limit, kind = cluster.intra.halves_bandwidth_bytes_per_s, cluster.intra.kind or ""
    if kind not in _DIMENSIONS or members < 2:
        return limit
    longest, second, third = _extents(members, kind)
    cut = _links(longest, kind) * second * third * one_link(cluster)
    return cut if limit is None else min(limit, cut)


def _extents(members: int, kind: str) -> tuple[int, int, int]:
    """Return the smallest box, as near to a cube as can be, that holds so many chips; the longest side first.

    Of a torus of two dimensions it is flat.
    """
    depth = 1 if _DIMENSIONS[kind] == 2 else next(side for side in range(1, members + 1) if side**3 >= members)
    layer = ceil(members / depth)
    width = isqrt(layer - 1) + 1
    sides = sorted((depth, width, ceil(layer / width)), reverse=True)
    return sides[0], sides[1], sides[2]


def _links(extent: int, kind: str) -> int:
    """Return the links by which every chip of a row goes on in it: the ends of an open row have one."""
    return min(extent - 1, 1) if extent < _CLOSED[kind] else 2
