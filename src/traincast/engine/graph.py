"""What the engine runs: who follows whom, as arrays; and the circle in a program that cannot finish.

Letters: N operations, E edges, J rendezvous, I members of rendezvous.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traincast.errors import ProgramError

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Graph:
    """Successors, predecessors counted, and rendezvous, all as dense arrays."""

    next_N: IntArray
    """Next operation of the same stream, -1 for none."""
    edge_ptr_N1: IntArray
    edge_dst_E: IntArray
    """Operations that wait for n are edge_dst_E[edge_ptr_N1[n] : edge_ptr_N1[n + 1]]."""
    waits_N: IntArray
    """How many operations each one waits for."""
    rendezvous_N: IntArray
    """Rendezvous of each operation, -1 for none."""
    rendezvous_ptr_J1: IntArray
    rendezvous_member_I: IntArray
    kept: dict[str, object] = field(default_factory=dict, repr=False, compare=False)
    """What an engine found out about the graph and need not find out again."""

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.next_N)


def build_graph(stream_N: IntArray, edge_src_E: IntArray, edge_dst_E: IntArray, rendezvous_N: IntArray) -> Graph:
    """Prepare a program for the engine.

    Parameters
    ----------
    stream_N : int array [N]
        Stream of each operation; operations of a stream run in index order.
    edge_src_E, edge_dst_E : int array [E]
        The second starts after the first has ended.
    rendezvous_N : int array [N]
        Operations of a rendezvous (0, 1, 2 ...) start and end together; -1 for none.

    Raises
    ------
    ProgramError
        If an edge names an operation that does not exist.
    """
    count = len(stream_N)
    for ends in (edge_src_E, edge_dst_E):
        if len(ends) and not (int(ends.min()) >= 0 and int(ends.max()) < count):
            raise ProgramError(f"an edge names an operation outside 0..{count - 1}")
    if np.any(edge_src_E[1:] < edge_src_E[:-1]):
        order = np.argsort(edge_src_E, kind="stable")
        edge_src_E, edge_dst_E = edge_src_E[order], edge_dst_E[order]
    order = np.argsort(stream_N, kind="stable").astype(np.int32)
    same = stream_N[order[1:]] == stream_N[order[:-1]]
    next_N = np.full(count, -1, dtype=np.int32)
    next_N[order[:-1][same]] = order[1:][same]
    waits_N = np.bincount(edge_dst_E, minlength=count).astype(np.int32)
    waits_N[next_N[next_N >= 0]] += 1
    joined = np.flatnonzero(rendezvous_N >= 0)
    order = np.argsort(rendezvous_N[joined], kind="stable")
    all_rendezvous = int(rendezvous_N.max(initial=-1)) + 1
    return Graph(
        next_N=next_N,
        edge_ptr_N1=pointers(np.bincount(edge_src_E, minlength=count)),
        edge_dst_E=np.ascontiguousarray(edge_dst_E, dtype=np.int32),
        waits_N=waits_N,
        rendezvous_N=np.ascontiguousarray(rendezvous_N, dtype=np.int32),
        rendezvous_ptr_J1=pointers(np.bincount(rendezvous_N[joined], minlength=all_rendezvous)),
        rendezvous_member_I=joined[order].astype(np.int32),
    )


def pointers(counts: IntArray) -> IntArray:
    """Return where each piece of so many begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def reversed_graph(graph: Graph) -> Graph:
    """Return the graph in which everything waits for what followed it: time runs backwards, rendezvous stay."""
    count = len(graph)
    followed = np.flatnonzero(graph.next_N >= 0)
    previous_N = np.full(count, -1, dtype=np.int32)
    previous_N[graph.next_N[followed]] = followed
    source_E = np.repeat(np.arange(count, dtype=np.int32), np.diff(graph.edge_ptr_N1))
    order_E = np.argsort(graph.edge_dst_E, kind="stable")
    waits_N = np.diff(graph.edge_ptr_N1).astype(np.int32)
    waits_N[followed] += 1
    return Graph(
        next_N=previous_N,
        edge_ptr_N1=pointers(np.bincount(graph.edge_dst_E, minlength=count)),
        edge_dst_E=source_E[order_E],
        waits_N=waits_N,
        rendezvous_N=graph.rendezvous_N,
        rendezvous_ptr_J1=graph.rendezvous_ptr_J1,
        rendezvous_member_I=graph.rendezvous_member_I,
    )


def find_cycle(graph: Graph) -> list[int]:
    """Return operations, each waiting for the next and the last for the first; empty if there is no such circle.

    Operations of one rendezvous count as one, for each waits for whatever another waits for.
    """
    node_of = [
        op if rendezvous < 0 else len(graph) + rendezvous for op, rendezvous in enumerate(graph.rendezvous_N.tolist())
    ]
    blockers = _blockers(graph, node_of)
    on_path: set[int] = set()
    for root in range(len(graph)):
        path = [root]
        on_path = {node_of[root]}
        while path:
            waiting = blockers[node_of[path[-1]]]
            if not waiting:
                on_path.discard(node_of[path.pop()])
                continue
            # Popped once and for all: what has been followed to its end cannot be part of a circle.
            target = waiting.pop()
            if node_of[target] in on_path:
                begin = next(place for place, op in enumerate(path) if node_of[op] == node_of[target])
                return [target, *path[begin + 1 :]]
            path.append(target)
            on_path.add(node_of[target])
    return []


def _blockers(graph: Graph, node_of: list[int]) -> list[list[int]]:
    """Return for each operation or rendezvous the operations that must end before it may start."""
    before: list[list[int]] = [[] for _ in range(len(graph) + len(graph.rendezvous_ptr_J1) - 1)]
    for op, follower in enumerate(graph.next_N.tolist()):
        if follower >= 0:
            before[node_of[follower]].append(op)
    targets = graph.edge_dst_E.tolist()
    for op, (begin, end) in enumerate(pairwise(graph.edge_ptr_N1.tolist())):
        for target in targets[begin:end]:
            before[node_of[target]].append(op)
    return before
