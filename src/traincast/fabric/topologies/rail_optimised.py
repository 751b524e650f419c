"""Each rail of some nodes has its own leaf; spines join the leaves.

Source: NVIDIA DGX SuperPOD reference architecture, compute fabric.
"""

from traincast.fabric.contract import TOPOLOGIES
from traincast.fabric.graph import FabricGraph
from traincast.fabric.tiers import clos_fabric
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec


@TOPOLOGIES.register("rail-optimised")
def rail_optimised(cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build a rail-optimised fabric; `pxn` sends traffic to another rail over NVLink first."""
    return clos_fabric(cluster, spec, world_size, rails=spec.rails or cluster.gpus_per_node, relays=spec.pxn)
