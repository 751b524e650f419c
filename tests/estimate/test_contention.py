"""A job's groups on shared links: kinds by themselves, and two kinds that meet."""

import pytest
from msgspec.structs import replace

from support import HandMade, collective
from traincast.errors import ConfigError
from traincast.estimate.contention import SharedNetwork, all_to_all_kinds
from traincast.hardware.clusters import load_cluster
from traincast.hardware.fabric import FabricSpec
from traincast.job.parallel import Parallel
from traincast.workload.groups import rank_groups
from traincast.workload.words import Group, Operation

H100 = load_cluster("h100")
FREE = replace(H100, inter=replace(H100.inter, node_bandwidth_bytes_per_s=None))
KINDS = (Group.TP, Group.EP, Group.DP, Group.PP)


def network(cluster, mode="auto", parallel=None, seed=None):
    """Return a job of 128 ranks: tp 2 in a node; ep of 32, dp of 32 and pp of 2 between nodes."""
    parallel = parallel or Parallel(tp=2, dp=32, pp=2, ep=32, etp=1)
    hand = HandMade(parallel)
    hand.template([collective(None, Group.EP, operation=Operation.ALL_TO_ALL), collective(None, Group.DP)])
    return SharedNetwork(cluster, rank_groups(parallel, KINDS), all_to_all_kinds(hand.workload().ops), mode, seed)


def test_only_the_node_is_shared_without_a_fabric():
    found = network(H100).own_kind()
    assert set(found) == {Group.EP, Group.DP, Group.PP}, "tp stays inside the node"
    # Two rings cross every node of 8: of 4 channels each, which together are its 8 NICs of 48.5 GB/s.
    assert found[Group.DP].factor == pytest.approx(8 * 48.5 / 350)
    assert found[Group.DP].bottleneck == "all NICs of node 0"
    assert found[Group.DP].cluster.inter.bandwidth_bytes_per_s == pytest.approx(350e9 / 8)
    # An all-to-all that has a node for itself meets the limit alone, and its price counts it already.
    own = network(H100, parallel=Parallel(dp=128, ep=128)).own_kind()[Group.EP]
    assert (own.factor, own.bottleneck) == (1.0, None)


def test_nothing_is_shared_where_nothing_can_be():
    assert {each.factor for each in network(FREE).own_kind().values()} == {1.0}
    assert all(each.cluster is FREE for each in network(FREE).own_kind().values())
    assert network(H100, "analytical").own_kind() == {}
    assert network(load_cluster("ideal")).own_kind() == {}


@pytest.mark.parametrize("cluster", [H100, FREE, replace(FREE, fabric=FabricSpec(kind="non-blocking"))])
def test_flows_say_what_counting_says_where_nothing_blocks(cluster):
    auto, flow = network(cluster), network(cluster, "flow")
    for kind, each in auto.own_kind().items():
        assert flow.own_kind()[kind].factor == pytest.approx(each.factor, rel=1e-9)
        for other in {Group.EP, Group.DP, Group.PP} - {kind}:
            assert flow.while_both_run(kind, other).factor == pytest.approx(auto.while_both_run(kind, other).factor)


def test_two_kinds_on_one_nic_take_twice_as_long():
    free = network(FREE)
    met = free.while_both_run(Group.EP, Group.DP)
    assert met.factor == pytest.approx(2.0)
    assert met.bottleneck is not None
    assert met.cluster.inter.bandwidth_bytes_per_s == pytest.approx(48.5e9 / 2)
    assert free.while_both_run(Group.DP, Group.EP).factor == met.factor


@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0])
def test_meeting_is_between_nothing_and_twice(ratio):
    spec = FabricSpec(kind="fat-tree", nodes_per_leaf=4, oversubscription=(ratio,))
    shared = network(replace(H100, fabric=spec))
    for kind, other in ((Group.EP, Group.DP), (Group.EP, Group.PP), (Group.DP, Group.PP)):
        met = shared.while_both_run(kind, other)
        assert 1.0 <= met.factor <= 2.0 + 1e-9
        total = shared.own_kind()[kind].factor * met.factor
        assert met.cluster.inter.bandwidth_bytes_per_s == pytest.approx(48.5e9 / total)


def test_a_seed_moves_hashed_flows_only():
    hashed = replace(FREE, fabric=FabricSpec(kind="fat-tree", nodes_per_leaf=2, routing="ecmp"))
    sprayed = replace(FREE, fabric=FabricSpec(kind="fat-tree", nodes_per_leaf=2))
    for cluster, distinct in ((hashed, True), (sprayed, False)):
        found = {network(cluster, seed=seed).own_kind()[Group.EP].factor for seed in range(5)}
        assert (len(found) > 1) == distinct


def test_a_fabric_that_does_not_fit_is_refused_even_where_nothing_leaves_a_node():
    wrong = replace(H100, fabric=FabricSpec(kind="rail-optimised", nodes_per_leaf=1, rails=3))
    with pytest.raises(ConfigError, match="rails"):
        network(wrong, parallel=Parallel(tp=8)).own_kind()
