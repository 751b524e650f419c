"""Algorithms of collectives, a file or a few siblings in a file, and what each must say of itself.

An algorithm says where it applies and the `Traffic` that an operation over a placement causes. It knows nothing of
links: the same cost is put on the traffic of every algorithm (`traincast.estimate.collectives.links`). Of the
algorithms that the library of a cluster chooses by itself, and of those that the cluster names, the one of least time
counts; any other is estimated where it is asked for by name, and never wins in silence.
"""

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from msgspec import Struct

from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster
from traincast.registry import Registry
from traincast.shipped import constant
from traincast.workload.words import Operation

PROTOCOLS = ("LL", "LL128", "Simple")
BY_MESSAGES = ("LL", "Simple")
"""Protocols of what NCCL does by single messages."""


class Traffic(NamedTuple):
    """Steps and loads of one communication; loads are bytes per byte of its size."""

    intra_hops: float = 0
    """Steps inside nodes that follow each other."""
    inter_hops: float = 0
    """Steps between nodes that follow each other."""
    port_load: float = 0.0
    """What the busiest rank sends inside its node."""
    nic_load: float = 0.0
    """What the busiest NIC sends."""
    node_load: float = 0.0
    """What all NICs of the busiest node send."""
    inside_load: float = 0.0
    """What all ranks of the busiest node send inside it."""
    halves_load: float = 0.0
    """What one half of the ranks of the busiest node sends to the other half."""
    messages: float = 0.0
    """Messages to other nodes that the busiest NIC takes one after the other."""
    copy_load: float = 0.0
    """What a rank keeps for itself and only moves to its place."""
    share: float = 1.0
    """Part of the data that one rank, or one direct message, works on at a time."""
    as_ring: bool = False
    """All nodes carry the same, so that of a mesh or torus the node with the fewest links counts."""
    one_peer: bool = False
    """A rank sends to one other at a time: of the links of a mesh it uses one."""
    direct: bool = False
    """Messages go straight to their receivers, all posted at once."""
    in_tree: bool = False
    """Steps inside nodes are those of the chains of a tree."""
    in_switch: bool = False
    """The switch of the node reduces and multicasts."""
    members: int = 0
    """Ranks of the busiest node, filled in; two alone may have a rate of their own, and many may crowd their links."""
    fewest: int = 0
    """Ranks of the emptiest node with several, filled in."""


class Algorithm(Struct, frozen=True, kw_only=True):
    """The plug-in: what an algorithm sends, and where it applies."""

    name: str
    sends: "TrafficOf"
    """The traffic of an operation over a placement of two ranks or more, for what `can_do` lets through."""
    operations: frozenset[Operation]
    nodes: tuple[float, float] = (1, inf)
    """Fewest and most nodes that it works over."""
    least_members: int = 1
    """Fewest members of each node."""
    even: bool = False
    """Every node must have as many members."""
    most_bytes: float = inf
    """Largest size that it is made for."""
    since: str | None = None
    """First version of NCCL that chooses it by itself, such as ``"2.4"`` (other libraries are taken to be as NCCL is
    now); None: no library does, and it counts only where a user names it. Source: messages of the release commits of
    NVIDIA/nccl (2.4.2, 2.6.4, 2.7.3, 2.12.6, 2.17.1, 2.18.1)."""
    has_hardware: Callable[[Placement, Cluster], bool] = lambda *_: True
    """Whether a cluster has what it needs for a library to choose it."""
    protocols: tuple[str, ...] = PROTOCOLS
    """NCCL's protocols that it runs with."""
    tuned_as: str | None = None
    """Its name in NCCL's own cost model (`traincast.estimate.collectives.tuning`), which then chooses the protocol."""

    def can_do(self, operation: Operation, placement: Placement) -> bool:
        """Say whether it does an operation over a placement at all."""
        few, many = self.nodes
        return (
            operation in self.operations
            and few <= placement.nodes <= many
            and placement.min_members >= self.least_members
            and not (self.even and placement.max_members > placement.min_members)
        )

    def traffic(self, operation: Operation, placement: Placement) -> Traffic:
        """Return what it sends, with the ranks of the nodes filled in."""
        several = min((members for members in placement.members_per_node if members > 1), default=0)
        return self.sends(operation, placement)._replace(members=placement.max_members, fewest=several)

    def is_chosen(self, placement: Placement, cluster: Cluster) -> bool:
        """Say whether the library of a cluster chooses it by itself."""
        return (
            self.since is not None
            and constant(_known, self.since, cluster.nccl)
            and self.has_hardware(placement, cluster)
        )


ALGORITHMS: Registry[Algorithm] = Registry("collective algorithm", "traincast.estimate.collectives.algorithms")

TrafficOf = Callable[[Operation, Placement], Traffic]


def algorithm(name: str, *operations: Operation, **said: object) -> Callable[[TrafficOf], TrafficOf]:
    """Register the algorithm whose traffic a function returns; `said` are the other fields of `Algorithm`."""

    def enter(traffic: TrafficOf) -> TrafficOf:
        found = Algorithm(name=name, sends=traffic, operations=frozenset(operations), **said)  # type: ignore[arg-type]
        ALGORITHMS.register(name)(found)
        return traffic

    return enter


def _known(since: str, version: str | None) -> bool:
    """Say whether a version of NCCL has what came with another; one that is not a number is the newest."""
    if version is None or not version[0].isdigit():
        return True
    ours, needed = (list(map(int, each.split("."))) for each in (version, since))
    return ours >= needed


def tree_depth(members: int) -> int:
    """Return the levels of a binary tree over that many members: log2, rounded up."""
    return (members - 1).bit_length()
