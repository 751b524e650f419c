"""The presets against public measurements of collectives."""

import pytest

from traincast.estimate.collectives import estimate_collective
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
from traincast.model.blocks.experts import nodes_of_token, ranks_of_token
from traincast.model.load import load_model
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


@pytest.mark.parametrize(
    ("ep", "out_bytes_per_s", "back_bytes_per_s", "within"),
    [(8, 153e9, 158e9, 0.06), (32, 44e9, 47e9, 0.25), (64, 46e9, 45e9, 0.10)],
)
def test_exchanges_of_deepep(ep, out_bytes_per_s, back_bytes_per_s, within):
    """deepseek-ai/DeepEP, README: H800, 4,096 tokens of 7,168, top-8 experts in 4 of 8 groups, FP8 out and bf16 back.

    Rates are of what a rank's tokens are, once for each node of their experts, or for each rank where one node has all.
    """
    experts, h800 = load_model("deepseek-v3").experts, load_cluster("h800")
    copies = nodes_of_token(experts, ep, 1, 8) or ranks_of_token(experts, ep)
    for element_bytes, rate in ((1 + 4 / 128, out_bytes_per_s), (2, back_bytes_per_s)):
        size = int(4096 * 7168 * element_bytes * copies)
        price = estimate_collective(Operation.ALL_TO_ALL, size, Placement((8,) * (ep // 8)), h800)
        assert price.time_s == pytest.approx(size / rate, rel=within)
