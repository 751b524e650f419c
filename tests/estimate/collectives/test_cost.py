import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from traincast.errors import ConfigError, ProgramError
from traincast.estimate.collectives import ALGORITHMS, estimate_collective
from traincast.estimate.collectives.links import rate_inside
from traincast.estimate.collectives.tuning import SWITCH_RANKS, switch_efficiency
from traincast.fabric.placement import Placement
from traincast.hardware.cluster import Cluster, Link
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.hardware.gpu import Gpu
from traincast.workload.words import Operation

ROUND = Cluster(
    name="round",
    description="round numbers",
    gpu=Gpu(name="X"),
    gpus_per_node=8,
    intra=Link(bandwidth_bytes_per_s=100e9, base_latency_s=1e-6, hop_latency_s=2e-6),
    inter=Link(bandwidth_bytes_per_s=10e9, base_latency_s=5e-6, hop_latency_s=10e-6),
)
REAL = [load_cluster(name) for name in cluster_names() if name != "ideal"]
OPERATIONS = [operation for operation in Operation if operation is not Operation.NONE]
MB = 1_000_000
KNOWN = ALGORITHMS.names()  # loads the plug-ins now, not inside a timed example

placements = (
    st.lists(st.integers(1, 8), min_size=1, max_size=40)
    .filter(lambda counts: sum(counts) > 1)
    .map(lambda counts: Placement(tuple(sorted(counts, reverse=True))))
)
operations = st.sampled_from(OPERATIONS)
sizes = st.integers(1, 2**44)
clusters = st.sampled_from(REAL)
LATENCIES = ["base_latency_s", "hop_latency_s", "fill_latency_s"]
BANDWIDTHS = [f"{name}bandwidth_bytes_per_s" for name in ("", "node_", "pair_", "halves_")]
PLACEMENTS = [Placement(counts) for counts in ((2,), (3,), (5,), (8,), (1, 1), (1,) * 7, (4, 2), (7, 3, 1), (8, 8))]


def message(size_bytes, same_node, cluster, rate=None):
    ends = Placement((2,) if same_node else (1, 1))
    return estimate_collective(Operation.SEND_RECV, size_bytes, ends, cluster, rate)


def scaled(cluster, level, name, factor):
    link = getattr(cluster, level)
    value = getattr(link, name)
    return cluster if value is None else replace(cluster, **{level: replace(link, **{name: value * factor})})


@given(operations, sizes, placements, clusters)
def test_every_price_is_finite_and_positive(operation, size, placement, cluster):
    price = estimate_collective(operation, size, placement, cluster)
    assert 0 < price.time_s < math.inf
    assert price.algorithm in KNOWN


@given(operations, st.lists(sizes, min_size=2, max_size=2).map(sorted), placements, clusters)
def test_price_never_falls_with_size(operation, two, placement, cluster):
    small, large = (estimate_collective(operation, size, placement, cluster).time_s for size in two)
    assert small <= large


@given(
    operations,
    sizes,
    placements,
    clusters,
    st.sampled_from(["intra", "inter"]),
    st.sampled_from(LATENCIES + BANDWIDTHS),
    st.floats(1.0, 100.0),
)
def test_price_follows_latency_up_and_bandwidth_down(operation, size, placement, cluster, level, name, factor):
    before = estimate_collective(operation, size, placement, cluster).time_s
    after = estimate_collective(operation, size, placement, scaled(cluster, level, name, factor)).time_s
    assert after >= before if name in LATENCIES else after <= before


@given(operations, sizes, placements, clusters)
def test_price_is_never_below_the_bandwidth_of_the_bottleneck(operation, size, placement, cluster):
    assert estimate_collective(operation, size, placement, cluster).time_s >= bound_s(
        operation, size, placement, cluster
    )


@pytest.mark.parametrize("cluster", REAL, ids=lambda each: each.name)
def test_a_send_to_the_next_of_two_is_a_message_and_more_members_never_make_it_cheaper(cluster):
    """As ``sendrecv_perf`` of nccl-tests runs it: all members send at once and share what the node has."""
    for size in (1, 11_951, 30_000_001):
        pairs = {counts: estimate_collective(Operation.SEND_RECV, size, Placement(counts), cluster) for counts in
                 ((2,), (3,), (8,), (1, 1), (1,) * 5, (2, 1), (8, 8))}  # fmt: skip
        assert pairs[2,] == message(size, same_node=True, cluster=cluster)
        assert pairs[1, 1] == pairs[(1,) * 5] == message(size, same_node=False, cluster=cluster)
        assert pairs[2,].time_s <= pairs[3,].time_s <= pairs[8,].time_s
        assert pairs[1, 1].time_s <= pairs[2, 1].time_s <= pairs[8, 8].time_s


