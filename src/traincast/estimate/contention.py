"""What operations that run at the same time cost each other: shared links, and overlap.

All groups of one kind do the same thing at the same time in a step, so the slowest of them sets the
pace of all: each kind gets the cluster with its rates between nodes divided by the worst slowdown.
Groups of two kinds slow each other only while both run, which the simulated timeline says
(`traincast.simulation.settle`); how much they do then is worked out here, once per pair.

While a rank computes and communicates at the same time, an operation takes

    duration = time alone * (1 + overlap * slowdown)

with the overlap as the share of the operation's own time in which the other kind of work runs on its
rank. Letters: N operations, T template operations.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.estimate.collectives.cost import KnownCosts
from traincast.fabric.contention import Groups, Slowdown, link_use, network_factor, pair_slowdown, worst_and_use
from traincast.fabric.graph import FabricGraph, build_fabric, through_fabric
from traincast.fabric.placement import Placement, gpu_of
from traincast.hardware.cluster import Cluster
from traincast.units import counted, format_rate
from traincast.workload.groups import GroupTable
from traincast.workload.ops import FloatArray, OpTable, distinct
from traincast.workload.program import Program
from traincast.workload.words import Group, Kind, Operation, OverlapClass


class Contention(Struct, frozen=True):
    """A kind of group on shared links."""

    cluster: Cluster
    """The cluster as these groups see it."""
    factor: float
    """Worst slowdown of their transfers between nodes; 1 where nothing is shared."""
    bottleneck: str | None
    """Link that holds the slowest of them back."""


class NetworkAnswers:
    """What was found out of networks: layouts that place their groups alike on a cluster share the answers.

    It belongs to whoever simulates several steps; a fabric that is a file is read once.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._fabrics: dict[tuple[Cluster, int], FabricGraph] = {}
        self._worst: dict[tuple[object, ...], tuple[Slowdown, FloatArray]] = {}
        self._use: dict[tuple[object, ...], FloatArray] = {}
        self.costs: KnownCosts = {}
        """What communications take on a cluster as their groups see it."""

    def fabric(self, cluster: Cluster, gpus: int) -> FabricGraph:
        """Return the links of a cluster of so many GPUs."""
        key = cluster, gpus
        if key not in self._fabrics:
            self._fabrics[key] = build_fabric(cluster, gpus, node_limits=True)
        return self._fabrics[key]

    def worst(self, groups: "_Groups", cluster: Cluster, gpus: int, seed: int | None) -> tuple[Slowdown, FloatArray]:
        """Return the worst slowdown among groups of a kind, and how much of each link they use at that pace."""
        key = groups, cluster, gpus, seed
        if key not in self._worst:
            pattern, members = _traffic(groups, cluster)
            self._worst[key] = worst_and_use(pattern, members, self.fabric(cluster, gpus), seed)
        return self._worst[key]

    def link_use(self, groups: "_Groups", cluster: Cluster, gpus: int, seed: int | None) -> FloatArray:
        """Return how much of each link groups of a kind use that do not contend with each other."""
        key = groups, cluster, gpus, seed
        if key not in self._use:
            pattern, members = _traffic(groups, cluster)
            self._use[key] = link_use(pattern, members, self.fabric(cluster, gpus), 1.0, seed)
        return self._use[key]


