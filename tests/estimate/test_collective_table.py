"""The table of nccl-tests without the GPUs."""

import pytest

import traincast
from support import write_cluster
from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.collective_table import doubling, members_on, spread
from traincast.estimate.collectives import estimate_collective
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
from traincast.workload.words import Operation, operation_named


@pytest.mark.parametrize("text", ["all_reduce", "all-reduce", "AllReduce", "ALLREDUCE", "all reduce"])
def test_operations_in_any_spelling(text):
    assert operation_named(text) is Operation.ALL_REDUCE
    assert operation_named("alltoall") is Operation.ALL_TO_ALL
    assert operation_named("sendrecv") is Operation.SEND_RECV


def test_an_unknown_operation_lists_the_known():
    with pytest.raises(ConfigError, match="unknown operation 'none'; known: all_reduce, all_gather, "):
        operation_named("none")


def test_sizes_double():
    assert doubling(1024, 8192) == [1024, 2048, 4096, 8192]
    assert doubling(3, 13) == [3, 6, 12]
    assert doubling(7, 7) == [7]
    for first, last in ((0, 8), (8, 4)):
        with pytest.raises(ConfigError, match="not a range of sizes"):
            doubling(first, last)


def test_members_are_spread_evenly():
    assert members_on(16, None, 8) == Placement((8, 8))
    assert members_on(10, None, 8) == Placement((5, 5))
    assert members_on(4, 4, 8) == Placement((1, 1, 1, 1))
    assert spread(10, 4) == Placement((3, 3, 2, 2))
    with pytest.raises(InfeasibleError, match="16 ranks do not fit on 1 node"):
        members_on(16, 1, 8)
    with pytest.raises(InfeasibleError, match="2 ranks cannot sit on 3 nodes"):
        members_on(2, 3, 8)


def test_a_row_is_the_price_and_its_bandwidths():
    table = traincast.collective("all_reduce", 2**30, gpus=16, cluster="h100")
    price = estimate_collective(Operation.ALL_REDUCE, 2**30, Placement((8, 8)), load_cluster("h100"))
    (row,) = table.rows
    assert (row.time_s, row.algorithm, row.protocol) == (price.time_s, price.algorithm, price.protocol)
    assert row.algbw_bytes_per_s == pytest.approx(2**30 / price.time_s)
    assert row.busbw_bytes_per_s == pytest.approx(2**30 / price.time_s * 2 * 15 / 16)
    assert (table.op, table.ranks, table.nodes, table.members_per_node) == ("all_reduce", 16, 2, (8, 8))
    assert table.assumptions == ()


@pytest.mark.parametrize("operation", [each for each in Operation if each is not Operation.NONE])
def test_every_operation_has_a_table(operation):
    table = traincast.collective(operation.name, (1, 2**30), gpus=16, cluster="h100")
    times = [row.time_s for row in table.rows]
    assert len(times) == 31
    assert times == sorted(times)
    assert times[0] > 0


FAT = {"kind": "fat-tree", "nodes_per_leaf": 4, "oversubscription": 8.0}


def test_the_fabric_of_the_cluster_counts_and_is_explained(tmp_path):
    fat = write_cluster(tmp_path / "fat.toml", fabric=FAT)
    table, plain = (traincast.collective("all_to_all", 2**30, gpus=64, cluster=each) for each in (fat, "h100"))
    # Half of what 32 GPUs have goes to the other leaf, over an eighth of their NICs.
    bound_s = 32 * 2**30 / 2 / (32 * 48.5e9 / 8)
    assert bound_s <= table.rows[0].time_s < 1.05 * bound_s
    assert table.rows[0].time_s > 4 * plain.rows[0].time_s
    (note,) = table.assumptions
    assert note.code == "shared-links"
    assert "slowed 4.12x" in note.text
    assert note.text.endswith("by contention on leaf 0 -> spine 0")
    # The eight channels of a ring share the 194 GB/s of a leaf where a node alone would give them 350.
    (note,) = traincast.collective("all_reduce", 2**30, gpus=64, cluster=fat).assumptions
    assert f"slowed {350 / 194:.2f}x" in note.text
    assert traincast.collective("all_reduce", 2**30, gpus=8, cluster=fat).assumptions == ()


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all", "broadcast", "send_recv"])
def test_slower_links_of_the_fabric_take_longer_and_faster_ones_no_less_than_the_nic_does(tmp_path, operation):
    times = []
    for rate in (10e9, 25e9, 48.5e9, 100e9):
        cluster = write_cluster(tmp_path / "c.toml", fabric={**FAT, "oversubscription": 1.0, "link_bytes_per_s": rate})
        table = traincast.collective(operation, 2**32, gpus=16, nodes=16, cluster=cluster)
        times.append(table.rows[0].time_s)
        assert ("fabric-rate" in {note.code for note in table.assumptions}) == (rate != 48.5e9)
    plain = traincast.collective(operation, 2**32, gpus=16, nodes=16, cluster="h100").rows[0].time_s
    assert times[2] == times[3] == plain
    assert times[0] == pytest.approx(4.85 * plain, rel=0.02)
    assert times[0] > times[1] > times[2]


def test_no_time_has_no_bandwidth():
    (row,) = traincast.collective("all_reduce", 8, gpus=1, cluster="h100").rows
    assert (row.time_s, row.algbw_bytes_per_s, row.busbw_bytes_per_s) == (0.0, None, None)
    assert traincast.collective("reduce", 8, cluster="ideal").rows[0].time_s == 0


def test_the_default_cluster_is_an_assumption():
    table = traincast.collective("broadcast", 8)
    assert (table.ranks, table.cluster) == (8, "h100")
    assert [note.code for note in table.assumptions] == ["cluster-default"]
