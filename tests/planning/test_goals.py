"""What days or money buy: closed forms of what a run takes, searches that find the fewest and the most, and chances."""

import math
from types import SimpleNamespace

import pytest

from traincast import api
from traincast.errors import ConfigError, InfeasibleError, UnknownNameError
from traincast.hardware.gpu import load_gpu
from traincast.model.counts import parameters
from traincast.model.load import load_model
from traincast.planning.goals import Limits, chance_within, goal_of, interpolated, least_gpus, search
from traincast.planning.remedy import Remedy

SMALL = {"cluster": "h100", "global_batch": 32, "seq_length": 2048, "fix": {"micro_batch": 1}, "max_tp": 1, "max_pp": 1}
MODELS = ("llama3.2-1b", "llama3.2-3b")


@pytest.fixture(scope="module")
def bought():
    return api.plans(models=MODELS, gpus=(8, 16), days=1.0, budget=1000, gpu_hour_price=2.0, currency="USD", **SMALL)


def test_a_run_takes_its_tokens_at_the_speed_of_its_steps(bought):
    for run in bought.goal.runs:
        count = parameters(load_model(run.model)).active
        assert run.parameters == count
        assert run.tokens == 20 * count
        (plan,) = (each for each in bought.plans if (each.model, each.gpus) == (run.model, run.gpus))
        assert run.days * 86400 == pytest.approx(run.tokens / (32 * 2048) * plan.best[0].step_s)
        assert run.cost == pytest.approx(run.days * 24 * run.gpus * 2.0)
        assert run.meets == (run.days <= 1 and run.cost <= 1000)
    assert "tokens-per-parameter" in {note.code for note in bought.assumptions}


def test_the_largest_model_within_is_chosen_on_the_fewest_gpus(bought):
    within = [run for run in bought.goal.runs if run.meets]
    assert within
    largest = [run for run in within if run.parameters == max(each.parameters for each in within)]
    assert bought.goal.chosen == min(largest, key=lambda run: run.gpus)


def test_more_days_and_more_money_buy_no_less(bought):
    def found(**limits):
        goal = goal_of(bought.plans, Limits(**limits), 20.0)
        return goal.largest[0].parameters, goal.chosen.parameters if goal.chosen else 0

    by_money = [found(budget=money) for money in (100, 1000, 2000)]
    by_days = [found(days=days) for days in (0.1, 1, 5)]
    for rising in (by_money, by_days):
        assert rising == sorted(rising)
        assert rising[0][0] < rising[-1][0]
        assert rising[0][1] < rising[-1][1] == parameters(load_model("llama3.2-3b")).active


def test_between_models_it_is_interpolated_and_beyond_them_goes_by_the_power():
    points = [(1e9, 1.0), (4e9, 16.0)]
    assert interpolated(points, 4.0, 2) == (pytest.approx(2e9), (1e9, 4e9))
    assert interpolated(points, 1.0, 2)[0] == pytest.approx(1e9)
    assert interpolated(points, 16.0, 2)[0] == pytest.approx(4e9)
    assert interpolated(points, 64.0, 2) == (pytest.approx(8e9), (4e9,))
    assert interpolated(points, 32.0, 1) == (pytest.approx(8e9), (4e9,))
    assert interpolated(points, 0.25, 2) == (pytest.approx(5e8), (1e9,))


def test_the_chance_is_that_of_the_interval():
    """Nine of ten runs are in it, one of twenty at either side of it; on both sides the logarithm is normal."""
    assert chance_within(10, 8, 14, 10) == pytest.approx(0.5)
    assert chance_within(10, 8, 14, 14) == pytest.approx(0.95, abs=1e-4)
    assert chance_within(10, 8, 14, 8) == pytest.approx(0.05, abs=1e-4)
    assert chance_within(10, None, None, 9) == 0
    chances = [chance_within(10, 8, 14, limit) for limit in range(5, 30)]
    assert chances == sorted(chances)


def planned(days=math.inf, cost=math.inf):
    training = SimpleNamespace(days=days, cost=cost)
    return SimpleNamespace(best=[SimpleNamespace(training=training)])


class Gpus:
    """Runs that take so many GPU-days, a share of them longer on more GPUs; below some number nothing fits."""

    def __init__(self, work, serial=0.0, least=0, says=True):
        self.work, self.serial, self.least, self.says, self.asked = work, serial, least, says, []

    def __call__(self, gpus):
        self.asked.append(gpus)
        if gpus < self.least:
            given = {"layout": "", "step_s": 1.0, "peak_bytes": 1.0, "chance_of_oom": 0.0}
            fits = [Remedy(field="gpus", value=self.least, **given)] if self.says else []
            return InfeasibleError("does not fit", remedies=fits)
        days = self.work * (1 / gpus + self.serial)
        return planned(days, days * gpus)


