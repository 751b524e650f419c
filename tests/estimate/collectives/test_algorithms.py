"""The exact traffic of simple cases."""

import pytest

from traincast.estimate.collectives import ALGORITHMS
from traincast.fabric.placement import Placement
from traincast.workload.words import Operation


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
    traffic = ALGORITHMS.get(name).traffic(operation, Placement(counts))
    assert (traffic.intra_hops, traffic.inter_hops) == pytest.approx(hops)
    assert (traffic.port_load, traffic.nic_load, traffic.node_load) == pytest.approx(loads)


@pytest.mark.parametrize(
    ("operation", "counts", "inside"),
    [
        # Of 8 ranks each sends an eighth to each of the 3 others of its node; of a gather one rank gets them.
        (Operation.ALL_TO_ALL, (4, 4), 4 * 3 / 8),
        (Operation.GATHER, (4, 4), 3 / 8),
        (Operation.SCATTER, (8,), 7 / 8),
        (Operation.SEND_RECV, (4,), 4.0),
        (Operation.SEND_RECV, (4, 4), 3.0),
    ],
)
def test_what_direct_messages_move_over_all_links_of_a_node(operation, counts, inside):
    assert ALGORITHMS.get("pairwise").traffic(operation, Placement(counts)).inside_load == pytest.approx(inside)
