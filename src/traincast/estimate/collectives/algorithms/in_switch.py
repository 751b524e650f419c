"""Reduction in switches: those of a node (NVLS, NVLink SHARP), and those of an InfiniBand network (CollNet, SHARP).

In the switches of a node every rank sends its data once and gets the sum back; in those of the network data crosses
each NIC once.
"""

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


@algorithm(
    "collnet",
    *(Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER),
    nodes=(2, inf),
    since="2.6",
    has_hardware=lambda _, cluster: cluster.in_network_reduction,
    protocols=("Simple",),
)
def collnet(operation: Operation, placement: Placement) -> Traffic:
    """Return the traffic of a collective that the network reduces or multicasts.

    Ranks of a node first sum up a part each, straight from the others, and send it to the network alone; what comes
    back they pass on. An all-reduce of S so takes S from a node and S to it, where a ring takes nearly 2 S. A
    reduce-scatter still sends S, and an all-gather still receives it: only their steps are fewer.

    Sources: Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COM-HPC 2016; NVIDIA/nccl,
    src/graph/tuning.cc (CollNetDirect: ``2 (one step + serialisation) inside, one between nodes``; gathers and
    scatters with a NIC for each rank).
    """
    passes = 2 if operation is Operation.ALL_REDUCE else 1
    most, least = placement.max_members, placement.min_members
    return Traffic(
        intra_hops=passes * min(1, most - 1),
        inter_hops=1,
        port_load=passes * (most - 1) / most,
        nic_load=1 / least,
        node_load=1.0,
        inside_load=float(passes * (most - 1)),
        halves_load=passes * (most // 2) * (most - most // 2) / most,
        copy_load=1 / placement.ranks,
        share=1 / most,
    )


@algorithm(
    "nvls_collnet",
    Operation.ALL_REDUCE,
    nodes=(2, inf),
    least_members=2,
    since="2.18",
    has_hardware=lambda placement, cluster: cluster.in_network_reduction and reduces_in_switch(placement, cluster),
    protocols=("Simple",),
)
def nvls_collnet(operation: Operation, placement: Placement) -> Traffic:  # noqa: ARG001 - only all-reduces
    """Return the traffic of an all-reduce in the switches of the nodes and in those of the network.

    Source: NVIDIA/nccl, src/transport/nvls.cc and src/graph/tuning.cc (NVLS over several nodes, with CollNet).
    """
    return Traffic(
        intra_hops=2,
        inter_hops=1,
        port_load=1.0,
        nic_load=1 / placement.min_members,
        node_load=1.0,
        inside_load=float(placement.max_members),
        copy_load=1 / placement.ranks,
        share=1 / placement.max_members,
        in_switch=True,
    )
