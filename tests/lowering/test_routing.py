"""The nodes that a token's experts are on, against all draws counted out."""

from itertools import combinations
from math import comb

import pytest

from job_parts import job_of
from traincast.errors import ConfigError
from traincast.model.blocks.experts import expected_nodes, nodes_of_token
from traincast.model.model import Experts


def counted_out(node_of_expert, topk, groups, group_topk):
    """The mean over all choices of groups and of experts in them."""
    size = len(node_of_expert) // groups
    found = []
    for chosen in combinations(range(groups), group_topk):
        allowed = [expert for group in chosen for expert in range(group * size, (group + 1) * size)]
        found += [len({node_of_expert[expert] for expert in draw}) for draw in combinations(allowed, topk)]
    return sum(found) / len(found)


@pytest.mark.parametrize("nodes", [(8,), (4, 4), (2, 2, 2, 2), (1,) * 8, (5, 3), (3, 3, 2), (6, 1, 1)])
@pytest.mark.parametrize(
    ("groups", "group_topk", "topk"),
    [
        (groups, chosen, topk)
        for groups, chosen in ((1, 1), (2, 1), (4, 1), (4, 2), (4, 3), (4, 4), (8, 3))
        for topk in (1, 2, 3)
        if topk <= chosen * 8 // groups
    ],
)
def test_the_closed_form_is_the_mean_of_all_draws(nodes, groups, group_topk, topk):
    node_of_expert = tuple(node for node, count in enumerate(nodes) for _ in range(count))
    expected = counted_out(node_of_expert, topk, groups, group_topk)
    assert expected_nodes(node_of_expert, topk, groups, group_topk) == pytest.approx(expected, rel=1e-12)


def test_deepseek_v3_reaches_four_of_eight_nodes_at_most():
    node_of_expert = tuple(expert // 32 for expert in range(256))
    limited, free = expected_nodes(node_of_expert, 8, 8, 4), expected_nodes(node_of_expert, 8)
    assert limited <= 4 < free < 8
    assert free == pytest.approx(8 * (1 - comb(224, 8) / comb(256, 8)))
    # A node's group is one of the four with a chance of a half, and then holds 32 of 128 experts.
    assert limited == pytest.approx(8 * (1 - (1 + comb(96, 8) / comb(128, 8)) / 2))


def test_a_limit_to_all_groups_is_none():
    node_of_expert = tuple(expert // 8 for expert in range(32))
    assert expected_nodes(node_of_expert, 4, 4, 4) == pytest.approx(expected_nodes(node_of_expert, 4))


def test_the_built_in_model_is_limited():
    job = job_of("deepseek-v3", gpus=128, ep=64, pp=2, vpp=1, global_batch=64, seq_length=4096)
    experts = job.model.experts
    assert (experts.groups, experts.group_topk) == (8, 4)
    assert nodes_of_token(experts, job.parallel.ep, job.parallel.expert_tp, 8) <= 4
    assert nodes_of_token(experts, job.parallel.ep, job.parallel.expert_tp, 64) is None


@pytest.mark.parametrize(
    ("groups", "group_topk", "text"), [(3, 1, "must divide"), (4, 5, "must divide"), (8, 1, "fewer")]
)
def test_groups_that_cannot_be_are_refused(groups, group_topk, text):
    with pytest.raises(ConfigError, match=text):
        Experts(experts=8, topk=2, ffn_hidden=8, groups=groups, group_topk=group_topk).check_groups()


@pytest.mark.parametrize(("ep", "etp", "nodes"), [(4, 1, None), (4, 2, (4, 4)), (8, 2, (2, 2, 2, 2)), (2, 4, (4, 4))])
def test_ranks_that_split_an_expert_are_as_many_as_nodes_hold(ep, etp, nodes):
    """Eight experts on nodes of four ranks: an expert's ranks stand next to each other."""
    experts = Experts(experts=8, topk=2, ffn_hidden=16)
    found = nodes_of_token(experts, ep, etp, 4)
    if nodes is None:
        assert found is None
    else:
        places = tuple(node for node, count in enumerate(nodes) for _ in range(count))
        assert found == pytest.approx(counted_out(places, 2, 1, 1))
