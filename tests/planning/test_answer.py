"""What a plan says beyond its layouts: files that others read, why not, changes of a job, and what a run costs."""

import csv
import json

import pytest
from msgspec.structs import replace

from traincast import api
from traincast.dialects import WRITES, draft_like
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.job_file import read_job_file
from traincast.job.resolve import resolve_job
from traincast.planning.layout import Layout
from traincast.report.exports import decided
from traincast.report.json import result_from_json, to_json
from traincast.report.plan_files import write_plan
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting
from traincast.sweeps.rows import PLAN_COLUMNS

H100 = load_cluster("h100")
FIELDS = {"gpus": 16, "global_batch": 32, "seq_length": 4096, "pp": 2, "tp": 2, "micro_batch": 1}
ASKED = ({"tp": 8}, {"tp": 3}, {"zero": 0, "tp": 1, "pp": 1})


@pytest.fixture(scope="module")
def plan():
    job = Draft(model="llama3-8b", fields={"gpus": 16, "global_batch": 32, "seq_length": 4096})
    fix = {"pp": (1, 2), "tp": (1, 2, 4, 8), "micro_batch": (1, 2)}
    return api.plan(job, H100, fix=fix, explain=ASKED, tokens=1e12, gpu_hour_price=2.0)


def test_the_files_are_read_again(plan, tmp_path):
    files = write_plan(plan, tmp_path)
    assert {path.name for path in files} >= {"plan.json", "plan.csv", "plan.html", "best.job.toml"}
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["best"][0]["step_s"] == plan.best[0].step_s
    lines = list(csv.DictReader((tmp_path / "plan.csv").read_text().splitlines()))
    assert [float(line["step_s"]) for line in lines] == [each.step_s for each in plan.best]
    again = api.predict(read_job_file(str(tmp_path / "best.job.toml")))
    assert again.iteration_time_s == pytest.approx(plan.best[0].step_s, rel=1e-12)


def test_the_job_file_says_all_that_was_asked_for(tmp_path):
    """Files, too, wherever it is read; and what has nothing to do with the layout."""
    (tmp_path / "ours.toml").write_text('base = "h100"\n[inter]\nbandwidth_bytes_per_s = "24GB/s"\n')
    (tmp_path / "short.toml").write_text('name = "short"\nbase = "llama3-8b"\nlayers = 8\n')
    (tmp_path / "trainer.toml").write_text(
        'base = "megatron-core-2025"\ndescription = "ours"\nhost_layer_s = "150us"\n'
    )
    paths = {name: str(tmp_path / f"{name}.toml") for name in ("ours", "short", "trainer")}
    said = {"gpus": 16, "global_batch": 32, "seq_length": 4096, "framework": paths["trainer"], "grad_reduce_bytes": 2}
    job = Draft(model=paths["short"], cluster=paths["ours"], fields={**said, "tp": 2, "exp_avg_dtype": "bf16"})
    found = api.plan(job, top=1)
    write_plan(found, tmp_path / "out")
    again = api.predict(read_job_file(str(tmp_path / "out" / "best.job.toml")))
    assert again.iteration_time_s == found.best[0].step_s


LAYOUTS = [
    {"tp": 2, "pp": 2, "vpp": 2, "dp": 4, "schedule": "interleaved", "recompute": "full", "recompute_layers": 3},
    {"tp": 4, "pp": 1, "vpp": 1, "dp": 4, "recompute": "selective", "recompute_modules": ("core_attn", "mlp")},
    {"tp": 1, "pp": 1, "vpp": 1, "cp": 2, "dp": 8, "cp_kind": "all_gather", "zero": 0, "shard": 1},
    {"tp": 2, "pp": 1, "vpp": 1, "dp": 8, "recompute": "full"},
    {"tp": 2, "pp": 1, "vpp": 1, "dp": 8, "zero": 3},
    {"tp": 2, "pp": 1, "vpp": 1, "dp": 8, "zero": 3, "reshard_after_forward": False},
    {"tp": 2, "pp": 1, "vpp": 1, "dp": 8, "offload_optimizer": 0.5, "offload_activations": 4},
]


