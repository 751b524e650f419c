"""The visits of `traincast.engine.reference` in numba, on arrays that come as pointers."""

from traincast.engine.graph import IntArray
from traincast.engine.reference import FloatArray
from traincast.machine_code import part


@part
def _members(rendezvous: int, rendezvous_ptr_J1: IntArray) -> tuple[int, int]:
    """Return where the members of a rendezvous are; of an operation by itself (-1) one place that stands for it."""
    return (rendezvous_ptr_J1[rendezvous], rendezvous_ptr_J1[rendezvous + 1]) if rendezvous >= 0 else (0, 1)


@part
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


def run_again(
    visited_V: IntArray,
    visits: int,
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
    """Find the times of operations in an order of visits that is known."""
    for visit in range(visits):
        op = visited_V[visit]
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


def run(
    count: int,
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
    missing_J: IntArray,
    stack_N: IntArray,
    visited_V: IntArray,
    visits_1: IntArray,
) -> int:
    """Find the times of operations and an order of visits; return how many ran, and write how many visits that took."""
    top = 0
    for op in range(count - 1, -1, -1):
        if waits_N[op] == 0:
            stack_N[top] = op
            top += 1
    done = visits = 0
    while top > 0:
        top -= 1
        op = stack_N[top]
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
                    stack_N[top] = successor
                    top += 1
    visits_1[0] = visits
    return done
