"""The contract of a topology: a cluster and its fabric's numbers become a graph."""

from collections.abc import Callable
from dataclasses import replace

from traincast.fabric.graph import FabricGraph
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec
from traincast.registry import Registry

Topology = Callable[[Cluster, FabricSpec, int], FabricGraph]
"""The plug-in: cluster, fabric and world size -> a graph that holds at least that many GPUs."""

TOPOLOGIES: Registry[Topology] = Registry("fabric", "traincast.fabric.topologies")


def build_fabric(cluster: Cluster, world_size: int, *, node_limits: bool = False) -> FabricGraph:
    """Return the fabric of a cluster.

    Parameters
    ----------
    cluster : Cluster
        With its `fabric`; one without has a non-blocking one.
    world_size : int
        GPUs that it must hold; nodes are filled up.
    node_limits : bool
        Whether what all NICs of a node carry together (`node_bandwidth_bytes_per_s`) is a limit
        too. It is one of the node and not of the fabric, so that it is left out by default.

    Returns
    -------
    FabricGraph
        Its `nic_bytes_per_s` is the least of what the fabric has for a GPU and what the cluster's
        `inter` says that a rank gets, however fast the fabric is.

    Raises
    ------
    ConfigError
        If the numbers of the fabric do not fit the cluster or the world.
    FormatError
        If the fabric is a file that cannot be read.
    """
    spec = cluster.fabric or FabricSpec(kind="non-blocking")
    if not node_limits:
        cluster = replace(cluster, inter=replace(cluster.inter, node_bandwidth_bytes_per_s=None))
    graph = TOPOLOGIES.get(spec.kind)(cluster, spec, world_size)
    reached = cluster.inter.bandwidth_bytes_per_s
    if graph.nic_bytes_per_s <= reached:
        return graph
    return replace(graph, nic_bytes_per_s=reached, port_bytes_per_s=graph.nic_bytes_per_s)


def through_fabric(cluster: Cluster, graph: FabricGraph) -> Cluster:
    """Return the cluster as a group that is alone on its fabric sees it.

    Parameters
    ----------
    cluster : Cluster
        Its `inter` is what a rank gets at most.
    graph : FabricGraph
        What `build_fabric` returned for it.

    Returns
    -------
    Cluster
        With the rate of the fabric's own NICs in `inter`, where that is less.
    """
    if graph.nic_bytes_per_s >= cluster.inter.bandwidth_bytes_per_s:
        return cluster
    return replace(cluster, inter=replace(cluster.inter, bandwidth_bytes_per_s=graph.nic_bytes_per_s))
