"""Ranks compared with their peers: those of the stage, or the middle stages, by hand."""

import numpy as np
import pytest

import traincast
from support import collective, compute
from traincast.analysis.stragglers import WELL_ABOVE, WELL_ABOVE_LIKE_STAGES, find_stragglers
from traincast.report.terminal.slowdown import _of_slowdown
from traincast.workload.ops import table_of
from traincast.workload.program import Program
from traincast.workload.words import Group


def found(own_s, stages, represents=None, load=None, waiting_s=0.0):
    """Return (index, slowdown) of the stragglers among ranks that compute so long, each in two computations."""
    ranks = len(own_s)
    none, empty = np.full(3 * ranks, -1, dtype=np.int32), np.zeros(0, dtype=np.int32)
    program = Program(
        ops=table_of([compute(1), collective(1.0, Group.TP)]),
        row_N=np.tile([0, 1, 0], ranks),
        rank_N=np.repeat(np.arange(ranks), 3),
        microbatch_N=none,
        virtual_stage_N=none,
        peer_stage_N=none,
        group_N=none,
        rendezvous_N=none,
        edge_src_E=empty,
        edge_dst_E=empty,
        groups=(),
        rank_R=np.arange(ranks),
        stage_R=np.array(stages),
        represents_R=np.array(represents or [1] * ranks),
        op_ptr_R1=np.arange(0, 3 * ranks + 1, 3),
    )
    duration_s = np.array([each for own in own_s for each in (own / 4, waiting_s, 3 * own / 4)])
    loads = None if load is None else np.array(load)
    return [(each.index, pytest.approx(each.slowdown)) for each in find_stragglers(program, duration_s, loads)]


def test_a_rank_is_held_against_the_others_of_its_stage():
    assert found([2.0, 2.0, 3.0, 2.0], [0, 0, 0, 0]) == [(2, 1.5)]
    # The other stage computes longer, which makes nobody slow.
    assert found([2.0, 2.0, 9.0, 9.0], [0, 0, 1, 1]) == []
    assert found([2.0, 4.0, 9.0, 9.0], [0, 0, 1, 1]) == [(1, 2.0)]


def test_it_has_to_be_well_above_them():
    assert found([2.0, 2.0 * WELL_ABOVE, 2.0], [0, 0, 0]) == []
    assert found([2.0, 2.0 * WELL_ABOVE + 1e-6, 2.0], [0, 0, 0]) == [(1, WELL_ABOVE)]


def test_times_far_from_a_second_are_no_different():
    assert found([2e-3, 3e-3, 2e-3], [0, 0, 0]) == [(1, 1.5)]
    assert found([2e3, 3e3, 2e3], [0, 0, 0]) == [(1, 1.5)]


def test_only_computations_count():
    assert found([2.0, 2.0, 2.0], [0, 0, 0], waiting_s=50.0) == []


def test_a_rank_that_stands_for_many_weighs_as_many():
    # Four of the like take 3 s: the median is theirs, not that of the one with 2 s.
    assert found([2.0, 3.0, 3.3], [0, 0, 0], represents=[1, 4, 1]) == []
    assert found([2.0, 3.0, 3.4], [0, 0, 0], represents=[1, 4, 1]) == [(2, 3.4 / 3)]
    # Of an even number of like ranks the lower middle one counts.
    assert found([2.0, 4.0, 5.0], [0, 0, 0]) == [(1, 2.0), (2, 2.5)]
    # The median of 2, 3 and 4 s is 3 s, and that of 2, 3 and 6 s, too.
    assert found([2.0, 3.0, 4.0, 6.0], [0, 0, 0, 0]) == [(2, 4.0 / 3), (3, 2.0)]


def test_a_rank_that_represents_others_is_held_against_them():
    assert found([2.0], [0], represents=[8]) == []
    assert found([2.0, 3.0], [0, 0], represents=[1, 8]) == []
    assert found([2.0, 3.0], [0, 0], represents=[8, 1]) == [(1, 1.5)]


def test_a_stage_of_one_rank_is_held_against_the_middle_stages():
    own_s = [9.0, 2.0, 2.0 * WELL_ABOVE_LIKE_STAGES + 1e-6, 2.0, 9.0]
    assert found(own_s, [0, 1, 2, 3, 4]) == [(2, WELL_ABOVE_LIKE_STAGES)]
    own_s[2] = 2.0 * WELL_ABOVE_LIKE_STAGES
    assert found(own_s, [0, 1, 2, 3, 4]) == []
    # The second stage is a middle one, and none counts among its own like: of 2 s and 4 s the lower is 2 s.
    assert found([9.0, 9.0, 2.0, 4.0, 9.0], [0, 1, 2, 3, 4]) == [(1, 4.5), (3, 2.0)]


def test_the_only_middle_stage_and_the_ends_have_no_like():
    assert found([1.0, 9.0, 1.0], [0, 1, 2]) == []
    assert found([1.0, 9.0], [0, 1]) == []
    assert found([9.0], [0]) == []


def test_ranks_of_unequal_load_are_not_alike():
    assert found([2.0, 3.0, 2.0], [0, 0, 0], load=[0.75, 1.5, 0.75]) == []
    assert found([2.0, 3.0, 2.0], [0, 0, 0], load=[1.0, 1.04, 1.0]) == [(1, 1.5)]
    # 4 % apart are alike, and 8 % are not, whatever the loads are.
    for scale in (0.5, 2.0):
        assert found([2.0, 3.0, 2.0], [0, 0, 0], load=[scale, 1.04 * scale, scale]) == [(1, 1.5)]
        assert found([2.0, 3.0, 2.0], [0, 0, 0], load=[scale, 1.08 * scale, scale]) == []
    assert found([2.0, 2.0, 3.0, 2.0, 2.0], [0, 1, 2, 3, 4], load=[1, 1, 2, 1, 1]) == []


def test_a_straggler_has_one_figure_everywhere():
    """Table, cause, first suggestion and what-if of the slow rank agree; no share is above all."""
    result = traincast.simulate("examples/megatron_pp4_tp2", suggest=True, what_if=("rank7.own=peers",))
    (straggler,) = result.stragglers
    (free,) = result.what_if
    cause = next(each for each in result.causes if each.name == "slow worker")
    first = result.suggestions[0]
    assert first.change == "rank7.own=peers"
    assert straggler.cost_s == pytest.approx(free.saving_s, rel=1e-9)
    assert cause.saving_s == pytest.approx(free.saving_s, rel=1e-9)
    assert first.saving_s == pytest.approx(free.saving_s, rel=1e-9)


@pytest.mark.parametrize(("share", "said"), [(1.546, "all of the slowdown"), (0.5, "50.0 % of the slowdown")])
def test_no_share_of_a_slowdown_is_more_than_all_of_it(share, said):
    assert _of_slowdown(share) == said
