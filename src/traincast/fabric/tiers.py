"""From what a cluster file says to a fabric of leaves, spines and cores."""

import math
from dataclasses import replace

from traincast.errors import ConfigError
from traincast.fabric.clos import Clos
from traincast.fabric.graph import FabricGraph
from traincast.fabric.work import check_links
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec


def clos_fabric(
    cluster: Cluster,
    spec: FabricSpec,
    world_size: int,
    *,
    rails: int = 1,
    planes: int = 1,
    relays: bool = False,
    cores: bool = True,
) -> FabricGraph:
    """Return a fabric of leaves and spines.

    Parameters
    ----------
    cluster : Cluster
        Nodes and rates.
    spec : FabricSpec
        What it says of leaves, pods, oversubscription and routing; without `nodes_per_leaf`
        there is one leaf for all nodes (of each rail).
    world_size : int
        GPUs that it must hold.
    rails, planes : int
        Leaves of a block of nodes in each plane, and planes.
    relays : bool
        Traffic to another rail first crosses NVLink.
    cores : bool
        Pods meet in cores, not spine by spine.

    Returns
    -------
    FabricGraph

    Raises
    ------
    ConfigError
        If the rails do not divide the GPUs of a node, or the leaves of a pod the rails.
    """
    oversubscription = (*spec.oversubscription, 1.0)
    clos = _shape(cluster, spec, world_size, rails, planes if spec.routing == "ecmp" else 1)
    clos = replace(clos, relays=relays, cores=clos.cores if cores else 0)
    check_links(clos.links, f"the fabric ({spec.kind}) of {clos.gpus:,} GPUs")
    reached = cluster.inter.bandwidth_bytes_per_s
    nic = spec.link_bytes_per_s or reached
    node = cluster.inter.node_bandwidth_bytes_per_s
    return FabricGraph(
        description=f"{spec.kind}, {spec.routing}",
        network=clos.network(cluster.intra.bandwidth_bytes_per_s, nic, oversubscription, node, used=min(nic, reached)),
        router=clos.route,
        nic_bytes_per_s=nic,
        longest=clos.longest,
        node_bytes_per_s=node,
        queue_pairs=spec.queue_pairs,
        seed=spec.seed,
    )


def _shape(cluster: Cluster, spec: FabricSpec, world_size: int, rails: int, planes: int) -> Clos:
    gpus, pod = cluster.gpus_per_node, spec.leaves_per_pod
    if gpus % rails:
        raise ConfigError(f"is {rails}; it must divide the {gpus} GPUs of a node", "fabric.rails")
    if (pod or rails) % rails:
        raise ConfigError(f"is {pod}; it must be a multiple of the {rails} rails", "fabric.leaves_per_pod")
    nodes = math.ceil(world_size / gpus)
    per_leaf = spec.nodes_per_leaf or nodes
    leaves = math.ceil(nodes / per_leaf) * rails
    # Where every flow uses all equal paths, equal links are one link of their sum.
    spines = per_spine = 1
    if spec.routing == "ecmp":
        below, above = (*spec.oversubscription, 1.0)[:2]
        spines = spec.spines or max(1, round(per_leaf * gpus / rails / below))
        per_spine = max(1, round((pod or leaves) / above))
    return Clos(
        nodes=nodes,
        gpus_per_node=gpus,
        rails=rails,
        planes=planes,
        nodes_per_leaf=per_leaf,
        leaves_per_pod=pod or leaves,
        spines=0 if spec.nodes_per_leaf is None or leaves == 1 else spines,
        cores=per_spine,
        relays=False,
        limited=cluster.inter.node_bandwidth_bytes_per_s is not None,
    )