@pytest.mark.parametrize("cluster", REAL, ids=lambda each: each.name)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_odd_sizes_odd_groups_and_one_rank_per_node_keep_the_bound_and_the_order(operation, cluster):
    for placement in PLACEMENTS:
        sizes = (1, 3, 1001, 65_537, 12_345_679, 2**30 + 1)
        times = [estimate_collective(operation, size, placement, cluster).time_s for size in sizes]
        assert times == sorted(times)
        assert all(t >= bound_s(operation, s, placement, cluster) > 0 for s, t in zip(sizes, times, strict=True))


def bound_s(operation, size, placement, cluster):
    """Return what the bytes alone take over the bottleneck link."""
    n, counts = placement.ranks, placement.members_per_node
    nic, node = cluster.inter.bandwidth_bytes_per_s, cluster.inter.node_bandwidth_bytes_per_s or math.inf
    if placement.nodes == 1:
        rate = rate_inside(n, cluster)
        # A switch that sums halves what an all-reduce sends.
        reduced = 1 if switch_efficiency(cluster) and n >= SWITCH_RANKS else 2 * (n - 1) / n
        bound = {Operation.ALL_REDUCE: reduced}.get(operation, (n - 1) / n) * size / rate
    elif operation is Operation.SEND_RECV:
        bound = size / nic
    else:
        # What the members of a node lack must come in through the node's NICs.
        moved = {m: m * (n - m) / n if operation is Operation.ALL_TO_ALL else (n - m) / n for m in counts}
        bound = max(size * moved[m] / min(m * nic, node) for m in counts)
    return bound * (1 - 1e-12)


@given(sizes, st.integers(2, 8), clusters)
def test_inside_a_node_all_reduce_costs_more_than_either_half_and_less_than_both(size, ranks, cluster):
    together, scatter, gather = (
        estimate_collective(operation, size, Placement((ranks,)), cluster).time_s
        for operation in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
    )
    assert max(scatter, gather) < together <= scatter + gather


@given(operations, st.integers(1, 8), st.integers(1, 64), st.integers(1, 1000), clusters)
def test_the_price_of_a_small_message_grows_with_members_and_nodes(operation, members, nodes, size, cluster):
    if members * nodes == 1:
        return

    def price(members, nodes):
        return estimate_collective(operation, size, Placement((members,) * nodes), cluster).time_s

    assert price(members, nodes + 1) >= price(members, nodes) * 0.999
    assert price(members + 1, nodes) >= price(members, nodes) * 0.999


@pytest.mark.parametrize(
    ("operation", "counts", "algorithm", "expected_us"),
    [
        # base 1, 6 hops of 2, and 1.5 * 4 MB at 100 GB/s
        (Operation.ALL_REDUCE, (4,), "ring", 1 + 12 + 60),
        (Operation.ALL_GATHER, (4,), "ring", 1 + 6 + 30),
        (Operation.REDUCE_SCATTER, (4,), "ring", 1 + 6 + 30),
        # 2 hops, log2 of 4 members, and 3/4 of 4 MB
        (Operation.ALL_TO_ALL, (4,), "pairwise", 1 + 4 + 30),
        (Operation.BROADCAST, (4,), "chain", 1 + 6 + 40),
        (Operation.SEND_RECV, (2,), "pairwise", 1 + 2 + 40),
        # one NIC per node: base 5, 3 hops of 10, 3/4 of 4 MB at 10 GB/s
        (Operation.ALL_GATHER, (1, 1, 1, 1), "ring", 5 + 30 + 300),
        # eight NICs carry what one would: 15 steps, one of them between nodes, 15/16 of 4 MB at 80 GB/s
        (Operation.ALL_GATHER, (8, 8), "ring", 5 + 28 + 10 + 46.875),
        # TP6 over two nodes of 4 and 2 members: only 2 NICs, 5/6 of 4 MB at 20 GB/s
        (Operation.ALL_GATHER, (4, 2), "ring", 5 + 8 + 10 + 500 / 3),
    ],
)
def test_prices_by_hand(operation, counts, algorithm, expected_us):
    price = estimate_collective(operation, 4 * MB, Placement(counts), ROUND)
    assert price.algorithm == algorithm
    assert price.time_s == pytest.approx(expected_us * 1e-6)


