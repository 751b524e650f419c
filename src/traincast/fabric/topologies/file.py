"""A network that a file describes: SimAI's topology files with links of their own, ASTRA-sim's with dimensions.

Routes through links are shortest paths, one of the equal ones by hash; of equally short ways the fastest link is
taken, so that NVLink comes before a shared leaf. Switches pass traffic on, GPUs do not.

Letters: F flows, H hops, W GPUs, V vertices, L links, S switches, K links out of a vertex, A switches at a GPU.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError, InfeasibleError, ProgramError
from traincast.fabric.graph import FabricGraph, IntArray, UintArray, choose, topology
from traincast.fabric.topologies.dimensions import dimensions_fabric
from traincast.formats.topology import read_topology
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.network import Network

MOST_SWITCHES = 2**15
"""Switches of a topology file: the hops between all of them are kept, two bytes a pair."""

MOST_LINKED_SWITCHES = 2**12
"""Those of them with links to others: the hops are found by products of matrices of that many rows."""

MOST_ENTRIES = 2**27
"""Vertices of a topology file times the links of the one with most."""

_FAR = np.int16(2**14)
"""More hops than any path; two of them still fit the type."""
_AT_ONCE = 4_000_000
"""Candidate links looked at together, to bound the memory."""
_NODE = "node"


@topology("file", needs=("file",), fixed=True)
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
        graph = _shortest_fabric(found, queue_pairs=spec.queue_pairs, seed=spec.seed, description=path.name)
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
    return _limited(graph, rank_bytes_per_s=reached, node_bytes_per_s=node)


def _limited(graph: FabricGraph, *, rank_bytes_per_s: float | None, node_bytes_per_s: float | None) -> FabricGraph:
    """Return a fabric on which what leaves a node also crosses the limits of both ends; None means no limit.

    They are links from vertices to themselves, up and down: of the GPUs, for what one sends and receives between
    nodes, and of a vertex for each node in a tier of its own, for what all its GPUs do together.
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


