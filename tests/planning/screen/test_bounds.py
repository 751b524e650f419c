"""The choice of software in the screen: the bound that spares layouts is one, and nothing that counts is spared."""

import math
from itertools import chain, product
from itertools import combinations as pairs

import numpy as np
import pytest
from msgspec.structs import replace

from traincast.errors import TraincastError
from traincast.estimate.memory import stage_memory, usable_bytes
from traincast.hardware.clusters import load_cluster
from traincast.job.condition_facts import job_facts
from traincast.job.frameworks import load_framework
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.switches import SWITCHES, allowed
from traincast.lowering.plans import plan_of_job
from traincast.model.load import load_model
from traincast.planning.screen.bounds import SLACK, blocks_of, bounds_of, least_of_all
from traincast.planning.screen.screen import Screen
from traincast.planning.space import Space
from traincast.planning.tuning import key_of
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting


def screen_of(model, cluster, gpus, batch, framework="megatron-bridge-2026", said=None, **fixed):
    machine = load_cluster(cluster)
    request = JobRequest(
        model=load_model(model), gpus=gpus, global_batch=batch, seq_length=4096, framework=framework, **(said or {})
    )
    fixed = {name: value if isinstance(value, tuple) else (value,) for name, value in fixed.items()}
    space = Space(request=request, framework=load_framework(framework), cluster=machine, fixed=fixed, tuned="best")
    return Screen(space, Setting(cluster=machine), 0.95 * usable_bytes(machine.gpu.memory_bytes))


NEMOTRON = {"model": "nemotron-3-nano", "cluster": "gb200", "gpus": 8, "batch": 512, "tp": 1, "pp": 1, "micro_batch": 4}
SPACES = {
    "experts in 8 bits": {
        "model": "qwen3-30b-a3b",
        "cluster": "gb200",
        "gpus": 8,
        "batch": 512,
        "precision": "mxfp8",
        "tp": 1,
        "cp": 1,
        "pp": 1,
        "ep": (1, 4, 8),
        "micro_batch": (2, 4),
    },
    "experts over nodes": {
        "model": "qwen3-30b-a3b",
        "cluster": "h100",
        "gpus": 16,
        "batch": 128,
        "precision": "bf16",
        "tp": 1,
        "cp": 1,
        "pp": (1, 2),
        "vpp": (1, 4),
        "ep": (8, 16),
        "micro_batch": (1, 2),
    },
    "dense": {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "batch": 64, "tp": (1, 2), "pp": (1, 2), "cp": 1},
    "hybrid": {**NEMOTRON, "precision": "bf16"},
    "hybrid of which the type is said": {**NEMOTRON, "said": {"precision": "bf16"}},
}