class SharedNetwork(Struct):
    """The network between the nodes, with all groups of a job on it; every question is answered once and remembered."""

    cluster: Cluster
    """With its `fabric`, or without one: then only the NICs and nodes are limits."""
    tables: Mapping[Group, GroupTable]
    """All groups of every kind that communicates."""
    exchanging: frozenset[Group]
    """Those of these kinds that do all-to-alls (`all_to_all_kinds`)."""
    network: str = "auto"
    """Whether flows are solved: where they can be shared (``auto``), never (``analytical``), or always (``flow``)."""
    seed: int | None = None
    """Seed of the fabric's hash, instead of its own."""
    answers: NetworkAnswers = field(default_factory=NetworkAnswers)
    """What is known of networks from other steps."""
    _own: dict[Group, Contention] = field(default_factory=dict)
    _use: dict[Group, FloatArray] = field(default_factory=dict)
    _pairs: dict[tuple[Group, Group], Contention] = field(default_factory=dict)

    @property
    def alone(self) -> Cluster:
        """The cluster as a group that is alone on the network sees it: NICs no faster than the fabric's own."""
        # A fabric that does not fit is wrong even where no group leaves its node, or nothing is shared.
        return through_fabric(self.cluster, self._fabric()) if self._has_fabric else self.cluster

    @property
    def rate_notes(self) -> tuple[Note, ...]:
        """What the fabric's own rate means for the costs."""
        return _rate_notes(self.cluster, self._fabric()) if self._has_fabric else ()

    @property
    def _has_fabric(self) -> bool:
        return self.cluster.fabric is not None and bool(self.tables) and not self.cluster.ideal

    @property
    def shared(self) -> bool:
        """Whether anything is ever shared; not where communication takes no time."""
        return not self.cluster.ideal and self.network != "analytical"

    def own_kind(self) -> dict[Group, Contention]:
        """Return how the groups of each kind share links with each other, by kind; empty where nothing is shared.

        Raises
        ------
        ConfigError
            If the fabric does not fit the world.
        """
        if not self.shared:
            return {}
        if self._has_fabric:
            self._fabric()
        return {kind: self._alone(kind) for kind in self.tables if self._leaves_nodes(kind)}

    def of_kind(self, kind: Group) -> Contention:
        """Return how the groups of one kind share links with each other; alone where none of them leaves its node."""
        return self._alone(kind) if self.shared and self._leaves_nodes(kind) else Contention(self.alone, 1.0, None)

    def while_both_run(self, kind: Group, other: Group) -> Contention:
        """Return how the groups of a kind fare while those of another kind communicate too."""
        if (kind, other) not in self._pairs:
            graph = self._fabric()
            slowed = pair_slowdown(self._use_of(kind), self._use_of(other), graph)
            for one in (kind, other):
                factor = self._alone(one).factor * slowed.factor
                two = other if one is kind else kind
                self._pairs[one, two] = Contention(_slowed(self.alone, factor), slowed.factor, slowed.bottleneck)
        return self._pairs[kind, other]

    def _alone(self, kind: Group) -> Contention:
        if kind not in self._own:
            if self._can_contend():
                worst, use_L = self.answers.worst(self._groups(kind), self.cluster, self._gpus(), self.seed)
                self._use[kind] = use_L
                self._own[kind] = Contention(_slowed(self.alone, worst.factor), worst.factor, worst.bottleneck)
            else:
                self._own[kind] = Contention(self.alone, 1.0, None)
        return self._own[kind]

    def _use_of(self, kind: Group) -> FloatArray:
        if kind not in self._use:
            self._alone(kind)
        if kind not in self._use:
            self._use[kind] = self.answers.link_use(self._groups(kind), self.cluster, self._gpus(), self.seed)
        return self._use[kind]

    def _fabric(self) -> FabricGraph:
        return self.answers.fabric(self.cluster, self._gpus())

    def _gpus(self) -> int:
        """Return the GPUs that the ranks reach."""
        world = max(len(table.group_of_rank_W) for table in self.tables.values())
        return int(gpu_of(self.cluster, world - 1)) + 1

    def _groups(self, kind: Group) -> "_Groups":
        members_GK = np.ascontiguousarray(self.tables[kind].members_GK)
        return _Groups(kind is Group.PP, kind in self.exchanging, members_GK.shape, members_GK.tobytes())

    def _can_contend(self) -> bool:
        """Tell whether groups of one kind can contend with each other.

        A NIC is in one of them only, so that without a fabric the limits of the nodes decide.
        """
        if self.network == "flow" or self.cluster.fabric is not None:
            return True
        inter = self.cluster.inter
        limit = inter.node_bandwidth_bytes_per_s
        return limit is not None and limit < self.cluster.ranks_per_node * inter.bandwidth_bytes_per_s

    def _leaves_nodes(self, kind: Group) -> bool:
        members_GK = self.tables[kind].members_GK
        first_G1 = members_GK[:, :1]
        node_GK = np.where(members_GK >= 0, members_GK, first_G1) // self.cluster.ranks_per_node
        return bool((node_GK != node_GK[:, :1]).any())


