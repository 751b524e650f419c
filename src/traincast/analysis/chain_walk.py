"""A critical path walked back from its end, in numba, on arrays that come as pointers.

The same chain as that of `traincast.analysis.critical_path`. Letters: N operations, E edges, J rendezvous, I members of
rendezvous, H operations of the path.
"""

from traincast.workload.ops import FloatArray, IntArray


def walk(
    count: int,
    next_N: IntArray,
    edge_ptr_N1: IntArray,
    edge_dst_E: IntArray,
    rendezvous_N: IntArray,
    rendezvous_ptr_J1: IntArray,
    rendezvous_member_I: IntArray,
    ready_N: FloatArray,
    end_N: FloatArray,
    last_N: IntArray,
    path_H: IntArray,
) -> int:
    """Write the operations of the path, last to first, and return how many; `last_N` is room to work in."""
    at = 0
    for op in range(count):
        last_N[op] = -1
        if end_N[op] > end_N[at]:
            at = op
    # Of what an operation follows the last to end; of equals the first.
    for op in range(count):
        after = next_N[op]
        if after >= 0 and (last_N[after] < 0 or end_N[op] > end_N[last_N[after]]):
            last_N[after] = op
        for edge in range(edge_ptr_N1[op], edge_ptr_N1[op + 1]):
            after = edge_dst_E[edge]
            if last_N[after] < 0 or end_N[op] > end_N[last_N[after]]:
                last_N[after] = op
    length = 0
    while at >= 0:
        path_H[length] = at
        length += 1
        rendezvous = rendezvous_N[at]
        if rendezvous >= 0:
            first = rendezvous_ptr_J1[rendezvous]
            at = rendezvous_member_I[first]
            for place in range(first + 1, rendezvous_ptr_J1[rendezvous + 1]):
                if ready_N[rendezvous_member_I[place]] > ready_N[at]:
                    at = rendezvous_member_I[place]
        if ready_N[at] <= 0:
            break
        at = last_N[at]
    return length
