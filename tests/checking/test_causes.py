"""Causes: a step that is made slow by one thing is explained by it."""

import math

import pytest

from traincast.checking.causes import PAUSE, Excess, known_causes, possible_causes, tried
from traincast.checking.changes import read_change
from traincast.checking.expected import by_forecast
from traincast.checking.parts import parts_of_step
from traincast.errors import ConfigError
from traincast.simulation.widths import Z


@pytest.fixture(scope="session")
def found(base):
    return tried(base)


def test_every_cause_says_its_change_what_shows_it_and_its_source():
    assert len({each.name for each in known_causes()}) == len(known_causes())
    for each in known_causes():
        assert each.change.text and each.look and each.source and each.odds > 0


def test_every_cause_that_is_told_makes_the_step_longer_and_meets_its_needs(found):
    assert all(each.ratio > 1 for each in found)
    names = {each.suspect.name for each in found}
    assert not any("experts" in name for name in names), "the model has none"
    assert "network cards reach half their rate" in names


def test_a_cause_that_makes_the_step_as_long_as_it_is_comes_first_and_explains_all_of_it(found):
    overlap = next(each for each in found if each.suspect.change.text.startswith("overlap_grad_reduce=false"))
    first, *_ = possible_causes(found, Excess(1.0, overlap.ratio, 0.002))
    assert (first.kind, first.name) == ("overlap", overlap.suspect.name)
    assert first.explains == pytest.approx(1.0)
    assert first.fits
    assert first.step_s == pytest.approx(overlap.ratio)


def test_chances_of_kinds_are_shares_and_a_pause_explains_whatever_else_does_not(found):
    causes = possible_causes(found, Excess(1.0, 40.0, 0.01), None)
    assert causes[0].kind == PAUSE
    assert sum(each.chance for each in causes) == pytest.approx(1.0)
    assert len({each.kind for each in causes}) == len(causes)


def test_a_step_that_is_not_longer_has_no_cause(found):
    assert possible_causes(found, Excess(1.0, 1.001, 0.01)) == ()
    assert possible_causes(found, Excess(1.0, 0.8, 0.01)) == ()


def test_less_of_a_link_is_never_faster(base):
    steps = [read_change(f"nic_bandwidth*{factor}").applied(base).step_s for factor in (1, 0.5, 0.25, 0.1)]
    assert steps[0] == pytest.approx(base.step_s)
    assert steps == sorted(steps)


def test_work_that_takes_longer_makes_the_step_longer_by_no_more_than_its_share(base):
    longer = read_change("compute*1.25").applied(base).step_s
    assert base.step_s < longer <= 1.25 * base.step_s * (1 + 1e-9)


@pytest.mark.parametrize("text", ["overlap_gra_reduce=false", "tp*zero", "nothing*2", "tp_across_nodes=false"])
def test_a_change_that_means_nothing_is_refused(text):
    with pytest.raises(ConfigError):
        read_change(text)


def test_a_number_of_a_job_is_multiplied_only_to_whole_numbers(base):
    assert read_change("tp*2").applied(base).job.parallel.tp == 4
    with pytest.raises(ConfigError, match="multiplied"):
        read_change("tp*0.3").applied(base)


def test_a_part_alone_would_have_to_take_all_that_the_step_is_longer(base):
    known = by_forecast(base)
    parts = parts_of_step(base.result.breakdown_s, known, 1.2 * base.step_s)
    assert math.fsum(each.expected_s for each in parts) == pytest.approx(base.step_s, rel=0.01)
    for each in parts:
        assert each.needed_s - each.expected_s == pytest.approx(0.2 * base.step_s)
        assert each.factor == pytest.approx(each.needed_s / each.expected_s)
    shorter = parts_of_step(base.result.breakdown_s, known, 0.5 * base.step_s)
    assert any(each.needed_s is None for each in shorter), "a small part cannot save half of a step"


def test_the_spread_of_a_ratio_widens_what_fits(found):
    sure = possible_causes(found, Excess(1.0, 1.15, 0.001), None)
    unsure = possible_causes(found, Excess(1.0, 1.15, 0.3 / Z), None)
    assert sum(each.fits for each in sure) <= sum(each.fits for each in unsure)
