"""How link constants are found: what a fit leaves, and what constants from other GPUs or sizes leave."""

import subprocess
import sys
from pathlib import Path

import pytest

import fit_links
from datafiles import table_path
from traincast.calibrate.collectives import read_collectives
from traincast.hardware.clusters import load_cluster

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
        found = fit_links.as_priced(fit_links.of_gpu(one_node, gpu), load_cluster(name))
        by_operation = [each for each in found if each.of in OPERATIONS]
        assert len(by_operation) == 4
        assert max(each.median for each in by_operation) <= 0.08, name


def test_a_gpu_from_its_datasheet_and_the_others_within_25_percent(one_node):
    fits = {
        name: fit_links.fit_links(fit_links.of_gpu(one_node, gpu), load_cluster(name))
        for name, gpu in fit_links.MEASURED.items()
    }
    assert all(len(fit.constants) <= 6 for fit in fits.values())
    for name, found in fit_links.without_each_gpu(fits, one_node).items():
        assert max(each.median for each in found if each.of in OPERATIONS) <= 0.25, name


def test_even_the_erratic_pcie_of_the_l40s_within_12_percent(one_node):
    found = fit_links.as_priced(fit_links.of_gpu(one_node, "l40s"), load_cluster("l40s"))
    assert max(each.median for each in found if each.of in OPERATIONS) <= 0.12


def test_azure_as_asked_for(azure):
    found = {each.of: each for each in fit_links.as_priced(azure, load_cluster("a100-azure"))}
    assert (found["all"].rows, found["above"].rows) == (173, 52)
    assert found["all"].median <= 0.06
    assert found["all"].p95 <= 0.17
    assert found["above"].median <= 0.04


def test_azure_with_a_number_of_gpus_left_out_within_12_percent(azure):
    found = fit_links.without_each_size(azure, load_cluster("a100-azure"))
    assert sorted(found) == [2, 4, 8, 16, 32, 64, 128]
    assert max(each[0].median for each in found.values()) <= 0.12


def test_the_fit_says_so_when_the_data_is_missing(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "--data", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is missing" in done.stderr
    assert not done.stdout
