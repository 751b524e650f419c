"""Groups of leaves and spines; every spine has a link to every other group.

Routes are minimal: leaf, spine, spine of the other group, leaf.
Source: Shpiner et al., Dragonfly+: Low Cost Topology for Scaling Datacenters, HiPINEB 2017.
"""

from traincast.fabric.contract import TOPOLOGIES
from traincast.fabric.graph import FabricGraph
from traincast.fabric.tiers import clos_fabric
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec


@TOPOLOGIES.register("dragonfly+")
def dragonfly_plus(cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build a dragonfly+; a group is a pod of `leaves_per_pod` leaves."""
    return clos_fabric(cluster, spec, world_size, cores=False)
