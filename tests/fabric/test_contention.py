"""Slowdowns of groups that share a fabric."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from traincast.errors import InfeasibleError, ProgramError, UnknownNameError
from traincast.fabric import contention
from traincast.fabric.contention import Slowdown, link_use, network_factor, pair_slowdown, worst_and_use
from traincast.fabric.graph import build_fabric
from traincast.fabric.patterns import PATTERNS, flow_count, flows_of
from traincast.hardware.clusters import load_cluster
from traincast.hardware.fabric import FabricSpec

H100 = load_cluster("h100")
WORLD = 64
DP = [np.arange(local, WORLD, 8) for local in range(8)]
EVERYONE = [np.arange(WORLD)]
ACROSS = [np.array([rank, rank + WORLD // 2]) for rank in range(WORLD // 2)]


def build(kind, world=WORLD, node_limits=False, **numbers):
    return build_fabric(replace(H100, fabric=FabricSpec(kind=kind, **numbers)), world, node_limits=node_limits)


def worst(pattern, groups, graph, **more):
    return max(each.factor for each in network_factor(pattern, groups, graph, **more))


@st.composite
def layouts(draw):
    """Groups that share no rank, of any sizes, in any order."""
    ranks = draw(st.permutations(range(WORLD)))
    cuts = sorted(draw(st.sets(st.integers(1, WORLD - 1), max_size=8)))
    groups = [np.array(each) for each in np.split(np.array(ranks), cuts)]
    return draw(st.sampled_from(sorted(PATTERNS))), groups


@given(layout=layouts())
@settings(deadline=None, max_examples=50)
def test_a_non_blocking_fabric_slows_nobody_down(layout):
    for graph in (build("non-blocking"), build("fat-tree", nodes_per_leaf=2)):
        pattern, groups = layout
        assert [each.factor for each in network_factor(pattern, groups, graph)] == pytest.approx(
            [1.0] * len(groups), rel=0.03
        )


@pytest.mark.slow
@given(
    layout=layouts(),
    kind=st.sampled_from(["fat-tree", "rail-optimised", "dragonfly+"]),
    routing=st.sampled_from(["spray", "ecmp"]),
)
@settings(deadline=None, max_examples=50)
def test_more_oversubscription_never_helps(layout, kind, routing):
    pattern, groups = layout
    more = {"leaves_per_pod": 2} if kind == "dragonfly+" else {}
    found = []
    for ratio in (1.0, 1.5, 2.0, 4.0):
        graph = build(kind, nodes_per_leaf=2, spines=4, oversubscription=(ratio,), routing=routing, **more)
        factors = network_factor(pattern, groups, graph)
        assert all(each.factor >= 1.0 for each in factors)
        assert all((each.bottleneck is None) == (each.factor == 1.0) for each in factors)
        found.append(max(each.factor for each in factors))
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(found))


@pytest.mark.parametrize("ratio", [1.5, 2.0, 4.0])
def test_traffic_that_crosses_leaves_is_slowed_down_by_the_oversubscription(ratio):
    graph = build("fat-tree", nodes_per_leaf=2, oversubscription=(ratio,))
    slowed = network_factor("send", ACROSS, graph)
    assert [each.factor for each in slowed] == pytest.approx([ratio] * len(ACROSS))
    assert slowed[0].bottleneck == "leaf 0 -> spine 0"
    within = [np.array([rank, rank + 8]) for rank in range(8)]
    assert worst("send", within, graph) == 1.0


@pytest.mark.parametrize("pattern", ["ring", "tree", "send", "all-to-all", "rounds"])
def test_traffic_along_rails_needs_no_spines(pattern):
    assert worst(pattern, DP, build("rail-only")) == 1.0


def test_other_traffic_on_rail_only_crosses_nvlink():
    assert worst("all-to-all", EVERYONE, build("rail-only")) == pytest.approx(1.0, rel=0.03)


def test_rails_of_an_all_to_all_meet_in_the_spines_unless_pxn_sends_it_along_rails():
    plain, pxn = (
        build("rail-optimised", nodes_per_leaf=8, oversubscription=(4.0,), pxn=each) for each in (False, True)
    )
    assert worst("all-to-all", EVERYONE, plain) > 3
    assert worst("all-to-all", EVERYONE, pxn) == 1.0


@pytest.mark.parametrize("rate", [12.5e9, 48.5e9, 97e9])
def test_a_gpu_uses_no_more_of_a_fast_fabric_than_it_reaches(rate):
    """And what lies above the NICs is made for all of their rate: at 97 GB/s, 2:1 is enough for 48.5."""
    graph = build("fat-tree", nodes_per_leaf=2, oversubscription=(2.0,), link_bytes_per_s=rate)
    reached = H100.inter.bandwidth_bytes_per_s
    assert graph.nic_bytes_per_s == min(rate, reached)
    assert graph.port_bytes_per_s == (rate if rate > reached else None)
    assert worst("send", ACROSS, graph) == pytest.approx(2.0 * min(rate, reached) / rate)
    both = network_factor(["ring", "send"], [np.array([0, 8])] * 2, graph)
    assert [each.factor for each in both] == pytest.approx([2.0, 2.0]), "the NIC is shared at the rate that it reaches"


def test_groups_on_the_same_nics_share_them():
    both = network_factor(["ring", "send"], [np.array([0, 8]), np.array([0, 8])], build("non-blocking"))
    assert [each.factor for each in both] == pytest.approx([2.0, 2.0])
    assert both[0].bottleneck == "GPU 0 -> leaf 0"


def test_what_a_node_carries_together_counts_where_asked():
    graph = build("non-blocking", node_limits=True)
    limit = 8 * H100.inter.bandwidth_bytes_per_s / H100.inter.node_bandwidth_bytes_per_s
    together = network_factor("ring", DP, graph)
    assert together[0].factor == pytest.approx(limit)
    assert together[0].bottleneck.startswith("all NICs of node")
    # A group that fills its nodes meets the same limit when it is alone.
    assert worst("ring", EVERYONE, graph) == 1.0


def test_hashing_collides_and_queue_pairs_help():
    few, many = (build("fat-tree", nodes_per_leaf=2, routing="ecmp", queue_pairs=pairs) for pairs in (1, 16))
    spread = [worst("send", ACROSS, few, seed=seed) for seed in range(5)]
    assert min(spread) >= 2.0
    assert len(set(spread)) > 1
    assert np.mean([worst("send", ACROSS, many, seed=seed) for seed in range(5)]) < np.mean(spread)
    assert worst("send", ACROSS, few, seed=3) == spread[3]


def test_a_group_inside_a_node_is_not_concerned():
    slowed = network_factor("ring", [np.arange(8), np.array([3])], build("fat-tree", nodes_per_leaf=1))
    assert [(each.factor, each.bottleneck) for each in slowed] == [(1.0, None)] * 2
    assert network_factor("ring", [], build("non-blocking")) == []


@pytest.mark.parametrize("nodes", [2, 3, 5, 8, 13])
def test_every_node_is_inner_in_one_tree_at_most_and_roots_send_least(nodes):
    flows = flows_of("tree", np.arange(0, nodes * 8, 8), 8)
    assert len(flows.source_F) == 4 * (nodes - 1)
    assert np.bincount(flows.source_F // 8, minlength=nodes).max() <= 4
    np.testing.assert_array_equal(np.bincount(flows.source_F // 8), np.bincount(flows.target_F // 8))


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        # Drawn after the comments of nccl's src/graph/trees.cc: the second tree is the first mirrored ...
        (8, ["04 42 46 21 23 65 67", "73 35 31 56 54 12 10"]),
        # ... or, of an odd number of nodes, shifted by one.
        (7, ["04 42 46 21 23 65", "15 53 50 32 34 06"]),
        (2, ["01", "10"]),
    ],
)
def test_trees_are_those_of_the_library(nodes, edges):
    flows = flows_of("tree", np.arange(0, nodes * 8, 8), 8)
    drawn = [tuple(map(int, edge)) for tree in edges for edge in tree.split()]
    expected = sorted([*drawn, *((far, near) for near, far in drawn)])
    assert sorted(zip(flows.source_F // 8, flows.target_F // 8, strict=True)) == expected


def test_rings_keep_to_their_rails_and_follow_the_group():
    members = np.concatenate([np.arange(16, 24), np.arange(8), np.arange(8, 16)])
    flows = flows_of("ring", members, 8)
    np.testing.assert_array_equal(flows.source_F % 8, flows.target_F % 8)
    assert (
        sorted(zip(flows.source_F // 8, flows.target_F // 8, strict=True)) == [(0, 1)] * 8 + [(1, 2)] * 8 + [(2, 0)] * 8
    )
    uneven = flows_of("ring", np.array([0, 1, 2, 8, 9]), 8)
    assert sorted(zip(uneven.source_F, uneven.target_F, strict=True)) == [(0, 8), (1, 9), (8, 0), (9, 1)]


def test_rounds_are_the_all_to_all_bit_by_bit():
    members = np.array([3, 17, 9, 40])
    at_once, rounds = (flows_of(name, members, 8) for name in ("all-to-all", "rounds"))
    pairs = [sorted(zip(each.source_F.tolist(), each.target_F.tolist(), strict=True)) for each in (at_once, rounds)]
    assert pairs[0] == pairs[1]
    for phase in range(3):
        assert len(set(rounds.target_F[rounds.phase_F == phase])) == 4


@pytest.mark.parametrize("members", [1, 2, 5, 8])
def test_no_pattern_has_more_flows_than_are_counted(members):
    """With every member on a node of its own, a ring has one flow for each and an all-to-all one for each pair."""
    group = np.arange(0, members * 8, 8)
    made = {name: len(flows_of(name, group, 8).source_F) for name in PATTERNS}
    counted = {name: flow_count(name, members) for name in PATTERNS}
    pairs = members * (members - 1)
    assert made == {
        "ring": members if members > 1 else 0,
        "tree": 4 * (members - 1),
        "all-to-all": pairs,
        "rounds": pairs,
        "send": members - 1,
    }
    assert counted == {"ring": members, "tree": 4 * members, "all-to-all": pairs, "rounds": pairs, "send": members}


def test_wrong_input_says_so():
    graph = build("non-blocking")
    with pytest.raises(UnknownNameError, match="all-to-all"):
        network_factor("star", DP, graph)
    with pytest.raises(UnknownNameError, match="all-to-all"):
        flow_count("star", 8)
    with pytest.raises(ProgramError, match="1 patterns for 8 groups"):
        network_factor(["ring"], DP, graph)
    with pytest.raises(ProgramError, match="not one of the 64"):
        network_factor("ring", [np.array([0, 64])], graph)


FABRICS = {
    "fat-tree": {"nodes_per_leaf": 1, "oversubscription": (4,)},
    "rail-optimised": {"nodes_per_leaf": 2, "oversubscription": (3,)},
    "dragonfly+": {"nodes_per_leaf": 1, "leaves_per_pod": 4, "oversubscription": (2,)},
}


@given(
    stride=st.sampled_from([1, 2, 8, 16]),
    size=st.sampled_from([2, 4, 16, 32, 64]),
    pattern=st.sampled_from(["ring", "all-to-all", "send"]),
    kind=st.sampled_from(sorted(FABRICS)),
    routing=st.sampled_from([{"routing": "spray"}, {"routing": "ecmp", "queue_pairs": 2}]),
)
@settings(deadline=None, max_examples=60)
def test_the_tightest_link_alone_tells_the_worst_of_groups_that_are_alike(stride, size, pattern, kind, routing):
    """The worst slowdown, and what it makes links carry, are those of the rates of all flows."""
    stride = min(stride, WORLD // size)
    groups = np.arange(WORLD).reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)
    graph = build(kind, node_limits=True, **FABRICS[kind], **routing)
    every = network_factor(pattern, groups, graph)
    slowest = max(every, key=lambda each: each.factor)
    found, use_L = contention.worst_and_use(pattern, groups, graph)
    assert found.factor == pytest.approx(slowest.factor, rel=1e-12)
    assert found.bottleneck in {each.bottleneck for each in every if each.factor > slowest.factor * (1 - 1e-9)}
    assert use_L == pytest.approx(link_use(pattern, groups, graph, slowest.factor), rel=1e-12)
    # At the pace of the slowest its tightest link is full, and none carries more than it can.
    assert use_L.max() == pytest.approx(1.0) if found.factor > 1 else use_L.max() <= 1 + 1e-9


def test_links_are_used_as_much_as_the_slowest_flow_lets_them():
    """A ring over one GPU of each of 8 nodes fills both ways of the NICs it crosses, and no other link."""
    for queue_pairs in (1, 4):
        graph = build("non-blocking", routing="ecmp", queue_pairs=queue_pairs)
        use_L = link_use("ring", [DP[3]], graph)
        names = {graph.network.link_name(link) for link in np.flatnonzero(use_L)}
        assert names == {name for gpu in DP[3] for name in (f"GPU {gpu} -> leaf 0", f"leaf 0 -> GPU {gpu}")}
        assert use_L[use_L > 0] == pytest.approx(1.0)
        # Where something else makes it twice as slow, it takes half of each.
        assert link_use("ring", [DP[3]], graph, 2.0) == pytest.approx(use_L / 2)
    # On a fabric twice as fast as a GPU, its leaf could take as much again.
    fast = build("fat-tree", nodes_per_leaf=1, link_bytes_per_s=2 * H100.inter.bandwidth_bytes_per_s)
    name_L = [fast.network.link_name(link) for link in range(len(fast.capacity_L))]
    use_L = link_use("send", [np.array([0, 8])], fast)
    assert dict(zip(name_L, use_L.tolist(), strict=True))["leaf 0 -> spine 0"] == pytest.approx(1 / 16)
    assert link_use("ring", [np.arange(8)], fast).max() == 0


def test_the_first_link_of_a_fabric_is_one_like_others():
    """Link 0 goes from GPU 0 to its node's switch, which only relayed traffic to another rail crosses."""
    graph = build("rail-only")
    use_L = link_use("send", [np.array([0, 9])], graph)
    used = [graph.network.link_name(link) for link in np.flatnonzero(use_L)]
    assert used[0] == "GPU 0 -> node 0"
    assert use_L[0] == pytest.approx(H100.inter.bandwidth_bytes_per_s / H100.intra.bandwidth_bytes_per_s)


