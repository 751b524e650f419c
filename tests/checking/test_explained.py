"""An alarm is explained by forecasts of the job, none of which is made before it."""

import pytest

from traincast.checking.alarm import Alarm
from traincast.checking.causes import known_causes
from traincast.checking.explained import MOST, Explainer
from traincast.errors import ConfigError


def alarm(kind="level shift", size=0.3, **more):
    told = {"began_step": 100, "noticed_step": 120, "confidence": 0.85, "text": "", "explained_by": ()} | more
    return Alarm(kind=kind, size=size, **told)


@pytest.fixture(scope="module")
def asked():
    """What was asked of those who forecast the job, in order."""
    return []


@pytest.fixture(scope="module")
def explainer(base, asked):
    made = Explainer(lambda: asked.append(1) or base)
    assert asked == []
    return made


def test_a_cause_that_makes_the_step_as_much_longer_is_told_and_the_job_is_forecast_once(explainer, asked):
    slow = explainer.explained(alarm(size=0.27), restarted=False)
    assert len(slow.explained_by) == MOST
    assert any("one rank computes 30 % longer" in each for each in slow.explained_by)
    explainer.explained(alarm(size=0.1), restarted=False)
    assert asked == [1]


def test_what_a_log_has_there_comes_first_and_settings_change_only_at_a_restart(explainer):
    seen = alarm(size=0.3, explained_by=("the evaluation or checkpoint before step 100",))
    settings = [each.name for each in known_causes() if not each.begins_in_a_run]
    assert "all layers are recomputed" in settings
    within = explainer.explained(seen, restarted=False).explained_by
    assert within[0] == seen.explained_by[0]
    assert not any(name in text for name in settings for text in within)
    again = explainer.explained(seen, restarted=True).explained_by
    assert any("all layers are recomputed" in text for text in again)


def test_other_alarms_need_no_forecast():
    def never():
        raise AssertionError

    assert Explainer(never).explained(alarm("stall"), restarted=False) == alarm("stall")


def test_a_job_that_cannot_be_forecast_loses_no_alarm():
    def fails():
        raise ConfigError("is 3", "tp")

    told = Explainer(fails).explained(alarm(explained_by=("a NIC",)), restarted=False).explained_by
    assert told[0] == "a NIC"
    assert "tp: is 3" in told[1]
