"""Direct: every rank sends every other one its share at once, and gathers the sums the same way."""

from traincast.estimate.collectives.contract import ALGORITHMS, Traffic
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@ALGORITHMS.register("direct")
def direct(operation: Operation, placement: Placement) -> Traffic | None:
    """Return the traffic of a reduce-scatter and a gather among all pairs.

    Two steps at any number of ranks, but the bytes are those of a ring, and they all go
    through the rank's own port and NIC: no number of messages makes a link faster.

    Source: Thakur, Rabenseifner and Gropp, 2005 (all pairs exchange).
    """
    if operation not in (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER):
        return None
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
        copy_load=1 / n,
        share=1 / n,
        ranks=n,
        direct=True,
    )
