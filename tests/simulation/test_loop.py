"""What overlaps takes longer: closed forms, bounds, and what must not change anything."""

import math
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import traincast
from support import ALONE, HandMade, collective, compute, layouts, rich_rows, wait, write_aicb
from traincast.engine import run
from traincast.engine.graph import build_graph
from traincast.errors import ConfigError
from traincast.estimate.collectives.cost import estimate_collective
from traincast.estimate.contention import OVERLAP_SLOWDOWN, slowdowns
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
from traincast.job.parallel import Parallel
from traincast.simulation.settle import MAX_ROUNDS, SETTLED
from traincast.workload.words import Group, Kind, Operation, OverlapClass, Stream

OFF = ALONE["overlap_slowdown"]
BY_COMPUTE, BY_COMMUNICATION = OVERLAP_SLOWDOWN["unknown"], OVERLAP_SLOWDOWN["communication"]
FABRIC = 'base = "h100"\n[fabric]\nkind = "fat-tree"\nnodes_per_leaf = 1\noversubscription = 2.0\n'


def beside(compute_s, transfer_s, **more):
    """Return a tp pair that launches a collective, computes, and waits for it."""
    hand = HandMade(Parallel(tp=2))
    hand.template([collective(transfer_s, blocking=False), compute(compute_s, **more), wait()])
    return hand.workload(forward_only=True)


def settled(compute_s, transfer_s, by_compute=BY_COMPUTE, by_communication=BY_COMMUNICATION):
    """Return both times at the fixed point, the transfer being the shorter one.

    The computation takes x = compute_s * (1 + by_compute * transfer / x), which is quadratic in x.
    """
    transfer = transfer_s * (1 + by_communication)
    return (compute_s + math.sqrt(compute_s**2 + 4 * compute_s * by_compute * transfer)) / 2, transfer


def durations(result):
    """Return the time of the computation and of the transfer of the first rank."""
    ops, mine = result.program.ops, result.program.rank_slice(0)
    kind = ops.kind_T[result.program.row_N[mine]]
    lasts = (result.timeline.end_s_N - result.timeline.start_s_N)[mine]
    return float(lasts[kind == Kind.COMPUTE][0]), float(lasts[kind == Kind.COLLECTIVE][0])


def codes(result):
    return [note.code for note in result.assumptions]


def test_a_transfer_beside_a_longer_computation():
    result = traincast.simulate(beside(2.0, 1.0), cluster="h100")
    assert durations(result) == pytest.approx(settled(2.0, 1.0), rel=SETTLED)
    assert result.iteration_time_s == pytest.approx(settled(2.0, 1.0)[0], rel=SETTLED)
    assert codes(result).count("overlap-slowdown") == 1


def test_a_computation_beside_a_longer_transfer():
    # The computation overlaps all the time: 1 x 1.1; the transfer for that long.
    result = traincast.simulate(beside(1.0, 2.0), cluster="h100")
    transfer = (2 + math.sqrt(4 + 4 * 2 * BY_COMMUNICATION * (1 + BY_COMPUTE))) / 2
    assert durations(result) == pytest.approx((1 + BY_COMPUTE, transfer), rel=SETTLED)


@pytest.mark.parametrize("overlap_class", list(OverlapClass))
def test_each_class_has_its_own_slowdown_and_its_own_switch(overlap_class):
    name = {0: "unknown", 1: "compute", 2: "memory", 3: "small"}[int(overlap_class)]
    workload = beside(1.0, 3.0, overlap_class=overlap_class)
    assert durations(traincast.simulate(workload, cluster="h100"))[0] == pytest.approx(1 + OVERLAP_SLOWDOWN[name])
    off = traincast.simulate(workload, cluster="h100", overlap_slowdown={name: 0.0})
    assert durations(off)[0] == 1.0
    more = traincast.simulate(workload, cluster="h100", overlap_slowdown={name: 0.7})
    assert durations(more)[0] == pytest.approx(1.7)


def test_a_number_alone_is_for_all_classes():
    off = traincast.simulate(beside(2.0, 1.0), cluster="h100", overlap_slowdown=0)
    assert durations(off) == (2.0, 1.0)
    half = traincast.simulate(beside(2.0, 1.0), cluster="h100", overlap_slowdown=0.5)
    assert durations(half) == pytest.approx(settled(2.0, 1.0, 0.5, 0.5), rel=SETTLED)


def test_what_is_said_of_overlap_is_of_the_classes_that_are_there():
    workload = beside(2.0, 1.0, overlap_class=OverlapClass.MEMORY_BOUND)
    result = traincast.simulate(workload, cluster="h100", overlap_slowdown={"memory": 0.2, "small": 5.0})
    (said,) = (note.text for note in result.assumptions if note.code == "overlap-slowdown")
    assert "(slowdown at full overlap: memory 0.2, communication 0.13)" in said
    (warned,) = (note.text for note in result.warnings if note.code == "overlap-slowdown-unused")
    assert warned.startswith("--overlap-slowdown small changes nothing")
    assert "there is memory, communication" in warned
    measured = replace(workload, compute_is_in_situ=True)
    result = traincast.simulate(measured, cluster="h100", overlap_slowdown={"memory": 5.0})
    (warned,) = (note.text for note in result.warnings if note.code == "overlap-slowdown-unused")
    assert "measured in a run" in warned
    assert durations(result) == (2.0, 1.0)


