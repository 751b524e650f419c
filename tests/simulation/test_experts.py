"""Unequal experts: who computes longer, who waits where, and what the exchanges take."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import traincast
from aicb_runs import codes, run
from support import HandMade, collective, layouts, rich_rows, row, write_aicb, write_cluster
from traincast.errors import ConfigError
from traincast.estimate.collectives.cost import estimate_collective
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
from traincast.job.parallel import Parallel
from traincast.workload.words import Group, Kind, Operation

EP = 4
US = 1e-6
ATTENTION, EXPERTS = 3000, 8000
"""Nanoseconds of a layer's forward; backward takes twice as long, half of it for the weights."""
SIZE = 1 << 20
RATE = SIZE * (EP - 1) / EP / (5 * US)
"""Bus bandwidth at which a balanced all-to-all takes 5 us."""


def exchange(compute_ns=0):
    return compute_ns, "ALLTOALL_EP", SIZE


def moe_rows(layers=2, microbatches=1):
    """Attention, the row with the experts' work and the dispatch, and the row with the combine."""
    layer = [
        row("attention_column", ATTENTION, ATTENTION, ATTENTION),
        row("mlp_moelayer", exchange(EXPERTS), exchange(EXPERTS), EXPERTS),
        row("mlp_moelayer", exchange(), exchange()),
    ]
    return [row("embedding_layer"), *layer * layers] * microbatches


@pytest.fixture
def experts(tmp_path):
    return write_aicb(tmp_path / "w.txt", moe_rows(), ep=EP, gpus=EP)


def simulate(path, **options):
    return run(path, busbw_bytes_per_s={"ep": RATE}, **options)


def expert_s(result):
    """Seconds of expert computation over all ranks."""
    program, timeline = result.program, result.timeline
    total_s = 0.0
    for index, count in enumerate(program.represents_R.tolist()):
        mine = program.rank_slice(index)
        for row_of, duration_s in zip(program.row_N[mine], timeline.duration_s_N[mine], strict=True):
            if program.ops.kind_T[row_of] == Kind.COMPUTE and "moe" in program.ops.name_T[row_of]:
                total_s += count * float(duration_s)
    return total_s


@pytest.mark.parametrize("factor", [1, 1.25, 1.9, EP])
def test_the_step_is_that_of_the_busiest_rank(experts, factor):
    """Two layers; per layer 3 x 3 us of attention, 3 x 8 F us of experts, and 4 exchanges of 5 F us.

    The weight gradient follows the exchange of its row, so the last wait is before the end; only
    the weight gradient of the first layer's experts is followed by attention alone.
    """
    result = simulate(experts, expert_imbalance=factor)
    assert result.iteration_time_s == pytest.approx((2 * 9 + 2 * 24 * factor + 8 * 5 * factor) * US, rel=1e-6)
    busiest, *others = result.ranks
    assert busiest.rank == 0
    assert busiest.wait_s == 0
    assert busiest.compute_s == pytest.approx((18 + 48 * factor) * US)
    for rank in others:
        rest = (EP - factor) / (EP - 1)
        assert rank.compute_s == pytest.approx((18 + 48 * rest) * US, rel=1e-9)
        # What the others compute less they wait for, at the exchange that follows; at the end they are done earlier.
        last_s = 8 * (factor - rest) * US
        assert rank.wait_s == pytest.approx(48 * (factor - rest) * US - last_s)
        assert rank.breakdown_s["exposed_ep"] == pytest.approx(rank.wait_s + 40 * factor * US, rel=1e-6)
        assert rank.breakdown_s["other"] == pytest.approx(last_s)


def test_a_factor_of_one_is_the_balanced_run_bit_for_bit(experts):
    plain = simulate(experts)
    for options in ({"expert_imbalance": 1.0}, {"expert_loads": (0.7,) * EP}):
        again = simulate(experts, **options)
        assert replace(again, run=None) == replace(plain, run=None)
        assert again.timeline.end_s_N.tobytes() == plain.timeline.end_s_N.tobytes()
    assert len(plain.ranks) == 1


@settings(max_examples=25, deadline=None)
@given(loads=st.lists(st.integers(0, 20), min_size=EP, max_size=EP).filter(any))
def test_all_ranks_together_do_the_balanced_work(tmp_path_factory, loads):
    path = write_aicb(tmp_path_factory.mktemp("loads") / "w.txt", moe_rows(), ep=EP, gpus=2 * EP)
    result = simulate(path, expert_loads=loads)
    assert expert_s(result) == pytest.approx(expert_s(simulate(path)), rel=1e-12)
    exchanges = [each for each in result.collectives if each.op == "all_to_all"]
    mean = math.fsum(loads) / EP
    assert [each.time_s for each in exchanges] == [pytest.approx(5 * US * max(loads) / mean, rel=1e-5)]
    assert [(each.size_bytes, each.count) for each in exchanges] == [(SIZE, 8)]


