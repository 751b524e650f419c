"""How much slower groups communicate because they share the links of a fabric.

Letters: F flows, L links, G groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.errors import ProgramError
from traincast.fabric.flows import bottleneck, rates
from traincast.fabric.graph import FabricGraph
from traincast.fabric.patterns import Flows, flows_of

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_BY_ROUNDING = 1e-9
"""Smaller slowdowns are none."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """What a group's transfer between nodes takes, over what it takes alone on a non-blocking fabric."""

    factor: float
    """At least 1."""
    bottleneck: str | None
    """The link that holds its slowest flow back; None where nothing slows it down."""


def network_factor(
    pattern: str | Sequence[str], groups: Sequence[npt.ArrayLike], graph: FabricGraph, seed: int | None = None
) -> list[Slowdown]:
    """Return the slowdown of each of the groups that communicate at the same time.

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

    Returns
    -------
    list of Slowdown
        One for each group; 1 for a group inside one node.

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
    patterns = [pattern] * len(groups) if isinstance(pattern, str) else list(pattern)
    if len(patterns) != len(groups):
        raise ProgramError(f"{len(patterns)} patterns for {len(groups)} groups")
    per_group = [flows_of(name, members, graph.gpus_per_node) for name, members in zip(patterns, groups, strict=True)]
    group_F = np.repeat(np.arange(len(groups)), [len(each.source_F) for each in per_group])
    together_G, alone_G = np.zeros(len(groups)), np.zeros(len(groups))
    worst_G, link_G = np.zeros(len(groups)), np.full(len(groups), -1, dtype=np.int64)
    if len(group_F):
        flows = Flows(*(np.concatenate(each) for each in zip(*per_group, strict=True)))
        for phase in np.unique(flows.phase_F).tolist():
            at = np.flatnonzero(flows.phase_F == phase)
            some = Flows(*(each[at] for each in flows))
            slow_G, held_G = _together(some, at, group_F[at], len(groups), graph, seed)
            together_G += slow_G
            alone_G += _alone(some, group_F[at], len(groups), graph)
            link_G = np.where(slow_G > worst_G, held_G, link_G)
            worst_G = np.maximum(worst_G, slow_G)
    return [_slowdown(*each, graph) for each in zip(together_G, alone_G, link_G.tolist(), strict=True)]


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
