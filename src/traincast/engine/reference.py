"""The engine in pure Python: the definition of what a program's times are.

An operation is *ready* when the operation before it on its stream and every operation it has an
edge from have ended. Alone, it starts then. In a rendezvous it starts when the last member is ready,
and the rendezvous lasts as long as its longest member. Times are sums and maxima, each made once, so
the order in which operations are visited cannot change a bit of them.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traincast.engine.graph import Graph

FloatArray = npt.NDArray[np.float64]
Times = tuple[FloatArray, FloatArray, FloatArray, int]


def run_reference(graph: Graph, duration_s_N: FloatArray) -> Times:
    """Return ready, start and end times, and how many operations ran.

    Parameters
    ----------
    graph : Graph
        Who follows whom.
    duration_s_N : float array [N]
        Seconds, none unknown.

    Returns
    -------
    ready_s_N, start_s_N, end_s_N : float array [N]
        Seconds from the start of the step.
    done : int
        Operations that ran; fewer than N means a deadlock.
    """
    following, pointers, targets = graph.next_N.tolist(), graph.edge_ptr_N1.tolist(), graph.edge_dst_E.tolist()
    all_rendezvous, rendezvous_pointers, members = (
        graph.rendezvous_N.tolist(),
        graph.rendezvous_ptr_J1.tolist(),
        graph.rendezvous_member_I.tolist(),
    )
    missing = [end - begin for begin, end in pairwise(rendezvous_pointers)]
    waits, durations = graph.waits_N.tolist(), duration_s_N.tolist()
    count = len(following)
    ready, start, end = [0.0] * count, [0.0] * count, [0.0] * count
    open_ops = [op for op in range(count - 1, -1, -1) if not waits[op]]
    done = 0
    while open_ops:
        op = open_ops.pop()
        rendezvous = all_rendezvous[op]
        if rendezvous < 0:
            group: tuple[int, ...] | list[int] = (op,)
            begin = ready[op]
            finish = begin + durations[op]
        else:
            missing[rendezvous] -= 1
            if missing[rendezvous]:
                continue
            group = members[rendezvous_pointers[rendezvous] : rendezvous_pointers[rendezvous + 1]]
            begin = max([ready[member] for member in group])
            finish = begin + max([durations[member] for member in group])
        for member in group:
            start[member], end[member] = begin, finish
            done += 1
            released = targets[pointers[member] : pointers[member + 1]]
            released.append(following[member])
            for successor in released:
                if successor < 0:
                    continue
                if finish > ready[successor]:
                    ready[successor] = finish
                left = waits[successor] - 1
                waits[successor] = left
                if not left:
                    open_ops.append(successor)
    return np.array(ready), np.array(start), np.array(end), done
