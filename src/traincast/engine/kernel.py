"""The engine in numba (extra ``fast``): the same visits as the reference, on arrays.

Bit-equal to `traincast.engine.reference`, which says what the times mean.
"""

import numba
import numpy as np

from traincast.engine.graph import Graph, IntArray
from traincast.engine.reference import FloatArray, Times


def run_kernel(graph: Graph, duration_s_N: FloatArray) -> Times:
    """Return ready, start and end times, and how many operations ran, as `run_reference` does.

    The order of visits depends on who follows whom alone, so it is kept for further runs of the graph.
    """
    ready_N, start_N, end_N = (np.zeros(len(graph)) for _ in range(3))
    follows = graph.next_N, graph.edge_ptr_N1, graph.edge_dst_E
    meets = graph.rendezvous_N, graph.rendezvous_ptr_J1, graph.rendezvous_member_I
    times = duration_s_N, ready_N, start_N, end_N
    visited = graph.kept.get("visited")
    if isinstance(visited, np.ndarray):
        _run_again(visited, *follows, *meets, *times)
        return ready_N, start_N, end_N, len(graph)
    visited_V = np.empty(len(graph), dtype=np.int32)
    done, visits = _run(*follows, graph.waits_N.copy(), *meets, *times, visited_V)
    if done == len(graph):
        graph.kept["visited"] = visited_V[:visits].copy()
    return ready_N, start_N, end_N, int(done)


@numba.njit(cache=True)
def _members(rendezvous: int, rendezvous_ptr_J1: IntArray) -> tuple[int, int]:
    """Return where the members of a rendezvous are; of an operation by itself (-1) one place that stands for it."""
    return (rendezvous_ptr_J1[rendezvous], rendezvous_ptr_J1[rendezvous + 1]) if rendezvous >= 0 else (0, 1)


@numba.njit(cache=True)
def _times(
    op: int,
    first: int,
    last: int,
    rendezvous: int,
    rendezvous_member_I: IntArray,
    ready_N: FloatArray,
    duration_N: FloatArray,
) -> tuple[float, float]:
    """Return when an operation, or all members of a rendezvous, begin and end."""
    begin, duration = ready_N[op], duration_N[op]
    if rendezvous >= 0:
        for at in range(first, last):
            begin = max(begin, ready_N[rendezvous_member_I[at]])
            duration = max(duration, duration_N[rendezvous_member_I[at]])
    return begin, begin + duration


@numba.njit(cache=True)
def _run_again(
    visited_V: IntArray,
    next_N: IntArray,
    edge_ptr_N1: IntArray,
    edge_dst_E: IntArray,
    rendezvous_N: IntArray,
    rendezvous_ptr_J1: IntArray,
    rendezvous_member_I: IntArray,
    duration_N: FloatArray,
    ready_N: FloatArray,
    start_N: FloatArray,
    end_N: FloatArray,
) -> None:
    for op in visited_V:
        rendezvous = rendezvous_N[op]
        first, last = _members(rendezvous, rendezvous_ptr_J1)
        begin, finish = _times(op, first, last, rendezvous, rendezvous_member_I, ready_N, duration_N)
        for at in range(first, last):
            member = rendezvous_member_I[at] if rendezvous >= 0 else op
            start_N[member], end_N[member] = begin, finish
            for edge in range(edge_ptr_N1[member], edge_ptr_N1[member + 1]):
                ready_N[edge_dst_E[edge]] = max(ready_N[edge_dst_E[edge]], finish)
            if next_N[member] >= 0:
                ready_N[next_N[member]] = max(ready_N[next_N[member]], finish)


@numba.njit(cache=True)
def _run(
    next_N: IntArray,
    edge_ptr_N1: IntArray,
    edge_dst_E: IntArray,
    waits_N: IntArray,
    rendezvous_N: IntArray,
    rendezvous_ptr_J1: IntArray,
    rendezvous_member_I: IntArray,
    duration_N: FloatArray,
    ready_N: FloatArray,
    start_N: FloatArray,
    end_N: FloatArray,
    visited_V: IntArray,
) -> tuple[int, int]:
    count = len(next_N)
    stack = np.empty(count, dtype=np.int32)
    top = 0
    for op in range(count - 1, -1, -1):
        if waits_N[op] == 0:
            stack[top] = op
            top += 1
    missing_J = rendezvous_ptr_J1[1:] - rendezvous_ptr_J1[:-1]
    done = visits = 0
    while top > 0:
        top -= 1
        op = stack[top]
        rendezvous = rendezvous_N[op]
        if rendezvous >= 0:
            missing_J[rendezvous] -= 1
            if missing_J[rendezvous] > 0:
                continue
        first, last = _members(rendezvous, rendezvous_ptr_J1)
        begin, finish = _times(op, first, last, rendezvous, rendezvous_member_I, ready_N, duration_N)
        visited_V[visits] = op
        visits += 1
        for at in range(first, last):
            member = rendezvous_member_I[at] if rendezvous >= 0 else op
            start_N[member], end_N[member] = begin, finish
            done += 1
            edges_end = edge_ptr_N1[member + 1]
            for edge in range(edge_ptr_N1[member], edges_end + 1):
                successor = edge_dst_E[edge] if edge < edges_end else next_N[member]
                if successor < 0:
                    continue
                ready_N[successor] = max(ready_N[successor], finish)
                waits_N[successor] -= 1
                if waits_N[successor] == 0:
                    stack[top] = successor
                    top += 1
    return done, visits
