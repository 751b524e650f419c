"""Where ranks sit: how a group of them is spread over the nodes, and how many GPUs of a node a job uses.

Ranks fill the used GPUs of the nodes in their order. Where a node holds a number of GPUs that tensor, context or
expert parallel groups do not divide (72 in an NVL72 rack and experts over 64, 8 in a node and TP of 6), filling it
would split such groups over nodes unevenly; real jobs leave GPUs unused instead.

Letters: L levels of location (now one, the node), W ranks of the world.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError, ProgramError
from traincast.fabric.graph import build_fabric
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import TOPOLOGIES
from traincast.job.options import check_gpus_used
from traincast.job.parallel import Parallel
from traincast.units import counted

NODE = 0
"""Level of location that is the node."""


class Placement(Struct, frozen=True):
    """How many members of a group sit on each node it touches; groups of equal placement have equal costs."""

    members_per_node: tuple[int, ...]
    """In descending order."""

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
    """Return the GPU of each rank; GPU g is on node ``g // cluster.gpus_per_node``."""
    used = cluster.ranks_per_node
    if isinstance(rank, int):
        return rank // used * cluster.gpus_per_node + rank % used
    rank_W = rank.astype(np.int64)
    return rank_W // used * cluster.gpus_per_node + rank_W % used


def locations(cluster: Cluster, world_size: int) -> npt.NDArray[np.int64]:
    """Return the node of each rank of a world: an array of int, [L, W]."""
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

    Raises
    ------
    ProgramError
        If there is no member, one twice, or one outside the world.
    """
    ranks, world = np.asarray(members).tolist(), locations_LW.shape[1]
    if not ranks or min(ranks) < 0 or max(ranks) >= world or len(set(ranks)) < len(ranks):
        raise ProgramError(f"a group has members {ranks}; they must be different ranks below {world}")
    # Groups are small, so that counting them one by one is fast.
    counts = Counter(locations_LW[NODE, ranks].tolist())
    return Placement(tuple(sorted(counts.values(), reverse=True)))


def ends_of(sender: int, receiver: int, locations_LW: npt.NDArray[np.integer]) -> Placement:
    """Return how the two ranks of a message are spread over the nodes."""
    if sender == receiver:
        raise ProgramError(f"rank {sender} sends to itself; a message has two ranks")
    return Placement((2,) if locations_LW[NODE, sender] == locations_LW[NODE, receiver] else (1, 1))


def gpus_used_per_node(gpus_per_node: int, parallel: Parallel) -> int:
    """Return the most GPUs of a node that a job can use without splitting its innermost groups unevenly.

    That is `gpus_per_node` where the job fits into one node or its groups divide it. A group is a run of
    consecutive ranks: tp, then cp x tp; of experts etp, then ep x etp. One that fits into a node stays in
    one; a larger one is spread evenly over as few nodes as hold it. Where not all of them can have it so,
    those further in go first.
    """
    if parallel.world_size <= gpus_per_node:
        return gpus_per_node
    spans = [span for _, span in _spans(parallel)]
    while spans:
        for used in range(gpus_per_node, 0, -1):
            if all(_together(span, used, gpus_per_node) for span in spans):
                return used
        spans.pop()
    return gpus_per_node


def _spans(parallel: Parallel) -> tuple[tuple[str, int], ...]:
    """Return the consecutive ranks that a group of each innermost kind lies in, the innermost first."""
    dense = (("tp", parallel.tp), ("cp", parallel.tp * parallel.cp))
    return (*dense, ("etp", parallel.expert_tp), ("ep", parallel.expert_ranks))


def _together(span: int, used: int, gpus_per_node: int) -> bool:
    """Tell whether groups of so many consecutive ranks are on as few nodes as can hold them, evenly."""
    nodes = -(-span // gpus_per_node)
    return used % span == 0 if nodes == 1 else used * nodes == span


def place_job(
    cluster: Cluster, parallel: Parallel, asked: int | str | None = None, *, measured: bool = False
) -> tuple[Cluster, tuple[Note, ...]]:
    """Return the cluster with `gpus_used_per_node` decided for a job, and the assumptions about them.

    Parameters
    ----------
    asked : int or str, optional
        So many GPUs of each node, ``"all"``, or ``"auto"``: as `gpus_used_per_node` says. By default what
        the cluster says, else ``"auto"``.
    measured : bool
        Whether the job was traced on hosts that it filled: ``"auto"`` then leaves it there.

    Raises
    ------
    ConfigError
        If a node has fewer GPUs than are asked for.
    """
    size = cluster.gpus_per_node
    chosen = asked if asked is not None else cluster.gpus_used_per_node or "auto"
    check_gpus_used(chosen, most=size, node_of=cluster.name)
    if isinstance(chosen, int):
        return with_used_gpus(cluster, chosen), ()
    used = size if chosen == "all" or measured else gpus_used_per_node(size, parallel)
    placed = with_used_gpus(cluster, used)
    if used == size:
        return placed, ()
    if not _holds(placed, parallel.world_size):
        text = (
            f"{_uneven(size, parallel)} do not divide the {size} GPUs of a node, and the network has too few GPUs to "
            f"leave any unused: ranks fill the nodes, which splits such groups unevenly"
        )
        brief = f"{_uneven(size, parallel)} do not divide the {size} GPUs of a node, and are split unevenly"
        return with_used_gpus(cluster, size), (Note("gpus-used-per-node", text, brief=brief),)
    nodes = -(-parallel.world_size // used)
    text = (
        f"{_uneven(size, parallel)} do not divide the {size} GPUs of a node: {used} of each are used and {size - used} "
        f"are not, {parallel.world_size} ranks on {counted(nodes, 'node')}; --gpus-used-per-node all fills the nodes"
    )
    brief = f"{used} of the {size} GPUs of a node are used: {_uneven(size, parallel)} do not divide {size}"
    return placed, (Note("gpus-used-per-node", text, brief=brief),)


def with_used_gpus(cluster: Cluster, used: int) -> Cluster:
    """Return the cluster with so many GPUs of each node in use; the others take their NICs' share with them.

    What all NICs of a node carry together is measured with all of them at work, so that it is taken as a share of
    each: fewer get as much per GPU and no more.
    """
    limit = cluster.inter.node_bandwidth_bytes_per_s
    if limit is None or used == cluster.gpus_per_node:
        return replace(cluster, gpus_used_per_node=used)
    inter = replace(cluster.inter, node_bandwidth_bytes_per_s=limit * used / cluster.gpus_per_node)
    return replace(cluster, gpus_used_per_node=used, inter=inter)


def _uneven(gpus_per_node: int, parallel: Parallel) -> str:
    """Return the innermost groups that full nodes would split unevenly."""
    kind, span = next(each for each in _spans(parallel) if not _together(each[1], gpus_per_node, gpus_per_node))
    return f"{kind} groups within {span} consecutive ranks"


def _holds(cluster: Cluster, world_size: int) -> bool:
    """Tell whether the fabric has the GPUs that a job reaches when it leaves some unused."""
    if cluster.fabric is None or not TOPOLOGIES.get(cluster.fabric.kind).fixed or cluster.ideal:
        return True
    try:
        build_fabric(cluster, gpu_of(cluster, world_size - 1) + 1)
    except ConfigError:
        return False
    return True