def test_loads_and_the_factor_they_stand_for_agree(experts):
    factor = simulate(experts, expert_imbalance=1.75)
    loads = simulate(experts, expert_loads=(7, 3, 3, 3))
    assert loads.iteration_time_s == factor.iteration_time_s
    assert loads.collectives == factor.collectives
    turned = simulate(experts, expert_loads=(3, 3, 7, 3))
    assert turned.iteration_time_s == factor.iteration_time_s
    assert {rank.rank for rank in turned.ranks if rank.wait_s == 0} == {2}


@pytest.mark.parametrize("per_node", [8, 2])
def test_each_distribution_of_loads_has_a_price_of_its_own(tmp_path, per_node):
    """The cost is that of the balanced exchange of what the busiest member moves, wherever the members sit."""

    def exchanged(loads, size_bytes=SIZE):
        return collective(None, Group.EP, operation=Operation.ALL_TO_ALL, size_bytes=size_bytes, loads=loads)

    twice = (0.5, 2.0, 0.5, 1.0)
    ops = [exchanged(None), exchanged(twice), exchanged(twice), exchanged((1.0,) * EP), exchanged(None, 2 * SIZE)]
    workload = HandMade(Parallel(dp=EP, ep=EP)).template(forward=ops).workload()
    cluster = write_cluster(tmp_path / "c.toml", gpus_per_node=per_node)
    result = traincast.simulate(workload, cluster=cluster)
    placement = Placement((EP,) if per_node >= EP else (per_node,) * (EP // per_node))
    balanced_s, double_s = (
        estimate_collective(Operation.ALL_TO_ALL, size, placement, load_cluster(cluster)).time_s
        for size in (SIZE, 2 * SIZE)
    )
    assert 0 < balanced_s < double_s
    assert sorted((each.size_bytes, each.time_s, each.count) for each in result.collectives) == [
        (SIZE, balanced_s, 1),
        (SIZE, balanced_s, 1),
        (SIZE, double_s, 2),
        (2 * SIZE, double_s, 1),
    ]
    assert result.iteration_time_s == pytest.approx(2 * balanced_s + 3 * double_s)


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    """A file over all groups, with rows that its experts exchange over tp."""
    rows = rich_rows()
    inside = row("mlp_moelayer", (0, "ALLGATHER", 1 << 20), (0, "REDUCESCATTER", 1 << 20))
    combine = row("mlp_moelayer", (0, "ALLTOALL_EP", 1 << 20), (0, "ALLTOALL_EP", 1 << 20))
    at = [place for place, text in enumerate(rows) if text.startswith("mlp_moelayer")]
    for place in reversed(at):
        rows[place + 1 : place + 1] = [inside, combine]
    return write_aicb(tmp_path_factory.mktemp("rich") / "w.txt", rows, ga=2, pp_comm=1 << 19)


def times_of(result, index):
    mine = result.program.rank_slice(index)
    timeline = result.timeline
    return b"".join(part[mine].tobytes() for part in (timeline.ready_s_N, timeline.start_s_N, timeline.end_s_N))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=layouts(max_ranks=48), data=st.data())
def test_folded_and_unfolded_are_bit_equal(rich, layout, data):
    weights = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5]), min_size=layout["ep"], max_size=layout["ep"])
    loads = data.draw(weights.filter(any), label="loads")
    options = {"cluster": "h100", "expert_loads": loads, **layout}
    folded, flat = traincast.simulate(rich, **options), traincast.simulate(rich, unfold=True, **options)
    assert folded.iteration_time_s == flat.iteration_time_s
    assert sum(rank.represents for rank in folded.ranks) == len(flat.ranks)
    every = {times_of(flat, index) for index in range(len(flat.ranks))}
    assert {times_of(folded, index) for index in range(len(folded.ranks))} == every
    for index, rank in enumerate(folded.ranks):
        assert times_of(folded, index) == times_of(flat, rank.rank)

    def priced(result):
        return {(each.group, each.op, each.size_bytes, each.nodes, each.time_s) for each in result.collectives}

    assert priced(folded) == priced(flat)


