"""How much slower groups communicate because they share the links of a fabric.

Letters: F flows, Q their parts over queue pairs, H hops, L links, G groups.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traincast.errors import InfeasibleError, ProgramError
from traincast.fabric.flows import bottleneck, rates
from traincast.fabric.graph import FabricGraph, FloatArray, IntArray
from traincast.fabric.patterns import Flows, flow_count, flows_of, flows_of_all

MOST_HOPS = 2**25
"""Links on the routes of all flows that are solved together, a flow over several queue pairs counted by its parts:
what takes about ten seconds and two gigabytes on one core."""

Groups = Sequence[npt.ArrayLike] | npt.NDArray[np.integer]
"""Members of each of some groups, GPUs in the group's order; those of equal size may be rows of an array."""

_BY_ROUNDING = 1e-9
"""Smaller slowdowns are none."""


class Slowdown(Struct, frozen=True):
    """What a group's transfer between nodes takes, over what it takes alone on a non-blocking fabric."""

    factor: float
    """At least 1."""
    bottleneck: str | None
    """The link that holds its slowest flow back; None where nothing slows it down."""


def network_factor(
    pattern: str | Sequence[str], groups: Groups, graph: FabricGraph, seed: int | None = None
) -> list[Slowdown]:
    """Return the slowdown of each of the groups that communicate at the same time; 1 for one inside a node.

    Parameters
    ----------
    pattern : str, or sequence of str
        Who sends to whom (`PATTERNS`): one for all groups, or one for each.
    groups : sequence of int array
        Members of each group, GPUs in the group's order.
    graph : FabricGraph
        The fabric.
    seed : int, optional
        Of the hash, instead of the fabric's own.

    Raises
    ------
    ProgramError
        If there is not one pattern for each group, or a member is not part of the fabric.
    UnknownNameError
        If a pattern is unknown.

    Notes
    -----
    The flows of a phase are equal and start together, so that one max-min solve gives its time
    (see `traincast.fabric.flows.finish_times`). All steps of a ring are alike: one phase.
    """
    together_G, alone_G, link_G = (each_G.tolist() for each_G in _times(pattern, groups, graph, seed))
    return [_slowdown(*each, graph) for each in zip(together_G, alone_G, link_G, strict=True)]


def worst_slowdown(pattern: str, groups: Groups, graph: FabricGraph, seed: int | None = None) -> Slowdown:
    """Return the worst slowdown of the groups that communicate at the same time, the first of equals.

    Parameters and errors are those of `network_factor`.
    """
    together_G, alone_G, link_G = _times(pattern, groups, graph, seed)
    slowed_G = together_G > alone_G * (1 + _BY_ROUNDING)
    factor_G = np.divide(together_G, alone_G, out=np.ones(len(groups)), where=slowed_G)
    worst = int(factor_G.argmax())
    return _slowdown(float(together_G[worst]), float(alone_G[worst]), int(link_G[worst]), graph)


