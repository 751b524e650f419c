"""Cases in order, and which are too close to tell: errors that forecasts share cancel, their own do not."""

import math

import pytest
from msgspec.structs import replace

from traincast import api
from traincast.errors import ConfigError
from traincast.planning.order import in_order
from traincast.simulation.differences import chance_of_less, deviation_between
from traincast.simulation.widths import Z

JOB = {
    "model": "llama3.2-1b",
    "global_batch": 32,
    "seq_length": 2048,
    "fix": {"micro_batch": 1},
    "max_tp": 1,
    "max_pp": 1,
}
PRICES = {"h100": 2.0, "h200": 2.0, "b200": 3.0}


@pytest.fixture(scope="module")
def plans():
    return api.plans(clusters=tuple(PRICES), gpus=8, rank_by="cost", gpu_hour_price=PRICES, **JOB)


def test_what_two_forecasts_share_cancels(plans):
    by_cluster = {each.cluster: each for each in plans.best}
    one = by_cluster["h100"].doubts
    assert deviation_between(one, one) == 0
    same_kind, other_kind = (deviation_between(one, by_cluster[name].doubts) for name in ("h200", "b200"))
    assert 0 < same_kind < other_kind, "H100 and H200 compute alike"


def test_more_gpus_of_one_cluster_share_nearly_all():
    found = api.plans(cluster="h100", gpus=(8, 16), **JOB)
    first, second = found.places
    assert (first.gpus, second.gpus) == (16, 8)
    assert not second.tied and second.confidence > 0.99
    interval = found.best[0].result.interval
    assert second.deviation < math.log(interval.high_s / interval.low_s) / 2 / Z / 1.25


def test_places_are_in_order_with_what_is_too_close_marked(plans):
    figures = [place.figure for place in plans.places]
    assert figures == sorted(figures)
    assert [place.cluster for place in plans.places] == [choice.cluster for choice in plans.best]
    assert not plans.places[0].tied
    for choice, place in zip(plans.best, plans.places, strict=True):
        assert place.figure == choice.training.cost
        assert place.behind == pytest.approx(place.figure / figures[0] - 1)
        assert place.tied == (place.deviation > 0 and math.log1p(place.behind) <= place.deviation)


@pytest.mark.parametrize(("by", "figure"), [("days", "days"), ("energy", "energy_mwh")])
def test_every_order_ranks_by_its_figure(plans, by, figure):
    found = [getattr(choice.training, figure) for choice in replace(plans, rank_by=by).best]
    assert found == sorted(found)


def test_equal_prices_of_equal_machines_are_a_tie():
    assert chance_of_less(1.0, 0.1) == pytest.approx(0.5)
    assert chance_of_less(math.exp(0.1 * Z), 0.1) == pytest.approx(0.05, abs=1e-4)
    assert chance_of_less(2.0, 0.01) < 1e-9


def test_an_order_needs_its_figure(plans):
    with pytest.raises(ConfigError, match="rank_by: is 'cost', which needs prices; give gpu_hour_price"):
        api.plans(cluster="h100", gpus=(8, 16), rank_by="cost", **JOB)
    unpriced = [replace(each, training=replace(each.training, cost=None)) for each in plans.best]
    with pytest.raises(ConfigError, match="'cost' is not known"):
        in_order(unpriced, "cost")
