"""One switch that all NICs are plugged into: only the NICs themselves are shared."""

from traincast.fabric.contract import TOPOLOGIES
from traincast.fabric.graph import FabricGraph
from traincast.fabric.tiers import clos_fabric
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec


@TOPOLOGIES.register("non-blocking")
def non_blocking(cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build a non-blocking fabric."""
    return clos_fabric(cluster, spec, world_size)