@pytest.mark.parametrize("given", LAYOUTS)
def test_flags_of_megatron_say_the_layout(plan, given):
    usual = {"cp": 1, "ep": 1, "etp": given["tp"], "micro_batch": 1, "microbatches": 8, "schedule": "1f1b", "zero": 1}
    usual |= {"shard": given["dp"], "recompute": "none", "sequence_parallel": given["tp"] > 1, "gpus": 16}
    layout = Layout(**(usual | given))
    lines = WRITES["megatron"](decided(plan, replace(plan.best[0], layout=layout))).splitlines()
    words = " ".join(line.partition("#")[0] for line in lines).split()
    pasted = draft_like("megatron", words)
    job = resolve_job(pasted.under(Draft(model="llama3-8b", fields={"gpus": 16})).request(), H100)
    parallel = job.parallel
    assert (parallel.tp, parallel.pp, parallel.vpp, parallel.cp, parallel.dp) == (
        *(layout.tp, layout.pp, layout.vpp, layout.cp, layout.dp),
    )
    assert (job.batch.micro_batch, job.batch.global_batch, job.batch.seq_length) == (1, 32, 4096)
    assert (job.sharding.zero, job.communication.sequence_parallel) == (layout.zero, layout.tp > 1)
    assert job.recompute.granularity == layout.recompute
    assert job.sharding.reshard_after_forward == layout.reshard_after_forward
    if layout.recompute_layers:
        assert job.recompute.layers == layout.recompute_layers
    if layout.recompute_modules:
        assert job.recompute.recomputed_modules == layout.recompute_modules
    if layout.cp > 1:
        assert job.communication.cp_kind == layout.cp_kind
    assert (job.offload.optimizer, job.offload.activations) == (layout.offload_optimizer, layout.offload_activations)


@pytest.mark.parametrize("reshard", [True, False])
def test_torchtitan_is_told_when_parameters_are_gathered_again(plan, tmp_path, reshard):
    layout = replace(plan.best[0].layout, tp=2, pp=1, vpp=1, dp=8, zero=3, shard=4, reshard_after_forward=reshard)
    file = tmp_path / "best.toml"
    file.write_text(WRITES["torchtitan"](decided(plan, replace(plan.best[0], layout=layout))))
    pasted = draft_like("torchtitan", ["--job.config_file", str(file)])
    job = resolve_job(pasted.under(Draft(model="llama3-8b", fields={"gpus": 16})).request(), H100)
    assert (job.sharding.zero, job.sharing, job.sharding.reshard_after_forward) == (3, 4, reshard)


def test_what_a_framework_cannot_be_told_is_a_comment(plan):
    layout = replace(plan.best[0].layout, tp=2, pp=2, vpp=2, dp=4, shard=4, schedule="dualpipe_v", zero=1)
    choice = replace(plan.best[0], layout=layout)
    for like in ("megatron", "bridge"):
        assert "# schedule dualpipe_v" in WRITES[like](decided(plan, choice))
    assert "DualPipeV" in WRITES["torchtitan"](decided(plan, choice))
    assert "# ZeRO-1" in WRITES["torchtitan"](decided(plan, choice))
    once = replace(choice, layout=replace(layout, zero=3, reshard_after_forward=False))
    for like in ("megatron", "bridge"):
        assert "# parameters gathered once" in WRITES[like](decided(plan, once))
    assert "model.virtual_pipeline_model_parallel_size=2" in WRITES["bridge"](decided(plan, choice)).splitlines()
    away = replace(choice, layout=replace(layout, offload_optimizer=1.0, offload_activations=4))
    for like in ("megatron", "bridge"):
        assert "# activations offloaded" in WRITES[like](decided(plan, away))
    assert "optimizer.optimizer_cpu_offload=true" in WRITES["bridge"](decided(plan, away)).splitlines()
    assert "model.cpu_offloading_num_layers=4" in WRITES["bridge"](decided(plan, away)).splitlines()
    assert "# offloading" in WRITES["torchtitan"](decided(plan, away))


def test_a_run_costs_its_steps(plan):
    for choice in plan.best:
        run, steps = choice.training, 1e12 / (32 * 4096)
        assert run.days == pytest.approx(steps * choice.step_s / 86400)
        assert run.gpu_hours == pytest.approx(24 * 16 * run.days)
        assert run.cost == pytest.approx(2 * run.gpu_hours)
        assert run.days_low < run.days < run.days_high
        assert run.energy_mwh == pytest.approx(run.gpu_hours * H100.gpu.tdp_w / 1e6)


def test_why_not_names_what_binds(plan):
    slower, impossible, large = plan.explained
    assert (slower.verdict, impossible.verdict, large.verdict) == ("slower", "impossible", "too large")
    assert slower.layout.tp == 8 and slower.step_s > plan.best[0].step_s
    assert "tp 3" in impossible.text
    assert "above the limit" in large.text and large.change is not None


@pytest.mark.slow
def test_one_question_does_not_change_the_answer_to_the_next():
    """What questions of one plan remember for each other must not depend on what each of them fixes."""
    job = Draft(
        model="llama3-8b", fields={"gpus": 32, "global_batch": 32, "seq_length": 4096, "pp": 1, "micro_batch": 1}
    )
    asked = ({"zero": 3, "shard": 8}, {"zero": 3}, {"zero": 3, "shard": 32}, {"zero": 1, "tp": 2})
    together = api.plan(job, H100, explain=asked, top=1, fix={"cp": 1, "tp": (1, 2)}).explained
    for one, answer in zip(asked, together, strict=True):
        alone = api.plan(job, H100, explain=(one,), top=1, fix={"cp": 1, "tp": (1, 2)}).explained
        assert alone == (answer,)


