"""Leaves, spines and cores: the one shape behind most topologies, and the table of those.

A NIC has a port in each plane; a port goes to the leaf of its rail and block of nodes.
Leaves of a pod meet in its spines; pods meet in cores, or spine by spine (a dragonfly+).

Letters: F flows, W GPUs, N nodes, V vertices, L links.
"""

import math
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traincast.errors import ConfigError
from traincast.fabric.graph import FabricGraph, IntArray, UintArray, check_links, choose, padded, topology
from traincast.hardware.cluster import Cluster
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.network import Network

_Ends = tuple[IntArray, IntArray, float]
"""Sources, targets and capacity of alike links."""

_TIERS = ("GPU", "node", "leaf", "spine", "core")


class Clos(Struct, frozen=True, kw_only=True, dict=True):
    """The counts of a fabric, and from them every link and route by arithmetic."""

    nodes: int
    gpus_per_node: int
    rails: int
    planes: int
    nodes_per_leaf: int
    leaves_per_pod: int
    spines: int
    """Spines of a pod; 0 where every leaf stands alone."""
    cores: int
    """Cores for each spine's place in its pod; 0 where pods meet spine by spine."""
    relays: bool
    """Traffic to another rail first crosses NVLink."""
    limited: bool
    """All NICs of a node together have a limit."""

    @cached_property
    def gpus(self) -> int:
        """GPUs, W."""
        return self.nodes * self.gpus_per_node

    @cached_property
    def leaves(self) -> int:
        """Leaves of a plane."""
        return math.ceil(self.nodes / self.nodes_per_leaf) * self.rails

    @cached_property
    def pods(self) -> int:
        """Pods of a plane."""
        return math.ceil(self.leaves / self.leaves_per_pod)

    @property
    def longest(self) -> int:
        """Links that a flow between nodes crosses at most, as `route` lists them."""
        over_the_top = 0 if self.pods == 1 else 2 if self.cores else 1
        return 2 + 2 * self.relays + 2 * self.limited + 2 * (self.spines > 0) + over_the_top

    @property
    def links(self) -> int:
        """Directed links, and limits of nodes."""
        return sum(self.counts.values())

    @cached_property
    def starts(self) -> dict[str, int]:
        """First link of each kind, in the order in which `counts` lists them."""
        return dict(zip(self.counts, np.cumsum([0, *self.counts.values()]).tolist(), strict=False))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Links of each kind."""
        ports, ups = self.gpus * self.planes, self.planes * self.leaves * self.spines
        tops = self.planes * self.pods * self.spines * (self.cores or self.pods - 1) if self.pods > 1 else 0
        limits = self.nodes if self.limited else 0
        return {
            **{"gpu_up": self.gpus, "gpu_down": self.gpus, "nic_up": ports, "nic_down": ports},
            **{"leaf_up": ups, "leaf_down": ups, "top_up": tops, "top_down": tops if self.cores else 0},
            **{"node_up": limits, "node_down": limits},
        }

    def leaf_of(self, gpu: IntArray, plane: IntArray) -> IntArray:
        """Return the leaf that a GPU's port in a plane goes to."""
        return plane * self.leaves + self._leaf_W[gpu]

    def pod_of(self, leaf: IntArray) -> IntArray:
        """Return the pod of a leaf; pods are numbered plane by plane."""
        return leaf // self.leaves * self.pods + leaf % self.leaves // self.leaves_per_pod

    @cached_property
    def _node_W(self) -> IntArray:
        return np.arange(self.gpus) // self.gpus_per_node

    @cached_property
    def _leaf_W(self) -> IntArray:
        """Leaf of each GPU in the first plane."""
        rail_W = np.arange(self.gpus) % self.gpus_per_node % self.rails
        leaf_W: IntArray = self._node_W // self.nodes_per_leaf * self.rails + rail_W
        return leaf_W

    def route(self, source: IntArray, target: IntArray, entropy: UintArray) -> IntArray:
        """Return the links of each flow (a `Router`)."""
        near, far = self._node_W[source], self._node_W[target]
        remote = near != far
        inside = ~remote & (source != target)
        plane = choose(entropy, 0, self.planes)
        relayed, sender = np.zeros_like(remote), source
        if self.relays:
            relayed = remote & (source % self.gpus_per_node % self.rails != target % self.gpus_per_node % self.rails)
            sender = np.where(relayed, near * self.gpus_per_node + target % self.gpus_per_node, source)
        first, last = self.leaf_of(sender, plane), self.leaf_of(target, plane)
        climbs = remote & (first != last)
        spine = choose(entropy, 1, max(self.spines, 1))
        at = self.starts
        return padded(
            [
                (inside | relayed, at["gpu_up"] + source),
                (inside | relayed, at["gpu_down"] + np.where(inside, target, sender)),
                (remote & self.limited, at["node_up"] + near),
                (remote, at["nic_up"] + sender * self.planes + plane),
                (climbs, at["leaf_up"] + first * self.spines + spine),
                *(self._over_the_top(climbs, first, last, spine, entropy) if self.pods > 1 else ()),
                (climbs, at["leaf_down"] + last * self.spines + spine),
                (remote, at["nic_down"] + target * self.planes + plane),
                (remote & self.limited, at["node_down"] + far),
            ]
        )

    def ends(self, gpu: IntArray) -> IntArray:
        """Return the links of GPUs and their nodes that flows from and to other nodes cross on the way to a leaf."""
        kinds = {"nic_up": gpu, "nic_down": gpu}
        if self.limited:
            kinds |= dict.fromkeys(("node_up", "node_down"), self._node_W[gpu])
        return np.stack([self.starts[kind] + each for kind, each in kinds.items()], axis=1)

    def _over_the_top(
        self, climbs: npt.NDArray[np.bool_], first: IntArray, last: IntArray, spine: IntArray, entropy: UintArray
    ) -> list[tuple[npt.NDArray[np.bool_], IntArray]]:
        first, last = self.pod_of(first), self.pod_of(last)
        crosses = climbs & (first != last)
        up, down = self.starts["top_up"], self.starts["top_down"]
        if not self.cores:
            to = last % self.pods - (last % self.pods > first % self.pods)
            return [(crosses, up + (first * (self.pods - 1) + to) * self.spines + spine)]
        core = choose(entropy, 2, self.cores)
        return [
            (crosses, start + (pod * self.spines + spine) * self.cores + core)
            for start, pod in ((up, first), (down, last))
        ]

    def network(
        self, nvlink: float, nic: float, oversubscription: tuple[float, ...], node: float | None, *, used: float
    ) -> Network:
        """Return vertices and links.

        Parameters
        ----------
        nvlink, nic : float
            Rate of a GPU inside its node, and of its NIC with all its ports.
        oversubscription : tuple of float
            Of the leaves, then of the spines.
        node : float or None
            What all NICs of a node carry together.
        used : float
            What a GPU can use of its NIC; the links above are made for all of it.
        """
        counts = [self.gpus, self.nodes, self.planes * self.leaves, self.planes * self.pods * self.spines]
        counts.append(self.planes * self.spines * self.cores if self.pods > 1 else 0)
        kept = [tier for tier, count in enumerate(counts) if count]
        source, target, capacity = [], [], []
        vertex = np.cumsum([0, *counts]).tolist()
        kinds = [*self._ports(vertex, nvlink, used), *self._switch_links(vertex, nic, oversubscription, node)]
        for tails, heads, rate in kinds:
            source.append(tails)
            target.append(heads)
            capacity.append(np.full(len(tails), rate))
        return Network(
            tier_names=tuple(_TIERS[tier] for tier in kept),
            tier_V=np.repeat(np.arange(len(kept)), [counts[tier] for tier in kept]),
            source_L=np.concatenate(source),
            target_L=np.concatenate(target),
            capacity_L=np.concatenate(capacity),
            gpus_per_node=self.gpus_per_node,
        )

    def _ports(self, vertex: list[int], nvlink: float, used: float) -> list[_Ends]:
        """Return the links of the GPUs, first in the order of `starts`."""
        gpu = np.arange(self.gpus)
        port, plane = np.divmod(np.arange(self.gpus * self.planes), self.planes)
        host = vertex[1] + gpu // self.gpus_per_node
        leaf = vertex[2] + self.leaf_of(port, plane)
        rate = used / self.planes
        return [(gpu, host, nvlink), (host, gpu, nvlink), (port, leaf, rate), (leaf, port, rate)]

    def _switch_links(
        self, vertex: list[int], nic: float, oversubscription: tuple[float, ...], node: float | None
    ) -> list[_Ends]:
        """Return the links of the switches and the limits of the nodes, in the order of `starts`."""
        found: list[_Ends] = []
        if self.spines:
            ports = self.nodes_per_leaf * self.gpus_per_node / self.rails
            low, place = np.divmod(np.arange(self.planes * self.leaves * self.spines), self.spines)
            high = vertex[3] + self.pod_of(low) * self.spines + place
            up = ports * nic / self.planes / oversubscription[0] / self.spines
            found += [(vertex[2] + low, high, up), (high, vertex[2] + low, up)]
            if self.pods > 1:
                found += self._top_links(vertex, up * self.leaves_per_pod / oversubscription[1])
        if node is not None:
            hosts = vertex[1] + np.arange(self.nodes)
            found += [(hosts, hosts, node), (hosts, hosts, node)]
        return found

    def _top_links(self, vertex: list[int], spine_rate: float) -> list[_Ends]:
        """Return the links above the spines; each spine has so much to share out among its own."""
        if self.cores:
            spine, place = np.divmod(np.arange(self.planes * self.pods * self.spines * self.cores), self.cores)
            core = (spine // (self.pods * self.spines) * self.spines + spine % self.spines) * self.cores + place
            rate = spine_rate / self.cores
            return [(vertex[3] + spine, vertex[4] + core, rate), (vertex[4] + core, vertex[3] + spine, rate)]
        shape = (self.planes, self.pods, self.pods - 1, self.spines)
        plane, pod, other, place = np.unravel_index(np.arange(math.prod(shape)), shape)
        other = other + (other >= pod)
        near, far = ((plane * self.pods + each) * self.spines + place for each in (pod, other))
        return [(vertex[3] + near, vertex[3] + far, spine_rate / (self.pods - 1))]


_TIERED = ("link_bytes_per_s", "nodes_per_leaf", "leaves_per_pod", "spines", "oversubscription")


class _Kind(NamedTuple):
    """What tells one topology of leaves from another."""

    reads: tuple[str, ...] = _TIERED
    needs: tuple[str, ...] = ("nodes_per_leaf",)
    railed: bool = False
    """The NICs of a node go to a leaf each, by rail; not all to one."""
    planes: int = 1
    """Separate networks with a port of every NIC each, where the file says none."""
    relays: bool = False
    """Traffic to another rail has to cross NVLink first; otherwise as ``pxn`` says."""
    cores: bool = True
    """Pods meet in cores; otherwise every spine has a link to every other pod (minimal routes only)."""


_KINDS = {
    # One switch that all NICs are plugged into: only the NICs themselves are shared.
    "non-blocking": _Kind(reads=("link_bytes_per_s",), needs=()),
    # Al-Fares, Loukissas and Vahdat, A Scalable, Commodity Data Center Network Architecture, SIGCOMM 2008.
    "fat-tree": _Kind(),
    # NVIDIA DGX SuperPOD reference architecture, compute fabric.
    "rail-optimised": _Kind(reads=(*_TIERED, "rails", "pxn"), railed=True),
    # Wang et al., Rail-only: A Low-Cost High-Performance Network for Training LLMs, 2023.
    "rail-only": _Kind(reads=("link_bytes_per_s", "rails"), needs=(), railed=True, relays=True),
    # Qian et al., Alibaba HPN: A Data Center Network for Large Language Model Training, SIGCOMM 2024.
    "dual-plane": _Kind(reads=(*_TIERED, "rails", "pxn", "planes"), railed=True, planes=2),
    # Shpiner et al., Dragonfly+: Low Cost Topology for Scaling Datacenters, HiPINEB 2017; a group is a pod.
    "dragonfly+": _Kind(needs=("nodes_per_leaf", "leaves_per_pod"), cores=False),
}


def _clos_fabric(kind: _Kind, cluster: Cluster, spec: FabricSpec, world_size: int) -> FabricGraph:
    """Build a fabric of leaves; without `nodes_per_leaf` there is one for all nodes (of each rail)."""
    clos = _shape(kind, cluster, spec, world_size)
    check_links(clos.links, f"the fabric ({spec.kind}) of {clos.gpus:,} GPUs")
    reached = cluster.inter.bandwidth_bytes_per_s
    nic = spec.link_bytes_per_s or reached
    node = cluster.inter.node_bandwidth_bytes_per_s
    ratios = (*spec.oversubscription, 1.0)
    return FabricGraph(
        description=f"{spec.kind}, {spec.routing}",
        network=clos.network(cluster.intra.bandwidth_bytes_per_s, nic, ratios, node, used=min(nic, reached)),
        router=clos.route,
        nic_bytes_per_s=nic,
        longest=clos.longest,
        node_bytes_per_s=node,
        queue_pairs=spec.queue_pairs,
        seed=spec.seed,
        hashed=max(clos.planes, clos.spines, clos.cores) > 1,
        ends=clos.ends if clos.leaves == clos.planes == 1 else None,
    )


def _shape(kind: _Kind, cluster: Cluster, spec: FabricSpec, world_size: int) -> Clos:
    gpus, pod = cluster.gpus_per_node, spec.leaves_per_pod
    rails = (spec.rails or gpus) if kind.railed else 1
    if gpus % rails:
        raise ConfigError(f"is {rails}; it must divide the {gpus} GPUs of a node", "fabric.rails")
    if (pod or rails) % rails:
        raise ConfigError(f"is {pod}; it must be a multiple of the {rails} rails", "fabric.leaves_per_pod")
    nodes = math.ceil(world_size / gpus)
    per_leaf = spec.nodes_per_leaf or nodes
    leaves = math.ceil(nodes / per_leaf) * rails
    # Where every flow uses all equal paths, equal links are one link of their sum.
    planes = spines = per_spine = 1
    if spec.routing == "ecmp":
        below, above = (*spec.oversubscription, 1.0)[:2]
        planes = spec.planes or kind.planes
        spines = spec.spines or max(1, round(per_leaf * gpus / rails / below))
        per_spine = max(1, round((pod or leaves) / above))
    return Clos(
        nodes=nodes,
        gpus_per_node=gpus,
        rails=rails,
        planes=planes,
        nodes_per_leaf=per_leaf,
        leaves_per_pod=pod or leaves,
        spines=0 if spec.nodes_per_leaf is None or leaves == 1 else spines,
        cores=per_spine if kind.cores else 0,
        relays=kind.relays or spec.pxn,
        limited=cluster.inter.node_bandwidth_bytes_per_s is not None,
    )


for _name, _each in _KINDS.items():
    topology(_name, reads=_each.reads, needs=_each.needs)(partial(_clos_fabric, _each))
