"""Limits that lie in the nodes and not in the network: what a GPU's NICs reach, what a node's carry together.

Letters: F flows, H hops, N nodes, W GPUs, L links.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from traincast.fabric.graph import FabricGraph, IntArray
from traincast.fabric.hashing import UintArray

_NODE = "node"


def limited(graph: FabricGraph, *, rank_bytes_per_s: float | None, node_bytes_per_s: float | None) -> FabricGraph:
    """Return a fabric on which what leaves a node also crosses the limits of both ends.

    Parameters
    ----------
    graph : FabricGraph
        A fabric without them.
    rank_bytes_per_s : float or None
        What a GPU sends, and receives, between nodes; None: no limit.
    node_bytes_per_s : float or None
        What all GPUs of a node do together; None: no limit.

    Returns
    -------
    FabricGraph
        With links from vertices to themselves, up and down: of the GPUs, and of a vertex for each
        node in a tier of its own.
    """
    network, size = graph.network, graph.gpus_per_node
    links, gpus, vertices = len(network.source_L), network.gpus, len(network.tier_V)
    nodes = -(-gpus // size)
    kinds = [(np.arange(gpus), rank_bytes_per_s), (vertices + np.arange(nodes), node_bytes_per_s)]
    per_way = np.concatenate([at for at, rate in kinds if rate is not None] or [np.zeros(0, dtype=np.int64)])
    rates = np.concatenate([np.full(len(at), rate) for at, rate in kinds if rate is not None] or [np.zeros(0)])
    if not len(per_way):
        return graph
    of_nodes = links + (gpus if rank_bytes_per_s is not None else 0)

    def ends(gpu: IntArray, way: int) -> list[npt.NDArray[np.int64]]:
        found = [] if rank_bytes_per_s is None else [links + gpu]
        found += [] if node_bytes_per_s is None else [of_nodes + gpu // size]
        return [each + way * len(per_way) for each in found]

    def route(source: IntArray, target: IntArray, entropy: UintArray) -> IntArray:
        inner_FH = graph.router(source, target, entropy)
        remote = source // size != target // size
        up, down = (
            [np.where(remote, each, -1)[:, None] for each in ends(gpu, way)] for way, gpu in enumerate((source, target))
        )
        return np.concatenate([*reversed(up), inner_FH, *down], axis=1)

    wider = replace(
        network,
        tier_names=(*network.tier_names, _NODE),
        tier_V=np.concatenate([network.tier_V, np.full(nodes, len(network.tier_names))]),
        source_L=np.concatenate([network.source_L, per_way, per_way]),
        target_L=np.concatenate([network.target_L, per_way, per_way]),
        capacity_L=np.concatenate([network.capacity_L, rates, rates]),
    )
    more = 2 * sum(rate is not None for rate in (rank_bytes_per_s, node_bytes_per_s))
    longest = graph.longest + more
    return replace(graph, network=wider, router=route, node_bytes_per_s=node_bytes_per_s, longest=longest)
