"""Ring: every rank passes shares on to its neighbour, node by node; a chain is a ring that is not closed."""

from traincast.estimate.collectives.algorithms import Traffic, algorithm
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation, bus_factor


@algorithm("ring", Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER, since="2.0", tuned_as="ring")
def ring(operation: Operation, placement: Placement) -> Traffic:
    """Return the traffic of rings that visit node after node, one ring per NIC.

    n - 1 steps, twice for all-reduce, each moving a share of S/n; of those steps one per
    change of node is between nodes. Every link of the ring carries the same, and a node
    has no more rings through it than members, so the node with the fewest limits all.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009; steps
    between nodes as in NVIDIA/nccl, src/graph/tuning.cc.
    """
    passes = 2 if operation is Operation.ALL_REDUCE else 1
    load = bus_factor(operation, placement.ranks)
    crossings = placement.nodes - 1
    return Traffic(
        intra_hops=passes * (placement.ranks - 1 - crossings),
        inter_hops=passes * crossings,
        port_load=load if placement.max_members > 1 else 0.0,
        nic_load=load / placement.min_members if crossings else 0.0,
        node_load=load if crossings else 0.0,
        inside_load=load * (placement.max_members - bool(crossings)),
        copy_load=1 / placement.ranks,
        share=1 / placement.max_members,
        halves_load=load if placement.max_members > 1 else 0.0,
        as_ring=True,
    )


@algorithm("chain", Operation.BROADCAST, Operation.REDUCE, since="2.0", tuned_as="ring")
def chain(operation: Operation, placement: Placement) -> Traffic:  # noqa: ARG001 - the same both ways
    """Return the traffic of a pipelined chain: the data runs past all members in small pieces.

    The last piece passes n - 1 members after the first; every member but the end sends
    the whole data once.

    Source: NVIDIA/nccl, src/device/broadcast.h and reduce.h (both use the ring only).
    """
    crossings = placement.nodes - 1
    return Traffic(
        intra_hops=placement.ranks - 1 - crossings,
        inter_hops=crossings,
        port_load=1.0 if placement.max_members > 1 else 0.0,
        nic_load=1 / placement.min_members if crossings else 0.0,
        node_load=1.0 if crossings else 0.0,
        inside_load=float(placement.max_members - 1),
        share=1 / placement.max_members,
        halves_load=1.0 if placement.max_members > 1 else 0.0,
        as_ring=True,
    )
