"""Leaves with all NICs of some nodes, below spines, and with pods below cores.

Source: Al-Fares, Loukissas and Vahdat, SIGCOMM 2008.
"""

from traincast.fabric.contract import TOPOLOGIES
from traincast.fabric.graph import FabricGraph
from traincast.fabric.tiers import clos_fabric
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec


@TOPOLOGIES.register("fat-tree")
def fat_tree(cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build a fat-tree of two tiers, or of three where there are pods."""
    return clos_fabric(cluster, spec, world_size)