def test_better_hardware_is_no_slower(plan):
    assert len(plan.sensitivities) == 4
    assert all(each.saving_s >= -1e-9 * plan.best[0].step_s for each in plan.sensitivities)
    assert all(each.saving_s < plan.best[0].step_s / 10 for each in plan.sensitivities)


@pytest.mark.slow
def test_a_job_is_planned_anew():
    job = Draft(model="llama3-8b", fields={**FIELDS, "recompute": "full"})
    found = api.plan(job, H100, start=True, fix={"pp": (1, 2), "cp": 1, "micro_batch": 1}, top=3)
    start, peaks = found.start, [stage.peak for stage in api.predict(job, H100).memory_bytes]
    assert start.step_s == api.predict(job, H100).iteration_time_s
    assert start.peak_bytes == max(peaks)
    assert found.best[0].step_s < start.step_s
    assert "recompute full -> none" in " ".join(each.change for each in start.changes)
    assert [each.saving_s for each in start.changes] == sorted((each.saving_s for each in start.changes), reverse=True)
    for each in (*start.changes, *start.together):
        assert each.saving_s == pytest.approx(start.step_s - each.step_s)
        assert each.step_s == forecast_of(job, each.layout)
        assert each.free_bytes + each.peak_bytes == pytest.approx(found.best[0].usable_bytes)
        assert 0 < each.probability <= 1


@pytest.mark.slow
def test_a_single_change_is_one_and_more_are_better():
    job = Draft(model="llama3-8b", fields={**FIELDS, "tp": 4, "micro_batch": 2, "recompute": "full"})
    found = api.plan(job, H100, start=True, top=1).start
    alike = {"recompute", "recompute_layers", "recompute_method", "recompute_modules"}
    for each in found.changes:
        if each.change.startswith("recompute"):
            assert all(
                getattr(each.layout, name) == getattr(found.layout, name) for name in ("tp", "pp", "vpp", "zero")
            )
        else:
            assert all(getattr(each.layout, name) == getattr(found.layout, name) for name in alike)
    assert [each.parts for each in found.together] == list(range(2, 2 + len(found.together)))
    steps = [min(each.step_s for each in found.changes), *(each.step_s for each in found.together)]
    assert steps == sorted(steps, reverse=True)
    assert len(found.together) >= 1


@pytest.mark.slow
def test_a_job_that_does_not_fit_is_told_what_makes_it_fit():
    fields = {**FIELDS, "seq_length": 8192, "tp": 1, "pp": 1, "micro_batch": 2, "recompute": "none"}
    found = api.plan(Draft(model="llama3-8b", fields=fields), H100, start=True, top=1)
    assert found.start.peak_bytes > found.best[0].usable_bytes
    assert found.start.changes
    assert all(each.free_bytes > 0 for each in found.start.changes)
    assert min(each.saving_s for each in found.start.changes) < 0


def forecast_of(job, layout):
    request = replace(job.request(), **layout.request())
    return forecast(resolve_job(request, H100), Setting(cluster=H100), allow_oom=True).iteration_time_s


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("qwen3-14b", {"tp": 4}),
        pytest.param("qwen3-30b-a3b", {"ep": 8}, marks=pytest.mark.slow),
        pytest.param("llama3-8b", {}, marks=pytest.mark.slow),
    ],
)
def test_a_layout_is_run_again_and_taken_by_a_forecast(model, more):
    """Its result says what it was made from; each of its fields is taken as it is printed, for models of any kind."""
    said = {"model": model, "gpus": 16, "global_batch": 32, "seq_length": 4096}
    found = api.plan(cluster="h200", top=3, **said, **more)
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "zero", "recompute", "recompute_layers")
    for each in found.best:
        for given in (each.result, result_from_json(to_json(each.result), "result.json")):
            assert api.run_again(given).iteration_time_s == each.result.iteration_time_s
        fields = {name: getattr(each.layout, name) for name in (*names, "recompute_method", "recompute_modules")}
        kind = {"moe_dispatcher": each.layout.moe_dispatcher, "schedule": each.layout.schedule}
        kind |= {"moe_a2a_overlap": each.layout.moe_a2a_overlap}
        again = api.predict(cluster="h200", **said, **{**fields, **kind, **dict(each.layout.software)})
        assert again.iteration_time_s == pytest.approx(each.result.iteration_time_s, rel=1e-12)


def test_no_field_of_a_layout_is_missing_from_the_tables(plan, tmp_path):
    """Two rows that differ, differ in what is shown: of plan.csv and of a sweep over plans."""
    layout = set(Layout.__struct_fields__)
    write_plan(plan, tmp_path)
    assert layout <= set((tmp_path / "plan.csv").read_text().splitlines()[0].split(","))
    assert layout - {"gpus"} <= set(PLAN_COLUMNS)
