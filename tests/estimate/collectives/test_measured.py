"""The presets against measured collectives: public anchors, and whole tables where they are at hand."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from measured_tables import EXCERPTS
from traincast.calibrate.collectives import read_collectives
from traincast.estimate.collectives import price_collective
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
from traincast.workload.words import Operation

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "fit_links.py"
OPERATIONS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}


@pytest.fixture(scope="module")
def fit_links():
    spec = importlib.util.spec_from_file_location("fit_links", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_links"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fit_links"]


@pytest.fixture(scope="module")
def one_node():
    return read_collectives([EXCERPTS / "nccl_intranode_measured.csv"]).measurements


@pytest.fixture(scope="module")
def azure():
    return read_collectives([EXCERPTS / "nccl_allreduce_a100_azure.csv"]).measurements


@pytest.mark.parametrize(
    ("cluster", "operation", "size_bytes", "counts", "measured_s"),
    [
        # ai-dynamo/aiconfigurator, NCCL 2.29.2 and 2.27.3
        ("h100", Operation.ALL_GATHER, 134_217_728, (8,), 397.0e-6),
        ("h100", Operation.ALL_REDUCE, 536_870_912, (2,), 1734e-6),
        ("h200", Operation.ALL_TO_ALL, 67_108_864, (8,), 217.5e-6),
        ("a100", Operation.REDUCE_SCATTER, 268_435_456, (4,), 1088.6e-6),
        ("a100", Operation.ALL_REDUCE, 8192, (8,), 21.8e-6),
        # NetX-lab/Echo, Azure ND A100 v4
        ("a100-azure", Operation.ALL_REDUCE, 1_073_741_824, (8,) * 16, 16586e-6),
        ("a100-azure", Operation.ALL_REDUCE, 1_048_576, (8,) * 4, 131.8e-6),
        # coreweave/nccl-tests PR 43, GB200 NVL72 with all 72 GPUs
        ("gb200", Operation.ALL_REDUCE, 8_589_934_592, (72,), 20299e-6),
        ("gb200", Operation.ALL_REDUCE, 1_073_741_824, (72,), 3109e-6),
        ("gb200", Operation.ALL_REDUCE, 536_870_912, (72,), 1807e-6),
        # NVIDIA/nccl issue 1531, all-to-all of 8 x 8 H800
        ("h800", Operation.ALL_TO_ALL, 8_388_608, (8,) * 8, 337.8e-6),
        # ai-dynamo/aiconfigurator, NCCL 2.29.2, PCIe
        ("rtx-pro-6000", Operation.ALL_REDUCE, 268_435_456, (4,), 15667e-6),
        ("rtx-pro-6000", Operation.ALL_TO_ALL, 536_870_912, (2,), 10448e-6),
        # NVIDIA/nccl-tests issue 232, one H100 per node
        ("h100", Operation.ALL_REDUCE, 33_554_432, (1, 1), 812.3e-6),
        ("h100", Operation.ALL_REDUCE, 2_097_152, (1, 1), 113.2e-6),
    ],
)
def test_published_measurements(cluster, operation, size_bytes, counts, measured_s):
    price = price_collective(operation, size_bytes, Placement(counts), load_cluster(cluster))
    assert price.time_s == pytest.approx(measured_s, rel=0.20)


def test_large_gradients_over_one_nic_per_node():
    h100, spread = load_cluster("h100"), Placement((1,) * 8)
    scatter = price_collective(Operation.REDUCE_SCATTER, 12_800_000_000, spread, h100).time_s
    gather = price_collective(Operation.ALL_GATHER, 6_400_000_000, spread, h100).time_s
    assert 0.30 < scatter + gather < 0.45


def test_one_node_within_8_percent_for_every_gpu_and_operation(fit_links, one_node):
    for name, gpu in fit_links.MEASURED.items():
        found = fit_links.as_priced(fit_links.of_gpu(one_node, gpu), load_cluster(name))
        by_operation = [each for each in found if each.of in OPERATIONS]
        assert len(by_operation) == 4
        assert max(each.median for each in by_operation) <= 0.08, name


def test_a_gpu_from_its_datasheet_and_the_others_within_25_percent(fit_links, one_node):
    fits = {
        name: fit_links.fit_links(fit_links.of_gpu(one_node, gpu), load_cluster(name))
        for name, gpu in fit_links.MEASURED.items()
    }
    assert all(len(fit.constants) <= 6 for fit in fits.values())
    for name, found in fit_links.without_each_gpu(fits, one_node).items():
        assert max(each.median for each in found if each.of in OPERATIONS) <= 0.25, name


def test_even_the_erratic_pcie_of_the_l40s_within_12_percent(fit_links, one_node):
    found = fit_links.as_priced(fit_links.of_gpu(one_node, "l40s"), load_cluster("l40s"))
    assert max(each.median for each in found if each.of in OPERATIONS) <= 0.12


def test_azure_as_asked_for(fit_links, azure):
    found = {each.of: each for each in fit_links.as_priced(azure, load_cluster("a100-azure"))}
    assert (found["all"].rows, found["above"].rows) == (173, 52)
    assert found["all"].median <= 0.06
    assert found["all"].p95 <= 0.17
    assert found["above"].median <= 0.04


def test_azure_with_a_number_of_gpus_left_out_within_12_percent(fit_links, azure):
    found = fit_links.without_each_size(azure, load_cluster("a100-azure"))
    assert sorted(found) == [2, 4, 8, 16, 32, 64, 128]
    assert max(each[0].median for each in found.values()) <= 0.12


def test_the_fit_says_so_when_the_data_is_missing(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "--data", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is missing" in done.stderr
    assert not done.stdout
