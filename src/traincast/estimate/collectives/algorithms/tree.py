"""Double binary tree: reduce towards the roots and broadcast back, half of the data in each tree."""

from traincast.estimate.collectives.algorithms import Traffic, algorithm, tree_depth
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@algorithm("tree", Operation.ALL_REDUCE, since="2.4", tuned_as="tree")
def tree(operation: Operation, placement: Placement) -> Traffic:  # noqa: ARG001 - only all-reduces
    """Return the traffic of two complementary trees over nodes, with a chain inside each node.

    2 log2(nodes) steps between nodes and a chain of the members inside, both ways. A rank
    is inside one tree and a leaf of the other, so it sends the data twice. Over two nodes
    it can be once, but the measured runs that the constants come from do not show it.

    Source: Sanders, Speck and Traff, Two-tree algorithms for full bandwidth broadcast,
    reduction and scan, 2009; steps and the rate of half the bus as in NVIDIA/nccl,
    src/graph/tuning.cc.
    """
    across = placement.nodes > 1
    return Traffic(
        intra_hops=2 * (placement.max_members - 1),
        inter_hops=2 * tree_depth(placement.nodes),
        port_load=2.0 if placement.max_members > 1 else 0.0,
        nic_load=2.0 / placement.min_members if across else 0.0,
        node_load=2.0 if across else 0.0,
        inside_load=2.0 * (placement.max_members - 1),
        copy_load=1 / placement.ranks,
        share=1 / placement.max_members,
        halves_load=1.0 if placement.max_members > 1 else 0.0,
        as_ring=True,
        in_tree=True,
    )
