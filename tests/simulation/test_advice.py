"""What advice promises is what one gets: alone, together, and from the job that it writes."""

import pytest

import traincast
from traincast.dialects import WRITES, draft_like
from traincast.dialects.spelling import spelled, spoken_by
from traincast.hardware.clusters import load_cluster
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job
from traincast.simulation.advised import changed_request
from traincast.simulation.reproducible import record_of

EXPERTS = {"model": "qwen3-30b-a3b", "gpus": 16, "ep": 16, "global_batch": 64, "seq_length": 4096}
JOBS = {
    "experts": {
        **EXPERTS,
        "framework": "megatron-bridge-2025",
        "moe_dispatcher": "alltoall",
        "fused_permute": False,
        "cuda_graphs": False,
    },
    "recomputed": {
        "model": "llama3-70b",
        "gpus": 64,
        "tp": 4,
        "pp": 4,
        "global_batch": 32,
        "seq_length": 4096,
        "recompute": "full",
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
    },
    "eager": {
        "model": "llama3-8b",
        "gpus": 16,
        "global_batch": 16,
        "seq_length": 2048,
        "framework": "megatron-core-2026",
        "cuda_graphs": False,
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "grad_reduce_bytes": 4,
    },
}


@pytest.fixture(scope="module", params=JOBS)
def forecast(request):
    return traincast.predict(**JOBS[request.param], cluster="h100")


def test_savings_in_order_are_parts_of_what_all_save(forecast):
    taken = [each for each in forecast.advice if each.taken]
    steps = [forecast.iteration_time_s, *(each.iteration_time_s for each in taken)]
    assert len(steps) > 1
    assert steps == sorted(steps, reverse=True)
    for before, after, each in zip(steps, steps[1:], taken, strict=False):
        assert each.saving_s == pytest.approx(before - after)
        assert each.saving_s > 0
        assert each.saving_low_s <= each.saving_s <= each.saving_high_s
        assert 0.5 < each.chance_faster <= 1
        assert each.saving_high_s <= before
    assert sum(each.saving_s for each in forecast.advice) == pytest.approx(steps[0] - steps[-1])
    first = taken[0]
    assert first.saving_s == pytest.approx(first.alone_s)


def test_changes_of_numbers_come_last_and_say_what_they_change(forecast):
    marks = [not each.same_numbers for each in forecast.advice if each.taken]
    assert marks == sorted(marks)
    first = forecast.advice[0]
    assert all(first.alone_s >= each.alone_s for each in forecast.advice if each.same_numbers and each.taken)


def test_a_job_with_all_changes_takes_what_was_promised_and_fits(forecast):
    request, fields = record_of(forecast).job, {}
    for each in (each for each in forecast.advice if each.taken):
        fields |= each.fields
        again = traincast.predict(changed_request(request, fields), cluster="h100")
        assert again.iteration_time_s == pytest.approx(each.iteration_time_s)
        assert max(stage.peak for stage in again.memory_bytes) == pytest.approx(each.peak_bytes)
        assert again.memory_bytes[0].chance_of_oom <= 0.1
    # Little that is left of it saves more; the experts' overlap fits once numbers have changed, which come last.
    left = [each.saving_s for each in again.advice if each.taken]
    assert sum(left) < 0.2 * again.iteration_time_s


def test_flags_of_a_job_with_its_advice_are_read_back_as_it(forecast):
    request, fields = record_of(forecast).job, {}
    for each in (each for each in forecast.advice if each.taken):
        # Flags say that attention is flash attention, of no generation.
        unsaid = {"attention_kernel"} if str(each.fields.get("attention_kernel")).startswith("fa") else set()
        fields |= {name: value for name, value in each.fields.items() if name not in unsaid}
    cluster = load_cluster("h100")
    advised = resolve_job(changed_request(request, fields), cluster)
    like = spoken_by(advised.framework)
    words = [word for line in WRITES[like](advised).splitlines() if line[0] != "#" for word in line.split()]
    draft = draft_like(like, words)
    assert not draft.warnings
    said = {"gpus": advised.parallel.world_size, "framework": advised.framework}
    read = resolve_job(draft.under(Draft(model=advised.model, fields=said)).request(), cluster)
    experts = () if advised.model.experts is None else ("experts",)
    for group in (*experts, "recompute", "offload", "precision", "sharding", "optimizer", "parallel", "batch"):
        assert getattr(read, group) == getattr(advised, group)
    assert read.kernels.cuda_graph_scope == advised.kernels.cuda_graph_scope
    steps = [traincast.predict(job, cluster="h100").iteration_time_s for job in (read, advised)]
    assert steps[0] == pytest.approx(steps[1], rel=0.01)


def test_what_is_told_is_what_differs(forecast):
    request, fields = record_of(forecast).job, {}
    cluster = load_cluster("h100")
    before = resolve_job(request, cluster)
    for each in (each for each in forecast.advice if each.taken):
        fields |= each.fields
        after = resolve_job(changed_request(request, fields), cluster)
        assert each.spelled == spelled(before, after, each.fields)
        assert each.spelled != spelled(after, after, {})
        before = after


def test_advice_is_worked_out_when_it_is_read_and_makes_no_difference():
    one, other = (traincast.predict(**JOBS["eager"], cluster="h100") for _ in range(2))
    assert one.advice == other.advice
    assert one == other
    assert one.advice is one.advice


def test_what_a_switch_needs_comes_with_it():
    job = {**EXPERTS, "precision": "mxfp8", "moe_dispatcher": "alltoall", "te_op_fuser": False, "cuda_graphs": False}
    forecast = traincast.predict(**job, cluster="gb200", framework="megatron-core-2026", allow_oom=True)
    graphs = next(each for each in forecast.advice if each.fields.get("cuda_graph_impl") == "full_iteration")
    fields = {}
    for each in forecast.advice[: forecast.advice.index(graphs) + 1]:
        fields |= each.fields if each.taken or each is graphs else {}
    assert fields["moe_dispatcher"] == "hybridep"
    assert fields["te_op_fuser"]
    assert fields["moe_paged_stash"]
    assert "--cuda-graph-impl full_iteration --moe-paged-stash" in graphs.spelled


def test_a_layout_is_told_and_never_taken():
    job = {**JOBS["recomputed"], "recompute": "none", "tp": 8, "vpp": 1}
    layouts = [each for each in traincast.predict(**job, cluster="h100").advice if {"tp", "vpp"} & {*each.fields}]
    assert layouts
    assert not any(each.taken for each in layouts)
    assert all("traincast plan" in each.needs for each in layouts)
