"""Switches that a plan takes without trying them never make a forecast longer or larger, in the order of the table."""

import pytest

import traincast
from traincast.hardware.clusters import load_cluster
from traincast.job.condition_facts import job_facts
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.switches import SWITCHES, allowed
from traincast.model.load import load_model

PLAIN = {
    "cuda_graph_impl": "none",
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "overlap_tp": False,
    "loss_kernel": "unfused",
}
OF_EXPERTS = {"fused_router": False, "fused_permute": False, "te_op_fuser": False}
JOBS = [
    ("qwen3-30b-a3b", "gb200", {"ep": 8, "precision": "mxfp8", "moe_dispatcher": "hybridep"}),
    ("gpt-oss-120b", "h100", {"gpus": 32, "pp": 2, "vpp": 2, "ep": 8, "moe_dispatcher": "alltoall"}),
    ("deepseek-v3", "gb200", {"gpus": 128, "pp": 4, "vpp": 2, "ep": 32, "precision": "mxfp8", "te_op_fuser": True}),
    ("llama3-8b", "h100", {"tp": 4, "precision": "fp8", "seq_length": 1024}),
    ("llama3-70b", "b200", {"gpus": 32, "tp": 2, "pp": 4, "vpp": 2, "precision": "nvfp4", "recompute": "full"}),
    ("nemotron-3-nano", "gb200", {"ep": 4, "moe_dispatcher": "hybridep"}),
    ("llama3-8b", "h100", {"framework": "torchtitan-2025", "zero": 3, "tp": 2, "precision": "fp8"}),
    ("llama3-8b", "a100", {"framework": "deepspeed-2024", "zero": 1}),
]


def forecast(model, cluster, said):
    result = traincast.predict(model=model, cluster=cluster, allow_oom=True, **said)
    return result.iteration_time_s, max(stage.peak for stage in result.memory_bytes)


def is_allowed(switch, model, cluster, said):
    machine = load_cluster(cluster)
    job = resolve_job(JobRequest(model=load_model(model), **said), machine)
    return switch.is_in(job.framework) and allowed(switch, job_facts(job, machine) | switch.fields) is None


@pytest.mark.slow
@pytest.mark.parametrize(("model", "cluster", "said"), JOBS)
def test_what_is_taken_costs_nothing(model, cluster, said):
    common = {"gpus": 8, "global_batch": 64, "seq_length": 4096, "micro_batch": 1, "zero": 1}
    has_experts = load_model(model).experts is not None
    plain = {**common, **PLAIN, **(OF_EXPERTS if has_experts else {}), **said}
    taken = dict(plain)
    time_s, peak_bytes = forecast(model, cluster, taken)
    for switch in SWITCHES:
        if not switch.always or not is_allowed(switch, model, cluster, taken):
            continue
        taken |= switch.fields
        now_s, now_bytes = forecast(model, cluster, taken)
        assert now_s <= time_s * (1 + 1e-9), switch.name
        assert now_bytes <= peak_bytes * (1 + 1e-9), switch.name
        time_s, peak_bytes = now_s, now_bytes
    assert taken != plain
