"""What the links inside a node give to some of its ranks: through a switch, over PCIe, a mesh or a torus.

Behind a switch a rank has all of its links whoever it talks to. Where links lead straight from
one rank to another, a group has only those between its members: a mesh has one per pair, a torus
one or two per dimension that the group spans.
"""

from math import ceil, isqrt

from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster

STRAIGHT = ("mesh", "torus")
"""Kinds of links that lead from rank to rank without a switch."""
_TORUS_LINKS = 6
"""Of a chip in a torus of three dimensions."""
_CLOSED = 4
"""Chips in a row from which on its ends are joined.

Source: Jouppi et al., TPU v4: An optically reconfigurable supercomputer for machine learning,
ISCA 2023: blocks of 4 x 4 x 4 chips, whose faces are joined by optical switches.
"""


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
        links = members - 1 if link.kind == "mesh" else sum(map(_links, _extents(members)))
        return min(link.bandwidth_bytes_per_s, max(links, 1) * one_link(cluster))
    if members <= 2:
        return link.pair_bandwidth_bytes_per_s or link.bandwidth_bytes_per_s
    return link.bandwidth_bytes_per_s * float((2 / members) ** (link.crowding or 0.0))


def one_link(cluster: Cluster) -> float:
    """Return the rate of one link of a mesh or a torus, in bytes per second: that of two ranks alone."""
    link = cluster.intra
    all_links = max(cluster.gpus_per_node - 1, 1) if link.kind == "mesh" else _TORUS_LINKS
    return link.pair_bandwidth_bytes_per_s or link.bandwidth_bytes_per_s / all_links


def halves_rate(members: int, cluster: Cluster) -> float | None:
    """Return what one half of some ranks of a node can send to the other half; None where nothing limits it.

    In a torus those are the links that a cut through the longest dimension meets.
    """
    limit = cluster.intra.halves_bandwidth_bytes_per_s
    if cluster.intra.kind != "torus" or members < 2:
        return limit
    longest, second, third = _extents(members)
    cut = _links(longest) * second * third * one_link(cluster)
    return cut if limit is None else min(limit, cut)


def least_together(placement: Placement) -> int:
    """Return the members of the emptiest node on which there are two or more; 0 where there is none."""
    return min((members for members in placement.members_per_node if members > 1), default=0)


def _extents(members: int) -> tuple[int, int, int]:
    """Return the smallest box, as near to a cube as can be, that holds so many chips; the longest side first."""
    depth = next(side for side in range(1, members + 1) if side**3 >= members)
    layer = ceil(members / depth)
    width = isqrt(layer - 1) + 1
    sides = sorted((depth, width, ceil(layer / width)), reverse=True)
    return sides[0], sides[1], sides[2]


def _links(extent: int) -> int:
    """Return the links by which every chip of a row goes on in it: the ends of an open row have one."""
    return min(extent - 1, 1) if extent < _CLOSED else 2
