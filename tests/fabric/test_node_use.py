"""How many GPUs of a node a job uses, and that everything agrees on where its ranks sit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import traincast
from job_parts import TINY_EXPERTS, job_of
from support import forecast
from traincast.errors import ConfigError
from traincast.fabric.contention import network_factor
from traincast.fabric.graph import build_fabric
from traincast.fabric.placement import gpu_of, gpus_used_per_node, locations, place_job, placement_of, with_used_gpus
from traincast.hardware.clusters import load_cluster
from traincast.hardware.fabric import FabricSpec
from traincast.job.options import SimulateOptions
from traincast.job.parallel import Parallel
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.workload.groups import rank_groups
from traincast.workload.words import Group

H100, GB200 = load_cluster("h100"), load_cluster("gb200")
INNERMOST = (Group.TP, Group.CP, Group.EP, Group.ETP)


def spread_of(cluster, parallel, kind):
    """Return the distinct placements of all groups of a kind."""
    table = rank_groups(parallel, {kind})[kind]
    where = locations(cluster, parallel.world_size)
    return {placement_of(members[members >= 0], where).members_per_node for members in table.members_GK}


@pytest.mark.parametrize(
    ("size", "degrees", "used"),
    [
        (72, {"dp": 64, "pp": 4, "ep": 64, "etp": 1}, 64),
        (72, {"dp": 64, "pp": 4, "ep": 32, "etp": 1}, 64),
        (72, {"dp": 64, "pp": 4, "ep": 8, "etp": 1}, 72),
        (72, {"tp": 4, "dp": 16, "pp": 4, "ep": 64, "etp": 1}, 64),
        (72, {"dp": 128, "pp": 2, "ep": 128, "etp": 1}, 64),
        (72, {"tp": 4, "dp": 32, "pp": 2}, 72),
        (8, {"tp": 6, "dp": 4}, 6),
        (8, {"tp": 2, "cp": 3, "dp": 4}, 6),
        (8, {"tp": 16, "dp": 4}, 8),
        (8, {"tp": 8, "cp": 3, "dp": 4}, 8),
        (8, {"tp": 12, "dp": 4}, 6),
        (8, {"tp": 6, "dp": 1}, 8),
        (72, {"dp": 64, "ep": 64, "etp": 1}, 72),
    ],
)
def test_a_node_holds_whole_innermost_groups(size, degrees, used):
    assert gpus_used_per_node(size, Parallel(**degrees)) == used


def test_inner_groups_go_first_where_not_all_can_stay_together():
    """TP x CP of 6 and experts over 4 cannot both stay inside 8: experts straddle."""
    assert gpus_used_per_node(8, Parallel(tp=6, dp=4, ep=4, etp=1)) == 6


def test_ranks_between_the_members_of_an_expert_group_count():
    layout = Parallel(cp=2, dp=8, ep=4)
    assert gpus_used_per_node(12, layout) == 12
    assert gpus_used_per_node(12, replace(layout, folded_experts=False)) == 8


@given(
    size=st.sampled_from([2, 4, 8, 72]),
    tp=st.integers(1, 12),
    cp=st.integers(1, 3),
    ep=st.sampled_from([1, 2, 4, 8, 16, 64]),
    more=st.integers(1, 4),
)
def test_groups_that_fit_stay_in_a_node(size, tp, cp, ep, more):
    """Closed form: the tp groups that fit into a node are on one, larger ones evenly on as few as hold them."""
    parallel = Parallel(tp=tp, cp=cp, dp=ep * more, ep=ep, etp=1)
    placed, notes = place_job(replace(H100, gpus_per_node=size), parallel)
    used = placed.ranks_per_node
    assert 1 <= used <= size
    if parallel.world_size <= size:
        assert used == size
    elif tp <= size:
        assert spread_of(placed, parallel, Group.TP) == {(tp,)}
    assert bool(notes) == (used < size)
    groups_divide = all(size % span == 0 for span in (tp, tp * cp, ep))
    if groups_divide:
        assert used == size


def test_members_of_expert_groups_in_racks_of_72():
    parallel = Parallel(dp=64, pp=4, ep=64, etp=1)
    placed, notes = place_job(GB200, parallel)
    assert spread_of(placed, parallel, Group.EP) == {(64,)}
    filled, nothing = place_job(GB200, parallel, "all")
    assert spread_of(filled, parallel, Group.EP) == {(64,), (56, 8), (48, 16), (40, 24)}
    assert "64 of each are used and 8 are not, 256 ranks on 4 nodes" in notes[0].text
    assert nothing == ()


def test_a_rank_has_a_gpu_of_its_own_on_its_node():
    placed = with_used_gpus(GB200, 64)
    gpu_W = gpu_of(placed, np.arange(256))
    assert len(set(gpu_W.tolist())) == 256
    assert (gpu_W // 72 == locations(placed, 256)[0]).all()
    assert (gpu_W % 72 < 64).all()
    assert (gpu_of(GB200, np.arange(256)) == np.arange(256)).all()


def test_each_used_gpu_keeps_its_share_of_what_the_nics_of_a_node_carry():
    per_gpu = H100.inter.node_bandwidth_bytes_per_s / 8
    assert with_used_gpus(H100, 6).inter.node_bandwidth_bytes_per_s == pytest.approx(6 * per_gpu)
    assert with_used_gpus(H100, 8).inter == H100.inter
    free = replace(H100, inter=replace(H100.inter, node_bandwidth_bytes_per_s=None))
    assert with_used_gpus(free, 6) == replace(free, gpus_used_per_node=6)


@pytest.mark.parametrize("asked", [0, -1, 9, True, "some", 2.5])
def test_a_wrong_number_of_gpus_is_refused(asked):
    with pytest.raises(ConfigError, match="gpus_used_per_node"):
        place_job(H100, Parallel(dp=16), asked)


def test_what_the_user_asks_for_wins_over_the_cluster_and_that_over_the_groups():
    parallel = Parallel(tp=6, dp=4)
    said = replace(H100, gpus_used_per_node=4)
    assert place_job(H100, parallel)[0].ranks_per_node == 6
    assert place_job(said, parallel)[0].ranks_per_node == 4
    assert place_job(said, parallel, "auto")[0].ranks_per_node == 6
    assert place_job(said, parallel, "all")[0].ranks_per_node == 8
    assert place_job(said, parallel, 7)[0].ranks_per_node == 7


def test_a_traced_run_stays_on_the_hosts_that_it_filled():
    assert place_job(H100, Parallel(tp=6, dp=4), measured=True)[0].ranks_per_node == 8


def test_a_network_without_room_is_filled():
    torus = replace(H100, fabric=FabricSpec(kind="torus", dims=(4, 6)))
    placed, notes = place_job(torus, Parallel(tp=6, dp=4))
    assert placed.ranks_per_node == 8
    assert "too few GPUs" in notes[0].text
    roomy = replace(H100, fabric=FabricSpec(kind="torus", dims=(4, 8)))
    assert place_job(roomy, Parallel(tp=6, dp=4))[0].ranks_per_node == 6


def test_the_fabric_sees_the_gpus_that_ranks_sit_on():
    """Rings of TP 6 stay inside their nodes, so that nothing of them reaches the fabric; filled nodes send."""
    tree = replace(H100, fabric=FabricSpec(kind="fat-tree", nodes_per_leaf=1, oversubscription=(8.0,)))
    parallel = Parallel(tp=6, dp=4)
    for cluster, slowed in ((place_job(tree, parallel)[0], False), (place_job(tree, parallel, "all")[0], True)):
        graph = build_fabric(cluster, gpu_of(cluster, 23) + 1)
        groups = [gpu_of(cluster, members) for members in rank_groups(parallel, {Group.TP})[Group.TP].members_GK]
        assert any(each.factor > 1 for each in network_factor("ring", groups, graph)) is slowed


def moe_job(**more):
    return job_of(TINY_EXPERTS, gpus=64, pp=2, ep=8, global_batch=64, **more)


def test_nothing_moves_where_groups_divide_the_node():
    options = SimulateOptions(gpus_used_per_node="all")
    usual, filled = forecast(moe_job(), H100), forecast(moe_job(), H100, options)
    assert usual.iteration_time_s == filled.iteration_time_s
    assert usual.breakdown_s == filled.breakdown_s
    assert usual.collectives == filled.collectives
    assert usual.assumptions == filled.assumptions


def test_naming_the_gpus_is_as_nodes_of_that_size():
    """With 4 GPUs of each node of 8, a job sees nodes of 4 whose NICs have their share."""
    inter = replace(H100.inter, node_bandwidth_bytes_per_s=H100.inter.node_bandwidth_bytes_per_s / 2)
    halves = forecast(moe_job(), replace(H100, gpus_per_node=4, inter=inter))
    named = forecast(moe_job(gpus_used_per_node=4), H100)
    assert named.iteration_time_s == halves.iteration_time_s
    assert named.collectives == halves.collectives
    assert named.cluster.nodes == 16


def test_experts_of_deepseek_v3_stay_in_their_racks():
    """The published rate of such a run is about 1,048 TFLOP/s per GPU; straddling racks it took 27 s."""
    request = JobRequest(
        model=load_model("deepseek-v3"),
        gpus=256,
        pp=4,
        ep=64,
        vpp=4,
        global_batch=2048,
        seq_length=4096,
        precision="mxfp8",
        moe_dispatcher="hybridep",
        framework="megatron-core-2026",
    )
    result = forecast(resolve_job(request, GB200), GB200, allow_oom=True)
    assert result.iteration_time_s < 10
    assert {each.nodes for each in result.collectives if each.group == "ep"} == {1}
    assert any(note.code == "gpus-used-per-node" for note in result.assumptions)


def test_a_job_file_names_the_gpus_and_a_flag_wins_over_it(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(
        '[model]\nname = "llama3-8b"\n[parallel]\ntp = 4\n[batch]\nseq_length = 4096\nglobal_batch = 64\n'
        '[cluster]\nname = "h100"\ngpus = 32\ngpus_used_per_node = 4\n',
        encoding="utf-8",
    )
    assert traincast.predict(file).cluster["nodes"] == 8
    assert traincast.predict(file, options=SimulateOptions(gpus_used_per_node="all")).cluster["nodes"] == 4
    file.write_text(file.read_text(encoding="utf-8").replace("node = 4", 'node = "some"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="gpus_used_per_node: is 'some'; it must be a number of GPUs, or auto or all"):
        traincast.predict(file)


def test_a_cluster_file_names_the_gpus(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('base = "gb200"\ngpus_used_per_node = 64\n', encoding="utf-8")
    assert load_cluster(str(file)).ranks_per_node == 64
    assert dict(traincast.inspect(file).layout)["gpus_used_per_node"] == 64
    assert traincast.collective("all_reduce", 2**30, gpus=128, cluster=str(file)).nodes == 2
    file.write_text('base = "h100"\ngpus_used_per_node = 9\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="gpus_used_per_node: is 9; a node of mine has 8 GPUs"):
        load_cluster(str(file))


def test_a_workload_file_is_placed_too(tmp_path):
    """A file of TP 6 on nodes of 8."""
    header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 6 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 24 "
    file = tmp_path / "w.txt"
    row = "mlp -1 1000000 ALLREDUCE 67108864 1000000 ALLREDUCE 67108864 1000000 NONE 0 100\n"
    file.write_text(header + "checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0\n1\n" + row, encoding="utf-8")
    inside = traincast.simulate(file, cluster="h100")
    across = traincast.simulate(file, cluster="h100", gpus_used_per_node="all")
    assert {each.nodes for each in inside.collectives if each.group == "tp"} == {1}
    assert inside.cluster.nodes == 4
    assert across.iteration_time_s > inside.iteration_time_s