def test_waiting_is_no_overlap_only_the_transfer_is():
    hand = HandMade(Parallel(tp=2))
    hand.template([collective(0.5, blocking=False), compute(1.0), wait()])
    hand.template([compute(5.0), collective(0.5, blocking=False), wait()])
    result = traincast.simulate(hand.workload([0, 1], forward_only=True), cluster="h100")
    assert result.iteration_time_s == 5.5, "the first rank waits from 0 to 5 and computes from 0 to 1"
    assert "overlap-slowdown" not in codes(result)


def test_blocking_work_never_overlaps():
    hand = HandMade(Parallel(tp=2))
    hand.template([compute(1.0), collective(0.5), compute(1.0), collective(0.25)])
    result = traincast.simulate(hand.workload(forward_only=True), cluster="h100")
    assert result.iteration_time_s == 2.75
    assert "overlap-slowdown" not in codes(result)


@pytest.mark.parametrize(
    ("cluster", "in_situ", "options"),
    [("ideal", False, {}), ("h100", True, {}), ("h100", False, {"overlap_slowdown": OFF})],
)
def test_where_it_is_off_nothing_changes(cluster, in_situ, options):
    workload = replace(beside(2.0, 1.0), compute_is_in_situ=in_situ)
    result = traincast.simulate(workload, cluster=cluster, **options)
    assert durations(result) == (2.0, 1.0)
    assert "overlap-slowdown" not in codes(result)


def test_a_slowdown_of_one_member_is_that_of_the_collective():
    """Only the second rank computes beside the transfer; the first has to wait for it to end."""
    hand = HandMade(Parallel(tp=2))
    hand.template([collective(1.0)])
    hand.template([collective(1.0, blocking=False), compute(4.0), wait()])
    result = traincast.simulate(hand.workload([0, 1], forward_only=True), cluster="h100")
    assert result.ranks[0].end_s == pytest.approx(1 + BY_COMMUNICATION)
    assert len(set(result.timeline.duration_s_N[result.program.rendezvous_N == 0])) == 1


def test_two_transfers_beside_one_computation_count_once_where_both_run():
    hand = HandMade(Parallel(tp=2, dp=2))
    hand.template(
        [
            collective(1.0, Group.TP, blocking=False),
            collective(1.0, Group.DP, blocking=False),
            compute(4.0),
            wait(),
            wait(Stream.DP),
        ]
    )
    result = traincast.simulate(hand.workload(forward_only=True), cluster="h100", overlap_slowdown={"communication": 0})
    assert durations(result)[0] == pytest.approx(settled(4.0, 1.0, by_communication=0.0)[0], rel=SETTLED)


# --- two kinds on one NIC


def two_kinds(dp_bytes, ep_bytes):
    """Return 16 ranks on two nodes that reduce gradients while they exchange tokens."""
    hand = HandMade(Parallel(dp=16, ep=16))
    gradients = collective(None, Group.DP, blocking=False, size_bytes=dp_bytes)
    tokens = collective(None, Group.EP, size_bytes=ep_bytes, operation=Operation.ALL_TO_ALL)
    hand.template([gradients, tokens, wait(Stream.DP)])
    return hand.workload(forward_only=True)


def priced(cluster, operation, size_bytes, factor):
    inter = cluster.inter
    node = inter.node_bandwidth_bytes_per_s / factor
    slowed = replace(inter, bandwidth_bytes_per_s=inter.bandwidth_bytes_per_s / factor, node_bandwidth_bytes_per_s=node)
    return estimate_collective(operation, size_bytes, Placement((8, 8)), replace(cluster, inter=slowed)).time_s


def test_tokens_beside_a_longer_gradient_reduction_take_half_the_node():
    cluster = load_cluster("h100")
    result = traincast.simulate(two_kinds(1 << 34, 1 << 28), cluster="h100")
    lasts = result.timeline.end_s_N - result.timeline.start_s_N
    twice = priced(cluster, Operation.ALL_TO_ALL, 1 << 28, 2.0)
    assert lasts[1] == pytest.approx(twice, rel=SETTLED)
    own, full = (priced(cluster, Operation.ALL_REDUCE, 1 << 34, factor) for factor in (1.0, 2.0))
    assert lasts[0] == pytest.approx(own + (full - own) * lasts[1] / lasts[0], rel=SETTLED)
    (note,) = (note.text for note in result.assumptions if note.code == "shared-links")
    assert "ep and dp groups" in note
    assert "2.00x" in note
    assert "all NICs of node 0" in note


