"""How much slower groups communicate because they share the links of a fabric.

Letters: F flows, Q their parts over queue pairs, H hops, L links, G groups.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traincast.errors import InfeasibleError, ProgramError
from traincast.fabric.flows import bottleneck, rates
from traincast.fabric.graph import FabricGraph, FloatArray, IntArray
from traincast.fabric.load import BY_ROUNDING, Load, exchanged
from traincast.fabric.patterns import Flows, flow_count, flows_of, flows_of_all
from traincast.workload.ops import distinct

Groups = Sequence[npt.ArrayLike] | IntArray
"""Members of each group, GPUs in the group's order; an array has groups of equal size as its rows."""

MOST_HOPS = 2**25
"""Links on the routes of all flows that are solved together, a flow over several queue pairs counted by its parts:
what takes about ten seconds and two gigabytes on one core."""

_FEW = 8
"""Up to so many times as many possible numbers as there are, counting all of them is quicker than sorting."""


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
    phases = _phases(pattern, groups, graph, seed)
    together_G, alone_G, link_G = (each_G.tolist() for each_G in _times(phases, len(groups), graph))
    return [_slowdown(*each, graph) for each in zip(together_G, alone_G, link_G, strict=True)]


def worst_slowdown(pattern: str, groups: Groups, graph: FabricGraph, seed: int | None = None) -> Slowdown:
    """Return the worst slowdown of the groups that communicate at the same time, the first of equals.

    Parameters and errors are those of `network_factor`.
    """
    return _worst(list(_phases(pattern, groups, graph, seed)), len(groups), graph)


def worst_and_use(
    pattern: str, groups: Groups, graph: FabricGraph, seed: int | None = None
) -> tuple[Slowdown, FloatArray]:
    """Return what `worst_slowdown` and then `link_use` find, from the same routes, or without any where none matter."""
    if pattern == "all-to-all" and isinstance(groups, np.ndarray):
        _check_hops(len(groups) * flow_count(pattern, groups.shape[1]), graph, [pattern])
        load = exchanged(groups, graph)
        if load is not None and load.alike and not load.is_slowed:
            return Slowdown(1.0, None), load.carried_L(1.0) / graph.capacity_L
    phases = list(_phases(pattern, groups, graph, seed))
    worst = _worst(phases, len(groups), graph)
    return worst, _use(phases, graph, worst.factor)


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
    return _use(_phases(pattern, groups, graph, seed), graph, factor)


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


class _Phase(Struct, frozen=True):
    """Flows that run together."""

    routes_QH: npt.NDArray[np.int32]
    group_F: IntArray
    load: Load


def _phases(pattern: str | Sequence[str], groups: Groups, graph: FabricGraph, seed: int | None) -> Iterator[_Phase]:
    """Yield the phases of all groups."""
    patterns = [pattern] * len(groups) if isinstance(pattern, str) else list(pattern)
    if len(patterns) != len(groups):
        raise ProgramError(f"{len(patterns)} patterns for {len(groups)} groups")
    if isinstance(groups, np.ndarray) and isinstance(pattern, str):
        sizes = {(pattern, groups.shape[1]): len(groups)}
    else:
        # The groups of a kind are alike, but each may have another size.
        sizes = Counter((name, len(each)) for name, each in zip(patterns, map(np.asarray, groups), strict=True))
    asked = sum(count * flow_count(*alike) for alike, count in sizes.items())
    _check_hops(asked, graph, sorted(set(patterns)))
    flows, group_F = _flows(patterns, groups, graph)
    for phase in distinct(flows.phase_F).tolist():
        at = np.flatnonzero(flows.phase_F == phase)
        of_phase, group_at = Flows(*(each[at] for each in flows)), group_F[at]
        routes_QH = graph.routes(of_phase.source_F, of_phase.target_F, at, seed)
        flows_L = np.bincount(routes_QH[routes_QH >= 0], minlength=len(graph.capacity_L))
        load = Load(flows_L, _alone(of_phase, group_at, len(groups), graph), graph)
        yield _Phase(routes_QH, group_at, load)


