"""What communications of a layout take, on arrays of sizes: its groups where they sit, on links that they share.

Letters: K sizes, G groups of a kind, N nodes of a group.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.estimate.collectives.cost import estimate_collectives
from traincast.estimate.contention import NetworkAnswers, SharedNetwork
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster
from traincast.job.parallel import Parallel
from traincast.lowering.work import Exchange
from traincast.model.numbers import ceil_div
from traincast.workload.groups import GroupTable, rank_groups
from traincast.workload.ops import FloatArray
from traincast.workload.words import Group, Operation


@dataclasses.dataclass(frozen=True, slots=True)
class GroupSites:
    """Where the groups of a kind sit: their distinct placements, and the cluster as they see it."""

    placements: tuple[Placement, ...]
    cluster: Cluster
    known: dict[Operation, dict[float, float]] = dataclasses.field(default_factory=dict, compare=False)
    """Seconds of sizes that were asked for before."""

    def seconds(self, operation: Operation, size_bytes: Sequence[float]) -> list[float]:
        """Return the seconds of communications of some sizes, of the slowest placement where they differ."""
        known = self.known.setdefault(operation, {})
        new = [size for size in dict.fromkeys(size_bytes) if size not in known]
        if new:
            each = [estimate_collectives(operation, new, (one,), self.cluster) for one in self.placements]
            slowest = np.maximum.reduce(each) if each else np.zeros(len(new))
            known.update(zip(new, slowest.tolist(), strict=True))
        return [known[size] for size in size_bytes]


class Places(Struct):
    """Places of groups of many layouts of one world; layouts that place a kind alike share it."""

    network: str = "auto"
    sharp: Group | None = None
    """Kind whose collectives the switches reduce."""
    answers: NetworkAnswers = field(default_factory=NetworkAnswers)
    """What is known of the links that groups share."""
    _known: dict[tuple[object, ...], GroupSites] = field(default_factory=dict)

    def site(self, kind: Group, parallel: Parallel, cluster: Cluster, *, exchanges: bool) -> GroupSites:
        """Return where the groups of a kind sit; `exchanges` says whether they do all-to-alls."""
        key = (kind, *_span(kind, parallel), parallel.world_size, cluster.name, cluster.ranks_per_node, exchanges)
        if key not in self._known:
            self._known[key] = self._place(kind, parallel, cluster, exchanges)
        return self._known[key]

    def _place(self, kind: Group, parallel: Parallel, cluster: Cluster, exchanges: bool) -> GroupSites:
        tables = rank_groups(parallel, {kind})
        exchanging = frozenset({kind} if exchanges else ())
        seen = SharedNetwork(cluster, tables, exchanging, self.network, answers=self.answers).of_kind(kind).cluster
        if kind is self.sharp and cluster.inter.kind == "infiniband":
            seen = replace(seen, in_network_reduction=True)
        return GroupSites(_placements(tables[kind], cluster.ranks_per_node), seen)


_SPANS: Mapping[Group, Callable[[Parallel], tuple[int, ...]]] = {
    Group.TP: lambda of: (of.tp,),
    Group.CP: lambda of: (of.tp, of.cp),
    Group.DP: lambda of: (of.tp, of.replicas),
    Group.ETP: lambda of: (of.expert_tp,),
    Group.EP: lambda of: (of.expert_stride, of.ep),
    Group.EDP: lambda of: (of.expert_tp, of.expert_stride, of.ep, of.edp),
    Group.SHARD: lambda of: (of.tp, of.replicas, of.sharing),
    Group.REPLICA: lambda of: (of.tp, of.replicas, of.sharing),
    Group.WORLD: lambda _: (),
}
"""The degrees that decide which ranks the groups of a kind have, in a world of one size."""


def _span(kind: Group, parallel: Parallel) -> tuple[int, ...]:
    """Return these degrees of a layout; of other kinds all that may."""
    return _SPANS[kind](parallel) if kind in _SPANS else (parallel.ranks_per_stage, parallel.pp, parallel.tp)


def _placements(table: GroupTable, ranks_per_node: int) -> tuple[Placement, ...]:
    """Return the distinct placements of the groups of a kind; a pipeline's are those of its messages."""
    node_GK = table.members_GK.astype(np.int64) // ranks_per_node
    if table.kind is Group.PP:
        crosses = node_GK[:, 1:] != node_GK[:, :-1]
        return tuple(Placement(each) for each, found in (((2,), ~crosses), ((1, 1), crosses)) if found.any())
    sorted_GK = np.sort(node_GK, axis=1)
    starts_GK = np.ones(sorted_GK.shape, dtype=np.bool_)
    starts_GK[:, 1:] = sorted_GK[:, 1:] != sorted_GK[:, :-1]
    groups, size = sorted_GK.shape
    run_GK = np.cumsum(starts_GK, axis=1) - 1 + np.arange(groups)[:, None] * size
    counts_GN = -np.sort(-np.bincount(run_GK.ravel(), minlength=groups * size).reshape(groups, size), axis=1)
    distinct = dict.fromkeys(map(tuple, counts_GN[: 1 if (counts_GN == counts_GN[:1]).all() else None].tolist()))
    return tuple(Placement(tuple(count for count in row if count)) for row in distinct)


class Links(Struct):
    """The communications of one layout."""

    places: Places
    parallel: Parallel
    cluster: Cluster
    """With the GPUs of each node that the layout uses."""
    exchanging: frozenset[Group]
    """Kinds of groups that do all-to-alls."""
    factor: Mapping[Group, float]
    """What runs taught of the times of each kind."""
    _sites: dict[Group, GroupSites] = field(default_factory=dict)

    def seconds(self, kind: Group, operation: Operation, size_bytes_K: npt.ArrayLike) -> FloatArray:
        """Return the seconds of communications over the groups of a kind, the slowest of them where they differ."""
        sizes = np.asarray(size_bytes_K, dtype=np.float64).tolist()
        if kind not in self._sites:
            exchanges = kind in self.exchanging
            self._sites[kind] = self.places.site(kind, self.parallel, self.cluster, exchanges=exchanges)
        return np.array(self._sites[kind].seconds(operation, sizes)) * self.factor.get(kind, 1.0)

    def told(self, kind: Group) -> Hashable:
        """Return what tells where the groups of a kind sit from where they do in other layouts of a family."""
        return *_span(kind, self.parallel), self.parallel.world_size

    def together_s(self, several: Iterable[Iterable[Exchange]]) -> list[float]:
        """Return the seconds of some exchanges, one after another, of each of several such."""
        parts = [[(each, ceil_div(each.size_bytes, each.messages)) for each in exchanges] for exchanges in several]
        sizes: dict[tuple[Group, Operation], dict[int, float]] = {}
        for each, part_bytes in chain.from_iterable(parts):
            sizes.setdefault((each.group, each.operation), {})[part_bytes] = 0.0
        for of, known in sizes.items():
            known.update(zip(known, self.seconds(*of, list(known)).tolist(), strict=True))
        return [
            sum(each.messages * sizes[each.group, each.operation][part_bytes] for each, part_bytes in exchanges)
            for exchanges in parts
        ]
