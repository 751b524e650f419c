"""The constants of state-space scans, and the kernels that they were taken from."""

import pytest

from datafiles import table_path
from traincast.calibration.tables import read_table
from traincast.estimate.operators.cost import estimate_operator
from traincast.hardware.gpu import load_gpu
from traincast.workload.ops import OperatorCall


def measured_passes():
    """Return the milliseconds of every measured pass, by GPU, shape and direction."""
    found = {}
    for row in read_table(table_path("state_space_kernels_h100.csv")).rows:
        shape = tuple(int(row.cells[name]) for name in ("tokens", "heads", "head_dim", "state", "groups"))
        key = row.cells["gpu"], shape, row.cells["pass"]
        found[key] = found.get(key, 0.0) + float(row.cells["ms"])
    return found


@pytest.mark.parametrize(("key", "ms"), measured_passes().items(), ids=str)
def test_a_measured_pass_is_met(key, ms):
    gpu, shape, direction = key
    call = OperatorCall(family="state_space", shape=shape, dtype="bf16", direction=direction)
    assert 1e3 * estimate_operator(call, load_gpu(gpu)).time_s == pytest.approx(ms, rel=0.12)


def test_more_memory_bandwidth_helps_a_part_of_it_alone():
    """H100 and H200 have the same multiprocessors; of 1.43 times the bandwidth a scan gains less."""
    call = OperatorCall(family="state_space", shape=(8192, 128, 64, 128, 8), dtype="bf16", direction="backward")
    slow, fast = (estimate_operator(call, load_gpu(name)).time_s for name in ("h100", "h200"))
    assert 1.1 < slow / fast < 4.8 / 3.35
