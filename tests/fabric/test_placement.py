import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import ProgramError
from traincast.fabric.placement import Placement, locations, placement_of
from traincast.hardware.clusters import load_cluster

WHERE = locations(load_cluster("h100"), 20)


def test_ranks_fill_nodes_in_their_order():
    assert WHERE.shape == (1, 20)
    assert WHERE[0].tolist() == [0] * 8 + [1] * 8 + [2] * 4


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (range(8), (8,)),
        (range(6, 12), (4, 2)),
        (range(4, 20), (8, 4, 4)),
        ((0, 8, 16), (1, 1, 1)),
        ((19, 0, 18), (2, 1)),
        ((5,), (1,)),
    ],
)
def test_a_group_is_spread_over_its_nodes(members, expected):
    placement = placement_of(list(members), WHERE)
    assert placement.members_per_node == expected
    assert (placement.ranks, placement.nodes) == (sum(expected), len(expected))
    assert (placement.max_members, placement.min_members) == (max(expected), min(expected))


@given(st.sets(st.integers(0, 19), min_size=1).flatmap(lambda ranks: st.permutations(sorted(ranks))))
def test_the_order_of_members_does_not_matter(members):
    placement = placement_of(np.array(members), WHERE)
    assert placement == placement_of(sorted(members), WHERE)
    assert hash(placement) == hash(placement_of(sorted(members), WHERE))
    assert placement.ranks == len(members)


@pytest.mark.parametrize("members", [[], [0, 0], [20], [-1]])
def test_members_must_be_different_ranks_of_the_world(members):
    with pytest.raises(ProgramError):
        placement_of(members, WHERE)


@pytest.mark.parametrize("counts", [(), (0,), (2, 0), (1, 2)])
def test_a_placement_has_one_spelling(counts):
    with pytest.raises(ProgramError):
        Placement(counts)
