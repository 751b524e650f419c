"""Hierarchical: reduce-scatter inside the nodes, the same between them on every rail, gather inside."""

from traincast.estimate.collectives.algorithms import Traffic, algorithm, bus_factor
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


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
