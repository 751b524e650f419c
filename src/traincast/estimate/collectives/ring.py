"""Ring: every rank passes shares on to its neighbour, node by node."""

from traincast.estimate.collectives.contract import ALGORITHMS, Traffic, bus_factor
from traincast.estimate.collectives.inside import least_together
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@ALGORITHMS.register("ring")
def ring(operation: Operation, placement: Placement) -> Traffic | None:
    """Return the traffic of rings that visit node after node, one ring per NIC.

    n - 1 steps, twice for all-reduce, each moving a share of S/n; of those steps one per
    change of node is between nodes. Every link of the ring carries the same, and a node
    has no more rings through it than members, so the node with the fewest limits all.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009; steps
    between nodes as in NVIDIA/nccl, src/graph/tuning.cc.
    """
    if operation not in (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER):
        return None
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
        members=placement.max_members,
        fewest=least_together(placement),
    )
