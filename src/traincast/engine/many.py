"""The engine for many runs of one program at once: durations of every operation in K columns, one a run.

Each column is what `traincast.engine.reference` gives for it, bit for bit: the order in which operations are visited is
the same for all runs, for it depends on who follows whom alone.
"""

from itertools import pairwise

import numpy as np

from traincast.engine.graph import Graph, find_cycle
from traincast.engine.reference import FloatArray
from traincast.errors import DeadlockError, ProgramError


def run_many(graph: Graph, duration_s_NK: FloatArray) -> FloatArray:
    """Return when every operation ends in each of several runs, in seconds from the start of the step, [N, K].

    Raises
    ------
    ProgramError
        If a duration is unknown (NaN), infinite or negative.
    DeadlockError
        If operations wait for each other for ever.
    """
    if not (np.isfinite(duration_s_NK).all() and (duration_s_NK >= 0).all()):
        raise ProgramError("a duration is negative, infinite or unknown")
    pointers, targets = graph.edge_ptr_N1.tolist(), graph.edge_dst_E.tolist()
    following, rendezvous_N = graph.next_N.tolist(), graph.rendezvous_N.tolist()
    met, members = graph.rendezvous_ptr_J1.tolist(), graph.rendezvous_member_I.tolist()
    missing = [end - begin for begin, end in pairwise(met)]
    waits = graph.waits_N.tolist()
    ready_NK = np.zeros_like(duration_s_NK, dtype=np.float64)
    end_NK = np.zeros_like(ready_NK)
    free = [op for op in range(len(graph) - 1, -1, -1) if not waits[op]]
    done = 0
    while free:
        op = free.pop()
        group = [op]
        if rendezvous_N[op] >= 0:
            missing[rendezvous_N[op]] -= 1
            if missing[rendezvous_N[op]]:
                continue
            group = members[met[rendezvous_N[op]] : met[rendezvous_N[op] + 1]]
        end_K = ready_NK[op] + duration_s_NK[op]
        if len(group) > 1:
            end_K = ready_NK[group].max(axis=0) + duration_s_NK[group].max(axis=0)
        for member in group:
            end_NK[member] = end_K
            done += 1
            for successor in (*targets[pointers[member] : pointers[member + 1]], following[member]):
                if successor >= 0:
                    np.maximum(ready_NK[successor], end_K, out=ready_NK[successor])
                    waits[successor] -= 1
                    if not waits[successor]:
                        free.append(successor)
    if done < len(graph):
        raise DeadlockError(f"{len(graph) - done} of {len(graph)} operations wait for ever", find_cycle(graph))
    return end_NK


def steps_of(graph: Graph, duration_s_NK: FloatArray) -> FloatArray:
    """Return the time of the step in each of several runs, in seconds, [K]."""
    step_s_K: FloatArray = run_many(graph, duration_s_NK).max(axis=0, initial=0.0)
    return step_s_K
