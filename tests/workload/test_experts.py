"""Loads of expert ranks: what the user asks for, who gets what, and what becomes of a workload."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import HandMade, collective, compute
from traincast.errors import ConfigError, ProgramError
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.workload.experts import describe, expert_loads, expert_rank_W, load_of_rank, with_expert_loads
from traincast.workload.groups import rank_groups
from traincast.workload.words import Group, Operation, Provenance

PARALLELS = [
    Parallel(tp=2, dp=8, ep=4, pp=2),
    Parallel(tp=2, dp=8, ep=8, etp=1),
    Parallel(tp=4, cp=2, dp=2, ep=2, etp=2),
    Parallel(dp=6, ep=3, pp=3),
]


@given(ep=st.integers(2, 64), share=st.floats(0, 1))
def test_one_factor_gives_the_first_rank_so_much_and_the_others_the_rest(ep, share):
    factor = 1 + share * (ep - 1)
    loads = expert_loads(LayoutOptions(expert_imbalance=factor), ep)
    if factor == 1:
        assert loads is None
        return
    assert loads[0] == max(loads) == factor
    assert len(set(loads[1:])) == 1
    assert min(loads) >= 0
    assert math.fsum(loads) == pytest.approx(ep)


@given(given=st.lists(st.just(0.0) | st.floats(1e-30, 1e18), min_size=1, max_size=32).filter(any))
def test_loads_keep_their_ratios_and_have_the_mean_one(given):
    loads = expert_loads(LayoutOptions(expert_loads=given), len(given))
    if loads is None:
        assert min(given) == max(given)
        return
    assert math.fsum(loads) == pytest.approx(len(given))
    assert np.array(loads) / max(loads) == pytest.approx(np.array(given) / max(given))


@pytest.mark.parametrize("options", [{}, {"expert_imbalance": 1}, {"expert_loads": (0.3, 0.3, 0.3)}])
def test_equal_loads_are_none(options):
    assert expert_loads(LayoutOptions(**options), 3) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expert_imbalance": 4.1}, r"expert_imbalance: is 4.1; one of ep 4 has at most all tokens, 4 x the mean"),
        ({"expert_loads": (1.0, 2.0)}, r"expert_loads: gives 2 loads, but there are 4 expert ranks \(ep\)"),
        ({"expert_loads": (1.0,) * 5}, "gives 5 loads"),
    ],
)
def test_loads_that_do_not_fit_the_expert_ranks_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        expert_loads(LayoutOptions(**options), 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expert_imbalance": 0.9}, "expert_imbalance: is 0.9"),
        ({"expert_imbalance": math.nan}, "expert_imbalance: is nan"),
        ({"expert_imbalance": math.inf}, "expert_imbalance: is inf"),
        ({"expert_loads": (1.0, -1.0)}, "expert_loads: is -1.0; it must be a number from 0"),
        ({"expert_loads": (1.0, math.nan)}, "expert_loads: is nan"),
        ({"expert_loads": (math.inf, 1.0)}, "expert_loads: is inf"),
        ({"expert_loads": (0.0, 0.0)}, "expert_loads: gives no expert rank any tokens"),
        ({"expert_loads": ()}, "expert_loads: gives no expert rank any tokens"),
        ({"expert_loads": (1.0, 2.0), "expert_imbalance": 1.5}, "expert_loads: cannot be combined with expert_imb"),
    ],
)
def test_what_is_no_load_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        LayoutOptions(**options)


@pytest.mark.parametrize("parallel", PARALLELS)
def test_the_expert_rank_is_the_place_in_the_ep_group(parallel):
    place_W = expert_rank_W(parallel)
    for members in rank_groups(parallel, [Group.EP])[Group.EP].members_GK:
        assert place_W[members].tolist() == list(range(parallel.ep))
    for kind in (Group.EDP, Group.ETP):
        for members in rank_groups(parallel, [kind])[kind].members_GK:
            assert len(set(place_W[members].tolist())) == 1


@pytest.mark.parametrize("parallel", PARALLELS)
def test_every_group_shares_out_all_tokens(parallel):
    loads = expert_loads(LayoutOptions(expert_loads=tuple(range(parallel.ep))), parallel.ep)
    assert load_of_rank(parallel, loads).sum() == pytest.approx(parallel.world_size)


def test_words_for_loads():
    assert describe((1.9, 0.7, 0.7, 0.7)) == "expert rank 0 of 4 has 1.9 x the mean tokens, the others 0.7 x"
    assert describe((0.5, 1.5)) == "expert rank 1 of 2 has 1.5 x the mean tokens, the other 0.5 x"
    assert describe((0.5, 1.5, 1.0)) == "expert rank 1 of 3 has 1.5 x the mean tokens, the others 0.5 to 1 x"


def made(parallel, expert_s=2.0):
    """A workload of attention, experts, and an all-to-all over ep, with work at the end that no load touches."""
    exchange = collective(None, Group.EP, operation=Operation.ALL_TO_ALL, size_bytes=1000)
    return HandMade(parallel).template(forward=[compute(1), compute(expert_s, "experts"), exchange], end=[compute(3)])


def rows_named(workload, *names):
    return [row for row, name in enumerate(workload.ops.name_T) if name in names]


def test_only_what_has_experts_is_written_again():
    parallel = Parallel(dp=4, ep=2)
    before = made(parallel).workload()
    loads = (1.5, 0.5)
    after = with_expert_loads(before, loads, rows_named(before, "experts"))
    assert len(after.templates) == 2
    assert after.template_W.tolist() == [1, 0, 1, 0]
    assert after.expert_load_W.tolist() == [1.5, 0.5, 1.5, 0.5]
    assert len(after.ops) == len(before.ops) + 1
    assert len(after.segments) == len(before.segments) + 1
    for template, expert_s in zip(after.templates, (1.0, 3.0), strict=True):
        rows = after.segments[template.forward_QM[0, 0]]
        assert after.ops.duration_s_T[rows].tolist()[:2] == [1.0, expert_s]
        assert after.ops.provenance_T[rows[1]] == Provenance.ASSUMED
        assert after.ops.loads_T[rows[2]] == loads
        assert after.ops.size_bytes_T[rows[2]] == 1000
        assert template.backward_QM.max() == -1
        assert template.end_P.tolist() == before.templates[0].end_P.tolist()


def test_every_load_has_a_template_and_the_mean_one_is_as_it_was_written():
    before = made(Parallel(dp=3, ep=3)).workload()
    after = with_expert_loads(before, (1.5, 0.5, 1.0), rows_named(before, "experts"))
    found = []
    for number in after.template_W.tolist():
        row = after.segments[after.templates[number].forward_QM[0, 0]][1]
        found.append((float(after.ops.duration_s_T[row]), after.ops.provenance_T[row] == Provenance.ASSUMED))
    assert found == [(3.0, True), (1.0, True), (2.0, False)]


def test_ranks_keep_their_own_template_under_every_load():
    """Two templates, of slow and of fast ranks; of either pair one rank has half as many tokens again."""
    parallel = Parallel(dp=4, ep=2)
    hand = HandMade(parallel)
    for seconds in (2.0, 20.0):
        hand.template(forward=[compute(seconds, "experts")])
    before = hand.workload([0, 0, 1, 1])
    after = with_expert_loads(before, (0.5, 1.5), rows_named(before, "experts"))
    found = []
    for number in after.template_W.tolist():
        (row,) = after.segments[after.templates[number].forward_QM[0, 0]]
        found.append(after.ops.duration_s_T[row])
    assert found == [1.0, 3.0, 10.0, 30.0]


def test_a_communication_among_the_stretched_rows_grows_in_size():
    before = made(Parallel(dp=2, ep=2)).workload()
    after = with_expert_loads(before, (0.0, 2.0), rows_named(before, "experts", "collective"))
    sizes = sorted(set(after.ops.size_bytes_T[after.ops.group_T == Group.EP].tolist()))
    assert sizes == [0, 2000]


def test_an_unknown_time_cannot_be_stretched():
    workload = made(Parallel(dp=2, ep=2), np.nan).workload()
    with pytest.raises(ProgramError, match="'experts' is unknown, so no load can stretch it"):
        with_expert_loads(workload, (0.5, 1.5), rows_named(workload, "experts"))


def test_sizes_beyond_any_number_are_refused():
    exchange = collective(None, Group.TP, size_bytes=2**61)
    workload = HandMade(Parallel(dp=2, ep=2)).template(forward=[exchange]).workload()
    with pytest.raises(ProgramError, match="too large to represent"):
        with_expert_loads(workload, (2.0, 0.0), [0])
