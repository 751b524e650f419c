"""What the busiest of the ranks that hold experts gets, where nothing balances the router."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.model.routing import (
    LEFT_BY_BIAS,
    LEFT_BY_LOSS,
    POPULARITY_DEVIATION,
    busiest_rank,
    trained_deviation,
)


@st.composite
def layouts(draw):
    ep = draw(st.sampled_from([1, 2, 4, 8, 16]))
    experts = ep * draw(st.sampled_from([1, 2, 4, 8]))
    return experts, draw(st.integers(1, min(experts, 8))), ep


@settings(max_examples=60, deadline=None)
@given(layout=layouts(), deviation=st.floats(0, 3))
def test_the_busiest_has_the_mean_at_least_and_all_tokens_at_most(layout, deviation):
    experts, topk, ep = layout
    found = busiest_rank(experts, topk, ep, deviation)
    assert 1 - 1e-12 <= found <= min(ep, experts / topk) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(layout=layouts())
def test_experts_of_one_popularity_are_balanced_and_more_spread_is_less_balance(layout):
    found = [busiest_rank(*layout, deviation) for deviation in (0.0, 0.3, 1.0, 2.0)]
    assert found[0] == pytest.approx(1)
    assert found == sorted(found)


def test_one_rank_and_experts_that_every_token_takes_cannot_be_unequal():
    assert busiest_rank(64, 8, 1) == 1
    assert busiest_rank(8, 8, 4) == 1


@pytest.mark.parametrize(("experts", "topk"), [(8, 1), (128, 8), (64, 6)])
def test_fewer_experts_on_a_rank_are_less_balanced(experts, topk):
    """Halves of ranks have a busiest one that is at least as busy as the busiest whole."""
    found = [busiest_rank(experts, topk, ep) for ep in (2, 4, 8)]
    assert found == sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize(("experts", "topk", "ep"), [(8, 1, 4), (8, 1, 8), (16, 2, 4), (128, 8, 8), (128, 8, 32)])
def test_tokens_that_draw_scores_with_gumbel_noise_spread_alike(experts, topk, ep):
    """Counted: each token takes the largest of popularity plus noise (Plackett and Luce), drawn token by token."""
    drawn = np.random.default_rng(3)
    busiest = []
    for _ in range(250):
        scores = drawn.standard_normal(experts) + drawn.gumbel(size=(400, experts))
        taken = np.argpartition(-scores, topk - 1, axis=1)[:, :topk]
        count = np.bincount(taken.ravel() // (experts // ep), minlength=ep)
        busiest.append(count.max() / count.mean())
    assert busiest_rank(experts, topk, ep, 1.0) == pytest.approx(np.mean(busiest), rel=0.08)


def test_traced_runs_at_initialisation_are_as_unequal():
    """Two runs of 8 experts and top-1: 1.43 times the mean with EP 2, 1.79 times with EP 4."""
    assert busiest_rank(8, 1, 2) == pytest.approx(1.43, rel=0.1)
    assert busiest_rank(8, 1, 4) == pytest.approx(1.79, rel=0.1)


@settings(max_examples=40, deadline=None)
@given(layout=layouts(), tokens=st.floats(1, 1e9), has_bias=st.booleans())
def test_a_balanced_router_lies_between_forced_balance_and_none(layout, tokens, has_bias):
    experts, topk, ep = layout
    trained = busiest_rank(experts, topk, ep, trained_deviation(experts, topk, tokens, has_bias=has_bias))
    assert 1 - 1e-12 <= trained <= busiest_rank(experts, topk, ep) * (1 + 1e-12)


@pytest.mark.parametrize("has_bias", [True, False])
def test_more_tokens_in_an_exchange_are_more_balanced_down_to_what_stays(has_bias):
    found = [trained_deviation(64, 6, tokens, has_bias=has_bias) for tokens in (1, 1e3, 1e5, 1e7, 1e12)]
    assert found == sorted(found, reverse=True)
    assert found[0] == POPULARITY_DEVIATION
    assert found[-1] == pytest.approx(LEFT_BY_BIAS if has_bias else LEFT_BY_LOSS, rel=1e-2)


@pytest.mark.parametrize(("deviation", "published"), [(LEFT_BY_LOSS, (0.72 + 0.52) / 2), (LEFT_BY_BIAS, 0.04)])
def test_what_balancing_leaves_is_as_published(deviation, published):
    """MaxVio of 64 experts, top-6, over whole sets of text (arXiv 2408.15664, table 2)."""
    assert busiest_rank(64, 6, 64, deviation) - 1 == pytest.approx(published, rel=0.05)
