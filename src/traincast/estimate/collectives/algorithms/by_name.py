"""Algorithms that no library chooses by itself; they count where a cluster or a user names them."""

from traincast.estimate.collectives.algorithms import Traffic, algorithm, tree_depth
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation, bus_factor


@algorithm(
    "direct",
    *(Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL),
)
def direct(operation: Operation, placement: Placement) -> Traffic:
    """Return the traffic of an exchange among all pairs: an all-reduce scatters sums and gathers them.

    One or two steps at any number of ranks, but all bytes go through the rank's own port
    and NIC: no number of messages makes a link faster.

    Source: Thakur, Rabenseifner and Gropp, 2005 (all pairs exchange).
    """
    passes = 2 if operation is Operation.ALL_REDUCE else 1
    n, most = placement.ranks, placement.max_members
    across = placement.nodes > 1
    return Traffic(
        intra_hops=passes if most > 1 else 0,
        inter_hops=passes if across else 0,
        port_load=passes * (most - 1) / n,
        nic_load=passes * (n - placement.min_members) / n,
        node_load=passes * max(m * (n - m) for m in placement.members_per_node) / n,
        inside_load=passes * most * (most - 1) / n,
        messages=passes * (n - placement.min_members) if across else 0,
        copy_load=1 / n,
        share=1 / n,
        halves_load=passes * (most // 2) * (most - most // 2) / n,
        direct=True,
    )


@algorithm("hierarchical", Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
def hierarchical(operation: Operation, placement: Placement) -> Traffic:
    """Return the traffic of rings inside the nodes and rings between them, pipelined with each other.

    Far fewer steps than one ring over all ranks: members and nodes add up instead of
    multiplying. A gather needs only the inner and outer half.

    Source: Cho et al., BlueConnect: Decomposing all-reduce for deep learning on
    heterogeneous network hierarchy, MLSys 2019.
    """
    passes = 2 if operation is Operation.ALL_REDUCE else 1
    most, least, nodes = placement.max_members, placement.min_members, placement.nodes
    # What the node that lacks most must get from the others.
    outside = passes * (placement.ranks - least) / placement.ranks if nodes > 1 else 0.0
    inside = bus_factor(operation, most) if most > 1 else 0.0
    return Traffic(
        intra_hops=passes * (most - 1),
        inter_hops=passes * (nodes - 1),
        port_load=inside,
        nic_load=outside / least,
        node_load=outside,
        inside_load=inside * most,
        copy_load=1 / placement.ranks,
        share=1 / most,
        halves_load=inside,
        as_ring=True,
    )


@algorithm("recursive_doubling", Operation.ALL_REDUCE)
def recursive_doubling(operation: Operation, placement: Placement) -> Traffic:  # noqa: ARG001 - only all-reduces
    """Return the traffic of log2 n exchanges of the whole data, inside the nodes first.

    Few steps and many bytes: for small messages. Where members or nodes are not a power of
    two, those that are too many hand their data over first and get the result last.

    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication
    operations in MPICH, 2005.
    """
    most = placement.max_members
    inside, outside = _exchanges(most), _exchanges(placement.nodes)
    return Traffic(
        intra_hops=inside,
        inter_hops=outside,
        port_load=float(inside),
        nic_load=float(outside),
        node_load=float(outside * most),
        inside_load=float(inside * most),
        halves_load=float(inside * (most // 2)),
        one_peer=True,
    )


def _exchanges(members: int) -> int:
    """Return the exchanges among so many, with the fold before and after where they are not a power of two."""
    if members & (members - 1) == 0:
        return tree_depth(members)
    return tree_depth(members) - 1 + 2
