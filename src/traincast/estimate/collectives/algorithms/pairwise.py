"""Messages: every rank sends straight to those who need its data, or along the rails."""

from math import inf, log2

from traincast.estimate.collectives.algorithms import BY_MESSAGES, Traffic, algorithm
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@algorithm(
    "pairwise",
    *(Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER, Operation.SEND_RECV),
    since="2.7",
    protocols=BY_MESSAGES,
)
def pairwise(operation: Operation, placement: Placement) -> Traffic:
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
        direct=True,
    )


def _to_the_next(placement: Placement) -> Traffic:
    """Return the traffic of a circle of ranks, node after node, in which each sends to the next."""
    most = placement.max_members
    if placement.ranks == 2 or most == 1:
        return _message(same_node=placement.nodes == 1)
    across = placement.nodes > 1
    return Traffic(
        intra_hops=0 if across else 1,
        inter_hops=1 if across else 0,
        port_load=1.0,
        nic_load=1.0 if across else 0.0,
        node_load=1.0 if across else 0.0,
        inside_load=most - 1 if across else most,
        halves_load=1.0,
        one_peer=True,
        direct=True,
    )


def _message(*, same_node: bool) -> Traffic:
    """Return the traffic of one message from one rank to another."""
    if same_node:
        return Traffic(intra_hops=1, port_load=1.0, inside_load=1.0, halves_load=1.0, direct=True)
    return Traffic(inter_hops=1, nic_load=1.0, node_load=1.0, direct=True)


@algorithm(
    "pxn",
    Operation.ALL_TO_ALL,
    nodes=(2, inf),
    least_members=2,
    even=True,
    since="2.12",
    protocols=BY_MESSAGES,
)
def pxn(operation: Operation, placement: Placement) -> Traffic:  # noqa: ARG001 - only all-to-alls
    """Return the traffic of an all-to-all that leaves a node only on the rail of its receiver.

    What is meant for another rail goes to the local GPU on it first, which sends the data
    of all its neighbours together: more inside the node, fewer steps between them, and
    nothing crosses rails. The NIC still serves a part for each pair. Needs as many members
    on every node.

    Source: NVIDIA, Doubling all2all performance with NVIDIA Collective Communication
    Library 2.12 (PXN), developer blog, 2022.
    """
    members, n = placement.max_members, placement.ranks
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
        direct=True,
    )
