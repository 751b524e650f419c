"""A fabric: a network with the routes that flows take through it, and how a cluster's is built.

Letters: F flows, Q queue pairs, H hops, W GPUs.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import InfeasibleError, ProgramError
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import TOPOLOGIES, FabricKind, FabricSpec
from traincast.hardware.network import Dimension, Network

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
UintArray = npt.NDArray[np.uint64]

Router = Callable[[IntArray, IntArray, UintArray], npt.NDArray[np.integer]]
"""Sources, destinations and what tells flows apart -> links [F, H], -1 where there is none."""

MOST_LINKS = 2**24
"""Directed links of a network: 24 bytes each, and as much again while they are built, some seconds on one core."""


class FabricGraph(Struct, frozen=True, kw_only=True):
    """A network, its routes, and what a GPU could send if nothing were shared."""

    description: str
    """One line for people."""
    network: Network
    router: Router
    nic_bytes_per_s: float
    """What a GPU gets between nodes when it is alone."""
    longest: int
    """Links of the longest route, at most."""
    port_bytes_per_s: float | None = None
    """What the fabric has for a GPU, where the GPU cannot use all of it; None: it can."""
    node_bytes_per_s: float | None = None
    """What all GPUs of a node get between nodes; None: no limit."""
    queue_pairs: int = 1
    seed: int = 0
    hashed: bool = True
    """Whether routes depend on what tells flows apart."""
    ends: Callable[[IntArray], IntArray] | None = None
    """GPUs -> the links at each, [F, H], which what it sends to other nodes crosses, and what it receives from them;
    None: flows cross others, too, or not all of them."""
    dimensions: tuple[Dimension, ...] = ()
    """Dimensions of a network that is their product; the weakest one sets the bisection."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node; GPU g is on node ``g // gpus_per_node``."""
        return self.network.gpus_per_node

    @property
    def capacity_L(self) -> FloatArray:
        """Bytes per second of each link."""
        return self.network.capacity_L

    def routes(
        self,
        source_F: npt.ArrayLike,
        target_F: npt.ArrayLike,
        flow_ids_F: npt.ArrayLike | None = None,
        seed: int | None = None,
    ) -> npt.NDArray[np.int32]:
        """Return the links of each flow from GPU to GPU, deterministically.

        Parameters
        ----------
        flow_ids_F : int array [F], optional
            What tells flows between the same GPUs apart; 0, 1, ... by default.
        seed : int, optional
            Of the hash, instead of the fabric's own.

        Returns
        -------
        int array [F * Q, H]
            The Q parts of a flow follow each other; -1 means no link. A flow from a GPU to
            itself crosses none.

        Raises
        ------
        ProgramError
            If a GPU is not part of the fabric, or cannot be reached.
        """
        source, target = np.asarray(source_F, dtype=np.int64), np.asarray(target_F, dtype=np.int64)
        ids = np.arange(len(source)) if flow_ids_F is None else np.asarray(flow_ids_F, dtype=np.int64)
        ends = np.concatenate([source, target])
        if len(ends) and not 0 <= ends.min() <= ends.max() < self.network.gpus:
            raise ProgramError(f"a flow ends at a GPU that is not one of the {self.network.gpus} of the fabric")
        if self.queue_pairs > 1:
            source, target, ids = (np.repeat(each, self.queue_pairs) for each in (source, target, ids))
        entropy_Q = np.zeros(len(ids), dtype=np.uint64)
        if self.hashed:
            part = np.arange(len(ids)) % self.queue_pairs
            number = np.full(len(ids), self.seed if seed is None else seed)
            entropy_Q = _mixed(number, source, target, ids, part)
        links_FH = self.router(source, target, entropy_Q)
        return np.ascontiguousarray(links_FH, dtype=np.int32)


Build = Callable[[Cluster, FabricSpec, int], FabricGraph]
"""A topology: cluster, fabric and world size -> a graph that holds at least that many GPUs."""


