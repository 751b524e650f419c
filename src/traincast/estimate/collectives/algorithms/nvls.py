"""Reduction in the switch (NVLS, NVLink SHARP): every rank sends its data once and gets the sum back."""

from math import inf

from traincast.estimate.collectives.algorithms import Traffic, algorithm, tree_depth
from traincast.estimate.collectives.tuning import reduces_in_switch
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


@algorithm(
    "nvls",
    Operation.ALL_REDUCE,
    nodes=(1, 1),
    since="2.17",
    has_hardware=reduces_in_switch,
    protocols=("Simple",),
    tuned_as="nvls",
)
def nvls(operation: Operation, placement: Placement) -> Traffic:  # noqa: ARG001 - only all-reduces
    """Return the traffic of an all-reduce that the NVSwitch of one node sums.

    A rank sends S and receives S, where a ring moves nearly twice that. The steps are
    counted as those of the ring: what 8 GPUs show at small sizes, and 72 GPUs are slower
    still. NCCL also gathers and scatters through the switch; the measured runs do not.

    Source: NVIDIA/nccl, src/transport/nvls.cc; rates in src/graph/tuning.cc.
    """
    return Traffic(
        intra_hops=2 * (placement.ranks - 1),
        port_load=1.0,
        inside_load=float(placement.ranks),
        copy_load=1 / placement.ranks,
        share=1 / placement.ranks,
        in_switch=True,
    )


@algorithm(
    "nvls_tree",
    Operation.ALL_REDUCE,
    nodes=(2, inf),
    least_members=2,
    since="2.18",
    has_hardware=reduces_in_switch,
    protocols=("Simple",),
    tuned_as="nvls_tree",
)
def nvls_tree(operation: Operation, placement: Placement) -> Traffic:  # noqa: ARG001 - only all-reduces
    """Return the traffic of an all-reduce in the switches of the nodes and a double tree between them.

    One step into the switch and one out of it; between nodes as the double binary tree.

    Source: NVIDIA/nccl, src/graph/tuning.cc (NVLSTree).
    """
    return Traffic(
        intra_hops=2,
        inter_hops=2 * tree_depth(placement.nodes),
        port_load=1.0,
        nic_load=2.0 / placement.min_members,
        node_load=2.0,
        inside_load=float(placement.max_members),
        copy_load=1 / placement.ranks,
        share=1 / placement.max_members,
        in_switch=True,
    )
