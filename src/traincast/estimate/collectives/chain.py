"""Pipelined chain: the data runs past all members in small pieces, from or towards the root."""

from traincast.estimate.collectives.contract import ALGORITHMS, Traffic
from traincast.estimate.collectives.inside import least_together
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@ALGORITHMS.register("chain")
def chain(operation: Operation, placement: Placement) -> Traffic | None:
    """Return the traffic of a broadcast or a reduce along a ring that is not closed.

    The last piece passes n - 1 members after the first; every member but the end sends
    the whole data once.

    Source: NVIDIA/nccl, src/device/broadcast.h and reduce.h (both use the ring only).
    """
    if operation not in (Operation.BROADCAST, Operation.REDUCE):
        return None
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
        members=placement.max_members,
        fewest=least_together(placement),
    )