def _times(phases: Iterable[_Phase], groups: int, graph: FabricGraph) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return the seconds per byte of each group together and alone, and the link that holds it back, [G]."""
    together_G, alone_G = np.zeros(groups), np.zeros(groups)
    worst_G, link_G = np.zeros(groups), np.full(groups, -1, dtype=np.int64)
    for phase in phases:
        slow_G, held_G = _together(phase, graph)
        together_G += slow_G
        alone_G += phase.load.alone_G
        link_G = np.where(slow_G > worst_G, held_G, link_G)
        worst_G = np.maximum(worst_G, slow_G)
    return together_G, alone_G, link_G


def _worst(phases: Sequence[_Phase], groups: int, graph: FabricGraph) -> Slowdown:
    if len(phases) == 1 and phases[0].load.alike:
        return _tightest(phases[0], graph)
    together_G, alone_G, link_G = _times(phases, groups, graph)
    slowed_G = together_G > alone_G * (1 + BY_ROUNDING)
    factor_G = np.divide(together_G, alone_G, out=np.ones(groups), where=slowed_G)
    worst = int(factor_G.argmax())
    return _slowdown(float(together_G[worst]), float(alone_G[worst]), int(link_G[worst]), graph)


def _tightest(phase: _Phase, graph: FabricGraph) -> Slowdown:
    """Return the worst slowdown of groups that take as long alone, without the rates of all flows."""
    if not phase.load.is_slowed:
        return Slowdown(1.0, None)
    rate_L = phase.load.rate_L
    held_QH = (phase.routes_QH >= 0) & (rate_L <= float(rate_L.min()) * (1 + BY_ROUNDING))[phase.routes_QH]
    first = int(held_QH.any(axis=1).argmax())
    link = int(phase.routes_QH[first, held_QH[first].argmax()])
    return _slowdown(phase.load.together, float(phase.load.alone_G.max()), link, graph)


def _use(phases: Iterable[_Phase], graph: FabricGraph, factor: float) -> FloatArray:
    use_L = np.zeros(len(graph.capacity_L))
    for phase in phases:
        if phase.load.alike:
            carried_L = phase.load.carried_L(factor)
        else:
            routes_QH, pace_G = phase.routes_QH, phase.load.alone_G * factor
            rate_Q = np.repeat(1.0 / pace_G[phase.group_F], graph.queue_pairs) / graph.queue_pairs
            real_QH = routes_QH >= 0
            sums_L = np.bincount(routes_QH[real_QH], rate_Q[np.nonzero(real_QH)[0]], minlength=len(use_L))
            carried_L = sums_L.astype(np.float64, copy=False)
        use_L = np.maximum(use_L, carried_L / graph.capacity_L)
    return use_L


def _flows(patterns: Sequence[str], groups: Groups, graph: FabricGraph) -> tuple[Flows, IntArray]:
    """Return the flows of all groups, and the group of each."""
    if isinstance(groups, np.ndarray) and len(groups) and len(set(patterns)) == 1:
        return flows_of_all(patterns[0], groups.astype(np.int64), graph.gpus_per_node)
    members = [np.asarray(each, dtype=np.int64) for each in groups]
    if len(set(patterns)) == 1 and len({each.shape for each in members}) == 1:
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
    if together <= alone * (1 + BY_ROUNDING):
        return Slowdown(1.0, None)
    return Slowdown(float(together / alone), graph.network.link_name(link))


def _together(phase: _Phase, graph: FabricGraph) -> tuple[FloatArray, IntArray]:
    """Return the seconds per byte of each group's slowest flow, and the link that holds it back."""
    routes, groups = phase.routes_QH, len(phase.load.alone_G)
    rate = rates(routes, graph.capacity_L)
    # A flow over several queue pairs has ended when the slowest of its equal parts has.
    pace = 1.0 / (rate * graph.queue_pairs)
    group = np.repeat(phase.group_F, graph.queue_pairs)
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
    slow_G, gpus = np.zeros(groups), graph.network.gpus
    for port_F, rate in limits:
        key, count = _counted(group_F * gpus + port_F, groups * gpus)
        np.maximum.at(slow_G, key // gpus, count / rate)
    return slow_G


def _counted(key_F: IntArray, most: int) -> tuple[IntArray, IntArray]:
    """Return the different ones of numbers below some other, and how often each is there."""
    if most > _FEW * len(key_F):
        return np.unique(key_F, return_counts=True)
    count = np.bincount(key_F)
    key = np.flatnonzero(count)
    return key, count[key]