def all_to_all_kinds(ops: OpTable) -> frozenset[Group]:
    """Return the kinds of groups that do all-to-alls."""
    return frozenset(Group(int(kind)) for kind in distinct(ops.group_T[ops.operation_T == Operation.ALL_TO_ALL]))


class _Groups(NamedTuple):
    """The groups of a kind, by value: kinds whose groups are the same share an answer."""

    sends: bool
    """Whether each member sends to the next alone."""
    exchanges: bool
    """Whether they do all-to-alls."""
    shape: tuple[int, ...]
    members: bytes


def _traffic(groups: _Groups, cluster: Cluster) -> tuple[str, Groups]:
    """Return which GPU sends to which among all groups of a kind."""
    members_GK = np.frombuffer(groups.members, dtype=np.int32).reshape(groups.shape)
    if groups.sends:
        pairs = np.stack([members_GK[:, :-1], members_GK[:, 1:]], axis=-1).reshape(-1, 2)
        return "send", gpu_of(cluster, pairs)
    pattern = "all-to-all" if groups.exchanges else "ring"
    if members_GK.min(initial=0) >= 0:
        return pattern, gpu_of(cluster, members_GK)
    return pattern, [gpu_of(cluster, members[members >= 0]) for members in members_GK]


def one_group(operation: Operation, placement: Placement, cluster: Cluster) -> tuple[Cluster, tuple[Note, ...]]:
    """Return the cluster as one group sees it that has the fabric for itself, and what the fabric does to it.

    It sits on the first nodes and the first GPUs of each. Without a fabric, or for a group inside a node, the cluster
    is returned as it is.

    Raises
    ------
    ConfigError
        If the fabric does not fit the nodes.
    """
    if cluster.fabric is None or cluster.ideal or placement.nodes == 1:
        return cluster, ()
    size = cluster.gpus_per_node
    graph = build_fabric(cluster, placement.nodes * size, node_limits=True)
    members = np.concatenate([node * size + np.arange(count) for node, count in enumerate(placement.members_per_node)])
    pattern = {Operation.ALL_TO_ALL: "all-to-all", Operation.SEND_RECV: "send"}.get(operation, "ring")
    (slowed,) = network_factor(pattern, [members], graph)
    where = f"the fabric ({graph.description}): on its first {counted(placement.nodes, 'node')} this group is "
    text = f"slowed {slowed.factor:.2f}x between nodes by contention on {slowed.bottleneck}"
    if slowed.bottleneck is None:
        text = "as fast between nodes as on a non-blocking one"
    notes = (Note("shared-links", where + text, brief=f"this group is {text}"), *_rate_notes(cluster, graph))
    return _slowed(through_fabric(cluster, graph), slowed.factor), notes


def _rate_notes(cluster: Cluster, graph: FabricGraph) -> tuple[Note, ...]:
    """Say which of two rates of a NIC counts, where the fabric and the links of the cluster differ."""
    reached = cluster.inter.bandwidth_bytes_per_s
    if graph.port_bytes_per_s is not None:
        text = (
            f"the fabric has {format_rate(graph.port_bytes_per_s)} for each GPU, which uses the {format_rate(reached)} "
            "of inter.bandwidth_bytes_per_s; set that where its NIC reaches more"
        )
    elif graph.nic_bytes_per_s < reached:
        text = (
            f"the fabric has {format_rate(graph.nic_bytes_per_s)} for each GPU, and that is its rate between nodes; "
            f"inter.bandwidth_bytes_per_s is {format_rate(reached)}"
        )
    else:
        return ()
    return (Note("fabric-rate", text, brief=text.partition(";")[0]),)