def _times(
    pattern: str | Sequence[str], groups: Groups, graph: FabricGraph, seed: int | None
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return the seconds per byte of each group together and alone, and the link that holds it back, [G]."""
    together_G, alone_G = np.zeros(len(groups)), np.zeros(len(groups))
    worst_G, link_G = np.zeros(len(groups)), np.full(len(groups), -1, dtype=np.int64)
    for flows, id_F, group_F in _phases(pattern, groups, graph):
        slow_G, held_G = _together(flows, id_F, group_F, len(groups), graph, seed)
        together_G += slow_G
        alone_G += _alone(flows, group_F, len(groups), graph)
        link_G = np.where(slow_G > worst_G, held_G, link_G)
        worst_G = np.maximum(worst_G, slow_G)
    return together_G, alone_G, link_G


def link_use(
    pattern: str | Sequence[str],
    groups: Groups,
    graph: FabricGraph,
    factor: float = 1.0,
    seed: int | None = None,
) -> FloatArray:
    """Return which share of every link the groups take while all communicate; of several phases the most.

    Parameters are as in `network_factor`; `factor` is the worst slowdown that it found: the slowest sets the pace.
    """
    use_L = np.zeros(len(graph.capacity_L))
    for flows, id_F, group_F in _phases(pattern, groups, graph):
        pace_G = _alone(flows, group_F, len(groups), graph) * factor
        routes_QH = graph.routes(flows.source_F, flows.target_F, id_F, seed)
        rate_Q = np.repeat(1.0 / pace_G[group_F], graph.queue_pairs) / graph.queue_pairs
        real_QH = routes_QH >= 0
        carried_L = np.bincount(routes_QH[real_QH], rate_Q[np.nonzero(real_QH)[0]], minlength=len(use_L))
        use_L = np.maximum(use_L, carried_L / graph.capacity_L)
    return use_L


def pair_slowdown(one_L: FloatArray, other_L: FloatArray, graph: FabricGraph) -> Slowdown:
    """Return how much slower two kinds of traffic are while both run, on top of what each already is.

    Where a link would have to carry more than it can, both are slowed down by that ratio: a
    fair share for each that no link exceeds, and at most twice the time. It is 1 where they share
    no link, or none that is full.

    `one_L` and `other_L` are what `link_use` returned for each alone.
    """
    asked_L = np.where((one_L > 0) & (other_L > 0), one_L + other_L, 0.0)
    link = int(asked_L.argmax())
    return _slowdown(float(asked_L[link]), 1.0, link, graph)


def _phases(
    pattern: str | Sequence[str], groups: Groups, graph: FabricGraph
) -> Iterator[tuple[Flows, IntArray, IntArray]]:
    """Yield the flows of each phase of all groups, with what tells them apart and the group of each."""
    flows, group_F = _flows(pattern, groups, graph)
    if not len(group_F):
        return
    phases = np.bincount(flows.phase_F)
    if len(phases) == 1:
        yield flows, np.arange(len(group_F)), group_F
        return
    for phase in np.flatnonzero(phases).tolist():
        at = np.flatnonzero(flows.phase_F == phase)
        yield Flows(*(each[at] for each in flows)), at, group_F[at]


def _flows(pattern: str | Sequence[str], groups: Groups, graph: FabricGraph) -> tuple[Flows, IntArray]:
    """Return the flows of all groups, and the group of each; groups of equal size may be rows of an array."""
    if isinstance(pattern, str) and isinstance(groups, np.ndarray):
        _check_hops(len(groups) * flow_count(pattern, groups.shape[1]), graph, [pattern])
        return flows_of_all(pattern, groups.astype(np.int64), graph.gpus_per_node)
    patterns = [pattern] * len(groups) if isinstance(pattern, str) else list(pattern)
    if len(patterns) != len(groups):
        raise ProgramError(f"{len(patterns)} patterns for {len(groups)} groups")
    members = [np.asarray(each, dtype=np.int64) for each in groups]
    # The groups of a kind are alike, but each may have another size.
    sizes = Counter((name, len(each)) for name, each in zip(patterns, members, strict=True))
    asked = sum(count * flow_count(*alike) for alike, count in sizes.items())
    _check_hops(asked, graph, sorted(set(patterns)))
    if len(sizes) == 1:
        return flows_of_all(patterns[0], np.stack(members), graph.gpus_per_node)
    per_group = [flows_of(name, each, graph.gpus_per_node) for name, each in zip(patterns, members, strict=True)]
    group_F = np.repeat(np.arange(len(groups)), [len(each.source_F) for each in per_group])
    if not per_group:
        return Flows(group_F, group_F, group_F), group_F
    return Flows(*map(np.concatenate, zip(*per_group, strict=True))), group_F


def _check_hops(flows: int, graph: FabricGraph, patterns: Sequence[str]) -> None:
    """Refuse flows whose routes are too long together, before they are made."""
    hops = flows * graph.queue_pairs * graph.longest
    if hops > MOST_HOPS:
        parts = f" x {graph.queue_pairs:,} queue pairs" if graph.queue_pairs > 1 else ""
        raise InfeasibleError(
            f"{flows:,} flows ({', '.join(patterns)}){parts} over up to {graph.longest:,} links each are {hops:,} hops "
            f"to solve, above the limit of {MOST_HOPS:,}; use smaller groups or fewer queue pairs, or "
            "network=analytical, with which nothing shares links"
        ).typed(network="--network")


def _slowdown(together: float, alone: float, link: int, graph: FabricGraph) -> Slowdown:
    if together <= alone * (1 + _BY_ROUNDING):
        return Slowdown(1.0, None)
    return Slowdown(float(together / alone), graph.network.link_name(link))


def _together(
    flows: Flows, ids_F: IntArray, group_F: IntArray, groups: int, graph: FabricGraph, seed: int | None
) -> tuple[FloatArray, IntArray]:
    """Return the seconds per byte of each group's slowest flow, and the link that holds it back."""
    routes = graph.routes(flows.source_F, flows.target_F, ids_F, seed)
    rate = rates(routes, graph.capacity_L)
    # A flow over several queue pairs has ended when the slowest of its equal parts has.
    pace = 1.0 / (rate * graph.queue_pairs)
    group = np.repeat(group_F, graph.queue_pairs)
    order = np.lexsort((-pace, group))
    first = order[np.flatnonzero(np.diff(group[order], prepend=-1))]
    slow_G, held_G = np.zeros(groups), np.full(groups, -1, dtype=np.int64)
    slow_G[group[first]] = pace[first]
    held_G[group[first]] = bottleneck(routes, rate, graph.capacity_L)[first]
    return slow_G, held_G


def _alone(flows: Flows, group_F: IntArray, groups: int, graph: FabricGraph) -> FloatArray:
    """Return the seconds per byte of each group's slowest flow where only NICs and nodes limit it.

    The least max-min rate is that of the link with the least capacity per flow: no solve is needed.
    """
    limits = [(flows.source_F, graph.nic_bytes_per_s), (flows.target_F, graph.nic_bytes_per_s)]
    if graph.node_bytes_per_s is not None:
        ends = (flows.source_F, flows.target_F)
        limits += [(each // graph.gpus_per_node, graph.node_bytes_per_s) for each in ends]
    slow_G = np.zeros(groups)
    for port_F, rate in limits:
        key, count = np.unique(group_F * graph.network.gpus + port_F, return_counts=True)
        np.maximum.at(slow_G, key // graph.network.gpus, count / rate)
    return slow_G
