"""What each operation waited for last: the one whose end let it go.

Letters: N operations, E edges.
"""

import numpy as np

from traincast.engine.graph import Graph
from traincast.workload.ops import IntArray
from traincast.workload.program import Timeline


def causes(graph: Graph, timeline: Timeline) -> IntArray:
    """Return of each operation the one before it that ended last, -1 where it could start at once, int [N].

    Of several that end at the same time it is the lowest. Following causes back from any operation, and at a
    rendezvous from the member that was ready last, tells why it ran no earlier (`traincast.analysis.critical_path`).
    """
    count = len(graph)
    followed = np.flatnonzero(graph.next_N >= 0)
    source_E = np.concatenate([np.repeat(np.arange(count), np.diff(graph.edge_ptr_N1)), followed])
    target_E = np.concatenate([graph.edge_dst_E, graph.next_N[followed]]).astype(np.int64)
    # By target, then by end, then from the highest source to the lowest: the last of each target is its cause.
    order = np.lexsort((-source_E, timeline.end_s_N[source_E], target_E))
    cause_N = np.full(count, -1, dtype=np.int64)
    cause_N[target_E[order]] = source_E[order]
    return cause_N