def _slowed(cluster: Cluster, factor: float) -> Cluster:
    if factor == 1.0:
        return cluster
    inter = cluster.inter
    limit = inter.node_bandwidth_bytes_per_s
    slowed = replace(
        inter,
        bandwidth_bytes_per_s=inter.bandwidth_bytes_per_s / factor,
        node_bandwidth_bytes_per_s=None if limit is None else limit / factor,
    )
    return replace(cluster, inter=slowed)


OVERLAP_SLOWDOWN: Mapping[str, float] = {
    "compute": 0.01,  # 57 kernels above 60 % of the SMs: 1.008 in time, taken as 1.00 to 1.02
    "memory": 0.125,  # 197 kernels above 60 % of DRAM: 1.127 in time, taken as 1.10 to 1.15
    "small": 0.35,  # 150 kernels below both, most under 10 us: 1.38 to 1.43, taken as 1.3 to 1.4
    "unknown": 0.10,  # all 404 overlapped kernels: 1.102 in time
    "communication": 0.13,
}
"""Slowdown at full overlap, by what an operation is bound by.

Sources: computation: 404 overlapped kernels of transformers on two A100-class GPUs with bucketed gradient
reductions, medians over noise (github.com/NetX-lab/Echo, Echo-slowdown); the classes are our reading of
them. Communication: the overlap coefficient that Galvatron measures for both sides (Miao et al., VLDB
2023), about 1.13; nobody publishes it by size or operation.
"""

_CLASS_NAMES = {
    OverlapClass.COMPUTE_BOUND: "compute",
    OverlapClass.MEMORY_BOUND: "memory",
    OverlapClass.SMALL: "small",
    OverlapClass.UNKNOWN: "unknown",
}


def slowdowns(program: Program, in_situ: bool, overrides: Mapping[str, float] | None = None) -> FloatArray:
    """Return the slowdown of each template operation at full overlap, [T]; 0 for what is neither work nor transfer.

    Where times that the input gives already contain their overlap (`in_situ`, `Workload.compute_is_in_situ`), these
    operations are not slowed down again, while what is estimated is. `overrides` go before `OVERLAP_SLOWDOWN`.
    """
    factors = {**OVERLAP_SLOWDOWN, **(overrides or {})}
    slowdown_T = np.zeros(len(program.ops))
    for name, share_T in _shares(program, in_situ):
        slowdown_T += factors[name] * share_T
    return slowdown_T


def held_multiprocessors(program: Program, held: int, of_gpu: int | None) -> FloatArray:
    """Return the slowdown of each template operation while a transfer holds multiprocessors of its GPU, [T].

    What they bind runs at the rate of those that are left, n / (n - held) as long; what memory binds does not need all
    of them. A GPU whose number is not known loses none.
    """
    if not held or not of_gpu or held >= of_gpu:
        return np.zeros(len(program.ops))
    bound_T = next(share_T for name, share_T in _shares(program, in_situ=False) if name == "compute")
    return bound_T * (held / (of_gpu - held))


def classes_present(program: Program, in_situ: bool) -> tuple[str, ...]:
    """Return the classes of `OVERLAP_SLOWDOWN` that have operations in a program; the parameters are as in `slowdowns`.

    What is measured in its place is in no class.
    """
    return tuple(name for name, share_T in _shares(program, in_situ) if share_T.any())


def _shares(program: Program, in_situ: bool) -> Iterator[tuple[str, FloatArray]]:
    """Yield each class with the share of its time that each template operation belongs to it, [T]."""
    ops = program.ops
    slows_T = np.isnan(ops.duration_s_T) if in_situ else np.ones(len(ops), dtype=np.bool_)
    computes_T = slows_T & (ops.kind_T == Kind.COMPUTE)
    share_TC = np.eye(len(OverlapClass))[ops.overlap_class_T]
    for row, shares in enumerate(ops.overlap_shares_T):
        if shares is not None:
            share_TC[row] = shares
    for overlap_class, name in _CLASS_NAMES.items():
        yield name, computes_T * share_TC[:, overlap_class]
    yield "communication", 1.0 * (slows_T & ~(ops.kind_T == Kind.COMPUTE) & (ops.group_T != Group.NONE))
