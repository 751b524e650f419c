"""Find the circle in a program that cannot finish."""

from itertools import pairwise

from traincast.engine.graph import Graph


def find_cycle(graph: Graph) -> list[int]:
    """Return operations that wait for each other in a circle.

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
    blockers = _blockers(graph)
    state = [0] * len(graph)  # 0 unseen, 1 on the path, 2 cleared
    for root in range(len(graph)):
        path = [root]
        while path:
            op = path[-1]
            if state[op] == 0:
                state[op] = 1
            advanced = False
            while blockers[op] and not advanced:
                target = blockers[op].pop()
                if state[target] == 1:
                    return path[path.index(target) :]
                if state[target] == 0:
                    path.append(target)
                    advanced = True
            if not advanced:
                state[op] = 2
                path.pop()
    return []


def _blockers(graph: Graph) -> list[list[int]]:
    """Return for each operation those that must end before it may start, its partners' included."""
    before: list[list[int]] = [[] for _ in range(len(graph))]
    pointers, targets = graph.edge_ptr_N1.tolist(), graph.edge_dst_E.tolist()
    for op, follower in enumerate(graph.next_N.tolist()):
        if follower >= 0:
            before[follower].append(op)
        for target in targets[pointers[op] : pointers[op + 1]]:
            before[target].append(op)
    joint_pointers, members = graph.joint_ptr_J1.tolist(), graph.joint_member_I.tolist()
    for begin, end in pairwise(joint_pointers):
        shared = [op for member in members[begin:end] for op in before[member]]
        for member in members[begin:end]:
            before[member] = list(shared)
    return before
