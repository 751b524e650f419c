"""The engines against hand-made programs, each other, and the rules applied by brute force."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.engine import run
from traincast.engine.graph import build_graph
from traincast.errors import DeadlockError, ProgramError


def graph_of(streams, edges=(), all_rendezvous=None):
    sources, targets = (np.array([edge[end] for edge in edges], dtype=np.int32) for end in (0, 1))
    rendezvous = np.array(all_rendezvous if all_rendezvous is not None else [-1] * len(streams), dtype=np.int32)
    return build_graph(np.array(streams, dtype=np.int32), sources, targets, rendezvous)


def times(streams, durations, edges=(), all_rendezvous=None, engine="reference"):
    """Return (ready, start, end) of each operation."""
    columns = run(graph_of(streams, edges, all_rendezvous), np.array(durations, dtype=np.float64), engine)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def predecessors(streams, edges):
    """Return for each operation those that must end before it is ready."""
    before = [{source for source, target in edges if target == op} for op in range(len(streams))]
    for op, stream in enumerate(streams):
        before[op] |= {other for other in range(op) if streams[other] == stream}
    return before


def partners(op, all_rendezvous):
    return (
        [op]
        if all_rendezvous[op] < 0
        else [other for other, rendezvous in enumerate(all_rendezvous) if rendezvous == all_rendezvous[op]]
    )


def brute_force(streams, durations, edges, all_rendezvous):
    """Apply the rules again and again until nothing more can start; operations that never run are missing."""
    before, found, moved = predecessors(streams, edges), {}, True
    while moved:
        moved = False
        for op in range(len(streams)):
            met = partners(op, all_rendezvous)
            if op in found or any(not before[each] <= found.keys() for each in met):
                continue
            ready = {each: max([0.0, *(found[other][2] for other in before[each])]) for each in met}
            start = max(ready.values())
            end = start + max(durations[each] for each in met)
            found |= {each: (ready[each], start, end) for each in met}
            moved = True
    return found


DURATIONS = st.one_of(st.just(0.0), st.floats(0, 1e3, allow_nan=False), st.sampled_from([1e-9, 0.1, 1.0]))


@st.composite
def wild_programs(draw):
    """Any streams, edges and rendezvous: most larger ones are stuck somewhere."""
    count = draw(st.integers(0, 10))
    streams = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    all_rendezvous = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count))
    ops = st.integers(0, max(0, count - 1))
    edges = draw(st.lists(st.tuples(ops, ops), max_size=6)) if count else []
    durations = draw(st.lists(DURATIONS, min_size=count, max_size=count))
    return streams, durations, edges, all_rendezvous


@st.composite
def sound_programs(draw):
    """Operations made turn by turn, so that they can run; numbered stream after stream, as programs are.

    In each turn some streams run one operation each, all of them joined or each alone, and edges go
    from a turn to a later one.
    """
    turns = draw(st.lists(st.tuples(st.sets(st.integers(0, 4), min_size=1), st.booleans()), min_size=1, max_size=14))
    made = sorted((stream, turn, joined) for turn, (streams, joined) in enumerate(turns) for stream in sorted(streams))
    streams = [stream for stream, _, _ in made]
    all_rendezvous = [turn if joined else -1 for _, turn, joined in made]
    ops = st.integers(0, len(made) - 1)
    edges = [
        (source, target)
        for source, target in draw(st.lists(st.tuples(ops, ops), max_size=25))
        if made[source][1] < made[target][1]
    ]
    durations = draw(st.lists(DURATIONS, min_size=len(made), max_size=len(made)))
    return streams, durations, edges, all_rendezvous


def test_no_operations():
    assert times([], []) == []


def test_a_stream_runs_in_order_and_streams_run_beside_each_other():
    assert times([0, 1, 0, 1], [2, 5, 1, 1]) == [(0, 0, 2), (0, 0, 5), (2, 2, 3), (5, 5, 6)]


def test_an_edge_delays_its_target_and_all_behind_it():
    assert times([0, 1, 1], [3, 1, 1], edges=[(0, 1)]) == [(0, 0, 3), (3, 3, 4), (4, 4, 5)]


def test_an_edge_may_point_to_an_earlier_number():
    assert times([0, 1], [1, 4], edges=[(1, 0)]) == [(4, 4, 5), (0, 0, 4)]


def test_edges_need_not_be_sorted_and_may_repeat():
    assert times([0, 1, 2], [1, 2, 1], edges=[(1, 2), (0, 2), (1, 2)]) == [(0, 0, 1), (0, 0, 2), (2, 2, 3)]


def test_a_rendezvous_starts_with_its_last_member_and_lasts_as_long_as_its_longest():
    # Streams 0, 1, 2 arrive at 2, 7 and 0.
    found = times([0, 0, 1, 1, 2, 2], [2, 1, 7, 3, 2, 1], all_rendezvous=[-1, 0, -1, 0, 0, -1])
    assert found == [(0, 0, 2), (2, 7, 10), (0, 0, 7), (7, 7, 10), (0, 7, 10), (10, 10, 11)]


def test_the_members_of_a_rendezvous_release_their_own_followers():
    found = times([0, 1, 2, 3], [1, 1, 5, 5], edges=[(0, 2), (1, 3)], all_rendezvous=[0, 0, -1, -1])
    assert found == [(0, 0, 1), (0, 0, 1), (1, 1, 6), (1, 1, 6)]


def test_rendezvous_numbers_may_have_gaps_and_single_members():
    assert times([0, 1], [1, 2], all_rendezvous=[7, 3]) == [(0, 0, 1), (0, 0, 2)]


def test_operations_of_no_duration_still_keep_the_order():
    assert times([0, 1, 1], [0, 0, 0], edges=[(0, 1)]) == [(0, 0, 0)] * 3


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.one_of(wild_programs(), sound_programs()))
def test_the_reference_does_what_brute_force_does(program):
    streams, durations, edges, all_rendezvous = program
    expected = brute_force(*program)
    if len(expected) == len(streams):
        assert times(streams, durations, edges, all_rendezvous) == [expected[op] for op in range(len(streams))]
        return
    with pytest.raises(DeadlockError) as error:
        times(streams, durations, edges, all_rendezvous)
    assert str(error.value).startswith(f"{len(streams) - len(expected)} of {len(streams)} operations")
    _assert_circle(error.value.ops, streams, edges, all_rendezvous)
    assert not set(error.value.ops) & expected.keys()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(sound_programs())
def test_sound_programs_run(program):
    """The strategy keeps its promise; otherwise the comparisons would only compare deadlocks."""
    assert len(brute_force(*program)) == len(program[0])


@pytest.mark.parametrize("engine", ["auto", "kernel"])
@settings(max_examples=300, deadline=None)
@given(program=st.one_of(wild_programs(), sound_programs()))
def test_every_engine_is_bit_equal_to_the_reference(engine, program):
    if engine == "kernel":
        pytest.importorskip("numba")
    streams, durations, edges, all_rendezvous = program
    graph, duration_s = graph_of(streams, edges, all_rendezvous), np.array(durations, dtype=np.float64)
    try:
        expected = [column.tobytes() for column in run(graph, duration_s, "reference")]
    except DeadlockError as error:
        with pytest.raises(DeadlockError) as other:
            run_as(engine, graph, duration_s)
        assert (str(other.value), other.value.ops) == (str(error), error.ops)
    else:
        # Twice: a run must leave its graph as it was.
        for _ in range(2):
            assert [column.tobytes() for column in run_as(engine, graph, duration_s)] == expected


def run_as(engine, graph, duration_s):
    """Run by an engine; ``auto`` stands for what it takes where the kernel does not pay."""
    if engine == "kernel":
        return run(graph, duration_s, engine)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("traincast.engine.KERNEL_FROM_CHAINS", sys.maxsize)
        return run(graph, duration_s, engine)


def _assert_circle(ops, streams, edges, all_rendezvous):
    """Each operation must wait, itself or through a partner, for the end of the next, and the last for the first."""
    before = predecessors(streams, edges)
    assert ops
    assert len(set(ops)) == len(ops)
    for op, blocker in zip(ops, [*ops[1:], ops[0]], strict=True):
        assert any(blocker in before[each] for each in partners(op, all_rendezvous)), (ops, op, blocker)


@pytest.mark.parametrize("engine", ["reference", "kernel"])
@pytest.mark.parametrize(
    ("streams", "edges", "all_rendezvous", "circle"),
    [
        pytest.param([0, 1, 2, 3], [(0, 1), (1, 2), (2, 1)], None, {1, 2}, id="circular edges"),
        pytest.param([0], [(0, 0)], None, {0}, id="an edge to itself"),
        pytest.param([0, 0], [(1, 0)], None, {0, 1}, id="an edge against the stream"),
        pytest.param([0, 0], [], [0, 0], {0}, id="a rendezvous with two members in one stream"),
        pytest.param([0, 0, 1, 1], [], [0, 1, 1, 0], {0, 2}, id="two collectives in crossed order"),
        # Each rank waits for the end of its send (streams 0, 2) before it receives (streams 1, 3).
        pytest.param([0, 1, 2, 3], [(0, 1), (2, 3)], [0, 1, 1, 0], {0, 2}, id="two sends that wait for each other"),
    ],
)
def test_deadlocks_name_a_circle(streams, edges, all_rendezvous, circle, engine):
    if engine == "kernel":
        pytest.importorskip("numba")
    with pytest.raises(DeadlockError) as error:
        times(streams, [1.0] * len(streams), edges, all_rendezvous, engine)
    ops = error.value.ops
    _assert_circle(ops, streams, edges, all_rendezvous or [-1] * len(streams))
    met = {partner for op in ops for partner in partners(op, all_rendezvous or [-1] * len(streams))}
    assert circle <= met, "the circle is not the one that was built"


def test_a_deadlock_counts_only_what_never_ran():
    with pytest.raises(DeadlockError, match=r"^3 of 4 operations wait for ever$"):
        times([0, 1, 2, 2], [1, 1, 1, 1], edges=[(1, 2), (2, 1)])


@pytest.mark.parametrize("bad", [math.nan, -1e-12, math.inf, -math.inf])
def test_durations_that_are_no_times_are_refused(bad):
    with pytest.raises(ProgramError, match="operation 1 has a duration of"):
        times([0, 0], [1.0, bad])


@pytest.mark.parametrize("edge", [(0, 2), (2, 0), (-1, 0), (0, -1)])
def test_edges_to_nowhere_are_refused(edge):
    with pytest.raises(ProgramError, match=r"outside 0\.\.1"):
        graph_of([0, 0], [edge])


def test_an_unknown_engine_is_refused():
    with pytest.raises(ProgramError, match=r"unknown engine 'abacus'; known: auto, several, fast, reference, kernel"):
        times([0], [1.0], engine="abacus")


def test_the_chains_of_a_program_alone_decide_whether_auto_takes_the_kernel(monkeypatch):
    pytest.importorskip("numba")
    import traincast.engine.kernel as kernel

    calls = []
    genuine = kernel.run_kernel
    monkeypatch.setattr(kernel, "run_kernel", lambda *given: calls.append(1) or genuine(*given))
    monkeypatch.setattr("traincast.engine.KERNEL_FROM_CHAINS", 2)
    times([0, 1], [1, 1], engine="auto")
    assert len(calls) == 1
    for _ in range(3):
        times([0, 0, 0], [1, 1, 1], engine="auto")
    assert len(calls) == 1, "loading it takes longer than a small program, whatever ran before"
    times([0], [1], engine="fast")
    assert len(calls) == 2


def forbidden(*_):
    raise AssertionError("the other engine was asked for")


def test_the_reference_is_pure_python_however_large_the_program_and_wherever_the_kernel_is_loaded(monkeypatch):
    kernel = pytest.importorskip("traincast.engine.kernel")
    monkeypatch.setattr(kernel, "run_kernel", forbidden)
    monkeypatch.setattr("traincast.engine.KERNEL_FROM_CHAINS", 1)
    assert times([0, 0], [1, 1], engine="reference") == [(0, 0, 1), (1, 1, 2)]


def test_the_kernel_is_the_kernel_however_small_the_program(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr("traincast.engine.run_reference", forbidden)
    assert times([0, 0], [1, 1], engine="kernel") == [(0, 0, 1), (1, 1, 2)]


def test_without_numba_every_program_runs_in_pure_python(monkeypatch):
    monkeypatch.delitem(sys.modules, "traincast.engine.kernel", raising=False)
    monkeypatch.setattr("traincast.engine.has_numba", lambda: False)
    monkeypatch.setattr("traincast.engine.KERNEL_FROM_CHAINS", 1)
    for engine in ("auto", "fast", "reference"):
        assert times([0, 0], [1, 1], engine=engine) == [(0, 0, 1), (1, 1, 2)]
    assert "traincast.engine.kernel" not in sys.modules
    with pytest.raises(ProgramError, match=r"needs numba: pip install 'traincast\[fast\]'"):
        times([0], [1], engine="kernel")
