"""What holds for every simulation, whatever the layout, schedule and cluster."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traincast
from support import ALONE, layouts, rich_rows, row, write_aicb, write_cluster
from traincast.simulation.result import BREAKDOWN_KEYS
from traincast.workload.words import Kind, Stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bounds")


@pytest.fixture(scope="module")
def workload(folder):
    rows = rich_rows()
    rows[-3:-3] = [row("attention_cp", (5000, "ALLGATHER_CP", 1 << 18), (5000, "ALLREDUCE_CP", 1 << 18))]
    return write_aicb(folder / "w.txt", rows, ga=2, pp_comm=1 << 19)


def busy_of_streams(result):
    """Return the busy time of each stream of each simulated rank."""
    program, timeline = result.program, result.timeline
    return np.bincount(program.stream_N, timeline.end_s_N - timeline.start_s_N)


def serialised_s(result):
    """Return the time of everything one after the other; members of a rendezvous run once."""
    rendezvous_N = result.program.rendezvous_N
    spans_N = result.timeline.end_s_N - result.timeline.start_s_N
    _, first = np.unique(rendezvous_N[rendezvous_N >= 0], return_index=True)
    return spans_N[rendezvous_N < 0].sum() + spans_N[rendezvous_N >= 0][first].sum()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    layout=layouts(max_ranks=48),
    cluster=st.sampled_from(["h100", "a100", "ideal"]),
    overlap=st.booleans(),
    roles=st.sampled_from(["auto", "as-written"]),
    slow=st.dictionaries(st.just(0), st.floats(0.5, 4), max_size=1),
)
def test_every_instant_has_one_owner_and_the_step_is_bounded(workload, layout, cluster, overlap, roles, slow):
    result = traincast.simulate(
        workload, cluster=cluster, overlap_grad_reduce=overlap, stage_roles=roles, compute_slowdown=slow, **layout
    )
    step = result.iteration_time_s
    slack = 1e-9 * step
    assert step == max(rank.end_s for rank in result.ranks)
    program, timeline = result.program, result.timeline
    kind_N = program.ops.kind_T[program.row_N]
    for index, rank in enumerate(result.ranks):
        assert tuple(rank.breakdown_s) == BREAKDOWN_KEYS
        assert sum(rank.breakdown_s.values()) == pytest.approx(step, rel=1e-9)
        assert min(rank.breakdown_s.values()) >= 0
        mine = program.rank_slice(index)
        computing = timeline.duration_s_N[mine][kind_N[mine] == Kind.COMPUTE].sum()
        assert rank.compute_s == pytest.approx(computing, rel=1e-9)
        assert rank.breakdown_s["compute"] == rank.compute_s
        exposed = sum(seconds for key, seconds in rank.breakdown_s.items() if key.startswith("exposed"))
        assert -slack <= rank.wait_s <= exposed + slack
    assert sum(result.breakdown_s.values()) == pytest.approx(result.iteration_time_s)
    assert all(time_s >= 0 for time_s in result.breakdown_s.values())
    assert result.breakdown_s["compute"] <= max(rank.compute_s for rank in result.ranks) * (1 + 1e-9)
    assert busy_of_streams(result).max() - slack <= step <= serialised_s(result) + slack


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(layout=layouts(max_ranks=48), overlap=st.booleans())
def test_the_rules_of_program_order_are_kept(workload, layout, overlap):
    """Streams are in order, launches hold, waits hold, rendezvous meet: checked on the times, not on the edges."""
    result = traincast.simulate(workload, cluster="a100", overlap_grad_reduce=overlap, **layout)
    program, timeline = result.program, result.timeline
    start_N, end_N = timeline.start_s_N, timeline.end_s_N
    assert (timeline.ready_s_N <= start_N).all()
    assert (start_N <= end_N).all()
    for rendezvous in np.unique(program.rendezvous_N[program.rendezvous_N >= 0]):
        met = program.rendezvous_N == rendezvous
        assert len(set(start_N[met])) == len(set(end_N[met])) == 1
        assert start_N[met][0] == timeline.ready_s_N[met].max()
    stream_N, waits_N = program.ops.stream_T[program.row_N], program.ops.waits_for_T[program.row_N]
    for index in range(len(program.rank_R)):
        last_of_stream, launched = dict.fromkeys(Stream, 0.0), 0.0
        mine = program.rank_slice(index)
        for op in range(mine.start, mine.stop):
            assert timeline.ready_s_N[op] == max(
                last_of_stream[stream_N[op]], launched, last_of_stream[waits_N[op]] if waits_N[op] != Stream.NONE else 0
            )
            last_of_stream[stream_N[op]] = end_N[op]
            if program.blocking_N[op]:
                launched = end_N[op]


def test_stages_and_layout_are_told(workload):
    result = traincast.simulate(
        workload, cluster="h100", tp=2, dp=4, pp=2, cp=2, ep=2, etp=1, vpp=2, microbatches=3, schedule="interleaved"
    )
    assert result.parallel == {
        "world_size": 32,
        "dp": 4,
        "tp": 2,
        "pp": 2,
        "vpp": 2,
        "cp": 2,
        "ep": 2,
        "etp": 1,
        "microbatches": 3,
        "schedule": "interleaved",
    }
    assert sum(rank.represents for rank in result.ranks) == 32
    assert result.cluster.nodes == 4


SLOWER = {
    "bandwidth_bytes_per_s": 0.8,
    "base_latency_s": 1.3,
    "hop_latency_s": 1.3,
    "fill_latency_s": 1.3,
    "fill_bytes": 0.5,
    "node_bandwidth_bytes_per_s": 0.8,
}
"""Numbers of a link and the factor that makes it slower (a larger fill is reached later, so it costs less)."""
LINK = {
    "intra": {
        "bandwidth_bytes_per_s": 3e11,
        "base_latency_s": 5e-6,
        "hop_latency_s": 1e-6,
        "fill_latency_s": 2e-5,
        "fill_bytes": 6e6,
    },
    "inter": {
        "bandwidth_bytes_per_s": 4e10,
        "base_latency_s": 6e-6,
        "hop_latency_s": 1e-5,
        "fill_latency_s": 6e-5,
        "fill_bytes": 1e5,
        "node_bandwidth_bytes_per_s": 2e11,
    },
}


LATER = """A slower link may let a transfer begin so late that it no longer disturbs a computation that others wait for.

