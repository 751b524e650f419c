"""Direct: every rank sends every other one its share at once; an all-reduce gathers the sums the same way."""

from traincast.estimate.collectives.algorithms import Traffic, algorithm
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


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
