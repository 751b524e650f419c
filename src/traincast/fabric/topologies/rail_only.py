"""Each rail is a network of its own; traffic to another rail has to cross NVLink first.

Source: Wang et al., Rail-only: A Low-Cost High-Performance Network for Training LLMs, 2023.
"""

from traincast.fabric.contract import TOPOLOGIES
from traincast.fabric.graph import FabricGraph
from traincast.fabric.tiers import clos_fabric
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec


@TOPOLOGIES.register("rail-only")
def rail_only(cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build a rail-only fabric."""
    return clos_fabric(cluster, spec, world_size, rails=spec.rails or cluster.gpus_per_node, relays=True)