So with overlap the step may become shorter, but never by more than overlap had made it longer: it does not
fall below the quicker step without it.
"""


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=layouts(max_ranks=48), overlap=st.booleans(), data=st.data())
def test_a_slower_link_never_makes_the_step_shorter(workload, folder, layout, overlap, data):
    level = data.draw(st.sampled_from(["intra", "inter"]), label="level")
    number = data.draw(st.sampled_from(sorted(LINK[level])), label="number")
    worse = {**LINK, level: {**LINK[level], number: LINK[level][number] * SLOWER[number]}}

    def step_s(name, links, **more):
        cluster = write_cluster(folder / f"{name}.toml", gpus_per_node=4, **links)
        options = {"overlap_grad_reduce": overlap, **layout, **more}
        return traincast.simulate(workload, cluster=cluster, **options).iteration_time_s

    assert step_s("slow", worse, **ALONE) >= step_s("fast", LINK, **ALONE)
    assert step_s("slow", worse) >= step_s("fast", LINK, **ALONE), LATER


@pytest.mark.parametrize("level", ["intra", "inter"])
@pytest.mark.parametrize("number", ["bandwidth_bytes_per_s", "base_latency_s", "hop_latency_s", "fill_latency_s"])
def test_a_slower_link_makes_a_step_that_needs_it_longer(workload, folder, level, number):
    """The counterpart: numbers of a cluster are not only harmless, they are used."""
    worse = {**LINK, level: {**LINK[level], number: LINK[level][number] * SLOWER[number]}}
    slow, fast = (
        traincast.simulate(
            workload, cluster=write_cluster(folder / "c.toml", gpus_per_node=4, **links), tp=4, dp=2, pp=2
        ).iteration_time_s
        for links in (worse, LINK)
    )
    assert slow > fast


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    layout=layouts(max_ranks=48),
    cluster=st.sampled_from(["h100", "a100"]),
    overlap=st.booleans(),
    sizes=st.tuples(st.integers(0, 1 << 26), st.integers(0, 1 << 26)),
    messages=st.tuples(st.integers(0, 1 << 26), st.integers(0, 1 << 26)),
)
def test_smaller_messages_never_make_the_step_longer(folder, layout, cluster, overlap, sizes, messages):

    def step_s(size, message, **more):
        path = write_aicb(folder / "sized.txt", rich_rows(size=size), ga=2)
        options = {"pp_message_bytes": message, "overlap_grad_reduce": overlap, **layout, **more}
        return traincast.simulate(path, cluster=cluster, **options).iteration_time_s

    small = step_s(min(sizes), min(messages), **ALONE)
    assert step_s(max(sizes), max(messages), **ALONE) >= small
    assert step_s(max(sizes), max(messages)) >= small, LATER


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    layout=layouts(max_ranks=48),
    overlap=st.booleans(),
    factors=st.tuples(st.floats(0.25, 8), st.floats(0.25, 8)),
    data=st.data(),
)
def test_a_slower_rank_never_makes_the_step_shorter(workload, layout, overlap, factors, data):
    world = layout["tp"] * layout["cp"] * layout["dp"] * layout["pp"]
    rank = data.draw(st.integers(0, world - 1), label="rank")

    def step_s(factor, **more):
        options = {"compute_slowdown": {rank: factor}, "overlap_grad_reduce": overlap, **layout, **more}
        return traincast.simulate(workload, cluster="h100", **options).iteration_time_s

    quick = step_s(min(factors), **ALONE)
    assert step_s(max(factors), **ALONE) >= quick
    assert step_s(max(factors)) >= quick, LATER


def test_a_slow_rank_costs_its_own_extra_work_where_all_wait_for_it(folder):
    """tp 2, one stage: both ranks meet after every computation, so the step grows by the slow rank's work."""
    rows = [row("embedding_layer"), *[row("attention_layer", (1000, "ALLREDUCE", 4096), (2000, "ALLREDUCE", 4096))] * 3]
    path = write_aicb(folder / "pair.txt", rows, tp=2)
    even, uneven = (traincast.simulate(path, cluster="h100", compute_slowdown=slow) for slow in ({}, {1: 1.5}))
    assert uneven.iteration_time_s - even.iteration_time_s == pytest.approx(0.5 * 9000e-9, rel=1e-9)
    waiting, slow = uneven.ranks
    assert (waiting.wait_s, slow.wait_s) == (pytest.approx(0.5 * 9000e-9, rel=1e-9), 0)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=layouts(tps=(1, 2), max_dp=2), cluster=st.sampled_from(["ideal", "h100"]), more=st.integers(1, 9))
def test_more_microbatches_never_make_the_step_shorter(workload, layout, cluster, more):
    few = layout.pop("microbatches")
    steps = [
        traincast.simulate(workload, cluster=cluster, microbatches=count, **layout, **ALONE).iteration_time_s
        for count in (few, few + more)
    ]
    assert steps[0] <= steps[1]