class _ShortestPaths(Struct, frozen=True, kw_only=True):
    """Tables of a network from which routes are read."""

    network: Network
    out_VK: IntArray
    """Links out of each vertex; -1 pads."""
    at_WA: IntArray
    """Switches that have a link to a GPU, by number from 0; -1 pads."""
    hops_SS: npt.NDArray[np.int16]
    """Hops between switches."""

    @classmethod
    def from_network(cls, network: Network) -> "_ShortestPaths":
        """Work the tables out; refuse those that would be too large."""
        gpus, source, target = network.gpus, network.source_L, network.target_L
        last = (source >= gpus) & (target < gpus)
        between = (source >= gpus) & (target >= gpus)
        switches, degree_V = len(network.tier_V) - gpus, np.bincount(source, minlength=1)
        linked = np.unique(source[between])
        _check_tables(switches, len(linked), len(network.tier_V), int(degree_V.max()))
        return cls(
            network=network,
            out_VK=_grouped(source, np.arange(len(source)), len(network.tier_V)),
            at_WA=_grouped(target[last], source[last] - gpus, gpus),
            hops_SS=_hops(source[between] - gpus, target[between] - gpus, switches),
        )

    def route(self, source: IntArray, target: IntArray, entropy: UintArray) -> IntArray:
        """Return the links of each flow (a `Router`)."""
        at, columns = source.copy(), [np.full(len(source), -1)]
        while (going := np.flatnonzero(at != target)).size:
            column = np.full(len(source), -1)
            chunk = max(1, _AT_ONCE // (self.out_VK.shape[1] * self.at_WA.shape[1]))
            for begin in range(0, len(going), chunk):
                some = going[begin : begin + chunk]
                column[some] = self._next(at[some], target[some], entropy[some], len(columns))
            at[going] = self.network.target_L[column[going]]
            columns.append(column)
        return np.stack(columns[1:] or columns, axis=1)

    def _next(self, at: IntArray, target: IntArray, entropy: UintArray, hop: int) -> IntArray:
        """Return the link that each flow takes next."""
        network, gpus = self.network, self.network.gpus
        links_FK = self.out_VK[at]
        heads_FK = np.where(links_FK >= 0, network.target_L[links_FK], 0)
        ends_FA = self.at_WA[target]
        switch_FK = np.maximum(heads_FK - gpus, 0)
        hops_FKA = self.hops_SS[switch_FK[:, :, None], ends_FA[:, None, :]]
        left_FK = np.where(ends_FA[:, None, :] >= 0, hops_FKA, _FAR).min(axis=2)
        left_FK = np.where(heads_FK < gpus, _FAR, left_FK)
        left_FK = np.where(heads_FK == target[:, None], -1, left_FK)
        left_FK = np.where(links_FK >= 0, left_FK, _FAR)
        least_F = left_FK.min(axis=1)
        lost = np.flatnonzero(least_F == _FAR)
        if len(lost):
            raise ProgramError(
                f"no switches lead from {network.vertex_name(int(at[lost[0]]))} to GPU {target[lost[0]]}"
            )
        rate_FK = np.where(left_FK == least_F[:, None], network.capacity_L[links_FK], 0.0)
        good_FK = rate_FK == rate_FK.max(axis=1, keepdims=True)
        nth = choose(entropy, hop, good_FK.sum(axis=1))
        place = (np.cumsum(good_FK, axis=1) == nth[:, None] + 1).argmax(axis=1)
        taken: IntArray = links_FK[np.arange(len(at)), place]
        return taken


def _shortest_fabric(network: Network, *, queue_pairs: int, seed: int, description: str) -> FabricGraph:
    """Return the fabric of a network whose second tier is the switch inside a node.

    A GPU alone gets between nodes what its links to other switches give together.
    """
    outside = (network.source_L < network.gpus) & (network.tier_V[network.target_L] != 1)
    rate_W = np.bincount(network.source_L[outside], network.capacity_L[outside], minlength=network.gpus)
    connected = rate_W[rate_W > 0]
    paths = _ShortestPaths.from_network(network)
    apart = paths.hops_SS[paths.hops_SS < _FAR]
    return FabricGraph(
        description=description,
        network=network,
        router=paths.route,
        longest=2 + int(apart.max(initial=0)),
        nic_bytes_per_s=float(connected.min()) if len(connected) else float(network.capacity_L.min()),
        queue_pairs=queue_pairs,
        seed=seed,
    )


def _grouped(key_I: IntArray, value_I: IntArray, keys: int) -> IntArray:
    """Return the values of each key as a row, padded with -1."""
    order = np.argsort(key_I, kind="stable")
    counts = np.bincount(key_I, minlength=keys)
    column_I = np.arange(len(key_I)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((keys, int(counts.max(initial=1))), -1, dtype=np.int64)
    table[key_I[order], column_I] = value_I[order]
    return table


def _hops(source: IntArray, target: IntArray, switches: int) -> npt.NDArray[np.int16]:
    """Return the hops between all switches; a switch that knows no other one costs nothing."""
    hops_SS = np.full((max(switches, 1),) * 2, _FAR, dtype=np.int16)
    np.fill_diagonal(hops_SS, 0)
    linked = np.unique(np.concatenate([source, target]))
    step = np.zeros((len(linked),) * 2, dtype=np.float32)
    step[np.searchsorted(linked, source), np.searchsorted(linked, target)] = 1.0
    seen = np.eye(len(linked), dtype=bool)
    edge, distance = seen.copy(), 0
    block = np.where(seen, 0, _FAR).astype(np.int16)
    while edge.any():
        distance += 1
        edge = (edge.astype(np.float32) @ step > 0) & ~seen
        seen |= edge
        block[edge] = distance
    hops_SS[np.ix_(linked, linked)] = block
    return hops_SS


def _check_tables(switches: int, linked: int, vertices: int, most_links: int) -> None:
    """Refuse a topology file whose tables of routes would be too large; `linked` switches have links to others."""
    for count, most, what in (
        (switches, MOST_SWITCHES, "switches"),
        (linked, MOST_LINKED_SWITCHES, "switches that are linked to others"),
        (vertices * most_links, MOST_ENTRIES, f"entries ({vertices:,} vertices x {most_links:,} links of one)"),
    ):
        if count > most:
            raise InfeasibleError(
                f"the topology file has {count:,} {what}, above the limit of {most:,}; describe its family in [fabric]"
            )
