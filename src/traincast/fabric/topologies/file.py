"""A network that a SimAI topology file or an ASTRA-sim network file describes."""

from pathlib import Path

from traincast.errors import ConfigError
from traincast.fabric.contract import TOPOLOGIES
from traincast.fabric.dimensions import dimensions_fabric
from traincast.fabric.graph import FabricGraph
from traincast.fabric.limits import limited
from traincast.fabric.shortest import shortest_fabric
from traincast.formats.topology import read_topology
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.network import Network


@TOPOLOGIES.register("file")
def from_file(cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build what the file says, with its own rates.

    Raises
    ------
    ConfigError
        If the network has too few GPUs, a GPU that cannot reach other nodes, nodes of another size, or
        a routing that cannot be had.
    FormatError
        If the file cannot be read.
    """
    path = Path(spec.file or "")
    found = read_topology(path)
    if isinstance(found, Network):
        if spec.routing != "ecmp":
            raise ConfigError('must be "ecmp" for a topology file with links of its own', "fabric.routing")
        graph = shortest_fabric(found, queue_pairs=spec.queue_pairs, seed=spec.seed, description=path.name)
    else:
        inner = found[0].size if len(found) > 1 else 1
        graph = dimensions_fabric(found, gpus_per_node=inner, description=path.name)
    if graph.network.gpus < world_size:
        raise ConfigError(f"has {graph.network.gpus} GPUs, fewer than the {world_size} of the world", "fabric.file")
    if 1 != graph.gpus_per_node != cluster.gpus_per_node:
        raise ConfigError(
            f"has {graph.gpus_per_node} GPUs per node, the cluster {cluster.gpus_per_node}", "fabric.file"
        )
    cut_off = graph.network.cut_off_gpus
    if isinstance(found, Network) and len(cut_off) and cut_off[0] < world_size:
        raise ConfigError(f"({path}) has no link that leads from GPU {cut_off[0]} out of its node", "fabric.file")
    # Links of an ASTRA-sim file have no NIC in between that several of them share.
    reached = cluster.inter.bandwidth_bytes_per_s if isinstance(found, Network) else None
    node = cluster.inter.node_bandwidth_bytes_per_s if graph.gpus_per_node == cluster.gpus_per_node else None
    return limited(graph, rank_bytes_per_s=reached, node_bytes_per_s=node)
