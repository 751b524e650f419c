"""The engine in numba (extra ``fast``): the same visits as the reference, on arrays.

Bit-equal to `traincast.engine.reference`, which says what the times mean.
"""

import numpy as np

from traincast.engine.graph import Graph
from traincast.engine.reference import FloatArray, Times
from traincast.machine_code import CompiledKernel

_RUN = CompiledKernel("traincast.engine.visits", "run", "niiiiiiiddddiiii")
_RUN_AGAIN = CompiledKernel("traincast.engine.visits", "run_again", "iniiiiiidddd")


def run_kernel(graph: Graph, duration_s_N: FloatArray) -> Times:
    """Return ready, start and end times, and how many operations ran, as `run_reference` does.

    The order of visits depends on who follows whom alone, so it is kept for further runs of the graph.
    """
    count = len(graph)
    ready_N, start_N, end_N = (np.zeros(count) for _ in range(3))
    integers = graph.next_N, graph.edge_ptr_N1, graph.edge_dst_E
    met = graph.rendezvous_N, graph.rendezvous_ptr_J1, graph.rendezvous_member_I
    follows, meets = ([np.ascontiguousarray(each, np.int32) for each in arrays] for arrays in (integers, met))
    times = np.ascontiguousarray(duration_s_N, np.float64), ready_N, start_N, end_N
    visited = graph.kept.get("visited")
    if isinstance(visited, np.ndarray):
        _RUN_AGAIN(visited, len(visited), *follows, *meets, *times)
        return ready_N, start_N, end_N, count
    waits_N, missing_J = graph.waits_N.astype(np.int32), np.diff(meets[1]).astype(np.int32)
    stack_N, visited_V, visits_1 = (np.empty(size, np.int32) for size in (count, count, 1))
    done = _RUN(count, *follows, waits_N, *meets, *times, missing_J, stack_N, visited_V, visits_1)
    if done == count:
        graph.kept["visited"] = visited_V[: int(visits_1[0])].copy()
    return ready_N, start_N, end_N, done
