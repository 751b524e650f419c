"""Find the circle in a program that cannot finish."""

from itertools import pairwise

from traincast.engine.graph import Graph


def find_cycle(graph: Graph) -> list[int]:
    """Return operations that wait for each other in a circle.

    Operations of one joint count as one, for each waits for whatever another waits for.

    Parameters
    ----------
    graph : Graph
        A program of which some operations never ran.

    Returns
    -------
    list of int
        Operations, each waiting for the next and the last for the first; empty if there is
        no circle.
    """
    node_of = [op if joint < 0 else len(graph) + joint for op, joint in enumerate(graph.joint_N.tolist())]
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
    """Return for each operation or joint the operations that must end before it may start."""
    before: list[list[int]] = [[] for _ in range(len(graph) + len(graph.joint_ptr_J1) - 1)]
    for op, follower in enumerate(graph.next_N.tolist()):
        if follower >= 0:
            before[node_of[follower]].append(op)
    targets = graph.edge_dst_E.tolist()
    for op, (begin, end) in enumerate(pairwise(graph.edge_ptr_N1.tolist())):
        for target in targets[begin:end]:
            before[node_of[target]].append(op)
    return before
