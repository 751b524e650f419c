"""A schedule of a plug-in that has no closed form: the screen runs its order, and proposes it as the built-in ones."""

import pytest
from msgspec.structs import replace

from planning.screen.test_screen import H100, SETTING, job_of, rows, screen_of
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.planning.options import plan_options
from traincast.schedules.schedule import SCHEDULES, Schedule, register
from traincast.simulation.forecast import forecast

SPACE = {
    "model": "llama3-8b",
    "gpus": 8,
    "batch": 16,
    "full": True,
    "tp": 2,
    "pp": 4,
    "precision": "bf16",
    "zero": 0,
    "recompute": ("none", "full"),
}


@pytest.fixture
def added(monkeypatch):
    """Return a function that registers a schedule for the time of a test, as an entry point would."""
    SCHEDULES.names()  # What comes with traincast is there before it.
    monkeypatch.setattr(SCHEDULES, "_entries", dict(SCHEDULES._entries))
    return register


def gpipe_from_the_last(stages, virtual_per_stage, microbatches):
    """GPipe with backwards in reverse, which refuses an odd number of microbatches."""
    if microbatches % 2:
        raise InfeasibleError(f"an even number of microbatches, not {microbatches}")
    plan = SCHEDULES.get("gpipe").plan(stages, virtual_per_stage, microbatches)
    slots = tuple((*order[:microbatches], *reversed(order[microbatches:])) for order in plan.slots)
    return replace(plan, name="gpipe-from-the-last", slots=slots)


@pytest.mark.slow
@pytest.mark.parametrize("copied", ["1f1b", "gpipe", "interleaved", "looped_bfs", "zb_h1"])
def test_it_takes_as_long_as_the_order_that_it_has(added, copied):
    """The same orders under another name, without their closed form: not as long as interleaved, whatever they are."""
    known, name = SCHEDULES.get(copied), f"copy-of-{copied}"

    def plan(*counts):
        return replace(known.plan(*counts), name=name)

    facts = {"virtual_stages": known.virtual_stages, "groups_of_stages": known.groups_of_stages}
    added(Schedule(name=name, plan=plan, ends_on_first_stage=known.ends_on_first_stage, **facts))
    space = SPACE | {"vpp": known.virtual_stages or 2}
    screen = screen_of(**space, schedule=name)
    own, theirs = list(rows(screen)), list(rows(screen_of(**space, schedule=copied)))
    assert [replace(layout, schedule=copied) for layout, *_ in own] == [layout for layout, *_ in theirs]
    assert [peak for *_, peak in own] == pytest.approx([peak for *_, peak in theirs], rel=1e-12)
    for layout, step_s, _ in own[:: max(1, len(own) // 5)]:
        simulated = forecast(job_of(screen, layout), SETTING, allow_oom=True).iteration_time_s
        assert step_s == pytest.approx(simulated, rel=0.02), layout.text


def test_it_is_proposed_where_it_runs_and_is_near_its_simulation(added):
    added(Schedule(name="gpipe-from-the-last", plan=gpipe_from_the_last, virtual_stages=1))
    assert "gpipe-from-the-last" in {layout.schedule for layout, *_ in rows(screen_of(**SPACE))}
    screen = screen_of(**SPACE | {"schedule": "gpipe-from-the-last"})
    found = list(rows(screen))
    for layout, step_s, _ in found[:: max(1, len(found) // 8)]:
        simulated = forecast(job_of(screen, layout), SETTING, allow_oom=True).iteration_time_s
        assert step_s == pytest.approx(simulated, rel=0.02), layout.text
    assert not list(rows(screen_of(**SPACE | {"batch": 15, "micro_batch": 1, "schedule": "gpipe-from-the-last"})))


def test_jobs_and_axes_know_its_name(added):
    added(Schedule(name="gpipe-from-the-last", plan=gpipe_from_the_last, virtual_stages=1))
    request = JobRequest(model=load_model("llama3-8b"), gpus=8, seq_length=512, global_batch=8, tp=2, pp=4)
    job = resolve_job(replace(request, schedule="GPipe_from_the_last"), H100)
    assert (job.pipeline.schedule, job.parallel.vpp) == ("gpipe-from-the-last", 1)
    with pytest.raises(ConfigError, match="no virtual stages"):
        resolve_job(replace(request, schedule="gpipe-from-the-last", vpp=2), H100)
    options, _ = plan_options("h100", {"fix": {"schedule": "GPipe_from_the_last"}})
    assert options.fixed["schedule"] == ("gpipe-from-the-last",)