def test_half_of_the_fill_is_paid_at_its_size():
    # A rank works on a quarter of the data.
    filled = replace(ROUND, intra=replace(ROUND.intra, fill_latency_s=30e-6, fill_bytes=MB / 4))
    extra = [
        estimate_collective(Operation.ALL_GATHER, size, Placement((4,)), filled).time_s
        - estimate_collective(Operation.ALL_GATHER, size, Placement((4,)), ROUND).time_s
        for size in (1, MB, 1000 * MB)
    ]
    assert extra == pytest.approx([0.0, 15e-6, 30e-6], abs=1e-7)


def test_a_node_limit_holds_for_many_nics_and_not_for_one():
    limited = replace(ROUND, inter=replace(ROUND.inter, node_bandwidth_bytes_per_s=40e9))
    gather, size = Operation.ALL_GATHER, 10_000 * MB
    one, eight = Placement((1, 1)), Placement((8, 8))
    assert estimate_collective(gather, size, one, limited) == estimate_collective(gather, size, one, ROUND)
    ratio = (
        estimate_collective(gather, size, eight, limited).time_s
        / estimate_collective(gather, size, eight, ROUND).time_s
    )
    assert ratio == pytest.approx(2.0, rel=0.01)


def test_a_tree_wins_for_small_and_a_ring_for_large_messages_over_nodes():
    spread = Placement((1,) * 8)
    chosen = [estimate_collective(Operation.ALL_REDUCE, size, spread, ROUND).algorithm for size in (8, 10**9)]
    assert chosen == ["tree", "ring"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_to_send_costs_nothing(operation):
    for price in (
        estimate_collective(operation, MB, Placement((1,)), ROUND),
        estimate_collective(operation, 0, Placement((4,)), ROUND),
        estimate_collective(operation, MB, Placement((1,)), ROUND, busbw_bytes_per_s=1e9),
    ):
        assert (price.time_s, price.algorithm) == (0.0, "none")


def test_an_ideal_cluster_costs_nothing():
    ideal = load_cluster("ideal")
    assert estimate_collective(Operation.ALL_REDUCE, MB, Placement((8, 8)), ideal).time_s == 0.0
    assert message(MB, False, ideal).time_s == 0.0


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        (Operation.ALL_REDUCE, 1.5),
        (Operation.ALL_GATHER, 0.75),
        (Operation.REDUCE_SCATTER, 0.75),
        (Operation.ALL_TO_ALL, 0.75),
        (Operation.BROADCAST, 1.0),
        (Operation.REDUCE, 1.0),
        (Operation.SEND_RECV, 1.0),
    ],
)
def test_a_bus_bandwidth_is_met_by_all_but_messages_too_small_for_it(operation, factor):
    four, least = Placement((4,)), estimate_collective(operation, 1, Placement((4,)), ROUND).time_s
    price = estimate_collective(operation, 4 * MB, four, ROUND, busbw_bytes_per_s=8e9)
    assert price.time_s == pytest.approx(factor * 500e-6)
    assert estimate_collective(operation, 1, four, ROUND, busbw_bytes_per_s=8e9).time_s == pytest.approx(
        least, rel=1e-3
    )
    on_ideal = estimate_collective(operation, 4 * MB, four, load_cluster("ideal"), busbw_bytes_per_s=8e9)
    assert on_ideal.time_s == pytest.approx(factor * 500e-6)


def test_a_message_between_two_ranks():
    inside, across = message(4 * MB, True, ROUND), message(4 * MB, False, ROUND)
    assert inside.time_s == pytest.approx((1 + 2 + 40) * 1e-6)
    assert across.time_s == pytest.approx((5 + 10 + 400) * 1e-6)
    assert message(4 * MB, False, ROUND, 20e9).time_s == pytest.approx(200e-6)
    assert message(0, True, ROUND).time_s == 0.0


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_bus_bandwidth_must_be_a_rate(rate):
    with pytest.raises(ConfigError):
        estimate_collective(Operation.ALL_REDUCE, MB, Placement((4,)), ROUND, rate)
    with pytest.raises(ConfigError):
        message(MB, True, ROUND, rate)


def test_what_cannot_be_priced_is_refused():
    with pytest.raises(ProgramError, match="NONE"):
        estimate_collective(Operation.NONE, MB, Placement((4,)), ROUND)
    with pytest.raises(ProgramError, match="-1 bytes"):
        estimate_collective(Operation.ALL_REDUCE, -1, Placement((4,)), ROUND)
    with pytest.raises(ProgramError, match="-1 bytes"):
        message(-1, True, ROUND)
