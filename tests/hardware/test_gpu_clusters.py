"""A GPU's name leads to its preset or to a cluster of its datasheet, with the node and network that are asked for."""

import pytest

from traincast.errors import ConfigError, UnknownNameError
from traincast.hardware.clusters import cluster_for, load_cluster
from traincast.hardware.from_datasheet import NIC_SHARE
from traincast.hardware.gpu import gpu_names, load_gpu


@pytest.mark.parametrize(("gpu", "preset"), [("H100-SXM-80GB", "h100"), ("GB200-NVL72", "gb200"), ("MI300X", "mi300x")])
def test_a_part_with_a_preset_gets_it_unchanged(gpu, preset):
    assert cluster_for(gpu) == load_cluster(preset)


@pytest.mark.parametrize("name", gpu_names())
def test_every_known_gpu_has_a_cluster_with_its_own_datasheet(name):
    spec = load_gpu(name)
    cluster = cluster_for(name)
    assert cluster.gpus_per_node >= 1
    assert cluster.intra.bandwidth_bytes_per_s <= spec.link_bytes_per_s
    assert cluster.gpu.hbm_bytes == pytest.approx(spec.hbm_bytes)
    assert cluster.sources


def test_the_domain_of_a_rack_is_not_its_tray():
    assert cluster_for("GB200-NVL72", gpus_per_node=4).gpus_per_node == 72
    assert cluster_for("GB200-NVL72", gpus_per_node=4, gpus=256).ranks_per_node == 64
    assert cluster_for("GB200-NVL72", gpus_per_node=4, gpus=64).gpus_per_node == 72
    smaller = cluster_for("H100-SXM-80GB", gpus_per_node=4)
    assert smaller.gpus_per_node == 4
    assert smaller.inter.node_bandwidth_bytes_per_s == load_cluster("h100").inter.node_bandwidth_bytes_per_s / 2


def test_a_slower_network_card_slows_rank_and_node():
    usual, slow = cluster_for("A100-SXM-80GB"), cluster_for("A100-SXM-80GB", 8, 6.25e9)
    assert slow.inter.bandwidth_bytes_per_s == pytest.approx(6.25e9 * NIC_SHARE)
    assert slow.inter.node_bandwidth_bytes_per_s <= 8 * 6.25e9
    assert slow.intra == usual.intra
    assert cluster_for("A100-SXM-80GB", 8, 25e9) == usual
    with pytest.raises(ConfigError, match="nic_bytes_per_s"):
        cluster_for("A100-SXM-80GB", 8, 0.0)


def test_an_unknown_gpu_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="H100-SXM-80GB"):
        cluster_for("H900")
