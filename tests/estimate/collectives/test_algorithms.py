"""What every algorithm must keep, and the exact traffic of simple cases."""

import numpy as np
import pytest

from traincast.estimate.collectives import ALGORITHMS, Traffic, transfer_time_s
from traincast.estimate.collectives.contract import bus_factor
from traincast.fabric.placement import Placement
from traincast.spec.clusters import load_cluster
from traincast.workload.words import Operation

PLACEMENTS = [(2,), (3,), (8,), (1, 1), (1,) * 7, (4, 2), (8, 8), (8, 1), (8, 7, 3), (8,) * 128]
OPERATIONS = [operation for operation in Operation if operation is not Operation.NONE]
H100 = load_cluster("h100")


def cases():
    return list(_cases())


def _cases():
    for name in ALGORITHMS.names():
        for operation in OPERATIONS:
            for counts in PLACEMENTS:
                traffic = ALGORITHMS.get(name)(operation, Placement(counts))
                if traffic is not None:
                    yield pytest.param(traffic, operation, counts, id=f"{name}-{operation.name}-{len(counts)}x{counts}")


def test_each_operation_has_an_algorithm_for_any_placement():
    for operation in OPERATIONS:
        for counts in PLACEMENTS:
            assert any(algorithm(operation, Placement(counts)) for algorithm in ALGORITHMS.entries())


@pytest.mark.parametrize(("traffic", "operation", "counts"), cases())
def test_traffic_uses_the_levels_it_must_and_no_other(traffic, operation, counts):
    across, inside = len(counts) > 1, max(counts) > 1
    assert (traffic.inter_hops > 0, traffic.nic_load > 0, traffic.node_load > 0) == (across,) * 3
    if operation is not Operation.SEND_RECV:
        assert (traffic.intra_hops > 0, traffic.port_load > 0) == (inside,) * 2
    # A node sends no more than all of its NICs could.
    assert traffic.node_load <= traffic.nic_load * max(counts) + 1e-12


@pytest.mark.parametrize(("traffic", "operation", "counts"), cases())
def test_no_algorithm_sends_less_than_the_operation_needs(traffic, operation, counts):
    n = sum(counts)
    if len(counts) == 1:
        assert traffic.port_load >= bus_factor(operation, n) - 1e-12
    elif operation is Operation.ALL_TO_ALL:
        assert traffic.node_load >= max(m * (n - m) for m in counts) / n - 1e-12
    elif operation is not Operation.SEND_RECV:
        # Every node must get what its members do not have, through as many NICs as it has members.
        needed = 1.0 if operation in (Operation.BROADCAST, Operation.REDUCE) else max((n - m) / n for m in counts)
        assert traffic.node_load >= needed - 1e-12
        assert traffic.nic_load >= max((n - m) / n / m for m in counts) - 1e-12


@pytest.mark.parametrize("traffic", [case.values[0] for case in cases()])
def test_time_of_many_sizes_is_the_time_of_each(traffic):
    sizes = np.array([[0, 1, 1000], [2**20, 2**30, 10**12]])
    times = transfer_time_s(traffic, sizes, H100)
    assert times.shape == sizes.shape
    assert times.ravel().tolist() == [float(transfer_time_s(traffic, int(size), H100)) for size in sizes.ravel()]


@pytest.mark.parametrize(
    ("name", "operation", "counts", "expected"),
    [
        ("ring", Operation.ALL_REDUCE, (4,), Traffic(intra_hops=6, port_load=1.5, copy_load=0.25)),
        ("ring", Operation.ALL_GATHER, (4,), Traffic(intra_hops=3, port_load=0.75, copy_load=0.25)),
        (
            "ring",  # 7 steps, one of them between nodes; the small node has 2 NICs for the ring
            Operation.REDUCE_SCATTER,
            (6, 2),
            Traffic(intra_hops=6, inter_hops=1, port_load=7 / 8, nic_load=7 / 16, node_load=7 / 8, copy_load=1 / 8),
        ),
        ("ring", Operation.ALL_GATHER, (1, 1), Traffic(inter_hops=1, nic_load=0.5, node_load=0.5, copy_load=0.5)),
        (
            "tree",
            Operation.ALL_REDUCE,
            (8,) * 16,
            Traffic(intra_hops=14, inter_hops=8, port_load=2.0, nic_load=0.25, node_load=2.0, copy_load=1 / 128),
        ),
        (
            "chain",
            Operation.BROADCAST,
            (2, 2),
            Traffic(intra_hops=2, inter_hops=1, port_load=1, nic_load=0.5, node_load=1),
        ),
        (
            "pairwise",
            Operation.ALL_TO_ALL,
            (3, 1),
            Traffic(intra_hops=2, inter_hops=1, port_load=0.5, nic_load=0.75, node_load=0.75, copy_load=0.25),
        ),
    ],
)
def test_traffic_of_simple_cases(name, operation, counts, expected):
    assert ALGORITHMS.get(name)(operation, Placement(counts)) == expected
