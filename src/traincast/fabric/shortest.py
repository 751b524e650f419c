"""Routes through any network of switches: shortest paths, one of the equal ones by hash.

Of equally short ways the fastest link is taken, so that NVLink comes before a shared leaf. Switches
pass traffic on, GPUs do not.

Letters: F flows, W GPUs, V vertices, S switches, K links out of a vertex, A switches at a GPU.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.errors import ProgramError
from traincast.fabric.graph import FabricGraph
from traincast.fabric.hashing import UintArray, choose
from traincast.fabric.work import check_topology
from traincast.hardware.network import Network

IntArray = npt.NDArray[np.int64]

_FAR = np.int16(2**14)
"""More hops than any path; two of them still fit the type."""
_AT_ONCE = 4_000_000
"""Candidate links looked at together, to bound the memory."""


@dataclass(frozen=True, kw_only=True)
class ShortestPaths:
    """Tables of a network from which routes are read."""

    network: Network
    out_VK: IntArray
    """Links out of each vertex; -1 pads."""
    at_WA: IntArray
    """Switches that have a link to a GPU, by number from 0; -1 pads."""
    hops_SS: npt.NDArray[np.int16]
    """Hops between switches."""

    @classmethod
    def of(cls, network: Network) -> "ShortestPaths":
        """Work the tables out.

        Raises
        ------
        InfeasibleError
            If they would be too large.
        """
        gpus, source, target = network.gpus, network.source_L, network.target_L
        last = (source >= gpus) & (target < gpus)
        between = (source >= gpus) & (target >= gpus)
        switches, degree_V = len(network.tier_V) - gpus, np.bincount(source, minlength=1)
        linked = np.unique(source[between])
        check_topology(switches, len(linked), len(network.tier_V), int(degree_V.max()))
        return cls(
            network=network,
            out_VK=_grouped(source, np.arange(len(source)), len(network.tier_V)),
            at_WA=_grouped(target[last], source[last] - gpus, gpus),
            hops_SS=_hops(source[between] - gpus, target[between] - gpus, len(network.tier_V) - gpus),
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


def shortest_fabric(network: Network, *, queue_pairs: int, seed: int, description: str) -> FabricGraph:
    """Return the fabric of any network of switches.

    Parameters
    ----------
    network : Network
        Its second tier is the switch inside a node.
    queue_pairs, seed : int
        Of the hash.
    description : str
        One line for people.

    Returns
    -------
    FabricGraph
        A GPU alone gets between nodes what its links to other switches give together.
    """
    outside = (network.source_L < network.gpus) & (network.tier_V[network.target_L] != 1)
    rate_W = np.bincount(network.source_L[outside], network.capacity_L[outside], minlength=network.gpus)
    connected = rate_W[rate_W > 0]
    paths = ShortestPaths.of(network)
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
    table = np.full((keys, max(1, int(counts.max(initial=0)))), -1, dtype=np.int64)
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
