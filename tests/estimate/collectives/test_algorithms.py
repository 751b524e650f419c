"""What every algorithm must keep, and the exact traffic of simple cases."""

import numpy as np
import pytest

from traincast.estimate.collectives import ALGORITHMS, transfer_time_s
from traincast.estimate.collectives.contract import bus_factor
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
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
    if traffic.in_switch:
        # The switch sums: a rank sends its data once, whatever the number of ranks.
        assert traffic.port_load == 1
    elif len(counts) == 1:
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
    ("name", "operation", "counts", "hops", "loads"),
    [
        # Loads are those of a port, a NIC and all NICs of a node.
        ("ring", Operation.ALL_REDUCE, (4,), (6, 0), (1.5, 0, 0)),
        ("ring", Operation.ALL_GATHER, (4,), (3, 0), (0.75, 0, 0)),
        # 7 steps, one of them between nodes; the small node has 2 NICs for the ring
        ("ring", Operation.REDUCE_SCATTER, (6, 2), (6, 1), (7 / 8, 7 / 16, 7 / 8)),
        ("ring", Operation.ALL_GATHER, (1, 1), (0, 1), (0, 0.5, 0.5)),
        ("tree", Operation.ALL_REDUCE, (8,) * 16, (14, 8), (2, 0.25, 2)),
        ("chain", Operation.BROADCAST, (2, 2), (2, 1), (1, 0.5, 1)),
        ("pairwise", Operation.ALL_TO_ALL, (4,), (2, 0), (0.75, 0, 0)),
        # The lonely rank has three peers elsewhere
        ("pairwise", Operation.ALL_TO_ALL, (2, 1, 1), (1, 2), (0.25, 0.75, 1)),
        ("nvls", Operation.ALL_REDUCE, (8,), (14, 0), (1, 0, 0)),
        ("nvls_tree", Operation.ALL_REDUCE, (8, 8), (2, 2), (1, 0.25, 2)),
        # Each of two nodes sends S and gets S; inside, a part goes to each of the others, and comes back.
        ("collnet", Operation.ALL_REDUCE, (4, 4), (2, 1), (1.5, 0.25, 1)),
        ("collnet", Operation.ALL_REDUCE, (1,) * 16, (0, 1), (0, 1, 1)),
        ("collnet", Operation.REDUCE_SCATTER, (4, 2), (1, 1), (0.75, 0.5, 1)),
        ("collnet", Operation.ALL_GATHER, (8, 8), (1, 1), (7 / 8, 1 / 8, 1)),
        ("nvls_collnet", Operation.ALL_REDUCE, (8, 8), (2, 1), (1, 1 / 8, 1)),
        # a quarter for the neighbour, a quarter through it, and half on the rank's own rail
        ("pxn", Operation.ALL_TO_ALL, (2, 2), (2, 1), (0.25 + 0.25, 0.5, 1)),
        ("hierarchical", Operation.ALL_REDUCE, (4,) * 4, (6, 6), (1.5, 3 / 8, 1.5)),
        ("direct", Operation.ALL_REDUCE, (4,), (2, 0), (1.5, 0, 0)),
        ("recursive_doubling", Operation.ALL_REDUCE, (8,), (3, 0), (3, 0, 0)),
        ("recursive_doubling", Operation.ALL_REDUCE, (6,), (4, 0), (4, 0, 0)),
    ],
)
def test_traffic_of_simple_cases(name, operation, counts, hops, loads):
    traffic = ALGORITHMS.get(name)(operation, Placement(counts))
    assert (traffic.intra_hops, traffic.inter_hops) == pytest.approx(hops)
    assert (traffic.port_load, traffic.nic_load, traffic.node_load) == pytest.approx(loads)
