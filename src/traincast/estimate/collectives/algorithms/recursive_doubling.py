"""Recursive doubling: partners at doubling distance exchange everything they have."""

from traincast.estimate.collectives.algorithms import Traffic, algorithm, tree_depth
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@algorithm("recursive_doubling", Operation.ALL_REDUCE)
def recursive_doubling(operation: Operation, placement: Placement) -> Traffic:  # noqa: ARG001 - only all-reduces
    """Return the traffic of log2 n exchanges of the whole data, inside the nodes first.

    Few steps and many bytes: for small messages. Where members or nodes are no power of
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
    """Return the exchanges among so many, with the fold before and after where they are no power of two."""
    if members & (members - 1) == 0:
        return tree_depth(members)
    return tree_depth(members) - 1 + 2