def test_kinds_that_follow_each_other_do_not_meet():
    hand = HandMade(Parallel(dp=16, ep=16))
    hand.template([collective(None, Group.DP, size_bytes=1 << 28), collective(None, Group.EP, size_bytes=1 << 28)])
    workload = hand.workload(forward_only=True)
    auto, alone = (traincast.simulate(workload, cluster="h100", network=name) for name in ("auto", "analytical"))
    assert auto.iteration_time_s == alone.iteration_time_s
    assert "shared-links" not in codes(auto)


def test_analytical_lets_kinds_pass_each_other():
    result = traincast.simulate(two_kinds(1 << 34, 1 << 28), cluster="h100", network="analytical")
    lasts = result.timeline.end_s_N - result.timeline.start_s_N
    assert lasts[0] == priced(load_cluster("h100"), Operation.ALL_REDUCE, 1 << 34, 1.0)
    assert "shared-links" not in codes(result)


# --- whole steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("loop")


@pytest.fixture(scope="module")
def workload(folder):
    return write_aicb(folder / "w.txt", rich_rows(), ga=2, pp_comm=1 << 19)


@pytest.fixture(scope="module")
def clusters(folder):
    (folder / "fabric.toml").write_text(FABRIC)
    return "h100", str(folder / "fabric.toml")


def fully_overlapped_s(result):
    """Return the step in which every operation of a result without slowdowns has its full one."""
    program = result.program
    slowed_N = result.timeline.duration_s_N * (1 + slowdowns(program, in_situ=False))[program.row_N]
    graph = build_graph(program.stream_N, program.edge_src_E, program.edge_dst_E, program.rendezvous_N)
    return float(run(graph, slowed_N)[2].max())


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=layouts(max_ranks=48), overlap=st.booleans())
def test_the_step_lies_between_no_overlap_and_full_overlap(workload, layout, overlap):
    options = {"cluster": "h100", "overlap_grad_reduce": overlap, **layout}
    alone = traincast.simulate(workload, **options, **ALONE)
    slowed = traincast.simulate(workload, **options, network="analytical")
    assert alone.iteration_time_s <= slowed.iteration_time_s <= fully_overlapped_s(alone)
    shared = traincast.simulate(workload, **options)
    assert alone.iteration_time_s <= shared.iteration_time_s


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=layouts(max_ranks=48), overlap=st.booleans(), which=st.integers(0, 1))
def test_folded_and_unfolded_and_both_engines_are_bit_equal(workload, clusters, layout, overlap, which):
    options = {"cluster": clusters[which], "overlap_grad_reduce": overlap, **layout}
    folded = traincast.simulate(workload, engine="reference", **options)
    flat = traincast.simulate(workload, unfold=True, engine="reference", **options)
    assert folded.iteration_time_s == flat.iteration_time_s
    assert folded.assumptions == flat.assumptions
    for index, rank in enumerate(folded.ranks):
        mine, its = folded.program.rank_slice(index), flat.program.rank_slice(rank.rank)
        for name in ("ready_s_N", "start_s_N", "end_s_N", "duration_s_N"):
            assert np.array_equal(getattr(folded.timeline, name)[mine], getattr(flat.timeline, name)[its])
    if find_spec("numba"):
        kernel = traincast.simulate(workload, engine="kernel", **options)
        assert np.array_equal(kernel.timeline.end_s_N, folded.timeline.end_s_N)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=layouts(max_ranks=48))
def test_the_loop_says_how_it_settled(workload, layout):
    result = traincast.simulate(workload, cluster="h100", overlap_grad_reduce=True, **layout)
    notes = [note.text for note in result.assumptions if note.code == "overlap-slowdown"]
    alone = traincast.simulate(workload, cluster="h100", overlap_grad_reduce=True, **layout, **ALONE)
    assert bool(notes) or "shared-links" in codes(result) or result.iteration_time_s == alone.iteration_time_s
    for text in notes:
        rounds = int(text.split("found in ")[1].split()[0])
        residual = float(text.split("changed the step by ")[1].removeprefix("less than ").split()[0]) / 100
        assert 1 <= rounds <= MAX_ROUNDS
        assert residual <= SETTLED * (1 + 1e-9) or rounds == MAX_ROUNDS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap_slowdown": {"fast": 1}}, "unknown class 'fast'"),
        ({"overlap_slowdown": {"memory": -0.1}}, "overlap_slowdown.memory: is -0.1"),
        ({"overlap_slowdown": {"memory": math.nan}}, "is nan; it must be a number from 0"),
        ({"overlap_slowdown": {"memory": "0.1"}}, "overlap_slowdown.memory: is '0.1'; it must be a number"),
        ({"overlap_slowdown": -1}, "overlap_slowdown: is -1; it must be a number from 0 to 1000, or such numbers by"),
        ({"overlap_slowdown": "0.1"}, "overlap_slowdown: is '0.1'; it must be a number"),
        ({"overlap_slowdown": True}, "overlap_slowdown: is True"),
        ({"network": "packets"}, "is 'packets'; known: auto, analytical, flow"),
        ({"network_seeds": 0}, "a whole number from 1 to 1000"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        traincast.simulate(beside(1, 1), cluster="h100", **options)
