"""Slack: what operations can take longer by, on random programs with streams, edges and rendezvous."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from traincast.analysis.critical_path import critical_path, slacks
from traincast.engine import run
from traincast.engine.graph import build_graph
from traincast.errors import DeadlockError
from traincast.workload.program import Timeline


@st.composite
def programs(draw):
    """Draw a graph and durations: up to 24 operations on 4 streams, edges upwards, pairs and triples that meet."""
    count = draw(st.integers(1, 24))
    streams = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] < pair[1])
    edges = sorted(set(draw(st.lists(pairs, max_size=12)))) if count > 1 else []
    rendezvous = np.full(count, -1)
    for number in range(draw(st.integers(0, 4)) if count > 2 else 0):
        members = draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=3, unique=True))
        if (rendezvous[members] < 0).all():
            rendezvous[members] = number
    found = np.unique(rendezvous[rendezvous >= 0])
    rendezvous = np.array([int(np.searchsorted(found, each)) if each >= 0 else -1 for each in rendezvous])
    # Sums of multiples of 1/8 are exact, so that equal chains are equal to the last bit.
    eighths = draw(st.lists(st.integers(0, 80), min_size=count, max_size=count))
    source, target = (np.array([edge[end] for edge in edges], dtype=np.int32) for end in (0, 1))
    return build_graph(np.array(streams), source, target, rendezvous), np.array(eighths) / 8


def timed(graph, duration_s_N):
    try:
        ready_N, start_N, end_N = run(graph, duration_s_N)
    except DeadlockError:
        assume(False)
    return Timeline(ready_s_N=ready_N, start_s_N=start_N, end_s_N=end_N, duration_s_N=duration_s_N)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(programs(), st.data())
def test_path_is_the_step_and_slack_is_what_can_be_spared(program, data):
    graph, duration_N = program
    timeline = timed(graph, duration_N)
    path, slack_N = critical_path(graph, timeline), slacks(graph, timeline)
    assert path.time_s_H.sum() == timeline.step_s
    at = data.draw(st.integers(0, len(duration_N) - 1))
    changed_N = duration_N.copy()
    if slack_N[at] > 0:
        # Anything shorter, and longer by all of its slack: nothing changes. Beyond it the step gets longer.
        changed_N[at] = data.draw(st.integers(0, round(8 * duration_N[at]))) / 8
        assert timed(graph, changed_N).step_s == timeline.step_s
        changed_N[at] = duration_N[at] + slack_N[at]
        assert timed(graph, changed_N).step_s == timeline.step_s
        changed_N[at] += 0.125
        assert timed(graph, changed_N).step_s == timeline.step_s + 0.125
    else:
        changed_N[at] += 0.125
        assert timed(graph, changed_N).step_s == timeline.step_s + 0.125
        changed_N[at] = max(0.0, duration_N[at] - 0.125)
        assert timed(graph, changed_N).step_s <= timeline.step_s


@settings(max_examples=60, deadline=None)
@given(programs())
def test_slack_of_all_is_there_for_one_at_a_time_and_none_on_the_path(program):
    graph, duration_N = program
    timeline = timed(graph, duration_N)
    slack_N = slacks(graph, timeline)
    assert (slack_N >= 0).all()
    alone = graph.rendezvous_N[critical_path(graph, timeline).op_H] < 0
    assert (slack_N[critical_path(graph, timeline).op_H][alone] == 0).all()


def test_a_member_that_takes_less_than_the_longest_may_take_as_long():
    """Two meet at 3 s, for 2 s and for 5 s; a third operation of 1 s beside them has 7 s."""
    graph = build_graph(np.array([0, 0, 1, 2]), np.zeros(0, int), np.zeros(0, int), np.array([-1, 0, 0, -1]))
    timeline = timed(graph, np.array([3.0, 2.0, 5.0, 1.0]))
    assert slacks(graph, timeline).tolist() == [0.0, 3.0, 0.0, 7.0]


def test_a_program_of_nothing_has_no_slack():
    none = np.zeros(0, dtype=np.int64)
    graph = build_graph(none, none, none, none)
    empty = Timeline(ready_s_N=np.zeros(0), start_s_N=np.zeros(0), end_s_N=np.zeros(0), duration_s_N=np.zeros(0))
    assert slacks(graph, empty).tolist() == []
