"""Jobs under schedules that split the backward pass or hold two copies of the model."""

import pytest

import traincast
from traincast.errors import ConfigError, InfeasibleError
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job
from traincast.lowering.build import build_workload
from traincast.schedules.check import plan_of
from traincast.workload.words import Group

SCHEDULES = ("zb_h1", "zb_v", "dualpipe", "dualpipe_v")
LOOPED = ("looped_bfs", "interleaved_zb")
"""Schedules of any number of virtual stages, beside `interleaved`."""


def draft(schedule, **changes):
    fields = {"gpus": 32, "tp": 2, "pp": 4, "global_batch": 48, "seq_length": 2048, "schedule": schedule}
    return Draft(model="llama3-8b", cluster="h100", fields=fields | changes)


@pytest.mark.parametrize("zero", [0, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (1, 2)), 3])
@pytest.mark.parametrize("schedule", SCHEDULES + LOOPED)
def test_ranks_that_are_alike_stand_for_each_other(schedule, zero):
    one = draft(schedule, zero=zero, global_batch=20, **({"vpp": 2} if schedule in LOOPED else {}))
    folded = traincast.predict(one, allow_oom=True)
    every = traincast.predict(one, allow_oom=True, options=traincast.StepOptions(unfold=True))
    assert folded.iteration_time_s == every.iteration_time_s
    assert folded.breakdown_s == every.breakdown_s
    assert len(folded.ranks) < len(every.ranks) == 32


def test_split_backward_passes_shorten_the_bubble():
    results = {name: traincast.predict(draft(name), allow_oom=True) for name in ("1f1b", *SCHEDULES)}
    idle = {name: each.breakdown_s["bubble"] + each.breakdown_s["exposed_dp"] for name, each in results.items()}
    assert results["zb_h1"].iteration_time_s < results["1f1b"].iteration_time_s
    assert idle["zb_v"] < idle["zb_h1"] < idle["1f1b"]
    assert [results[name].parallel["vpp"] for name in SCHEDULES] == [1, 2, 1, 2]


def test_both_copies_of_dualpipe_are_held_and_summed():
    """Stages 0 and 3 hold layers 0 to 7 and 24 to 31 each: the parameters of both, reduced over dp, then over both."""
    late = {"zero": 1, "overlap_grad_reduce": False, "overlap_param_gather": False}
    jobs = {name: resolve_job(draft(name, **late).request(), load_cluster("h100")) for name in ("1f1b", "dualpipe")}
    works = {name: build_workload(job, plan_of(job), 8) for name, job in jobs.items()}

    gradient_bytes = jobs["dualpipe"].framework.grad_reduce_bytes

    def sizes(name, group, stage):
        ops = works[name].ops
        rows = works[name].segments[int(works[name].templates[0].end_P[stage])]
        return ops.size_bytes_T[rows][ops.group_T[rows] == group].tolist()

    for stage in range(4):
        held = sizes("1f1b", Group.DP, stage) + sizes("1f1b", Group.DP, 3 - stage)
        assert sorted(sizes("dualpipe", Group.DP, stage)) == sorted(held)
        # Gradients are reduced and parameters, in bf16, gathered; of the gradients a rank then has a share.
        share = gradient_bytes / (gradient_bytes + 2)
        assert sum(sizes("dualpipe", Group.COPY, stage)) == pytest.approx(sum(held) * share / 4, rel=1e-6)
    assert not sizes("1f1b", Group.COPY, 0)
    once, twice = (traincast.predict(draft(name), allow_oom=True).memory_bytes for name in ("1f1b", "dualpipe"))
    for stage in range(4):
        both = once[stage]["parameters"] + once[3 - stage]["parameters"]
        assert twice[stage]["parameters"] == pytest.approx(both)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"schedule": "dualpipe", "pp": 1}, None, "schedule dualpipe has no effect with pp 1"),
        ({"schedule": "zb_h1", "vpp": 2}, ConfigError, "has no virtual stages, but vpp is 2"),
        ({"schedule": "zb_v", "vpp": 4}, InfeasibleError, "two virtual stages per stage, not vpp 4"),
        ({"schedule": "dualpipe", "pp": 3, "gpus": 48, "tp": 2}, InfeasibleError, "even number of stages, not pp 3"),
    ],
)
def test_what_a_schedule_cannot_run_is_said(changes, error, words):
    one = draft(**changes)
    if error is None:
        assert any(words in note.text for note in traincast.predict(one, allow_oom=True).assumptions)
        return
    with pytest.raises(error, match=words):
        traincast.predict(one, allow_oom=True)
