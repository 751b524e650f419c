"""The benchmark of flows finds what the bottleneck of a fabric takes; how fast it does, it prints."""

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


def test_a_ring_over_1024_ranks_takes_what_the_cards_of_a_node_take(flows):
    graph = flows.fabric(1024)
    _, simulated_s = flows.timed(lambda: flows.ring_all_reduce_s(graph, 1024, flows.GIB))
    # 1023/1024 of twice the data through the eight NICs of each node.
    rate = 8 * flows.load_cluster("h100").inter.bandwidth_bytes_per_s
    assert 0.9 < simulated_s / (2 * 1023 / 1024 * flows.GIB / rate) < 1.5