def test_two_kinds_slow_each_other_down_by_what_a_link_they_share_lacks():
    graph = build("non-blocking")
    none_L = np.zeros(len(graph.capacity_L))
    one_L, other_L, apart_L = none_L.copy(), none_L.copy(), none_L.copy()
    one_L[[7, 9]], other_L[7], apart_L[5] = (0.75, 1.0), 0.5, 1.0
    met = pair_slowdown(one_L, other_L, graph)
    assert (met.factor, met.bottleneck) == (1.25, graph.network.link_name(7))
    assert pair_slowdown(other_L, one_L, graph) == met
    # No link is shared; or one is, and has room for both.
    for quiet_L in (apart_L, none_L, other_L / 2):
        assert pair_slowdown(one_L, quiet_L, graph) == Slowdown(1.0, None)
    # What one kind alone asks of a link is its own slowdown, which is known already.
    one_L[9] = 3.0
    assert pair_slowdown(one_L, other_L, graph) == pair_slowdown(other_L, one_L, graph) == met


@given(
    order=st.permutations(range(WORLD)),
    size=st.sampled_from([1, 2, 8, 32, 64]),
    spread=st.booleans(),
    node_bytes_per_s=st.sampled_from([None, 40e9, 350e9, 900e9]),
    queue_pairs=st.sampled_from([None, 4]),
)
@settings(deadline=None, max_examples=50)
def test_all_to_alls_over_one_switch_need_no_routes(order, size, spread, node_bytes_per_s, queue_pairs):
    members_GK = np.array(order if spread else sorted(order)).reshape(-1, size)
    spec = FabricSpec(kind="non-blocking")
    if queue_pairs:
        spec = FabricSpec(kind="fat-tree", nodes_per_leaf=WORLD, routing="ecmp", queue_pairs=queue_pairs)
    inter = replace(H100.inter, node_bandwidth_bytes_per_s=node_bytes_per_s)
    graph = build_fabric(replace(H100, fabric=spec, inter=inter), WORLD, node_limits=True)
    assert graph.ends is not None
    found, use_L = worst_and_use("all-to-all", members_GK, graph)
    routed, routed_L = worst_and_use("all-to-all", members_GK, replace(graph, ends=None))
    assert found == routed
    assert np.array_equal(use_L, routed_L)


