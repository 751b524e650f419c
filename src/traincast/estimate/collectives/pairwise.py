"""Pairwise: every rank sends straight to those who need its data."""

from math import log2

from traincast.estimate.collectives.contract import ALGORITHMS, Traffic
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@ALGORITHMS.register("pairwise")
def pairwise(operation: Operation, placement: Placement) -> Traffic | None:
    """Return the traffic of direct messages: all to all, or each to its neighbour.

    In an all-to-all a rank of a node with m of the n members sends (m-1)/n of its buffer
    inside the node and (n-m)/n through its own NIC. All messages are posted at once, so
    the latency grows with the logarithm of the peers, which is what one-node
    measurements of 2 to 8 GPUs show. The root of a gather or scatter moves what a rank of
    an all-to-all does, (n-1)/n of the size, and nobody moves more; NCCL does these by messages.

    A send/recv among more than two ranks is that of nccl-tests' ``sendrecv_perf``: every rank
    sends its buffer to the next one and receives from the one before, all at once.

    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication
    operations in MPICH, 2005 (pairwise exchange); NVIDIA/nccl-tests, src/sendrecv.cu.
    """
    if operation is Operation.SEND_RECV:
        return _to_the_next(placement)
    if operation not in (Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER):
        return None
    n, most, least = placement.ranks, placement.max_members, placement.min_members
    # Of a gather one rank of a node moves bytes over its borders, of an all-to-all all of them do.
    rooted = operation is not Operation.ALL_TO_ALL
    leaving = n - least if rooted else max(m * (n - m) for m in placement.members_per_node)
    inside = most - 1 if rooted else most * (most - 1)
    return Traffic(
        intra_hops=log2(most),
        inter_hops=log2(1 + n - least) if placement.nodes > 1 else 0,
        port_load=(most - 1) / n,
        nic_load=(n - least) / n,
        node_load=leaving / n if placement.nodes > 1 else 0.0,
        inside_load=inside / n,
        messages=n - least if placement.nodes > 1 else 0,
        copy_load=1 / n,
        share=1 / n,
        halves_load=(most - most // 2) * (1 if rooted else most // 2) / n,
        members=most,
        direct=True,
    )


def _to_the_next(placement: Placement) -> Traffic:
    """Return the traffic of a circle of ranks, node after node, in which each sends to the next."""
    most = placement.max_members
    if placement.ranks == 2 or most == 1:
        return point_to_point(same_node=placement.nodes == 1)
    across = placement.nodes > 1
    return Traffic(
        intra_hops=0 if across else 1,
        inter_hops=1 if across else 0,
        port_load=1.0,
        nic_load=1.0 if across else 0.0,
        node_load=1.0 if across else 0.0,
        inside_load=most - 1 if across else most,
        halves_load=1.0,
        members=most,
        one_peer=True,
        direct=True,
    )


def point_to_point(*, same_node: bool) -> Traffic:
    """Return the traffic of one message from one rank to another."""
    if same_node:
        return Traffic(intra_hops=1, port_load=1.0, inside_load=1.0, halves_load=1.0, members=2, direct=True)
    return Traffic(inter_hops=1, nic_load=1.0, node_load=1.0, members=1, direct=True)