def topology(
    name: str, *, reads: Iterable[str] = (), needs: Iterable[str] = (), fixed: bool = False
) -> Callable[[Build], Build]:
    """Return a decorator that enters a topology in `TOPOLOGIES`; parameters as in `FabricKind`."""

    def enter(build: Build) -> Build:
        TOPOLOGIES.register(name)(FabricKind(frozenset((*reads, *needs)), tuple(needs), build, fixed))
        return build

    return enter


def build_fabric(cluster: Cluster, world_size: int, *, node_limits: bool = False) -> FabricGraph:
    """Return the fabric of a cluster.

    Parameters
    ----------
    cluster : Cluster
        With its `fabric`; one without has a non-blocking one.
    world_size : int
        GPUs that it must hold; nodes are filled up.
    node_limits : bool
        Whether what all NICs of a node carry together (`node_bandwidth_bytes_per_s`) is a limit
        too. It is one of the node and not of the fabric, so that it is left out by default.

    Returns
    -------
    FabricGraph
        Its `nic_bytes_per_s` is the least of what the fabric has for a GPU and what the cluster's
        `inter` says that a rank gets, however fast the fabric is.

    Raises
    ------
    ConfigError
        If the numbers of the fabric do not fit the cluster or the world.
    FormatError
        If the fabric is a file that cannot be read.
    """
    spec = cluster.fabric or FabricSpec(kind="non-blocking")
    if not node_limits:
        cluster = replace(cluster, inter=replace(cluster.inter, node_bandwidth_bytes_per_s=None))
    graph: FabricGraph = TOPOLOGIES.get(spec.kind).build(cluster, spec, world_size)
    reached = cluster.inter.bandwidth_bytes_per_s
    if graph.nic_bytes_per_s <= reached:
        return graph
    return replace(graph, nic_bytes_per_s=reached, port_bytes_per_s=graph.nic_bytes_per_s)


def through_fabric(cluster: Cluster, graph: FabricGraph) -> Cluster:
    """Return the cluster as a group that is alone on its fabric sees it: its NICs, or the fabric's if slower."""
    if graph.nic_bytes_per_s >= cluster.inter.bandwidth_bytes_per_s:
        return cluster
    return replace(cluster, inter=replace(cluster.inter, bandwidth_bytes_per_s=graph.nic_bytes_per_s))


def check_links(links: int, what: str) -> None:
    """Refuse a network of too many links before it is built.

    Raises
    ------
    InfeasibleError
        If they are more than `MOST_LINKS`.
    """
    if links > MOST_LINKS:
        raise InfeasibleError(
            f"{what} has {links:,} links, above the limit of {MOST_LINKS:,}; use fewer GPUs or switches, or leave "
            "[fabric] out"
        )


def padded(columns: list[tuple[npt.NDArray[np.bool_], npt.ArrayLike]]) -> IntArray:
    """Return routes from columns of (whether the flow takes the hop, the link); unused columns are left out."""
    used = [each for each in columns if each[0].any()]
    routes_FH = np.full((len(columns[0][0]), max(1, len(used))), -1, dtype=np.int64)
    for hop, (taken, link) in enumerate(used):
        np.copyto(routes_FH[:, hop], link, where=taken)
    return routes_FH


def choose(entropy: UintArray, switch_tier: int, ways: npt.ArrayLike) -> IntArray:
    """Return one of so many equal paths for each flow, as the hash of a switch does.

    What tells flows apart is hashed by every tier of switches on its own.
    """
    if np.ndim(ways) == 0 and ways == 1:
        return np.zeros(entropy.shape, dtype=np.int64)
    tier = np.full(entropy.shape, switch_tier, dtype=np.uint64)
    return (_mixed(entropy, tier) % np.asarray(ways, dtype=np.uint64)).astype(np.int64)


def _mixed(*parts: npt.NDArray[np.integer]) -> UintArray:
    """Return a hash of arrays, element by element; the order of the parts matters.

    Source: the output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), applied after each part.
    """
    state = np.zeros(np.broadcast_shapes(*(part.shape for part in parts)), dtype=np.uint64)
    for part in parts:
        state = (state ^ part.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state
