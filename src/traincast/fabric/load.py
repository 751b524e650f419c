"""What flows that run together put on the links of a fabric, and how long each group takes alone.

Letters: F flows, L links, G groups, K members, H hops.
"""

import numpy as np
from msgspec import Struct

from traincast.fabric.graph import FabricGraph, FloatArray, IntArray

BY_ROUNDING = 1e-9
"""Smaller slowdowns are none."""


class Load(Struct, frozen=True):
    """Flows that run together, as far as links know them."""

    flows_L: IntArray
    """Flows on each link, one over several queue pairs counted by its parts."""
    alone_G: FloatArray
    """Seconds per byte of each group alone."""
    graph: FabricGraph

    @property
    def alike(self) -> bool:
        """Whether all groups that send between nodes take as long alone."""
        alone_G = self.alone_G[self.alone_G > 0]
        return len(alone_G) > 0 and bool((alone_G == alone_G[0]).all())

    @property
    def rate_L(self) -> FloatArray:
        """What each link has for each of its flows."""
        rate_L = np.full(len(self.flows_L), np.inf)
        np.divide(self.graph.capacity_L, self.flows_L, out=rate_L, where=self.flows_L > 0)
        return rate_L

    @property
    def together(self) -> float:
        """Seconds per byte of the slowest flow: that on the link with the least for each of its flows.

        Max-min filling fills that link first: no flow is slower than its.
        """
        return 1.0 / (float(self.rate_L.min()) * self.graph.queue_pairs)

    @property
    def is_slowed(self) -> bool:
        """Whether groups that are alike take longer than alone."""
        return self.together > float(self.alone_G.max()) * (1 + BY_ROUNDING)

    def carried_L(self, factor: float) -> FloatArray:
        """Return the bytes per second on each link at the pace of groups that are alike, slowed by a factor."""
        found: FloatArray = self.flows_L / (self.alone_G.max() * factor * self.graph.queue_pairs)
        return found


def exchanged(members_GK: IntArray, graph: FabricGraph) -> Load | None:
    """Return what all-to-alls put on links, without the routes of their flows; None where these take other links.

    A member sends to all of its group that are on other nodes, and receives from as many.
    """
    gpus, groups = graph.network.gpus, len(members_GK)
    if graph.ends is None or not members_GK.size or not 0 <= members_GK.min() <= members_GK.max() < gpus:
        return None
    node_GK = members_GK // graph.gpus_per_node + np.arange(groups)[:, None] * gpus
    here_GK = np.bincount(node_GK.ravel())[node_GK]
    flows_GK = members_GK.shape[1] - here_GK
    alone_G = flows_GK.max(axis=1) / graph.nic_bytes_per_s
    if graph.node_bytes_per_s is not None:
        alone_G = np.maximum(alone_G, (flows_GK * here_GK).max(axis=1) / graph.node_bytes_per_s)
    links_FH = graph.ends(members_GK.ravel())
    flows_FH = np.broadcast_to(flows_GK.reshape(-1, 1) * graph.queue_pairs, links_FH.shape)
    flows_L = np.bincount(links_FH.ravel(), flows_FH.ravel(), len(graph.capacity_L))
    return Load(flows_L.astype(np.int64), alone_G, graph)
