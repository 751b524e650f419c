"""How far software is tuned: levels of effort, what switches save, and that a plan's layout can be run as it says."""

from functools import cache

import pytest
from msgspec.structs import replace

import traincast
from traincast.errors import TraincastError
from traincast.hardware.clusters import load_cluster
from traincast.job.condition_facts import job_facts
from traincast.job.frameworks import load_framework
from traincast.job.levels import BEST, LEVELS
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.switches import SWITCHES, allowed
from traincast.model.load import load_model
from traincast.planning.options import PlanOptions
from traincast.planning.plan import plan
from traincast.planning.software import by_framework
from traincast.planning.tuning import _TOLD
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting

SMALL = {"cp": 1, "tp": 1, "pp": 1, "micro_batch": (1, 2, 4)}
PLANS = {
    "dense": ("llama3-8b", "h100", 8, "megatron-bridge-2026", "bf16", SMALL),
    "dense in 8 bits": ("llama3-8b", "b200", 8, "megatron-core-2026", "mxfp8", SMALL),
    "experts": ("qwen3-30b-a3b", "gb200", 8, "megatron-bridge-2026", "mxfp8", {**SMALL, "ep": (4, 8)}),
    "experts over nodes": ("qwen3-30b-a3b", "h100", 16, "megatron-bridge-2026", "bf16", {**SMALL, "ep": (8, 16)}),
    "hybrid": ("nemotron-3-nano", "gb200", 8, "megatron-bridge-2026", "bf16", {**SMALL, "ep": (4, 8)}),
    "FSDP": ("llama3-8b", "h100", 8, "torchtitan-2025", "bf16", {"cp": 1, "tp": (1, 2)}),
    "latent attention": ("deepseek-v2-lite", "b200", 8, "megatron-core-2025", "bf16", {**SMALL, "ep": 8}),
}
FAST = ("dense", "hybrid", "FSDP")


def named(names):
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


def request_of(name, **said):
    model, _, gpus, framework, precision, _ = PLANS[name]
    known = {"global_batch": 128, "seq_length": 4096, "framework": framework, "precision": precision}
    return JobRequest(model=load_model(model), gpus=gpus, **{**known, **said})


def machine(name):
    return load_cluster(PLANS[name][1])


@cache
def planned(name, **said):
    fixed = {key: value if isinstance(value, tuple) else (value,) for key, value in PLANS[name][-1].items()}
    setting = Setting(cluster=machine(name))
    return plan(request_of(name, **said), setting, PlanOptions(fixed=fixed, finalists=8))


def job_of(name, layout, **said):
    return resolve_job(replace(request_of(name), **{**layout.request(), **said}), machine(name))


def step_and_peak(name, layout, **said):
    result = forecast(job_of(name, layout, **said), Setting(cluster=machine(name)), allow_oom=True)
    return result.iteration_time_s, max(stage.peak for stage in result.memory_bytes)


@pytest.mark.parametrize("name", named(PLANS))
def test_more_effort_is_not_slower(name):
    found = planned(name)
    assert tuple(each.level for each in found.efforts) == LEVELS
    plain, usual, best = (each.step_s for each in found.efforts)
    assert best <= usual * 1.005
    assert usual <= plain * 1.005
    assert found.tuned == BEST
    assert best == found.best[0].step_s


@pytest.mark.parametrize("name", named(PLANS))
def test_what_a_level_reaches_is_a_forecast_that_fits(name):
    usable = planned(name).best[0].usable_bytes
    for each in planned(name).efforts:
        step_s, peak = step_and_peak(name, each.layout)
        assert each.step_s == pytest.approx(step_s, rel=1e-9)
        assert each.peak_bytes == pytest.approx(peak, rel=1e-9)
        assert peak < usable


