"""The presets against measured collectives: public anchors, and whole tables where they are at hand."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from traincast.estimate.collectives import price_collective
from traincast.fabric.placement import Placement
from traincast.spec.clusters import load_cluster
from traincast.workload.words import Operation

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "fit_links.py"
DATA = ROOT.parent / "shared" / "data"
ONE_NODE, MANY_NODES = DATA / "nccl_intranode_measured.csv", DATA / "nccl_allreduce_a100_azure.csv"


@pytest.fixture(scope="module")
def fit_links():
    spec = importlib.util.spec_from_file_location("fit_links", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_links"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fit_links"]


def median_error(curves, cluster):
    return np.median(np.abs(np.concatenate([curve.errors(cluster) for curve in curves])))


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
        ("a100", Operation.ALL_REDUCE, 1_073_741_824, (8,) * 16, 16586e-6),
        ("a100", Operation.ALL_REDUCE, 1_048_576, (8,) * 4, 131.8e-6),
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


@pytest.mark.skipif(not ONE_NODE.is_file(), reason="the measured tables are not at hand")
@pytest.mark.parametrize("name", ["a100", "h100", "h200"])
def test_one_node_within_a_tenth_for_every_operation(fit_links, name):
    curves = fit_links.single_node(ONE_NODE, fit_links.MEASURED[name])
    assert sum(curve.size_bytes.size for curve in curves) == 504
    assert median_error(curves, load_cluster(name)) < 0.10
    for operation in fit_links.OPERATIONS.values():
        assert median_error([c for c in curves if c.operation is operation], load_cluster(name)) < 0.15


@pytest.mark.skipif(not MANY_NODES.is_file(), reason="the measured tables are not at hand")
def test_many_nodes_within_a_tenth(fit_links):
    curves = [curve for curve in fit_links.azure(MANY_NODES) if curve.placement.nodes > 1]
    assert len(curves) == 4
    assert median_error(curves, load_cluster("a100")) < 0.10


def test_the_fit_says_so_when_the_data_is_missing(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, "--data", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is missing" in done.stderr
    assert not done.stdout
