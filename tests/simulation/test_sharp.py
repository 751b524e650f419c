"""Reduction in the switches of the network: for the group that asks for it, on InfiniBand."""

import pytest
from msgspec.structs import replace

from job_parts import job_of
from support import forecast
from traincast.errors import ConfigError, UnknownNameError
from traincast.estimate.collectives.cost import estimate_collective
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.workload.words import Operation

H100 = load_cluster("h100")
REDUCING = replace(H100, in_network_reduction=True)
ETHERNET = replace(H100, inter=replace(H100.inter, kind="ethernet"))
ALL_REDUCE = Operation.ALL_REDUCE


def of_dp(result):
    return [each for each in result.collectives if each.group == "dp"]


def run(cluster=H100, **fields):
    """A job with one rank of each data parallel group on each of 8 nodes, and its result."""
    given = {"gpus": 64, "tp": 8, "zero": 0, "global_batch": 64, "overlap_grad_reduce": False}
    return forecast(job_of("llama3-8b", **given | fields), cluster, allow_oom=True)


def test_a_large_all_reduce_crosses_the_nic_once():
    """A ring over n nodes of one rank each takes 2 (n - 1) / n of it."""
    for nodes in (4, 16, 64):
        ring, once = (
            estimate_collective(ALL_REDUCE, 2**33, Placement((1,) * nodes), each) for each in (H100, REDUCING)
        )
        copies = 2**33 / nodes / H100.gpu.copy_bytes_per_s
        assert (ring.algorithm, once.algorithm, once.protocol) == ("ring", "collnet", "Simple")
        expected = nodes / (2 * (nodes - 1))
        assert (once.time_s - copies) / (ring.time_s - copies) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("operation", [ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER])
@pytest.mark.parametrize("counts", [(8,), (1,) * 8, (8,) * 4, (4, 2)])
@pytest.mark.parametrize("size", [2**10, 2**20, 2**32])
def test_it_never_costs_anything(operation, counts, size):
    """NCCL takes it where it is faster; inside one node it does not exist."""
    usual, reducing = (estimate_collective(operation, size, Placement(counts), each) for each in (H100, REDUCING))
    assert reducing.time_s <= usual.time_s
    if len(counts) == 1:
        assert reducing == usual


def test_only_the_group_that_asks_for_it_has_it():
    plain, sharp = run(), run(sharp="dp")
    assert {each.algorithm for each in of_dp(sharp)} == {"collnet"}
    assert sharp.breakdown_s["exposed_dp"] < plain.breakdown_s["exposed_dp"]
    others = [[each for each in result.collectives if each.group != "dp"] for result in (plain, sharp)]
    assert others[0] == others[1]
    assert [note.code for note in sharp.assumptions if note.code == "sharp"] == ["sharp"]
    assert not [note for note in sharp.warnings if note.code == "sharp-unused"]


def test_sharded_gradients_have_no_all_reduce_and_it_is_said():
    notes = [note.text for note in run(zero=1, sharp="dp").assumptions if note.code == "sharp"]
    assert "zero 1 has no all-reduce over that group" in notes[0]


@pytest.mark.parametrize(("cluster", "fields"), [(ETHERNET, {}), (H100, {"gpus": 8}), (H100, {"sharp": "dp_replica"})])
def test_where_it_has_no_effect_a_warning_says_so(cluster, fields):
    sharp, plain = run(cluster, **{"sharp": "dp"} | fields), run(cluster, **{**fields, "sharp": None})
    assert sharp.iteration_time_s == plain.iteration_time_s
    assert [note.code for note in sharp.warnings if note.code == "sharp-unused"] == ["sharp-unused"]


def test_copies_of_shards_can_have_it():
    fields = {"gpus": 64, "tp": 1, "zero": 1, "shard": 8, "global_batch": 64}
    sharp = run(**fields, sharp="dp_replica")
    assert {each.algorithm for each in sharp.collectives if each.group == "replica"} == {"collnet"}


def test_only_infiniband_can():
    with pytest.raises(ConfigError, match="in_network_reduction: needs kind"):
        replace(ETHERNET, in_network_reduction=True)
    with pytest.raises(UnknownNameError):
        job_of(sharp="tp")


def test_presets_that_say_infiniband_are_marked_so():
    for name in cluster_names():
        cluster = load_cluster(name)
        if "InfiniBand" in cluster.description:
            assert cluster.inter.kind == "infiniband", name