def test_fabrics_of_several_switches_have_other_links_than_those_of_their_ends():
    for graph in (
        build("fat-tree", nodes_per_leaf=2),
        build("rail-only"),
        build("dual-plane", nodes_per_leaf=2, routing="ecmp"),
        build("rail-optimised", nodes_per_leaf=8),
    ):
        assert graph.ends is None


def test_flows_are_counted_before_they_are_made(monkeypatch):
    """A ring of 8 is 8 flows; over 4 queue pairs, each over at most 2 links to its leaf and 2 more above."""
    for queue_pairs, parts in ((4, " x 4 queue pairs"), (1, "")):
        graph = build("fat-tree", nodes_per_leaf=2, routing="ecmp", queue_pairs=queue_pairs)
        assert graph.longest == 4
        hops = 8 * queue_pairs * 4
        monkeypatch.setattr(contention, "MOST_HOPS", hops)
        assert worst("ring", [DP[0]], graph) >= 1.0
        monkeypatch.setattr(contention, "MOST_HOPS", hops - 1)
        said = f"8 flows (ring){parts} over up to 4 links each are {hops} hops to solve, above the limit of {hops - 1};"
        with pytest.raises(InfeasibleError, match=re.escape(said)):
            network_factor("ring", [DP[0]], graph)
