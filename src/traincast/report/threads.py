"""The threads that a timeline shows the operations of a rank in."""

from heapq import heappush, heapreplace
from typing import NamedTuple

import numpy as np

from traincast.workload.ops import IntArray
from traincast.workload.program import Program, Timeline
from traincast.workload.words import Stream


class Threads(NamedTuple):
    """The thread of each operation of a rank, and their names; never 0, which viewers take for the idle thread."""

    thread_N: IntArray
    names: dict[int, str]

    @classmethod
    def from_program(cls, program: Program, timeline: Timeline, index: int) -> "Threads":
        """Return a thread for each stream; of a recorded program for each of its queues.

        What is in no queue shares the threads of its stream so that its slices never overlap.
        """
        mine = program.rank_slice(index)
        stream_N = program.ops.stream_T[program.row_N[mine]].astype(np.int64)
        if program.recorded is None:
            streams = sorted(set(stream_N.tolist()))
            return cls(stream_N + 1, {stream + 1: _words(stream) for stream in streams})
        queue_N = program.recorded.queue_N[mine]
        lane_N = queue_N.copy()
        loose = np.flatnonzero(queue_N < 0)
        free: dict[int, list[tuple[float, int]]] = {}
        lanes = int(queue_N.max(initial=-1)) + 1
        begin_N, end_N = timeline.ready_s_N[mine], timeline.end_s_N[mine]
        for op in loose[np.argsort(begin_N[loose], kind="stable")].tolist():
            known = free.setdefault(int(stream_N[op]), [])
            if known and known[0][0] <= begin_N[op]:
                lane_N[op] = known[0][1]
                heapreplace(known, (float(end_N[op]), int(lane_N[op])))
            else:
                lane_N[op] = lanes
                heappush(known, (float(end_N[op]), lanes))
                lanes += 1
        _, first, thread_N = np.unique(lane_N, return_index=True, return_inverse=True)
        found = [_words(int(stream)) for stream in stream_N[first]]
        names = {
            at + 1: name if found.count(name) == 1 else f"{name} {found[: at + 1].count(name)}"
            for at, name in enumerate(found)
        }
        return cls(thread_N + 1, names)


def _words(stream: int) -> str:
    return Stream(stream).name.lower().replace("_", " ")
