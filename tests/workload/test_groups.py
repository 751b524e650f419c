"""Who is in which group: examples written out by hand, and what holds for every layout."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from traincast.errors import ConfigError, InfeasibleError
from traincast.job.parallel import Parallel
from traincast.workload.groups import rank_groups
from traincast.workload.words import Group

EVERY = [group for group in Group if group is not Group.NONE]


def members(kind, **degrees):
    table = rank_groups(Parallel(**degrees), [kind])[kind]
    return [row[row >= 0].tolist() for row in table.members_GK]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Group.TP, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (Group.CP, [[rank] for rank in range(8)]),
        (Group.DP, [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (Group.PP, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (Group.EMB, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (Group.MP, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (Group.WORLD, [list(range(8))]),
    ],
)
def test_tp2_dp2_pp2(kind, expected):
    assert members(kind, tp=2, dp=2, pp=2) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # The example in Megatron-LM's initialize_model_parallel: 16 GPUs, tensor 2, pipeline 4.
        (Group.DP, [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]),
        (Group.TP, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]),
        (Group.PP, [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]),
        (Group.MP, [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]),
        (Group.EMB, [[0, 12], [1, 13], [2, 14], [3, 15]]),
    ],
)
def test_the_example_of_megatron(kind, expected):
    assert members(kind, tp=2, dp=2, pp=4) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Group.TP, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (Group.CP, [[0, 2], [1, 3], [4, 6], [5, 7]]),
        # Gradients are reduced over dp and cp.
        (Group.DP, [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (Group.MP, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ],
)
def test_tp2_cp2_dp2(kind, expected):
    assert members(kind, tp=2, cp=2, dp=2) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # tp 2, dp 4, ep 2; etp is tp: two ranks hold an expert, two such pairs all of them, twice over.
        (Group.ETP, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (Group.EP, [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (Group.EDP, [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ],
)
def test_experts(kind, expected):
    assert members(kind, tp=2, dp=4, ep=2) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # The same ranks with whole experts (etp 1) and ep 4: experts cross the tp groups.
        (Group.ETP, [[rank] for rank in range(16)]),
        (Group.EP, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
        (Group.EDP, [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]),
        (Group.TP, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]),
    ],
)
def test_experts_of_one_rank(kind, expected):
    assert members(kind, tp=2, dp=4, pp=2, ep=4, etp=1) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # What RankGenerator of core_v0.9.0 prints for ep and dp-cp of independent_ep=True.
        (Group.EP, [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]),
        (Group.EDP, [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]]),
        (Group.ETP, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]),
    ],
)
def test_experts_that_divide_the_replicas(kind, expected):
    assert sorted(members(kind, tp=2, cp=2, dp=4, ep=2, folded_experts=False)) == expected


@pytest.mark.parametrize("degrees", [{"cp": 2, "dp": 3, "ep": 2}, {"tp": 2, "cp": 2, "dp": 2, "ep": 2, "etp": 1}])
def test_experts_that_cannot_divide_the_replicas_divide_the_stage(degrees):
    for kind in (Group.EP, Group.EDP, Group.ETP):
        assert members(kind, **degrees, folded_experts=False) == members(kind, **degrees)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Of the four ranks with equal parameters two neighbours share a copy, and two copies are kept equal.
        (Group.SHARD, [[0, 2], [4, 6], [1, 3], [5, 7]]),
        (Group.REPLICA, [[0, 4], [2, 6], [1, 5], [3, 7]]),
    ],
)
def test_shared_copies_of_the_state(kind, expected):
    assert members(kind, tp=2, dp=4, shard=2) == expected


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        # Two copies of the layers, laid out from either end: stages 0 and 3 hold the same, and so do 1 and 2.
        ({"tp": 2, "pp": 4}, [[0, 6], [1, 7], [2, 4], [3, 5]]),
        ({"dp": 2, "pp": 2}, [[0, 2], [1, 3]]),
        ({"tp": 2, "pp": 3}, [[rank] for rank in range(6)]),
    ],
)
def test_copies_of_the_same_layers(degrees, expected):
    assert members(Group.COPY, **degrees) == expected


def test_one_stage_has_embedding_groups_of_one():
    assert members(Group.EMB, tp=2) == [[0], [1]]


@st.composite
def layouts(draw):
    tp, cp, dp, pp = (draw(st.integers(1, limit)) for limit in (4, 3, 4, 4))
    stage = tp * cp * dp
    etp = draw(st.sampled_from([None, *(n for n in range(1, stage + 1) if stage % n == 0)]))
    assume(stage % (etp or tp) == 0)
    rest = stage // (etp or tp)
    ep = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
    shard = draw(st.sampled_from([None, *(n for n in range(1, dp * cp + 1) if dp * cp % n == 0)]))
    folded = draw(st.booleans())
    return Parallel(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, shard=shard, folded_experts=folded)


def _sizes(parallel):
    return {
        Group.TP: parallel.tp,
        Group.CP: parallel.cp,
        Group.EP: parallel.ep,
        Group.PP: parallel.pp,
        Group.DP: parallel.dp * parallel.cp,
        Group.ETP: parallel.expert_tp,
        Group.EDP: parallel.edp,
        Group.EMB: min(2, parallel.pp),
        Group.MP: parallel.tp * parallel.pp,
        Group.WORLD: parallel.world_size,
        Group.SHARD: parallel.sharing,
        Group.REPLICA: parallel.dp * parallel.cp // parallel.sharing,
        Group.COPY: 2 - parallel.pp % 2,
    }


@given(layouts())
def test_every_kind_parts_the_ranks(parallel):
    """Each rank is in one group of each kind, whose size is the degree; emb has the outer stages only."""
    tables = rank_groups(parallel, EVERY)
    assert list(tables) == EVERY
    for kind, table in tables.items():
        stage_W = np.arange(parallel.world_size) // parallel.ranks_per_stage
        inside = np.isin(stage_W, [0, parallel.pp - 1]) if kind is Group.EMB else np.ones(parallel.world_size, bool)
        assert sorted(table.members_GK.ravel()) == np.flatnonzero(inside).tolist(), kind
        assert table.members_GK.shape[1] == _sizes(parallel)[kind], kind
        for group, row in enumerate(table.members_GK):
            assert (table.group_of_rank_W[row] == group).all(), kind
        assert (table.group_of_rank_W[~inside] == -1).all(), kind


@given(layouts())
def test_groups_stay_in_their_stage_or_cross_all_of_them(parallel):
    stage = parallel.ranks_per_stage
    for kind, table in rank_groups(parallel, EVERY).items():
        stages_GK = table.members_GK // stage
        if kind in (Group.TP, Group.CP, Group.DP, Group.EP, Group.ETP, Group.EDP):
            assert (stages_GK == stages_GK[:, :1]).all(), kind
        elif kind is Group.PP:
            assert (stages_GK == np.arange(parallel.pp)).all()
            # Messages go to the rank of the same place in the next stage.
            assert all((after - before == stage).all() for before, after in pairwise(table.members_GK.T))


def test_only_the_pipeline_tells_its_members_apart():
    tables = rank_groups(Parallel(tp=2, dp=2, pp=2), EVERY)
    assert [kind for kind, table in tables.items() if table.ordered] == [Group.PP]


def test_what_does_not_divide_is_infeasible():
    with pytest.raises(InfeasibleError, match="do not divide into experts of etp 2 x ep 3"):
        Parallel(tp=2, dp=4, ep=3)
    with pytest.raises(ConfigError, match=r"parallel\.cp: is 0"):
        Parallel(cp=0)
