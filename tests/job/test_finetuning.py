"""Adapters and packed sequences: what is decided, refused, kept and reduced."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, calls_of, exchanged, job_of
from traincast.errors import ConfigError, InfeasibleError, UnknownNameError
from traincast.estimate.memory import stage_memory
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.lowering.plans import plan_of_job
from traincast.model.load import load_model
from traincast.workload.words import Group, Operation

LLAMA = load_model("llama2-70b")
ATTENTION_ALONE = ("linear_qkv", "linear_proj")


def llama(**fields):
    """Return the decided job of one rank that fine-tunes Llama 2 70B in 8 bits."""
    plain = {"gpus": 1, "global_batch": 1, "seq_length": 4096, "precision": "fp8", "framework": "megatron-core-2025"}
    return resolve_job(JobRequest(model=LLAMA, **({"task": "lora"} | plain | fields)), load_cluster("h200"))


def test_what_is_open_is_as_the_framework_does_and_said():
    for name in ("megatron-core-2024", "megatron-core-2025", "automodel-2025", "eager"):
        job, framework = llama(framework=name, precision="bf16"), load_framework(name)
        assert (job.finetuning.lora_rank, job.finetuning.lora_targets) == (framework.lora_rank, framework.lora_targets)
        codes = {note.code for note in job.assumptions}
        assert {"assumed-lora-rank", "assumed-lora-targets"} <= codes
    said = llama(lora_rank=8, lora_targets=("linear_fc1", "linear_fc1"))
    assert (said.finetuning.lora_rank, said.finetuning.lora_targets) == (8, ("linear_fc1",))
    assert not [note for note in said.assumptions if "lora" in note.code]


def test_experts_have_no_adapters_and_an_assumption_says_so():
    adapted = {"task": "lora", "lora_rank": 8, "lora_targets": ("linear_qkv", "linear_fc1")}
    dense, experts = (job_of(model, **adapted) for model in (TINY, TINY_EXPERTS))
    assert [note.code for note in experts.assumptions if note.code == "lora-experts"]
    assert not [note.code for note in dense.assumptions if note.code == "lora-experts"]
    assert not [
        call for call in calls_of(experts, "backward") if call.family == "grouped_gemm" and call.direction == "wgrad"
    ]


@pytest.mark.parametrize(
    ("framework", "fields", "packed"),
    [
        ("megatron-core-2025", {"task": "sft"}, 250),
        ("megatron-bridge-2025", {"task": "lora"}, 250),
        ("megatron-core-2025", {"task": "lora", "packed_length": 2048}, 2048),
        ("megatron-core-2025", {"task": "pretrain"}, None),
        ("megatron-core-2025", {"task": "sft", "seq_length": 8192}, None),
        ("automodel-2025", {"task": "sft"}, None),
    ],
)
def test_fine_tuning_packs_short_examples_where_its_framework_does(framework, fields, packed):
    job = llama(framework=framework, precision="bf16", **fields)
    assert job.batch.packed_length == packed
    assumed = [note for note in job.assumptions if note.code == "assumed-packed-length"]
    assert bool(assumed) == (packed == 250)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lora_targets": ()}, ConfigError, "lora_targets: is empty"),
        (
            {"lora_targets": ("linear_xyz",)},
            UnknownNameError,
            "unknown target of adapters 'linear_xyz'; known",
        ),
        (
            {"task": "sft", "lora_targets": ATTENTION_ALONE},
            ConfigError,
            "is linear_qkv linear_proj, but the task is sft",
        ),
        ({"task": "sft", "lora_rank": 4}, ConfigError, "lora_rank: is 4, but the task is sft"),
        ({"packed_length": 8192}, InfeasibleError, "sequences of 8192 tokens cannot be packed into 4096"),
        ({"packed_length": 0}, ConfigError, "packed_length: is 0"),
    ],
)
def test_what_cannot_be_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        llama(**change)


@pytest.mark.parametrize("length", [256, 1000, 4096])
def test_packed_sequences_meet_themselves_alone(length):
    """Pairs of tokens: ceil(4096 / length) sequences of length^2, in both passes; all else is per token."""
    packed, whole = (
        calls_of(job_of(seq_length=4096, global_batch=1, **fields), "forward")
        for fields in ({"packed_length": length}, {})
    )
    (core,) = (call for call in packed if "attention" in call.family)
    assert core.shape[:3] == (-(-4096 // length), length, length)
    assert {call for call in packed if call is not core} == {call for call in whole if "attention" not in call.family}


def test_scores_that_are_written_are_those_of_all_tokens():
    fields = {"seq_length": 4096, "global_batch": 1, "attention_kernel": "unfused"}
    assert calls_of(job_of(packed_length=256, **fields), "forward") == calls_of(job_of(**fields), "forward")


def test_frozen_weights_are_kept_in_the_type_that_gemms_read():
    """80 layers of 855,638,016 elements in matrices (Llama 2 70B); embedding, head, norms and adapters in 16 bits."""
    matrices, ends = 80 * 855_638_016, 2 * 32000 * 8192
    adapters = 80 * 16 * ((8192 + 10240) + (8192 + 8192))
    norms = 161 * 8192
    memory = {
        precision: stage_memory(job, plan_of_job(job))[0]
        for precision in ("fp8", "bf16")
        for job in (llama(precision=precision, lora_rank=16, lora_targets=ATTENTION_ALONE),)
    }
    assert memory["bf16"].parameters == 2 * (matrices + ends + norms + adapters)
    assert memory["fp8"].parameters == pytest.approx(matrices + 2 * (ends + norms + adapters), rel=1e-4)
    assert "8-bit copies of weights" not in dict(memory["fp8"].terms)
    for each in memory.values():
        assert each.gradients == 4 * adapters
        assert each.optimizer == 12 * adapters


def test_gradients_of_adapters_alone_are_reduced():
    adapters = 80 * 16 * ((8192 + 10240) + (8192 + 8192))
    job = llama(gpus=4, global_batch=4, lora_rank=16, lora_targets=ATTENTION_ALONE, zero=0, grad_reduce_bytes=4)
    reduced = sum(
        size
        for which in ("backward", "end")
        for (group, operation), size in exchanged(job, which).items()
        if (group, operation) == (Group.DP, Operation.ALL_REDUCE)
    )
    assert reduced == 4 * adapters


def test_transfers_overlap_with_gemms_over_nvlink_alone():
    framework = load_framework("megatron-core-2025")
    request = JobRequest(model=LLAMA, gpus=4, tp=4, global_batch=1, seq_length=4096, framework=framework.name)
    bridged, linked = (resolve_job(request, load_cluster(name)) for name in ("l40s", "h100"))
    assert not bridged.communication.overlap_tp
    assert linked.communication.overlap_tp == framework.overlap_tp
    (note,) = (note.text for note in bridged.assumptions if note.code == "assumed-overlap-tp")
    assert "NVLink" in note
    assert resolve_job(replace(request, overlap_tp=True), load_cluster("l40s")).communication.overlap_tp