def test_ranks_unfold_as_far_as_their_loads_differ(rich):
    layout = {"cluster": "h100", "tp": 2, "dp": 16, "pp": 2, "ep": 8}
    for loads, classes in (((1,) * 8, 1), ((2, *(1,) * 7), 2), ((3, 3, 2, 2, 1, 1, 1, 1), 3)):
        result = traincast.simulate(rich, expert_loads=loads, **layout)
        for stage in (0, 1):
            counts = [rank.represents for rank in result.ranks if rank.stage == stage]
            assert len(counts) == classes
            assert sorted(counts) == sorted(4 * loads.count(load) for load in set(loads))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 1, "dp": 8, "ep": 8},
        {"tp": 2, "dp": 8, "ep": 4, "pp": 2},
        {"tp": 2, "dp": 8, "ep": 8, "etp": 1, "pp": 2},
        {"tp": 4, "dp": 16, "ep": 16, "pp": 2, "vpp": 1, "schedule": "gpipe"},
    ],
)
@pytest.mark.parametrize("cluster", ["h100", "a100"])
def test_a_larger_imbalance_is_never_faster(rich, layout, cluster):
    factors = [1, 1.01, 1.3, 2, 3.5, 4]
    steps = [
        traincast.simulate(rich, cluster=cluster, expert_imbalance=factor, **layout).iteration_time_s
        for factor in factors
    ]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]


def test_tokens_gathered_inside_an_expert_grow_with_its_load(rich):
    layout = {"cluster": "h100", "tp": 2, "dp": 8, "ep": 4}
    plain, unequal = (traincast.simulate(rich, **layout, **more) for more in ({}, {"expert_imbalance": 2.5}))

    def sizes(result, op):
        return {each.size_bytes for each in result.collectives if (each.group, each.op) == ("tp", op)}

    grown = {round(2.5 * (1 << 20)), round(0.5 * (1 << 20))}
    assert grown <= sizes(unequal, "all_gather")
    assert grown.isdisjoint(sizes(plain, "all_gather"))
    # Attention's own gathers keep their size, and so does everything where tp ranks hold other experts.
    assert 1 << 20 in sizes(unequal, "all_gather")
    other = traincast.simulate(rich, **layout, etp=1, expert_imbalance=2.5)
    assert sizes(other, "all_gather") == sizes(plain, "all_gather")
    assert "etp 1 ranks and not on tp 2" in " ".join(note.text for note in other.assumptions)


def test_the_busiest_rank_is_no_straggler(experts):
    assert simulate(experts, expert_imbalance=3).stragglers == ()
    path = write_aicb(experts.with_name("two.txt"), moe_rows(), ep=EP, gpus=4 * EP)
    slow = simulate(path, expert_imbalance=3, compute_slowdown={5: 2.0})
    assert [each.rank for each in slow.stragglers] == [5]


@pytest.mark.parametrize("options", [{"expert_imbalance": 2}, {"expert_loads": (1, 2)}])
def test_a_file_without_experts_says_that_loads_change_nothing(tmp_path, options):
    path = write_aicb(tmp_path / "w.txt", [row("embedding_layer"), row("attention_column", 5)], gpus=2)
    flag = next(iter(options)).replace("_", "-")
    plain, result = run(path), run(path, **options)
    assert codes(result) - codes(plain) == {f"{flag}-unused"}
    assert f"--{flag} changes nothing: no row of the file is of experts" in [note.text for note in result.warnings]
    assert result.iteration_time_s == plain.iteration_time_s


def test_experts_on_one_rank_cannot_be_unequal(tmp_path):
    path = write_aicb(tmp_path / "w.txt", moe_rows(), ep=1, gpus=4)
    with pytest.raises(ConfigError, match="one of ep 1 has at most all tokens"):
        run(path, expert_imbalance=2)


def test_what_is_half_an_expert_layer_is_said(tmp_path):
    bare = [row("embedding_layer"), row("layer", (5, "ALLTOALL_EP", SIZE), (5, "ALLTOALL_EP", SIZE))]
    path = write_aicb(tmp_path / "a.txt", bare, ep=EP, gpus=EP)
    result = simulate(path, expert_imbalance=2)
    assert "expert-compute-unknown" in codes(result)
    assert result.iteration_time_s == pytest.approx(10e-9 + 4 * 5 * US, rel=1e-6)
    quiet = [row("embedding_layer"), row("mlp_moelayer", 5000, 5000)]
    path = write_aicb(tmp_path / "b.txt", quiet, ep=EP, gpus=EP)
    result = run(path, expert_imbalance=2)
    assert "expert-exchange-unknown" in codes(result)
    assert result.iteration_time_s == pytest.approx(20 * US)


def test_inference_routes_evenly_and_its_experts_do_not(tmp_path):
    rows = [
        row("attention_column", 4000),
        row("moe_route", (1000, "ALLTOALL_EP", SIZE)),
        row("moe_expert", (6000, "ALLTOALL_EP", SIZE)),
    ]
    path = write_aicb(tmp_path / "w.txt", rows, ep=EP, gpus=EP, more="mode: 1")
    result = simulate(path, expert_imbalance=2)
    assert result.iteration_time_s == pytest.approx((4 + 1 + 12 + 2 * 10) * US, rel=1e-6)
