"""A plan that several processes make is the plan that one makes."""

import multiprocessing
import os

import pytest

import traincast
from traincast.errors import InfeasibleError
from traincast.planning import plan as planning

DENSE = {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "global_batch": 16, "cp": 1, "micro_batch": 1}
EXPERTS = {"model": "qwen3-30b-a3b", "cluster": "gb200", "gpus": 8, "global_batch": 32, "cp": 1, "max_tp": 1}


def told(found):
    """Return all that a plan says but how long it took."""
    return {name: getattr(found, name) for name in found.__struct_fields__ if name != "screen_s"}


@pytest.mark.parametrize("job", [DENSE, pytest.param(EXPERTS, marks=pytest.mark.slow)], ids=["dense", "experts"])
def test_the_plan_is_the_same_with_any_number_of_processes(job):
    alone, seen = [], []
    expected = traincast.plan(**job, estimated=alone.extend)
    for workers in (2, 3):
        seen.clear()
        assert told(traincast.plan(**job, estimated=seen.extend, workers=workers)) == told(expected)
        assert sorted(seen, key=str) == sorted(alone, key=str)


@pytest.mark.slow
def test_what_a_lost_process_had_is_worked_out_again(monkeypatch):
    first, efforts = os.getpid(), planning.reached

    def lost(*words):
        if os.getpid() != first:
            os._exit(1)
        return efforts(*words)

    expected = traincast.plan(**DENSE)
    monkeypatch.setattr(planning, "reached", lost)
    assert told(traincast.plan(**DENSE, workers=2)) == told(expected)


@pytest.mark.parametrize("held", [{"pp": 1}, pytest.param({}, marks=pytest.mark.slow)], ids=["few", "all"])
def test_what_cannot_be_is_said_alike(held):
    said = []
    for workers in (1, 2):
        for job in ({**DENSE, "global_batch": 7, "tp": 1, "pp": 1}, {**DENSE, "model": "llama3-405b", **held}):
            with pytest.raises(InfeasibleError) as error:
                traincast.plan(**job, workers=workers)
            said.append(str(error.value))
    assert said[:2] == said[2:]


def test_who_is_handed_layouts_may_end_the_plan():
    def enough(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        traincast.plan(**DENSE, estimated=enough, workers=2)
    assert multiprocessing.active_children() == []
