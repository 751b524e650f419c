"""Faster hardware is never slower: every rate and latency of a GPU and of its links, in collectives and in steps."""

import pytest

import traincast
from traincast.estimate.collectives.cost import estimate_collectives
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import cluster_names, load_cluster, with_field
from traincast.workload.words import Operation

SIZES = [1, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 30]
PLACEMENTS = [Placement((2,)), Placement((4,)), Placement((1, 1)), Placement((4, 4)), Placement((2,) * 8)]
OPERATIONS = [Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL]
PRESETS = [each for each in cluster_names() if each != "ideal"]
MORE = 1.3
SETTLED = 2e-3
"""What a step may seem longer by: more overlaps where something ends sooner, and its settling stops within 1e-4."""


def rates(cluster):
    """Every rate and latency that a cluster has, by its path, with whether more of it is faster."""
    for section in ("gpu", "intra", "inter"):
        part = getattr(cluster, section)
        for name in part.__struct_fields__:
            if name.endswith(("_per_s", "latency_s", "tdp_w")) and getattr(part, name):
                yield f"{section}.{name}", getattr(part, name), not name.endswith("latency_s")


def faster(cluster, path, value, *, rises, factor=MORE):
    return with_field(cluster, path, value * factor if rises else value / factor, "test")


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_no_collective_is_slower_on_faster_links(preset):
    cluster = load_cluster(preset)
    numbers = [each for each in rates(cluster) if not each[0].startswith("gpu.") or "bytes_per_s" in each[0]]
    assert len(numbers) > 8
    changed = [(path, faster(cluster, path, value, rises=rises)) for path, value, rises in numbers]
    for operation in OPERATIONS:
        for placement in PLACEMENTS:
            before = estimate_collectives(operation, SIZES, [placement], cluster)
            for path, other in changed:
                after = estimate_collectives(operation, SIZES, [placement], other)
                assert (after <= before * (1 + 1e-12)).all(), (path, operation, placement)


JOBS = {
    "gb300": {"model": "llama3-8b", "gpus": 8, "global_batch": 32, "seq_length": 1024, "precision": "fp8"},
    "b200": {"model": "qwen3-30b-a3b", "gpus": 16, "ep": 8, "global_batch": 32, "seq_length": 1024},
    "h100": {"model": "llama3-8b", "gpus": 16, "tp": 2, "pp": 2, "global_batch": 16, "seq_length": 2048},
}


@pytest.mark.slow
@pytest.mark.parametrize("preset", list(JOBS))
def test_no_step_is_slower_on_faster_hardware(preset):
    cluster = load_cluster(preset)
    before = traincast.predict(**JOBS[preset], cluster=cluster, allow_oom=True).iteration_time_s
    found = {
        path: traincast.predict(
            **JOBS[preset], cluster=faster(cluster, path, value, rises=rises, factor=factor), allow_oom=True
        ).iteration_time_s
        for path, value, rises in rates(cluster)
        if "host" not in path
        for factor in ((2.0,) if "flops" in path else (MORE,))
    }
    assert len(found) > 10
    assert {path: step_s / before for path, step_s in found.items() if step_s > before * (1 + SETTLED)} == {}


def test_a_step_in_8_bits_keeps_its_time_where_the_power_limit_eats_a_higher_peak():
    cluster, path = load_cluster("gb300"), "gpu.bf16_dense_flops_per_s"
    other = with_field(cluster, path, 2 * cluster.gpu.bf16_dense_flops_per_s, "test")
    before, after = (traincast.predict(**JOBS["gb300"], cluster=each) for each in (cluster, other))
    assert 0.9 < after.iteration_time_s / before.iteration_time_s <= 1
    (note, *_) = [each.text for each in after.assumptions if each.code == "power-limit"]
    assert "1400 W" in note and "of the 4900 TFLOP/s" in note
