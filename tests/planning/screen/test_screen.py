"""The screen: its arrays are the numbers of single forecasts, for every layout of small spaces."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from traincast.estimate.memory import stage_memory, usable_bytes
from traincast.estimate.memory.states import rank_parameters
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.share import rank_share
from traincast.lowering.held import held_by_stages
from traincast.lowering.plans import plan_of_job
from traincast.lowering.work import work_of
from traincast.model.load import load_model
from traincast.model.structure import RankParts, layer_kinds
from traincast.planning.options import PlanOptions
from traincast.planning.plan import plan
from traincast.planning.screen.passes import Passes
from traincast.planning.screen.screen import Screen
from traincast.planning.space import Space
from traincast.schedules.schedule import SCHEDULES
from traincast.simulation.forecast import forecast
from traincast.simulation.job_step import factors_of, operator_seconds
from traincast.simulation.step import Setting
from traincast.workload.words import Phase

H100 = load_cluster("h100")
SETTING = Setting(cluster=H100)


def screen_of(
    model, gpus, batch, *, seq_length=4096, full=False, framework="megatron-core-2025", modules=None, **fixed
):
    request = JobRequest(model=load_model(model), gpus=gpus, global_batch=batch, seq_length=seq_length)
    request = replace(request, offload_modules=modules)
    request = replace(request, framework=framework)
    fixed = {name: value if isinstance(value, tuple) else (value,) for name, value in fixed.items()}
    space = Space(request=request, framework=load_framework(framework), cluster=H100, full=full, fixed=fixed)
    return Screen(space, SETTING, usable_bytes(H100.gpu.memory_bytes))


def rows(screen, every=1):
    """Yield layout, step and peak of every (n-th) layout of a space."""
    count = 0
    for block in screen.blocks():
        for part in block.parts():
            steps, peaks = part.step_s.reshape(-1), part.peak_bytes.reshape(-1)
            for place in range(len(steps)):
                if count % every == 0:
                    yield block.layout(part, place), steps[place], peaks[place % peaks.size]
                count += 1


@pytest.mark.slow
def test_offloading_waits_for_the_host_and_needs_its_memory():
    """On a slow link the screen is as near to the simulation as on a fast one; what the host has no room for is out."""
    given = SPACES["offloaded and sharded"] | {"recompute": "none", "offload_optimizer": 1.0}
    slow = replace(H100, gpu=replace(H100.gpu, host_bytes_per_s=4e9))
    poor = replace(H100, gpu=replace(H100.gpu, host_memory_bytes=int(2e11)))
    screen, full = screen_of(**given), {}
    for cluster in (slow, poor):
        on = dataclasses.replace(screen, space=replace(screen.space, cluster=cluster), setting=Setting(cluster=cluster))
        full[cluster.gpu.host_memory_bytes] = on.run(keep=5)
        for layout, step_s, peak in list(rows(on, every=17)):
            if peak < on.limit_bytes:
                job = resolve_job(replace(on.space.request, **layout.request()), cluster)
                found = forecast(job, Setting(cluster=cluster), allow_oom=True).iteration_time_s
                assert step_s == pytest.approx(found, rel=0.15), layout.text
    assert full[int(2e11)].feasible < full[slow.gpu.host_memory_bytes].feasible


def test_a_pipeline_that_runs_empty_several_times_is_as_long_as_its_forecast():
    screen = screen_of("llama3-8b", 8, 32, tp=2, pp=4, vpp=(1, 2), micro_batch=(1, 2, 16), recompute="none")
    request = replace(screen.space.request, local_batch=8)
    screen = dataclasses.replace(screen, space=replace(screen.space, request=request))
    found = list(rows(screen))
    assert {layout.micro_batch for layout, *_ in found} == {1, 2}
    for layout, step_s, peak in found:
        job = job_of(screen, layout)
        assert job.parallel.microbatches == 4 * job.parallel.in_pipeline
        assert step_s == pytest.approx(forecast(job, SETTING, allow_oom=True).iteration_time_s, rel=0.03), layout.text
        assert peak == pytest.approx(max(stage.peak for stage in stage_memory(job, plan_of_job(job))), rel=1e-6)


def job_of(screen, layout):
    return resolve_job(replace(screen.space.request, **layout.request()), H100)


SPACES = {
    "dense": {"model": "llama3-8b", "gpus": 16, "batch": 32},
    "all recomputation": {
        "model": "llama3-8b",
        "gpus": 8,
        "batch": 8,
        "full": True,
        "schedule": "1f1b",
        "zero": (0, 1),
        "precision": "bf16",
        "tp": 2,
        "cp": (1, 2),
    },
    "sharded": {
        "model": "llama3-8b",
        "gpus": 16,
        "batch": 32,
        "full": True,
        "tp": 1,
        "pp": 1,
        "precision": "bf16",
        "cp": 1,
    },
    "schedules": {
        "model": "llama3-8b",
        "gpus": 8,
        "batch": 16,
        "full": True,
        "tp": 2,
        "pp": 4,
        "precision": "bf16",
        "zero": 0,
        "recompute": ("none", "full"),
    },
    "FSDP under a pipeline": {
        "model": "llama3-8b",
        "gpus": 16,
        "batch": 32,
        "framework": "torchtitan-2025",
        "pp": (1, 2, 4),
    },
    "parts of messages": {
        "model": "llama3-8b",
        "gpus": 16,
        "batch": 32,
        "framework": "megatron-2021",
        "tp": (1, 4),
        "pp": (1, 2, 4),
    },
    "gathered once": {
        "model": "llama3-8b",
        "gpus": 16,
        "batch": 32,
        "framework": "torchtitan-2025",
        "full": True,
        "precision": "bf16",
        "tp": (1, 2),
        "pp": (1, 2),
        "cp": 1,
        "schedule": "1f1b",
        "zero": 3,
        "recompute": "none",
        "reshard_after_forward": (True, False),
    },
    "a compiled program": {
        "model": "llama3-8b",
        "gpus": 16,
        "batch": 32,
        "framework": "maxtext-2024",
        "full": True,
        "precision": "bf16",
        "tp": (1, 2),
        "pp": 1,
        "cp": 1,
        "zero": 3,
        "recompute": ("none", "full"),
    },
    "eight bits": {
        "model": "llama3-8b",
        "gpus": 16,
        "batch": 64,
        "full": True,
        "tp": 2,
        "pp": (1, 2),
        "cp": 1,
        "precision": ("fp8", "fp8_block"),
        "schedule": "1f1b",
        "recompute": ("none", "selective"),
        "zero": (0, 1, 3),
    },
    "experts": {"model": "mixtral-8x7b", "gpus": 32, "batch": 64, "tp": (1, 4), "pp": (1, 4)},
    "experts that divide the replicas": {
        "model": "mixtral-8x7b",
        "gpus": 32,
        "batch": 64,
        "framework": "megatron-core-2024",
        "tp": 2,
        "cp": 2,
        "pp": (1, 2),
        "schedule": "1f1b",
    },
    "paired passes": {
        "model": "mixtral-8x7b",
        "gpus": 32,
        "batch": 128,
        "pp": (1, 4),
        "tp": 1,
        "ep": 8,
        "schedule": ("1f1b", "interleaved"),
        "recompute": ("none", "full"),
        "moe_a2a_overlap": (True, False),
    },
    "offloaded": {
        "model": "llama3-8b",
        "gpus": 16,
        "batch": 32,
        "tp": (2, 4),
        "pp": (1, 4),
        "recompute": ("none", "full"),
        "offload_optimizer": (0.0, 0.5, 1.0),
        "offload_activations": (0, 3, 32),
    },
    "offloaded and sharded": {
        "model": "llama3-8b",
        "gpus": 16,
        "batch": 64,
        "full": True,
        "tp": 2,
        "pp": 1,
        "cp": 1,
        "zero": (2, 3),
        "recompute": ("none", "full"),
        "recompute_layers": (1, 20),
        "precision": "bf16",
        "offload_optimizer": (0.0, 1.0),
        "offload_activations": (0, 16),
    },
    "modules offloaded": {
        "model": "mixtral-8x7b",
        "gpus": 32,
        "batch": 64,
        "tp": 1,
        "pp": (1, 4),
        "recompute": ("none", "selective", "full"),
        "modules": ("core_attn", "expert_fc1", "moe_act"),
    },
    "latent attention and MTP": {"model": "deepseek-v3", "gpus": 256, "batch": 512, "pp": (8, 16), "tp": (1, 2)},
}
KINDS = ("sharded", "schedules", "experts", "offloaded and sharded", "latent attention and MTP")
"""Spaces that differ most: the others are slow where every layout of theirs is asked for again."""


def of_kinds(name, *more):
    """Return a case of a space, which is slow unless it is one of the few."""
    return pytest.param(name, *more, marks=() if name in KINDS else pytest.mark.slow)


SOME_SPACES = [of_kinds(name) for name in SPACES]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_memory_is_that_of_a_forecast(name):
    screen = screen_of(**SPACES[name])
    found = list(rows(screen))
    for layout, _, peak in found[:: max(1, len(found) // 20)]:
        job = job_of(screen, layout)
        wanted = max(each.peak for each in stage_memory(job, plan_of_job(job)))
        assert peak == pytest.approx(wanted, rel=1e-9), layout.text


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_SPACES)
def test_a_layout_alone_is_as_in_the_whole_space(name):
    given = SPACES[name]
    screen = screen_of(**given)
    found = list(rows(screen))
    for layout, step, peak in found[:: max(1, len(found) // 6)]:
        alone = dataclasses.replace(
            screen, space=replace(screen.space, fixed=fixed_to(layout), full=given.get("full", False))
        )
        same = [(one, two) for other, one, two in rows(alone) if other == layout]
        assert same == [(pytest.approx(step, rel=1e-9), pytest.approx(peak, rel=1e-9))], layout.text


def fixed_to(layout):
    names = (
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "etp",
        "micro_batch",
        "schedule",
        "zero",
        "precision",
        "recompute",
        "reshard_after_forward",
        "moe_a2a_overlap",
        "offload_optimizer",
        "offload_activations",
    )
    return {name: (getattr(layout, name),) for name in names if name != "schedule" or layout.pp > 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_SPACES)
def test_the_best_of_a_space_is_its_smallest_step_that_fits(name):
    screen = screen_of(**SPACES[name])
    found = screen.run(keep=5)
    fitting = [(step, peak) for _, step, peak in rows(screen) if peak < screen.limit_bytes]
    assert found.evaluated == sum(1 for _ in rows(screen))
    assert found.feasible == len(fitting)
    assert sorted(found.step_s[:5]) == sorted(step for step, _ in fitting)[:5]
    # Of every memory there is a layout that is as fast as any that needs no more.
    for step, peak in fitting:
        assert any(one <= step and two <= peak for one, two in zip(found.step_s, found.peak_bytes, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ("llama3-8b", "bf16"),
        ("llama3-8b", "fp8"),
        ("mixtral-8x7b", "bf16"),
        ("mixtral-8x7b", "fp8_block"),
        ("deepseek-v3", "bf16"),
    ],
)
def test_every_operator_costs_what_it_costs_in_a_forecast(model, precision):
    screen = screen_of(model, 64, 64, pp=1, recompute="none", precision=precision)
    checked = 0
    for block in screen.blocks():
        for part in block.parts():
            layout = block.layout(part, part.step_s.size // 2)
            job, costs = job_of(screen, layout), block.filled.costs
            place = part.rows.shares.start + int(np.unravel_index(part.step_s.size // 2, part.step_s.shape)[1])
            row = int(block.rows_K[place])
            seconds = operator_seconds(job, H100.gpu, factors_of(job, SETTING))
            parts = RankParts(rank_share(job, H100.ranks_per_node))
            for blocks in layer_kinds(job.model, range(job.model.layers)):
                work = work_of(parts.of_blocks(blocks), parts.share)
                for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT):
                    wanted = sum(seconds.call_s(call, count) for call, count in work.passes[phase].calls.items())
                    assert costs.work(blocks).passes[phase].compute_s_K[row] == pytest.approx(wanted, rel=1e-9)
                    moved = {}
                    for each, count in work.passes[phase].exchanges.items():
                        if each.size_bytes:
                            key = (each.group, each.operation, each.size_bytes)
                            moved[key] = moved.get(key, 0) + count
                    mine = {}
                    for each, count in costs.work(blocks).passes[phase].exchanges.items():
                        if each.size_bytes[row]:
                            key = (each.group, each.operation, int(each.size_bytes[row]))
                            mine[key] = mine.get(key, 0) + count
                    assert mine == pytest.approx(moved)
                    checked += 1
            first = held_by_stages(job, plan_of_job(job))[:1]
            one, all_of = (rank_parameters(job, first, each) for each in (parts, costs.parts))
            assert np.broadcast_to(all_of.total.total, costs.shares)[row] == one.total.total
    assert checked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "off"),
    [
        of_kinds("dense", 0.04),
        of_kinds("sharded", 0.03),
        of_kinds("FSDP under a pipeline", 0.2),
        of_kinds("gathered once", 0.04),
        of_kinds("eight bits", 0.03),
        of_kinds("experts", 0.04),
        of_kinds("experts that divide the replicas", 0.04),
        of_kinds("paired passes", 0.12),
        of_kinds("schedules", 0.2),
        of_kinds("parts of messages", 0.03),
        of_kinds("offloaded", 0.09),
        of_kinds("offloaded and sharded", 0.06),
        of_kinds("modules offloaded", 0.06),
    ],
)
def test_the_closed_form_is_near_the_simulation(name, off):
    screen = screen_of(**SPACES[name])
    found = list(rows(screen))
    far = []
    for layout, step, _ in found[:: max(1, len(found) // 12)]:
        simulated = forecast(job_of(screen, layout), SETTING, allow_oom=True).iteration_time_s
        far.append((abs(step / simulated - 1), layout.text, step, simulated))
    assert max(far)[0] < off, sorted(far)[-4:]


def test_a_layout_takes_as_long_beside_others_where_experts_divide_the_replicas():
    """Which replicas split sequences moves the members of their groups, which exchange the state of experts."""
    said = {"framework": "megatron-core-2024", "tp": 1, "pp": 1, "ep": 8, "zero": 1, "micro_batch": 1}
    beside, alone = (
        {layout: step for layout, step, _ in rows(screen_of("mixtral-8x7b", 64, 64, cp=cp, **said)) if layout.cp == 2}
        for cp in ((1, 2), 2)
    )
    assert alone
    assert beside == pytest.approx(alone, rel=1e-9)


def test_reductions_in_every_microbatch_slow_the_passes_that_hide_them():
    """With ZeRO-2 and some layers recomputed the screen was 1.2 % off where it left that out."""
    screen = screen_of("llama3-8b", 8, 32, full=True, tp=1, pp=1, cp=1, zero=2, precision="bf16", recompute="full",
                       recompute_layers=8, micro_batch=1)  # fmt: skip
    found = [(layout, step) for layout, step, _ in rows(screen) if layout.shard == 8]
    assert found
    for layout, step in found[:2]:
        simulated = forecast(job_of(screen, layout), SETTING, allow_oom=True).iteration_time_s
        assert step == pytest.approx(simulated, rel=0.006), layout.text


def test_what_no_pass_waits_for_ends_when_its_stream_has_done_all_of_it():
    """Reductions between nodes that take longer than the passes of a zero-bubble schedule."""
    screen = screen_of("llama3-8b", 64, 64, full=True, tp=8, pp=2, cp=1, zero=2, precision="fp8", recompute="none",
                       micro_batch=1, schedule="zb_h1", overlap_tp=True, sequence_parallel=True)  # fmt: skip
    found = [(layout, step) for layout, step, _ in rows(screen) if layout.shard == layout.replicas]
    assert found
    for layout, step in found[:2]:
        result = forecast(job_of(screen, layout), SETTING, allow_oom=True)
        assert result.breakdown_s["compute"] < 0.6 * result.iteration_time_s
        assert step == pytest.approx(result.iteration_time_s, rel=0.05), layout.text


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_stage_ends_before_the_first_by_the_passes_and_messages_between(stage):
    """In 1F1B the last gradient goes through every stage before it, with a message each."""
    line = SimpleNamespace(
        message_s=0.25,
        handover_s=0.05,
        passes=lambda _, first, last: 2.0 * (last - first),
        longest=lambda each: each[0],
    )
    of = object.__new__(Passes)
    of.schedule = SCHEDULES.get("1f1b")
    assert of.before(line, SimpleNamespace(stage=stage)) == pytest.approx(stage * (2.0 + 0.25 + 0.05))
    of.schedule = SCHEDULES.get("dualpipe")
    assert of.before(line, SimpleNamespace(stage=stage)) == 0


@pytest.mark.slow
def test_a_layout_with_too_many_microbatches_does_not_end_the_search():
    """Of DeepSeek-V3 on 2,048 GPUs a single copy would have more slots than can be scheduled; several do not."""
    request = JobRequest(model=load_model("deepseek-v3"), gpus=2048, global_batch=16384, seq_length=4096)
    request = replace(request, framework="megatron-bridge-2026", precision="mxfp8")
    found = plan(request, Setting(cluster=load_cluster("gb200")), PlanOptions(top=1))
    assert found.best is not None
