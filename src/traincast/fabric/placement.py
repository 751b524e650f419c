"""Where ranks sit, and how a group of them is spread over the nodes.

Letters: L levels of location (now one, the node), W ranks of the world.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

from traincast.errors import ProgramError
from traincast.hardware.cluster import Cluster

NODE = 0
"""Level of location that is the node."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How many members of a group sit on each node it touches.

    Two groups of equal placement have equal prices.

    Parameters
    ----------
    members_per_node : tuple of int
        Members on each node, in descending order.
    """

    members_per_node: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse an empty group and an order that would make equal placements differ."""
        counts = self.members_per_node
        if not counts or min(counts) < 1 or any(a < b for a, b in pairwise(counts)):
            raise ProgramError(f"members per node are {counts}; they must be positive and in descending order")

    @property
    def ranks(self) -> int:
        """Members of the group."""
        return sum(self.members_per_node)

    @property
    def nodes(self) -> int:
        """Nodes the group touches."""
        return len(self.members_per_node)

    @property
    def max_members(self) -> int:
        """Members on the fullest of these nodes."""
        return self.members_per_node[0]

    @property
    def min_members(self) -> int:
        """Members on the emptiest of these nodes."""
        return self.members_per_node[-1]


@overload
def gpu_of(cluster: Cluster, rank: int) -> int: ...
@overload
def gpu_of(cluster: Cluster, rank: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]: ...
def gpu_of(cluster: Cluster, rank: int | npt.NDArray[np.integer]) -> int | npt.NDArray[np.int64]:
    """Return the GPU of each rank: ranks fill the used GPUs of the nodes in their order.

    Parameters
    ----------
    cluster : Cluster
        Its GPUs per node, and how many of them are used.
    rank : int or array of int
        Ranks.

    Returns
    -------
    int or array of int
        GPU g is on node ``g // cluster.gpus_per_node``.
    """
    used = cluster.ranks_per_node
    if isinstance(rank, int):
        return rank // used * cluster.gpus_per_node + rank % used
    rank_W = rank.astype(np.int64)
    return rank_W // used * cluster.gpus_per_node + rank_W % used


def locations(cluster: Cluster, world_size: int) -> npt.NDArray[np.int64]:
    """Return where each rank sits; ranks fill the used GPUs of the nodes in their order.

    Parameters
    ----------
    cluster : Cluster
        Its GPUs per node, and how many of them are used.
    world_size : int
        Ranks, W.

    Returns
    -------
    array of int, [L, W]
        The node of each rank, on the only level there is.
    """
    gpu_W = gpu_of(cluster, np.arange(world_size, dtype=np.int64))
    return (gpu_W // cluster.gpus_per_node)[np.newaxis, :]


def placement_of(members: Sequence[int] | npt.NDArray[np.integer], locations_LW: npt.NDArray[np.integer]) -> Placement:
    """Return how a group is spread over the nodes.

    Parameters
    ----------
    members : sequence of int
        Ranks of the group, in any order.
    locations_LW : array of int, [L, W]
        What `locations` returned.

    Returns
    -------
    Placement
        The same for all groups that are spread alike.

    Raises
    ------
    ProgramError
        If there is no member, one twice, or one outside the world.
    """
    ranks = np.asarray(members, dtype=np.int64)
    if (
        ranks.size == 0
        or ranks.min() < 0
        or ranks.max() >= locations_LW.shape[1]
        or np.unique(ranks).size != ranks.size
    ):
        raise ProgramError(
            f"a group has members {ranks.tolist()}; they must be different ranks below {locations_LW.shape[1]}"
        )
    counts = np.unique(locations_LW[NODE, ranks], return_counts=True)[1]
    return Placement(tuple(sorted(counts.tolist(), reverse=True)))
