"""The critical path: no pause in it, its length is the step, and it is the gradient of the step."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings

from support import HandMade, collective, compute, expanded, layouts, rich_rows, timed, wait, write_aicb, write_cluster
from traincast import api
from traincast.analysis.critical_path import critical_path
from traincast.engine import run
from traincast.engine.graph import build_graph
from traincast.job.parallel import Parallel
from traincast.workload.program import Timeline
from traincast.workload.words import Kind

NUMBA = find_spec("numba") is not None


def graph_of(program):
    return build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.rendezvous_N)


def _work(parallel, f=1.0, b=2.0, **more):
    hand = HandMade(parallel)
    hand.template([compute(f)], [compute(b)], **more)
    return hand.workload(schedule="interleaved" if parallel.vpp > 1 else "1f1b")


@pytest.mark.parametrize(("pp", "microbatches"), [(1, 3), (4, 1), (4, 8)])
def test_path_of_an_equal_pipeline_is_as_long_as_its_closed_form(pp, microbatches):
    program = expanded(_work(Parallel(pp=pp, microbatches=microbatches)))
    path = critical_path(graph_of(program), timed(program))
    assert path.time_s_H.sum() == pytest.approx((microbatches + pp - 1) * 3.0)


def test_path_runs_through_the_slow_member_of_a_collective():
    parallel = Parallel(tp=2)
    hand = HandMade(parallel)
    hand.template([compute(1.0), collective(0.5)], [compute(1.0)])
    hand.template([compute(3.0), collective(0.5)], [compute(1.0)])
    program = expanded(hand.workload([0, 1]))
    path = critical_path(graph_of(program), timed(program))
    assert path.time_s_H.tolist() == [3.0, 0.5, 1.0]
    assert program.rank_N[path.op_H[0]] == 1


def test_hidden_communication_is_on_no_path_until_it_is_the_longer():
    def of(comm_s):
        hand = HandMade(Parallel(tp=2))
        hand.template([collective(comm_s, blocking=False), compute(2.0), wait()], [compute(1.0)])
        program = expanded(hand.workload())
        path = critical_path(graph_of(program), timed(program))
        return program.ops.kind_T[program.row_N[path.op_H]].tolist()

    assert Kind.COLLECTIVE not in of(1.9)
    assert Kind.COLLECTIVE in of(2.1)


def by_hand(durations, edges, streams=None, rendezvous=None):
    """Return the path through operations that run as soon as their edges (source, target) let them."""
    count = len(durations)
    source, target = (np.array([edge[end] for edge in edges], dtype=np.int32) for end in (0, 1))
    stream_N = np.arange(count) if streams is None else np.array(streams)
    rendezvous_N = np.full(count, -1) if rendezvous is None else np.array(rendezvous)
    graph = build_graph(stream_N, source, target, rendezvous_N)
    duration_s_N = np.array(durations, dtype=np.float64)
    ready_N, start_N, end_N = run(graph, duration_s_N)
    timeline = Timeline(ready_s_N=ready_N, start_s_N=start_N, end_s_N=end_N, duration_s_N=duration_s_N)
    path = critical_path(graph, timeline)
    if NUMBA:
        assert critical_path(graph, timeline, "kernel").op_H.tolist() == path.op_H.tolist()
    return path.op_H.tolist(), path.time_s_H.tolist()


def test_a_program_of_nothing_has_no_path():
    assert by_hand([], []) == ([], [])


def test_a_path_follows_edges_whatever_the_order_of_their_numbers():
    """3 -> 1 -> 0 takes 9 s and 2 -> 0 only 7 s; nothing waits for 4, which ends at 8 s."""
    edges = [(3, 1), (1, 0), (2, 0)]
    assert by_hand([2.0, 3.0, 5.0, 4.0, 8.0], edges) == ([3, 1, 0], [4.0, 3.0, 2.0])
    # The longer way is the other one as soon as it is longer.
    assert by_hand([2.0, 3.0, 7.5, 4.0, 8.0], edges) == ([2, 0], [7.5, 2.0])
    # What an operation's neighbour waits for is not what it waits for.
    assert by_hand([2.0, 10.0, 1.0, 5.0], [(0, 1), (3, 2)]) == ([0, 1], [2.0, 10.0])


def test_of_equally_long_chains_that_of_the_lowest_operations_is_the_path():
    assert by_hand([3.0, 3.0, 1.0], [(0, 2), (1, 2)])[0] == [0, 2]
    # Of all that end last, too.
    assert by_hand([1.0, 4.0, 4.0], [])[0] == [1]


def test_what_takes_no_time_before_the_start_delays_nothing():
    assert by_hand([0.0, 2.0, 1.0], [(0, 1), (1, 2)]) == ([1, 2], [2.0, 1.0])


def test_a_path_leaves_a_rendezvous_by_the_member_that_came_last():
    """Operations 1 and 3 start together at 6 s, when 2 lets 3 go; the 1 s of operation 0 does not matter."""
    durations, streams, rendezvous = [1.0, 2.0, 6.0, 2.0], [0, 0, 1, 1], [-1, 0, -1, 0]
    assert by_hand(durations, [], streams, rendezvous) == ([2, 1], [6.0, 2.0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("paths")


@settings(max_examples=20, deadline=None)
@given(layout=layouts(max_ranks=24))
def test_path_has_no_pause_and_is_the_gradient_of_the_step(folder, layout):
    path = write_aicb(folder / "rich.txt", rich_rows(), ga=2, gpus=1)
    done = api.simulate(path, cluster=write_cluster(folder / "cluster.toml"), **layout)
    program, timeline = done.program, done.timeline
    path = critical_path(graph_of(program), timeline)
    if NUMBA:
        assert np.array_equal(critical_path(graph_of(program), timeline, "kernel").op_H, path.op_H)
    start_H, end_H = timeline.start_s_N[path.op_H], timeline.end_s_N[path.op_H]
    assert start_H[0] == 0
    assert np.array_equal(start_H[1:], end_H[:-1])
    assert end_H[-1] == timeline.step_s
    # Every operation of one template row a little longer: the step grows by what the path spends in that row.
    rows, counts = np.unique(program.row_N[path.op_H], return_counts=True)
    row = rows[np.argmax(counts)]
    little = 1e-9 * timeline.step_s
    longer_N = timeline.duration_s_N + little * (program.row_N == row)
    _, _, longer_end_N = run(graph_of(program), longer_N)
    assert longer_end_N.max() - timeline.step_s >= 0.99 * little * counts.max()
