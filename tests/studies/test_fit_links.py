"""How link constants are found: what a fit leaves, and what constants from other GPUs or sizes leave."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

import fit_links
from datafiles import table_path
from fit_links import from_others
from traincast.calibration.collectives import read_collectives
from traincast.errors import ConfigError
from traincast.hardware.clusters import load_cluster

H100 = load_cluster("h100")

SCRIPT = Path(fit_links.__file__)
OPERATIONS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}


@pytest.fixture(scope="module")
def one_node():
    return read_collectives([table_path("nccl_intranode_measured.csv")]).measurements


@pytest.fixture(scope="module")
def azure():
    return read_collectives([table_path("nccl_allreduce_a100_azure.csv")]).measurements


def test_one_node_within_8_percent_for_every_gpu_and_operation(one_node):
    for name, gpu in fit_links.MEASURED.items():
        found = fit_links.as_estimated(fit_links.of_gpu(one_node, gpu), load_cluster(name))
        by_operation = [each for each in found if each.of in OPERATIONS]
        assert len(by_operation) == 4
        assert max(each.median for each in by_operation) <= 0.08, name


@pytest.mark.slow
def test_a_gpu_from_its_datasheet_and_the_others_within_25_percent(one_node):
    fits = {
        name: fit_links.fit_links(fit_links.of_gpu(one_node, gpu), load_cluster(name))
        for name, gpu in fit_links.MEASURED.items()
    }
    assert all(len(fit.constants) <= 6 for fit in fits.values())
    for name, found in fit_links.without_each_gpu(fits, one_node).items():
        assert max(each.median for each in found if each.of in OPERATIONS) <= 0.25, name


def test_even_the_erratic_pcie_of_the_l40s_within_12_percent(one_node):
    found = fit_links.as_estimated(fit_links.of_gpu(one_node, "l40s"), load_cluster("l40s"))
    assert max(each.median for each in found if each.of in OPERATIONS) <= 0.12


def test_azure_as_asked_for(azure):
    found = {each.of: each for each in fit_links.as_estimated(azure, load_cluster("a100-azure"))}
    assert (found["all"].rows, found["above"].rows) == (173, 52)
    assert found["all"].median <= 0.06
    assert found["all"].p95 <= 0.17
    assert found["above"].median <= 0.04


@pytest.mark.slow
def test_azure_with_a_number_of_gpus_left_out_within_12_percent(azure):
    found = fit_links.without_each_size(azure, load_cluster("a100-azure"))
    assert sorted(found) == [2, 4, 8, 16, 32, 64, 128]
    assert max(each[0].median for each in found.values()) <= 0.12


def test_the_fit_says_so_when_the_data_is_missing(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "--data", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is missing" in done.stderr
    assert not done.stdout


def test_constants_of_an_unmeasured_gpu_come_from_its_datasheet():
    guess = from_others(load_cluster("h200"), [H100, load_cluster("a100")])
    assert guess.intra.hop_latency_s == pytest.approx(H100.intra.hop_latency_s)
    assert guess.intra.bandwidth_bytes_per_s == pytest.approx(H100.intra.bandwidth_bytes_per_s)
    assert guess.gpu.copy_bytes_per_s == pytest.approx(H100.gpu.copy_bytes_per_s * 4.8 / 3.35)
    bare = replace(H100, gpu=replace(H100.gpu, name="Abacus", link_bytes_per_s=None))
    with pytest.raises(ConfigError, match="link_bytes_per_s"):
        from_others(bare, [H100])
    with pytest.raises(ConfigError):
        from_others(H100, [bare])


def test_a_gpu_on_pcie_keeps_nothing_of_its_own_but_the_datasheet():
    pro = load_cluster("rtx-pro-6000")
    guess = from_others(pro, [H100, load_cluster("b200"), load_cluster("l40s")])
    b200 = load_cluster("b200")
    share = b200.intra.bandwidth_bytes_per_s / b200.gpu.link_bytes_per_s
    assert guess.intra.bandwidth_bytes_per_s == pytest.approx(share * 63e9)
    assert guess.intra.hop_latency_s == pytest.approx(b200.intra.hop_latency_s)
    own = (guess.intra.pair_bandwidth_bytes_per_s, guess.intra.halves_bandwidth_bytes_per_s, guess.intra.crowding)
    assert own == (None, None, None)
    crowded = from_others(replace(load_cluster("l40s"), name="x"), [load_cluster("l40s")])
    assert crowded.intra.crowding == pytest.approx(load_cluster("l40s").intra.crowding)
