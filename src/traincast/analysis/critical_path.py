"""The chain of operations that made a step as long as it is, across ranks.

Letters: N operations, E edges, H operations of the path.
"""

from dataclasses import dataclass

import numpy as np

from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.program import Program, Timeline


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Operations that follow each other without a pause from the start of the step to its end."""

    op_H: IntArray
    """Operations, first to last."""
    time_s_H: FloatArray
    """What each adds to the step: from its start to its end."""


def critical_path(program: Program, timeline: Timeline) -> CriticalPath:
    """Return a critical path of a step; where several chains are equally long, that of the lowest operations.

    Making an operation of it longer by dt makes the step longer by dt (for a small dt), so the path is the gradient of
    the step with respect to every duration.

    Notes
    -----
    Walk back from the operation that ends last: a member of a joint starts when the last member is
    ready, and an operation is ready when the last of what it follows has ended (Kelley and Walker,
    1959, the critical path method, with joints merged into one activity).
    """
    if not len(program):
        return CriticalPath(np.zeros(0, dtype=np.int64), np.zeros(0))
    before = _Before(program, timeline)
    at = int(np.argmax(timeline.end_s_N))
    path = [at]
    while (previous := before.decisive(at)) >= 0:
        path.append(previous)
        at = previous
    op_H = np.array(path[::-1], dtype=np.int64)
    return CriticalPath(op_H, timeline.end_s_N[op_H] - timeline.start_s_N[op_H])


class _Before:
    """What each operation follows."""

    def __init__(self, program: Program, timeline: Timeline) -> None:
        self._end_N, self._ready_N = timeline.end_s_N, timeline.ready_s_N
        self._previous_N = _previous_of_stream(program.stream_N)
        order_E = np.argsort(program.edge_dst_E, kind="stable")
        self._source_E = program.edge_src_E[order_E]
        counts_N = np.bincount(program.edge_dst_E, minlength=len(program))
        self._ptr_N1 = np.concatenate([[0], np.cumsum(counts_N)])
        self._joint_N = program.joint_N
        joined = np.flatnonzero(program.joint_N >= 0)
        self._member_I = joined[np.argsort(program.joint_N[joined], kind="stable")]
        joints = int(program.joint_N.max(initial=-1)) + 1
        self._joint_ptr = np.concatenate([[0], np.cumsum(np.bincount(program.joint_N[joined], minlength=joints))])

    def decisive(self, at: int) -> int:
        """Return what an operation waited for last, -1 where it could start at once."""
        joint = int(self._joint_N[at])
        if joint >= 0:
            members = self._member_I[self._joint_ptr[joint] : self._joint_ptr[joint + 1]]
            at = int(members[np.argmax(self._ready_N[members])])
        if self._ready_N[at] <= 0:
            return -1
        sources = self._source_E[self._ptr_N1[at] : self._ptr_N1[at + 1]].tolist()
        if self._previous_N[at] >= 0:
            sources.append(int(self._previous_N[at]))
        return max(sources, key=lambda each: (self._end_N[each], -each), default=-1)


def _previous_of_stream(stream_N: IntArray) -> IntArray:
    order = np.argsort(stream_N, kind="stable")
    same = stream_N[order[1:]] == stream_N[order[:-1]]
    previous_N = np.full(len(stream_N), -1, dtype=np.int64)
    previous_N[order[1:][same]] = order[:-1][same]
    return previous_N
