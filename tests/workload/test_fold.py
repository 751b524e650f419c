"""Folded or not, every time is the same to the last bit; and what is alike is folded."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traincast
from support import layouts, rich_rows, row, write_aicb, write_cluster
from traincast.api import read
from traincast.fabric.placement import locations, place_job
from traincast.hardware.clusters import load_cluster
from traincast.job.options import make_options
from traincast.workload.groups import GroupTable, fold, rank_groups, unfolded
from traincast.workload.words import Group


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    """A file over all groups of an AICB file, with two collectives over cp and etp besides."""
    rows = rich_rows()
    rows[-3:-3] = [row("attention_cp", (5000, "ALLGATHER_CP", 1 << 18), (5000, "ALLREDUCE_ETP", 1 << 18))]
    return write_aicb(tmp_path_factory.mktemp("fold") / "w.txt", rows, ga=2, pp_comm=1 << 19)


@pytest.fixture(scope="module")
def nodes_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters")
    return {count: write_cluster(folder / f"of{count}.toml", gpus_per_node=count) for count in (4, 8)}


def classes(path, cluster, options):
    """Fold as a simulation should: by stage and speed, and all groups that communicate."""
    found = read(path, options.layout)
    parallel = found.parallel
    factor_W = np.array([options.compute_slowdown.get(rank, 1.0) for rank in range(parallel.world_size)])
    start_W = np.arange(parallel.world_size) // parallel.ranks_per_stage
    start_W = start_W * parallel.world_size + np.unique(factor_W, return_inverse=True)[1]
    kinds = {Group(int(kind)) for kind in found.ops.group_T} | ({Group.PP} if parallel.pp > 1 else set())
    placed, _ = place_job(load_cluster(cluster), parallel, options.gpus_used_per_node)
    return fold(start_W, rank_groups(parallel, kinds), locations(placed, parallel.world_size))


def times_of(result, index):
    """Every time of a simulated rank."""
    mine = result.program.rank_slice(index)
    timeline = result.timeline
    return b"".join(part[mine].tobytes() for part in (timeline.ready_s_N, timeline.start_s_N, timeline.end_s_N))


def assert_folds_exactly(path, **changes):
    folded = traincast.simulate(path, **changes)
    flat = traincast.simulate(path, unfold=True, **changes)
    world = flat.parallel.world_size
    assert [rank.rank for rank in flat.ranks] == list(range(world))
    assert sum(rank.represents for rank in folded.ranks) == world
    assert folded.iteration_time_s == flat.iteration_time_s
    assert folded.breakdown_s == flat.breakdown_s
    assert {
        (each.group, each.op, each.size_bytes, each.nodes, each.time_s, each.count) for each in folded.collectives
    } == {(each.group, each.op, each.size_bytes, each.nodes, each.time_s, each.count) for each in flat.collectives}
    found = classes(path, changes["cluster"], make_options(**changes))
    assert [rank.rank for rank in folded.ranks] == found.rank_C.tolist()
    assert [rank.represents for rank in folded.ranks] == found.count_C.tolist()
    for rank, alike in enumerate(found.class_W.tolist()):
        one, representative = flat.ranks[rank], folded.ranks[alike]
        assert (one.end_s, one.compute_s, one.wait_s) == (
            representative.end_s,
            representative.compute_s,
            representative.wait_s,
        )
        assert one.breakdown_s == representative.breakdown_s
        assert times_of(flat, rank) == times_of(folded, alike), (rank, alike)
    return folded


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(layout=layouts(), per_node=st.sampled_from([4, 8]), overlap=st.booleans(), data=st.data())
def test_folded_and_unfolded_are_bit_equal(workload, nodes_of, layout, per_node, overlap, data):
    world = layout["tp"] * layout["cp"] * layout["dp"] * layout["pp"]
    slow = data.draw(
        st.dictionaries(st.integers(0, world - 1), st.sampled_from([0.5, 1.0, 1.25, 3.0]), max_size=2), label="slow"
    )
    assert_folds_exactly(
        workload, cluster=nodes_of[per_node], compute_slowdown=slow, overlap_grad_reduce=overlap, **layout
    )


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "more", [{}, {"cp": 2}, {"ep": 4}, {"ep": 2, "etp": 1}, {"pp": 4, "vpp": 2}, {"pp": 2, "cp": 2, "ep": 8}]
)
def test_alike_ranks_fold_to_one_per_stage(workload, nodes_of, tp, more):
    """Stages that fill whole nodes look the same to all of their ranks."""
    layout = {"pp": 3, "dp": 16, **more, "tp": tp}
    result = traincast.simulate(workload, cluster=nodes_of[8], **layout)
    stage_ranks = tp * layout["dp"] * layout.get("cp", 1)
    assert [rank.represents for rank in result.ranks] == [stage_ranks] * layout["pp"]
    assert [rank.rank for rank in result.ranks] == [stage * stage_ranks for stage in range(layout["pp"])]
    assert [rank.stage for rank in result.ranks] == list(range(layout["pp"]))


def test_six_on_nodes_of_eight_keep_what_differs(workload, nodes_of):
    """Of the tp groups of four full nodes some sit inside a node and some across two: not all ranks are alike."""
    folded = assert_folds_exactly(workload, cluster=nodes_of[8], tp=6, dp=4, pp=2, gpus_used_per_node="all")
    per_stage = [sum(rank.stage == stage for rank in folded.ranks) for stage in (0, 1)]
    assert all(1 < count < 24 for count in per_stage), per_stage
    inside, across = ({each.nodes for each in folded.collectives if each.group == "tp"} & {nodes} for nodes in (1, 2))
    assert inside
    assert across


def test_nodes_of_six_fold_six(workload, tmp_path):
    cluster = write_cluster(tmp_path / "six.toml", gpus_per_node=6)
    assert len(assert_folds_exactly(workload, cluster=cluster, tp=6, dp=4, pp=2).ranks) == 2


def test_one_slow_rank_unfolds_only_what_it_touches(workload, nodes_of):
    """The slow rank stands for itself alone, and most others still stand for several."""
    layout = {"tp": 2, "dp": 16, "pp": 2}
    folded = assert_folds_exactly(workload, cluster=nodes_of[8], compute_slowdown={5: 1.5}, **layout)
    assert (5, 1) in {(rank.rank, rank.represents) for rank in folded.ranks}
    assert len(folded.ranks) < 64


def test_a_factor_of_one_is_no_straggler(workload, nodes_of):
    layout = {"cluster": nodes_of[8], "tp": 8, "dp": 2, "pp": 2}
    slow = traincast.simulate(workload, compute_slowdown={3: 1.0}, **layout)
    assert len(slow.ranks) == 2
    assert slow.iteration_time_s == traincast.simulate(workload, **layout).iteration_time_s


def test_classes_are_numbered_by_their_lowest_rank():
    found = fold(np.array([7, 3, 7, 3]), {}, np.zeros((1, 4), dtype=np.int64))
    assert found.class_W.tolist() == [0, 1, 0, 1]
    assert found.rank_C.tolist() == [0, 1]
    assert found.count_C.tolist() == [2, 2]


def test_a_class_is_represented_by_its_lowest_preferred_rank():
    preferred_W = np.array([False, False, True, True, False, True])
    found = fold(np.array([0, 1, 0, 0, 1, 0]), {}, np.zeros((1, 6), dtype=np.int64), preferred_W)
    assert found.class_W.tolist() == [0, 1, 0, 0, 1, 0]
    assert found.rank_C.tolist() == [2, 1]
    assert fold(np.zeros(4), {}, np.zeros((1, 4)), np.array([False, True, True, False])).rank_C.tolist() == [1]


def classes_by_place(kind, members_GK, node_W, start_W=None):
    """Return the class of each rank where the groups of one kind sit on some nodes."""
    table = GroupTable.from_members(kind, np.array(members_GK), len(node_W), ordered=kind is Group.PP)
    start = np.zeros(len(node_W), dtype=np.int64) if start_W is None else np.array(start_W)
    return fold(start, {kind: table}, np.array([node_W])).class_W.tolist()


def test_groups_are_alike_where_as_many_members_share_a_node():
    """Threes on nodes of four: the first and the last are on one node, the others on two, whichever has more of it."""
    groups = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    found = classes_by_place(Group.TP, groups, [0] * 4 + [1] * 4 + [2] * 4)
    assert found == [0] * 3 + [1] * 6 + [0] * 3
    # Two groups of two that are shorter than the others, and a rank in no group.
    found = classes_by_place(Group.TP, [[0, 1, 2], [3, 4, -1], [5, 6, -1]], [0, 0, 0, 0, 1, 2, 1, 1])
    assert found == [0] * 3 + [1] * 4 + [2]


def test_pipelines_are_alike_where_the_same_stages_share_a_node():
    """Four stages on two nodes: the first two on one and the others on the other, or by turns."""
    pipelines = [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    halves, turns, swapped = [0, 0, 1, 1], [2, 3, 2, 3], [5, 5, 4, 4]
    node_W = [node for stage in zip(halves, turns, swapped, strict=True) for node in stage]
    found = classes_by_place(Group.PP, pipelines, node_W, start_W=[rank // 3 for rank in range(12)])
    assert found == [0, 1, 0, 2, 3, 2, 4, 5, 4, 6, 7, 6]


def test_unfolded_ranks_stand_for_themselves():
    found = unfolded(3)
    assert (found.class_W.tolist(), found.rank_C.tolist(), found.count_C.tolist()) == ([0, 1, 2], [0, 1, 2], [1, 1, 1])


def test_a_difference_spreads_through_groups_of_groups():
    """Rank 0 differs; its tp partner 1 differs from the rest by that, and their dp partners by those."""
    from traincast.job.parallel import Parallel

    tables = rank_groups(Parallel(tp=2, dp=3), [Group.TP, Group.DP])
    nodes_LW = np.zeros((1, 6), dtype=np.int64)
    assert fold(np.zeros(6), tables, nodes_LW).class_W.tolist() == [0] * 6
    assert fold(np.array([1, 0, 0, 0, 0, 0]), tables, nodes_LW).class_W.tolist() == [0, 1, 2, 3, 2, 3]


def test_groups_that_are_spread_alike_are_alike():
    """Two members here and one there, or one here and two there: the price cannot tell."""
    from traincast.job.parallel import Parallel

    tables = rank_groups(Parallel(tp=3, dp=3), [Group.TP])
    assert fold(np.zeros(9), tables, np.array([[0, 0, 1, 1, 2, 2, 3, 3, 3]])).class_W.tolist() == [0] * 6 + [1] * 3


def test_six_on_six_used_gpus_of_eight_are_alike(workload, nodes_of):
    """With two GPUs of each node unused every tp group sits inside one, and a stage is one class of ranks."""
    folded = assert_folds_exactly(workload, cluster=nodes_of[8], tp=6, dp=4, pp=2)
    assert [rank.represents for rank in folded.ranks] == [24, 24]
    assert {each.nodes for each in folded.collectives if each.group == "tp"} == {1}
