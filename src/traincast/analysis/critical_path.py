"""The chain of operations that made a step as long as it is, across ranks, and how much others had to spare.

Letters: N operations, E edges, I members of rendezvous, H operations of the path.
"""

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traincast.engine import compiled, run
from traincast.engine.graph import Graph, reversed_graph
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.program import Timeline

ROUNDING = 1e-12
"""Share of a step below which a slack is what sums in another order leave, and none."""


class CriticalPath(Struct, frozen=True):
    """Operations that follow each other without a pause from the start of the step to its end."""

    op_H: IntArray
    """Operations, first to last."""
    time_s_H: FloatArray
    """What each adds to the step: from its start to its end."""


def critical_path(graph: Graph, timeline: Timeline, engine: str = "auto") -> CriticalPath:
    """Return a critical path of a step; where several chains are equally long, that of the lowest operations.

    Making an operation of it longer by dt makes the step longer by dt (for a small dt), so the path is the gradient of
    the step with respect to every duration. It is the same with any engine.

    Notes
    -----
    Walk back from the operation that ends last: a member of a rendezvous starts when the last member is
    ready, and an operation is ready when the last of what it follows has ended (Kelley and Walker,
    1959, the critical path method, with rendezvous merged into one activity).
    """
    if not len(graph):
        return CriticalPath(np.zeros(0, dtype=np.int64), np.zeros(0))
    if compiled(engine, graph):
        from traincast.analysis.critical_path_kernel import walked_back

        op_H = walked_back(graph, timeline)
    else:
        op_H = np.array(_walked_back(graph, timeline)[::-1], dtype=np.int64)
    return CriticalPath(op_H, timeline.end_s_N[op_H] - timeline.start_s_N[op_H])


def _walked_back(graph: Graph, timeline: Timeline) -> list[int]:
    """Return the operations of the path, last to first."""
    # The path is short: single numbers of the arrays are read, as those of Python.
    previous, sources, pointers, rendezvous_of, members_of, members = (each.data for each in _followed(graph))
    ready, end = timeline.ready_s_N.data, timeline.end_s_N.data
    at, path = int(np.argmax(timeline.end_s_N)), []
    while at >= 0:
        path.append(at)
        rendezvous = rendezvous_of[at]
        if rendezvous >= 0:
            at = max(members[members_of[rendezvous] : members_of[rendezvous + 1]], key=ready.__getitem__)
        if ready[at] <= 0:
            break
        last = previous[at]
        for each in sources[pointers[at] : pointers[at + 1]]:
            if last < 0 or end[each] > end[last] or (end[each] == end[last] and each < last):
                last = each
        at = last
    return path


class _Followed(NamedTuple):
    """What operations follow, and which meet."""

    previous_N: IntArray
    """The one before on the same stream, -1 for none."""
    source_E: IntArray
    pointers_N1: IntArray
    """Sources of operation n are those from its pointer on to that of the next one."""
    rendezvous_N: IntArray
    members_of_J1: IntArray
    member_I: IntArray
    """Members of a rendezvous are those from its pointer on to that of the next one."""


def _followed(graph: Graph) -> _Followed:
    """Return what the operations of a graph follow, which is worked out once."""
    known = graph.kept.get("followed")
    if isinstance(known, _Followed):
        return known
    count, followed = len(graph), np.flatnonzero(graph.next_N >= 0)
    previous_N = np.full(count, -1, dtype=np.int32)
    previous_N[graph.next_N[followed]] = followed
    source_E = np.repeat(np.arange(count, dtype=np.int32), np.diff(graph.edge_ptr_N1))
    pointers_N1 = np.concatenate([[0], np.cumsum(np.bincount(graph.edge_dst_E, minlength=count))])
    found = _Followed(
        previous_N,
        source_E[np.argsort(graph.edge_dst_E, kind="stable")],
        pointers_N1,
        graph.rendezvous_N,
        graph.rendezvous_ptr_J1,
        graph.rendezvous_member_I,
    )
    graph.kept["followed"] = found
    return found


def slacks(graph: Graph, timeline: Timeline, engine: str = "auto") -> FloatArray:
    """Return how much longer each operation could have taken without making the step longer, in seconds, [N].

    Operations of a critical path have none. What has some may get shorter, or longer by less than its slack, and the
    step stays as it is. A member of a rendezvous that takes less than the longest member has that difference besides,
    on the path too: it is when that member arrives that counts there, and not how long it takes.

    Notes
    -----
    Total float (Kelley and Walker, 1959): the step less the longest chain through the operation. The chains that
    follow are found by running the engine on the graph in reverse, in which a rendezvous is the same one.
    """
    if not len(graph):
        return np.zeros(0)
    step_s, duration_N = timeline.step_s, timeline.duration_s_N
    _, left_start_N, _ = run(reversed_graph(graph), duration_N, engine)
    slack_N = np.maximum(step_s - timeline.end_s_N - left_start_N, 0.0)
    pointers, member_I = graph.rendezvous_ptr_J1, graph.rendezvous_member_I
    if len(member_I):
        longest_J = np.maximum.reduceat(duration_N[member_I], pointers[:-1])
        slack_N[member_I] += np.repeat(longest_J, np.diff(pointers)) - duration_N[member_I]
    slack_N[slack_N <= ROUNDING * step_s] = 0.0
    return slack_N
