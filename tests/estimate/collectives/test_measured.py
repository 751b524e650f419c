"""The presets against public measurements of collectives."""

import pytest

from traincast.estimate.collectives import estimate_collective
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
from traincast.workload.words import Operation


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
    price = estimate_collective(operation, size_bytes, Placement(counts), load_cluster(cluster))
    assert price.time_s == pytest.approx(measured_s, rel=0.20)


def test_large_gradients_over_one_nic_per_node():
    h100, spread = load_cluster("h100"), Placement((1,) * 8)
    scatter = estimate_collective(Operation.REDUCE_SCATTER, 12_800_000_000, spread, h100).time_s
    gather = estimate_collective(Operation.ALL_GATHER, 6_400_000_000, spread, h100).time_s
    assert 0.30 < scatter + gather < 0.45
