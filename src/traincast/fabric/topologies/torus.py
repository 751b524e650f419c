"""GPUs in rings along two or three dimensions, without switches."""

import math

from traincast.errors import ConfigError
from traincast.fabric.contract import TOPOLOGIES
from traincast.fabric.dimensions import dimensions_fabric
from traincast.fabric.graph import FabricGraph
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.network import Dimension


@TOPOLOGIES.register("torus")
def torus(cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build a torus; every GPU is a node of its own, and routes go dimension by dimension.

    Raises
    ------
    ConfigError
        If the world is larger than the torus.
    """
    if math.prod(spec.dims) < world_size:
        raise ConfigError(f"hold {math.prod(spec.dims)} GPUs, fewer than the {world_size} of the world", "fabric.dims")
    rate = spec.link_bytes_per_s or cluster.inter.bandwidth_bytes_per_s
    dimensions = tuple(Dimension("Ring", size, rate) for size in spec.dims)
    return dimensions_fabric(dimensions, gpus_per_node=1, description="torus " + "x".join(map(str, spec.dims)))
