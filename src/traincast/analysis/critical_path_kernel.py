"""The critical path in machine code (extra ``fast``), the same chain as `traincast.analysis.critical_path` finds."""

import numpy as np

from traincast.engine.graph import Graph
from traincast.machine_code import CompiledKernel
from traincast.workload.ops import IntArray
from traincast.workload.program import Timeline

_WALK = CompiledKernel("traincast.analysis.chain_walk", "walk", "niiiiiiddii")


def walked_back(graph: Graph, timeline: Timeline) -> IntArray:
    """Return the operations of the path, first to last."""
    follows = graph.next_N, graph.edge_ptr_N1, graph.edge_dst_E
    meets = graph.rendezvous_N, graph.rendezvous_ptr_J1, graph.rendezvous_member_I
    integers = (np.ascontiguousarray(each, np.int32) for each in (*follows, *meets))
    times = (np.ascontiguousarray(each, np.float64) for each in (timeline.ready_s_N, timeline.end_s_N))
    last_N, path_H = (np.empty(len(graph), np.int32) for _ in range(2))
    length = _WALK(len(graph), *integers, *times, last_N, path_H)
    op_H: IntArray = path_H[:length][::-1].astype(np.int64)
    return op_H
