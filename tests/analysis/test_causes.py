"""What let each operation go."""

from itertools import pairwise

import numpy as np

from traincast import api
from traincast.analysis.causes import causes
from traincast.analysis.critical_path import critical_path
from traincast.engine.graph import build_graph
from traincast.workload.program import Timeline


def timeline(ready, end):
    ready_N, end_N = np.array(ready, dtype=float), np.array(end, dtype=float)
    return Timeline(ready_s_N=ready_N, start_s_N=ready_N, end_s_N=end_N, duration_s_N=end_N - ready_N)


def test_the_cause_is_what_ended_last_and_the_lowest_of_equals():
    # 0 and 1 start at once; 2 follows 0 on its stream and 1 by an edge; 3 follows 0 and 1, which end together.
    graph = build_graph(np.array([0, 1, 0, 2]), np.array([0, 1, 1]), np.array([3, 2, 3]), np.full(4, -1))
    assert causes(graph, timeline([0, 0, 5, 5], [5, 5, 6, 6])).tolist() == [-1, -1, 0, 0]
    assert causes(graph, timeline([0, 0, 5, 5], [4, 5, 6, 6])).tolist() == [-1, -1, 1, 1]


def test_of_a_measured_run_every_operation_is_ready_when_its_cause_ends_and_the_path_follows_causes():
    result = api.simulate("examples/megatron_pp4_tp2")
    program, times = result.program, result.timeline
    graph = build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.rendezvous_N)
    cause_N = causes(graph, times)
    caused = np.flatnonzero(cause_N >= 0)
    assert len(caused) > 0.9 * len(program)
    assert np.array_equal(times.ready_s_N[caused], times.end_s_N[cause_N[caused]])
    assert not times.ready_s_N[cause_N < 0].any()
    path = critical_path(graph, times).op_H
    alone = [(a, b) for a, b in pairwise(path) if program.rendezvous_N[b] < 0]
    assert alone
    assert all(times.end_s_N[cause_N[b]] == times.end_s_N[a] for a, b in alone)
