"""What the study of skew finds of systems whose steps grow by a known share with each doubling of their nodes."""

from math import exp
from types import SimpleNamespace

import pytest

import skew
from judges.scaling import curves_of
from measured_tables import run_row as row
from traincast.calibration.runs import run_of


def system(model, gpus, step_s):
    """Return runs of a system that takes as long on one node of eight as on so many GPUs."""
    found = []
    for number, measured_s in ((8, step_s), (gpus, step_s)):
        measured = {"measured_metric": "iter_time_s", "measured_value": str(measured_s)}
        cells = {"model": model, "num_gpus": str(number), "global_batch": str(8 * number), **measured}
        found.append(run_of(row(id=f"{model}-{number}", **cells)))
    return found


def test_skew_is_what_forecasts_lack_over_the_doublings(monkeypatch):
    """Weak scaling: the measured step stays, and a forecast falls by 1 % a doubling, or by 3 %."""
    runs = [*system("llama3-8b", 64, 2.0), *system("llama3-70b", 16, 3.0)]
    falls = {"llama3-8b-64": 3 * 0.01, "llama3-70b-16": 0.03}
    made = [SimpleNamespace(step_s=run.measured_s * exp(-falls.get(run.id, 0.0))) for run in runs]
    by_id = dict(zip((run.id for run in runs), made, strict=True))
    monkeypatch.setattr(skew, "shipped_forecasts", lambda asked: [by_id[run.id] for run in asked])
    found = {each.doublings: each for each in skew.skews_of(curves_of(runs))}
    assert found[3].per_doubling == pytest.approx(0.01)
    assert found[1].per_doubling == pytest.approx(0.03)
    assert skew.middle(list(found.values())) == pytest.approx(0.01), "three doublings weigh more than one"


def test_systems_inside_one_node_say_nothing(monkeypatch):
    runs = system("llama3-8b", 4, 2.0)
    monkeypatch.setattr(skew, "shipped_forecasts", lambda asked: [SimpleNamespace(step_s=1.0) for _ in asked])
    assert skew.skews_of(curves_of(runs)) == []
    assert [skew.nodes_of(each) for each in runs] == [1.0, 1.0]


def test_nodes_of_a_run_wait_no_longer_than_is_simulated():
    (run, _) = system("llama3-8b", 64, 2.0)
    assert run.cluster.waiting(64) > skew.without_skew(run).cluster.waiting(64) == 1