@pytest.mark.parametrize(
    ("of", "days"),
    [
        (Gpus(100), 1),
        (Gpus(1000), 1),
        (Gpus(1000, serial=1e-4), 1),
        (Gpus(5), 1),
        (Gpus(100, least=64), 10),
        (Gpus(100, least=64, says=False), 10),
    ],
)
def test_the_fewest_gpus_that_make_it_are_found(of, days):
    search(of, 8, Limits(days=days))
    found = max(of.asked)
    grid = [8, *(8 * each << power for power in range(16) for each in (2, 3))]
    possible = [gpus for gpus in grid if gpus >= of.least and of.work * (1 / gpus + of.serial) <= days]
    assert found == possible[0]
    assert len(of.asked) <= 6


@pytest.mark.parametrize(
    "of", [Gpus(100, serial=0.001), Gpus(100, serial=0.1), Gpus(100, least=64), Gpus(100, 0.01, 64)]
)
def test_the_most_gpus_within_the_money_are_found(of):
    """The cost of so many is work times one and the serial share of each."""
    budget = 150.0
    search(of, 8, Limits(budget=budget))
    within = [gpus for gpus in of.asked if gpus >= of.least and of.work * (1 + of.serial * gpus) <= budget]
    beyond = [gpus for gpus in of.asked if gpus not in within and gpus >= of.least]
    if of.serial:
        assert not within or max(within) < min(beyond) <= 2 * max(within)
    assert len(of.asked) <= 12


def test_what_is_far_too_expensive_is_asked_once():
    of = Gpus(1000)
    search(of, 8, Limits(budget=10.0))
    assert of.asked == [8]


def test_no_gpu_is_faster_than_its_peak():
    gpu, model = load_gpu("H100-SXM-80GB"), load_model("llama3-8b")
    found = least_gpus(model, 1e12, gpu, 10)
    assert found == pytest.approx(2 * least_gpus(model, 1e12, gpu, 20))
    assert 6 * parameters(model).computed * 1e12 / (found * 10 * 86400) >= gpu.bf16_dense_flops_per_s


def test_a_search_begins_with_a_node_and_ends_within_its_days():
    found = api.plans(model="llama3.2-1b", tokens="10B", days=0.12, **SMALL)
    chosen = found.goal.chosen
    assert chosen.days <= 0.12 and chosen.gpus % 8 == 0
    assert chosen.gpus == max(plan.gpus for plan in found.plans)
    assert found.goal.tokens_per_parameter is None
    assert not found.refused, "24 GPUs do not divide the batch, and are only tried"


def test_a_pattern_is_all_models_of_such_names():
    found = api.planning.models_named(("llama3.2-*", "llama3.2-1b", "llama3-8b"))
    assert found == ["llama3.2-1b", "llama3.2-3b", "llama3-8b"]
    with pytest.raises(UnknownNameError, match="llama99"):
        api.planning.models_named(("llama99*",))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"budget": 100.0}, "budget: is money, and a price is needed"),
        ({"budget": "much", "gpu_hour_price": 2.0}, "'much' is not a sum of money"),
        ({"days": 0}, "days: is 0; it must be above 0"),
        ({"days": 1, "tokens": 1e9, "tokens_per_parameter": 20}, "tokens_per_parameter: says the tokens"),
        ({"tokens_per_parameter": 0}, "tokens_per_parameter: is 0"),
        ({"rank_by": "beauty"}, "rank_by: is 'beauty'"),
        ({"gpus": {"h200": (8,)}}, "gpus: 'h200' is not a cluster of this plan"),
    ],
)
def test_wrong_questions_are_named(given, said):
    with pytest.raises(ConfigError, match=said):
        api.plans(**{"model": "llama3.2-1b", "gpus": 8, **SMALL, **given})


def test_where_no_number_of_gpus_is_enough_it_is_said_why_more_are_not_tried():
    found = api.plans(model="llama3.2-1b", tokens="10B", days=0.02, **SMALL)
    assert found.goal.chosen is None
    (first,) = found.refused
    assert first.gpus > max(plan.gpus for plan in found.plans)
    assert "global batch of 32" in first.reason