@pytest.mark.parametrize("name", named(PLANS))
def test_each_switch_that_is_left_saves_something_or_is_needed(name):
    """Taken off alone, all else the same, a switch costs what the plan says, or memory that the layout has not."""
    found = planned(name)
    best = found.best[0]
    defaults = by_framework(load_framework(found.framework), {n for s in SWITCHES for n in s.fields}, request_of(name))
    for each in found.switched:
        off = {field: defaults.get(field) for field, _ in each.settings}
        assert {**dict(best.layout.software), **best.layout.request()}.items() >= {
            (field, value) for field, value in each.settings if off[field] != value
        }
        assert each.saving_s > _TOLD * best.step_s or each.frees_bytes > 0 or needed_by_others(each, found)
    assert list(found.switched) == sorted(found.switched, key=lambda each: -each.saving_s)


def needed_by_others(switch, found):
    """Return whether another switch that is on needs something that a switch sets."""
    needs = {other.name: other.needs for other in SWITCHES}
    sets = {field for field, _ in switch.settings}
    others = [other for other in found.switched if other.name != switch.name]
    return any(each.name in sets for other in others for need in needs[other.name] for each in need)


@pytest.mark.parametrize("name", named(PLANS))
def test_what_a_plan_sets_is_allowed(name):
    """Of every layout that it shows, not of the first alone: each switch with all that the job has."""
    for choice in planned(name).best:
        job = job_of(name, choice.layout)
        facts = job_facts(job, machine(name))
        said = {**choice.layout.request()}
        defaults = by_framework(job.framework, {n for s in SWITCHES for n in s.fields}, request_of(name))
        able = [each for each in SWITCHES if each.is_in(job.framework)]
        on = [each for each in able if all(said.get(field) == value for field, value in each.settings)]
        for each in on:
            idle = all(defaults.get(field) == value for field, value in each.settings)
            part = any(set(each.settings) < set(other.settings) for other in on)
            if not (idle or part):
                assert allowed(each, facts) is None, (each.name, choice.layout.text, choice.layout.software)


@pytest.mark.parametrize("name", named(PLANS))
def test_the_layout_to_run_is_run_again_to_the_same_step(name):
    best = planned(name).best[0]
    assert traincast.run_again(best.result).iteration_time_s == pytest.approx(best.step_s, rel=1e-12)


@pytest.mark.parametrize("name", ["hybrid"])
def test_what_a_job_says_stays_at_every_level(name):
    found = planned(name, cuda_graph_impl="none", moe_dispatcher="alltoall")
    for each in found.efforts:
        assert each.layout.moe_dispatcher == "alltoall"
        assert dict(each.layout.software).get("cuda_graph_impl", "none") == "none"
    assert all("cuda_graph_impl" not in dict(each.settings) for each in found.switched)
    assert planned(name).best[0].step_s < found.best[0].step_s


def test_a_job_that_one_has_is_changed_part_by_part_with_its_software():
    """Its software stays as it is, however far others would tune it."""
    request = request_of("dense")
    had = resolve_job(replace(request, tp=4, recompute="full"), machine("dense"))
    options = PlanOptions(fixed={"cp": (1,), "pp": (1,)}, finalists=4)
    start = plan(request, Setting(cluster=machine("dense")), options, had).start
    assert start.changes
    for each in start.changes:
        assert each.layout.software == start.layout.software
        assert each.step_s < start.step_s


def test_nothing_is_said_of_effort_that_cannot_run():
    """Where no layout fits at all, a plan says so and does not show levels."""
    with pytest.raises(TraincastError):
        plan(
            JobRequest(model=load_model("llama3-70b"), gpus=8, global_batch=8, seq_length=65536),
            Setting(cluster=load_cluster("h100")),
            PlanOptions(fixed={"recompute": ("none",)}, remedies=False),
        )


def test_levels_of_which_a_family_has_no_layout_of_so_many_stages_are_made():
    found = traincast.plan(model="llama3-8b", cluster="b200", gpus=8, global_batch=16, seq_length=8192)
    assert tuple(each.level for each in found.efforts) == LEVELS
