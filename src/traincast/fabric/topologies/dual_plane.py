"""Rail-optimised, with the ports of each NIC in separate planes.

Source: Qian et al., Alibaba HPN: A Data Center Network for Large Language Model Training, SIGCOMM 2024.
"""

from traincast.fabric.contract import TOPOLOGIES
from traincast.fabric.graph import FabricGraph
from traincast.fabric.tiers import clos_fabric
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec


@TOPOLOGIES.register("dual-plane")
def dual_plane(cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build a fabric of several planes; a flow stays in the plane that its hash chose."""
    return clos_fabric(
        cluster,
        spec,
        world_size,
        rails=spec.rails or cluster.gpus_per_node,
        planes=spec.planes or 2,
        relays=spec.pxn,
    )
