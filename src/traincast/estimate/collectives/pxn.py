"""PXN: all-to-all along the rails, through the local GPU that sits on the receiver's rail."""

from math import log2

from traincast.estimate.collectives.contract import ALGORITHMS, Traffic
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@ALGORITHMS.register("pxn")
def pxn(operation: Operation, placement: Placement) -> Traffic | None:
    """Return the traffic of an all-to-all that leaves a node only on the rail of its receiver.

    What is meant for another rail goes to the local GPU on it first, which sends the data
    of all its neighbours together: more inside the node, fewer steps between them, and
    nothing crosses rails. The NIC still serves a part for each pair. Needs as many members
    on every node.

    Source: NVIDIA, Doubling all2all performance with NVIDIA Collective Communication
    Library 2.12 (PXN), developer blog, 2022.
    """
    members, n = placement.max_members, placement.ranks
    even = members == placement.min_members
    if operation is not Operation.ALL_TO_ALL or placement.nodes == 1 or members == 1 or not even:
        return None
    leaving = (n - members) / n
    inside = (members - 1) / n + leaving * (members - 1) / members
    return Traffic(
        intra_hops=log2(members) + 1,
        inter_hops=log2(placement.nodes),
        port_load=inside,
        nic_load=leaving,
        node_load=members * leaving,
        inside_load=members * inside,
        messages=n - members,
        copy_load=1 / n,
        share=1 / n,
        halves_load=(members // 2) * (members - members // 2) * inside / (members - 1),
        members=members,
        direct=True,
    )
