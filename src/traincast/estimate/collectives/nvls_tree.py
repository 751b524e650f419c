"""NVLS tree: the switch reduces inside each node, a tree over the nodes does the rest."""

from traincast.estimate.collectives.contract import ALGORITHMS, Traffic, tree_depth
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@ALGORITHMS.register("nvls_tree")
def nvls_tree(operation: Operation, placement: Placement) -> Traffic | None:
    """Return the traffic of an all-reduce in the switches of the nodes and a double tree between them.

    One step into the switch and one out of it; between nodes as the double binary tree.

    Source: NVIDIA/nccl, src/graph/tuning.cc (NVLSTree).
    """
    if operation is not Operation.ALL_REDUCE or placement.nodes == 1 or placement.min_members == 1:
        return None
    return Traffic(
        intra_hops=2,
        inter_hops=2 * tree_depth(placement.nodes),
        port_load=1.0,
        nic_load=2.0 / placement.min_members,
        node_load=2.0,
        inside_load=float(placement.max_members),
        copy_load=1 / placement.ranks,
        share=1 / placement.max_members,
        members=placement.max_members,
        in_switch=True,
    )