@pytest.fixture(scope="module", params=SPACES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def screen(name):
    return screen_of(**SPACES[name])


def every(screen):
    """Return every layout with every choice of software: layout, step and peak, the fastest first."""
    found = []
    for block in screen.blocks():
        for part in block.parts():
            steps, peaks = part.step_s.reshape(-1), part.peak_bytes.reshape(-1)
            found += [
                (float(steps[place]), float(peaks[place % peaks.size]), block.layout(part, place))
                for place in range(len(steps))
            ]
    return sorted(found, key=lambda each: each[:2])


@pytest.fixture(scope="module")
def layouts(screen):
    return every(screen)


def test_the_screen_finds_what_all_choices_have(screen, layouts):
    found = screen.run(keep=len(layouts))
    fitting = [each for each in layouts if each[1] < screen.limit_bytes]
    assert found.step_s[0] == pytest.approx(fitting[0][0], rel=1e-12)
    assert found.peak_bytes[0] == pytest.approx(fitting[0][1], rel=1e-12)
    near = [each[2] for each in fitting if each[0] < found.step_s[0] * (1 + SLACK)]
    assert found.layouts[0] in near
    assert set(near) <= set(found.layouts)
    assert found.evaluated <= len(layouts)


def test_what_a_screen_keeps_takes_what_it_takes_alone(screen, layouts):
    known = {layout: (step_s, peak) for step_s, peak, layout in layouts}
    found = screen.run(keep=20)
    for layout, step_s, peak in zip(found.layouts, found.step_s, found.peak_bytes, strict=True):
        assert (step_s, peak) == pytest.approx(known[layout], rel=1e-12)


def test_some_layouts_are_worked_out_until_none_may_be_faster(screen, layouts):
    fitting = [each[0] for each in layouts if each[1] < screen.limit_bytes]
    least_s = {}
    for step_s, _, layout in layouts:
        least_s[key_of(layout)] = min(step_s, least_s.get(key_of(layout), math.inf))
    found = screen.run_some(least_s, keep=3, longest=1.0)
    assert found.step_s[:3] == pytest.approx(fitting[:3], rel=1e-12)
    assert found.evaluated <= len(layouts)
    assert screen.run_some(least_s, keep=3, longest=math.inf).evaluated == len(layouts)


def test_no_choice_is_faster_than_the_bound(screen):
    families = screen.families
    least = least_of_all(each() for each in bounds_of(screen._ideal(each.family for each in families)))
    seen = 0
    for family in families:
        for block in chain(*blocks_of([family])):
            pipeline = block.job.pipeline.schedule, block.job.parallel.vpp
            for rows, steps in block.steps():
                fastest_K = np.min(steps, axis=(0, *range(2, steps.ndim)))
                for member, step_s in zip(block.members.members[rows.shares], fastest_K.tolist(), strict=True):
                    key = member.degrees, block.members.shares[member.share].micro_batch, *pipeline
                    assert least[key] <= step_s * (1 + 1e-9), (key, family.family.variant)
                    seen += 1
    assert seen >= len(least)


def test_no_layout_is_tried_twice(layouts):
    assert len({each[2] for each in layouts}) == len(layouts)


def job_of(screen, layout, **said):
    request = replace(screen.space.request, **{**layout.request(), **said})
    return resolve_job(request, screen.setting.cluster)


def test_steps_and_memory_with_software_are_those_of_a_forecast(screen, layouts):
    for step_s, peak, layout in layouts[:: max(1, len(layouts) // 5)]:
        job = job_of(screen, layout)
        wanted = max(each.peak for each in stage_memory(job, plan_of_job(job)))
        assert peak == pytest.approx(wanted, rel=1e-9), (layout.text, layout.software)
        simulated = forecast(job, screen.setting, allow_oom=True).iteration_time_s
        assert step_s == pytest.approx(simulated, rel=0.06), (layout.text, layout.software)


@pytest.mark.parametrize(
    "settings",
    [
        {"grad_reduce_bytes": 2},
        {"param_gather_bytes": 1},
        {"precision_aware_optimizer": True},
        {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", "precision_aware_optimizer": True},
    ],
    ids=lambda each: next(iter(each)),
)
def test_settings_that_change_bytes_change_them_as_in_a_forecast(settings):
    """Of one screen with two ways to keep states, one after the other: what one has is not taken for the other."""
    held = {"tp": 2, "pp": 2, "cp": 1, "micro_batch": 1, "recompute": "none", "vpp": (1, 2)}
    precision = "fp8" if "param_gather_bytes" in settings else "bf16"
    screen = screen_of("llama3-8b", "h100", 16, 64, "megatron-core-2026", precision=precision, **held)
    peaks = []
    for software in ((), tuple(settings.items())):
        of = Screen(replace(screen.space, held=software), screen.setting, screen.limit_bytes, screen.common)
        found = every(of)
        for step_s, peak, layout in found:
            job = job_of(of, layout)
            assert peak == pytest.approx(max(each.peak for each in stage_memory(job, plan_of_job(job))), rel=1e-9)
            simulated = forecast(job, of.setting, allow_oom=True).iteration_time_s
            assert step_s == pytest.approx(simulated, rel=0.04)
        peaks.append(min(peak for _, peak, _ in found))
    assert peaks[0] != peaks[1]


def near_combinations(screen, layout):
    """Yield what differs from a layout in options of one or two axes of switches, where all that is on is allowed."""
    space, late = screen.space, {"offload_optimizer", "offload_modules", "framework", "sharp"}
    late |= {"attention_kernel", "fp8_attention"}  # which are tried on the fastest layout alone
    every_switch = [each for each in SWITCHES if each.is_in(space.framework)]
    axes = {}
    for each in every_switch:
        if not late & set(each.fields):
            axes.setdefault(each.axis, []).append(each)
    for one, other in pairs(axes.values(), 2):
        fields = {name for each in (*one, *other) for name in each.fields}
        plain = {name: value for name, value in layout.request().items() if name not in fields}
        for taken in product((None, *one), (None, *other)):
            switches = [each for each in taken if each]
            said = plain | {name: value for each in switches for name, value in each.settings}
            try:
                job = resolve_job(replace(space.request, **said), space.cluster)
            except TraincastError:
                continue
            facts = job_facts(job, space.cluster)
            on = [each for each in every_switch if each.fields.items() <= said.items()]
            whole = [each for each in on if not any(set(each.settings) < set(larger.settings) for larger in on)]
            if all(allowed(each, facts) is None for each in (*switches, *whole)):
                yield [each.name for each in switches], job


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"model": "llama3-8b", "cluster": "h100", "gpus": 8, "batch": 64, "tp": 2, "recompute": "none"},
        {"model": "qwen3-30b-a3b", "cluster": "gb200", "gpus": 8, "batch": 64, "ep": 4, "precision": "mxfp8", "tp": 1},
    ],
    ids=lambda each: each["model"],
)
def test_no_other_options_of_two_axes_are_faster_than_what_is_screened(given):
    screen = screen_of(pp=1, cp=1, micro_batch=1, **given)
    layout = screen.run(keep=1).layouts[0]
    best = forecast(job_of(screen, layout), screen.setting, allow_oom=True).iteration_time_s
    count = 0
    for names, job in list(near_combinations(screen, layout))[::4]:
        step_s = forecast(job, screen.setting, allow_oom=True).iteration_time_s
        assert best <= step_s * 1.003, names
        count += 1
    assert count > 20
