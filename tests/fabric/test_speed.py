"""What flows on a fabric may cost, on any machine that is not far slower than a laptop."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "flows.py"


@pytest.fixture
def flows():
    spec = importlib.util.spec_from_file_location("flows", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["flows"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["flows"]


def test_a_ring_over_1024_ranks_is_solved_in_50_milliseconds(flows):
    """ASTRA-sim takes 7.5 to 14 s for it."""
    graph = flows.fabric(1024)
    wall_s, simulated_s = flows.timed(lambda: flows.ring_all_reduce_s(graph, 1024, flows.GIB))
    assert wall_s < 0.05
    # 1023/1024 of twice the data through the eight NICs of each node.
    rate = 8 * flows.load_cluster("h100").inter.bandwidth_bytes_per_s
    assert 0.9 < simulated_s / (2 * 1023 / 1024 * flows.GIB / rate) < 1.5
