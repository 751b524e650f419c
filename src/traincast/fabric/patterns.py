"""Who sends to whom between nodes: the flows of one group's communication.

A library opens as many channels as a node has members of the group, and a channel keeps to
the same local place on every node, so that its traffic stays on one rail. All flows of a
pattern have the same size. Letters: F flows, K members.

Source: NVIDIA/nccl, src/graph/rings.cc and src/graph/trees.cc (channels over nodes, double binary tree).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.errors import UnknownNameError

IntArray = npt.NDArray[np.int64]


class Flows(NamedTuple):
    """Flows of equal size; those of one phase run together, and phases follow each other."""

    source_F: IntArray
    target_F: IntArray
    phase_F: IntArray


Pattern = Callable[[IntArray, int], Flows]
"""Members in the group's order and GPUs of a node -> flows."""


def flows_of(pattern: str, members_K: npt.ArrayLike, gpus_per_node: int) -> Flows:
    """Return the flows of a group that leave a node; GPUs in the order of the group.

    Raises
    ------
    UnknownNameError
        If there is no such pattern.
    """
    flows = _pattern(pattern)(np.asarray(members_K, dtype=np.int64), gpus_per_node)
    leaves_F = flows.source_F // gpus_per_node != flows.target_F // gpus_per_node
    return Flows(*(each[leaves_F] for each in flows))


def flows_of_all(pattern: str, members_GK: IntArray, gpus_per_node: int) -> tuple[Flows, IntArray]:
    """Return the flows of groups of equal size, group by group as `flows_of` has them, and the group of each flow.

    Groups that lie alike on their nodes are taken together.

    Raises
    ------
    UnknownNameError
        If there is no such pattern.
    """
    count, size = members_GK.shape
    together = _TOGETHER.get(pattern)
    ends = None if together is None or not size else together(members_GK, gpus_per_node)
    if ends is None:
        each = [flows_of(pattern, members_K, gpus_per_node) for members_K in members_GK]
        flows = Flows(*map(np.concatenate, zip(*each, strict=True)))
        return flows, np.repeat(np.arange(count), [len(one.source_F) for one in each])
    source, target = (each.reshape(count, -1) for each in ends)
    leaves = source // gpus_per_node != target // gpus_per_node
    group_F = np.nonzero(leaves)[0]
    return Flows(source[leaves], target[leaves], np.zeros(len(group_F), dtype=np.int64)), group_F


def _rings(members_GK: IntArray, gpus_per_node: int) -> tuple[IntArray, IntArray] | None:
    """Return source and target of rings of groups that have as many members on each of their nodes, node by node."""
    node_GK = members_GK // gpus_per_node
    here = int(np.argmin(node_GK[0] == node_GK[0, 0])) or members_GK.shape[1]
    if members_GK.shape[1] % here:
        return None
    shape = (len(members_GK), -1, here)
    node_GNC, place_GNC = node_GK.reshape(shape), members_GK.reshape(shape)
    alike = (node_GNC == node_GNC[:, :, :1]).all() and (np.diff(node_GNC[:, :, 0], axis=1) > 0).all()
    if not alike or not (np.diff(place_GNC, axis=2) > 0).all():
        return None
    return place_GNC, np.roll(place_GNC, -1, axis=1)


def _sends(members_GK: IntArray, gpus_per_node: int) -> tuple[IntArray, IntArray]:  # noqa: ARG001
    """Return source and target of the messages of each member to the next."""
    return members_GK[:, :-1], members_GK[:, 1:]


def _exchanges(members_GK: IntArray, gpus_per_node: int) -> tuple[IntArray, IntArray]:  # noqa: ARG001
    """Return source and target of what each member sends to every one."""
    count = members_GK.shape[1]
    return np.repeat(members_GK, count, axis=1), np.tile(members_GK, (1, count))


_TOGETHER: dict[str, Callable[[IntArray, int], tuple[IntArray, IntArray] | None]] = {
    "ring": _rings,
    "send": _sends,
    "all-to-all": _exchanges,
}
"""Patterns whose flows of many groups are made at once; None where the groups do not lie alike."""


def _ring(members_K: IntArray, gpus_per_node: int) -> Flows:
    """Each node to the next, on every channel."""
    place_NC = _channels(members_K, gpus_per_node)
    return _at_once(place_NC, np.roll(place_NC, -1, axis=0))


def _tree(members_K: IntArray, gpus_per_node: int) -> Flows:
    """Children to parents and back, in two trees such that a node is inner in at most one."""
    place_NC = _channels(members_K, gpus_per_node)
    nodes = len(place_NC)
    child = np.arange(1, nodes)
    lowest = child & -child
    # A binary tree by the lowest set bit: odd nodes are leaves, and the parent clears one bit and sets the next.
    high = (child ^ lowest) | (lowest << 1)
    parent = np.where(high < nodes, high, child ^ lowest)
    every = np.arange(nodes)
    second = every[::-1] if nodes % 2 == 0 else np.roll(every, -1)
    low, high = np.concatenate([child, second[child]]), np.concatenate([parent, second[parent]])
    return _at_once(place_NC[np.concatenate([low, high])], place_NC[np.concatenate([high, low])])


def _all_to_all(members_K: IntArray, gpus_per_node: int) -> Flows:  # noqa: ARG001
    """Every member to every other one, all at once."""
    source, target = (each.ravel() for each in np.meshgrid(members_K, members_K, indexing="ij"))
    return _at_once(source[source != target], target[source != target])


def _rounds(members_K: IntArray, gpus_per_node: int) -> Flows:  # noqa: ARG001
    """Every member to every other one: in round r to the one r places on."""
    place, shift = np.divmod(np.arange(len(members_K) * (len(members_K) - 1)), max(1, len(members_K) - 1))
    return Flows(members_K[place], members_K[(place + shift + 1) % len(members_K)], shift)


def _send(members_K: IntArray, gpus_per_node: int) -> Flows:  # noqa: ARG001
    """Each member to the next; the last one sends nothing."""
    return _at_once(members_K[:-1], members_K[1:])


PATTERNS: dict[str, Pattern] = {
    "ring": _ring,
    "tree": _tree,
    "all-to-all": _all_to_all,
    "rounds": _rounds,
    "send": _send,
}


def flow_count(pattern: str, members: int) -> int:
    """Return how many flows a pattern has at most among so many members, all its phases together.

    Raises
    ------
    UnknownNameError
        If there is no such pattern.
    """
    _pattern(pattern)
    each = {"all-to-all": members - 1, "rounds": members - 1, "tree": 4}.get(pattern, 1)
    return members * each


def _pattern(name: str) -> Pattern:
    if name not in PATTERNS:
        raise UnknownNameError("pattern of flows", name, PATTERNS)
    return PATTERNS[name]


def _at_once(source: IntArray, target: IntArray) -> Flows:
    return Flows(source.ravel(), target.ravel(), np.zeros(source.size, dtype=np.int64))


def _channels(members_K: IntArray, gpus_per_node: int) -> IntArray:
    """Return the member of each node on each channel; nodes in the order in which the group meets them."""
    node_K = members_K // gpus_per_node
    _, first, inverse_K = np.unique(node_K, return_index=True, return_inverse=True)
    met_K = np.argsort(np.argsort(first))[inverse_K]
    counts = np.bincount(met_K)
    order = np.lexsort((members_K, met_K))
    starts = np.cumsum(counts) - counts
    places_NC: IntArray = members_K[order][starts[:, None] + np.arange(counts.min())]
    return places_NC
