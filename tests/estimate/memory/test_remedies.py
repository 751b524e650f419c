"""What would free memory: which changes are proposed for a job, and what each frees."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS
from job_parts import job_of as tiny_job_of
from traincast.estimate.memory import JobMemory, fits, stage_memory
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.lowering.plans import plan_of_job
from traincast.model.load import load_model

# Model, fields of the job, and by the name of each change the fields that a user would write for it.
JOBS = {
    "a pipeline": (
        "llama3-70b",
        {"gpus": 64, "tp": 4, "pp": 2, "micro_batch": 2, "zero": 1},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "micro batch 1": {"micro_batch": 1},
            "tp 8": {"tp": 8},
            "pp 4": {"pp": 4},
        },
    ),
    "sequence parallelism turned off": (
        "llama3-8b",
        {"gpus": 8, "tp": 2, "zero": 3, "sequence_parallel": False},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "tp 4": {"tp": 4},
        },
    ),
    "all forward passes first": (
        "llama3-8b",
        {"gpus": 16, "tp": 2, "pp": 2, "zero": 1, "schedule": "gpipe"},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "tp 4": {"tp": 4},
            "pp 4": {"pp": 4},
        },
    ),
    "copies of the sharded state": (
        "llama3-8b",
        {"gpus": 16, "tp": 2, "zero": 3, "shard": 4},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "tp 4": {"tp": 4, "shard": 2},
        },
    ),
    "a virtual stage on the way back": (
        "llama3-8b",
        {"gpus": 8, "tp": 2, "pp": 2, "vpp": 2, "zero": 1, "schedule": "zb_v"},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "tp 4": {"tp": 4},
            "pp 4": {"pp": 4},
        },
    ),
    "one stage, nothing sharded": (
        "llama3-8b",
        {"gpus": 16, "tp": 2, "zero": 0},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "zero 1": {"zero": 1},
            "zero 2": {"zero": 2},
            "zero 3": {"zero": 3},
            "tp 4": {"tp": 4},
            "pp 2": {"pp": 2},
        },
    ),
    "one stage, gradients sharded": (
        "llama3-8b",
        {"gpus": 16, "tp": 2, "zero": 2},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "zero 3": {"zero": 3},
            "tp 4": {"tp": 4},
        },
    ),
    "a pipeline whose optimizer is not sharded": (
        "llama3-8b",
        {"gpus": 16, "tp": 2, "pp": 2, "zero": 0},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "zero 1": {"zero": 1},
            "tp 4": {"tp": 4},
            "pp 4": {"pp": 4},
        },
    ),
    "a pipeline of as many microbatches as twice its stages": (
        "llama3-70b",
        {"gpus": 64, "tp": 1, "pp": 8, "zero": 1},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "tp 2": {"tp": 2},
            "pp 16": {"pp": 16},
        },
    ),
    "a pipeline of fewer": (
        "llama3-70b",
        {"gpus": 64, "tp": 1, "pp": 8, "zero": 1, "global_batch": 56},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "tp 2": {"tp": 2},
        },
    ),
    "an interleaved pipeline": (
        "llama3-70b",
        {"gpus": 32, "tp": 8, "pp": 4, "vpp": 5, "zero": 0},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "vpp 1": {"vpp": 1},
        },
    ),
    "long sequences": (
        "llama3-70b",
        {"gpus": 32, "tp": 8, "seq_length": 32768, "global_batch": 32, "zero": 1},
        {
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute full": {"recompute": "full"},
            "zero 2": {"zero": 2},
            "zero 3": {"zero": 3},
            "pp 2": {"pp": 2},
            "cp 2": {"cp": 2},
        },
    ),
    "all recomputed": (
        "llama3-8b",
        {"gpus": 8, "tp": 8, "recompute": "full", "micro_batch": 4},
        {"micro batch 1": {"micro_batch": 1}},
    ),
    "some layers recomputed": (
        "llama3-8b",
        {"gpus": 8, "tp": 8, "recompute": "full", "recompute_layers": 10},
        {"recompute full": {"recompute": "full", "recompute_layers": None}},
    ),
    "attention that is not fused": (
        "gpt3-6.7b",
        {"gpus": 8, "tp": 8, "framework": "megatron-2021", "recompute": "none", "seq_length": 2048, "zero": 0},
        {"recompute selective": {"recompute": "selective"}, "recompute full": {"recompute": "full"}},
    ),
    "FSDP, whose framework knows no modules": (
        "llama3-8b",
        {"gpus": 8, "tp": 8, "framework": "torchtitan-2025", "recompute": "none"},
        {"recompute full": {"recompute": "full"}},
    ),
    "experts": (
        "mixtral-8x7b",
        {"gpus": 16, "tp": 1, "ep": 4, "zero": 1, "seq_length": 4096},
        {
            "recompute layernorm": {"recompute": "selective", "recompute_modules": ("layernorm",)},
            "recompute moe": {"recompute": "selective", "recompute_modules": ("moe",)},
            "recompute moe_act": {"recompute": "selective", "recompute_modules": ("moe_act",)},
            "recompute layernorm moe_act": {
                "recompute": "selective",
                "recompute_modules": ("layernorm", "moe_act"),
            },
            "recompute full": {"recompute": "full"},
            "zero 2": {"zero": 2},
            "zero 3": {"zero": 3},
            "tp 2": {"tp": 2},
            "pp 2": {"pp": 2},
            "ep 8": {"ep": 8},
        },
    ),
    "experts with a module recomputed": (
        "mixtral-8x7b",
        {
            **{"gpus": 8, "tp": 1, "ep": 8, "zero": 3, "seq_length": 4096},
            **{"recompute": "selective", "recompute_modules": ("moe",)},
        },
        {
            "recompute layernorm": {"recompute_modules": ("layernorm", "moe")},
            "recompute moe_act": {"recompute_modules": ("moe", "moe_act")},
            "recompute layernorm moe_act": {"recompute_modules": ("layernorm", "moe", "moe_act")},
            "recompute full": {"recompute": "full", "recompute_modules": None},
            "tp 2": {"tp": 2},
        },
    ),
    "latent attention": (
        "deepseek-v3",
        {"gpus": 256, "tp": 8, "pp": 1, "ep": 256, "etp": 1, "zero": 3, "seq_length": 4096},
        {
            "recompute mla_up_proj": {"recompute": "selective", "recompute_modules": ("mla_up_proj",)},
            "recompute layernorm": {"recompute": "selective", "recompute_modules": ("layernorm",)},
            "recompute mlp": {"recompute": "selective", "recompute_modules": ("mlp",)},
            "recompute moe": {"recompute": "selective", "recompute_modules": ("moe",)},
            "recompute moe_act": {"recompute": "selective", "recompute_modules": ("moe_act",)},
            "recompute shared_experts": {"recompute": "selective", "recompute_modules": ("shared_experts",)},
            "recompute mla_up_proj layernorm moe_act": {
                "recompute": "selective",
                "recompute_modules": ("mla_up_proj", "layernorm", "moe_act"),
            },
            "recompute full": {"recompute": "full"},
        },
    ),
}


@pytest.mark.parametrize(
    ("model", "tp", "gpus_per_node", "more"),
    [
        ("llama3-70b", 4, 8, True),
        ("llama3-70b", 4, 4, False),
        # Two ranks would share each of 8 key/value heads.
        ("llama3-70b", 8, 64, False),
        ("gpt3-6.7b", 8, 64, True),
        ("gpt3-6.7b", 8, 8, False),
        # Latent attention has no such heads, but whole ones.
        ("deepseek-v3", 8, 64, True),
    ],
)
def test_more_tensor_parallelism_stays_in_a_node_and_keeps_key_value_heads_whole(model, tp, gpus_per_node, more):
    job = job_of(model, {"gpus": 64, "tp": tp, "zero": 0, "seq_length": 2048})
    found = dict(fits(JobMemory(job), 1e9, gpus_per_node).remedies)
    assert (f"tp {2 * tp}" in found) is more


def job_of(model, fields):
    # A vocabulary that every tp divides, so that none pads it further.
    usual = {"seq_length": 8192, "global_batch": 64, "framework": "megatron-core-2025", "vpp": 1, "vocab_multiple": 1}
    given = {name: value for name, value in (usual | {"recompute": "none"} | fields).items() if value is not None}
    return resolve_job(JobRequest(model=load_model(model), **given))


def peak_of(job):
    return max(stage.peak for stage in stage_memory(job, plan_of_job(job)))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(JOBS))
def test_remedies_are_the_changes_that_free_memory_and_say_how_much(name):
    model, fields, changes = JOBS[name]
    job = job_of(model, fields)
    remedies = fits(JobMemory(job), 1e9).remedies
    found = dict(remedies)
    assert len(found) == len(remedies), "each once"
    expected = {change: peak_of(job) - peak_of(job_of(model, fields | more)) for change, more in changes.items()}
    assert found == pytest.approx({change: saved for change, saved in expected.items() if saved > 0})
    assert list(found.values()) == sorted(found.values(), reverse=True)


def remedies_of(model, **fields):
    job = tiny_job_of(model, zero=0, **fields)
    return dict(fits(JobMemory(job), 1e9).remedies)


def test_experts_that_are_not_split_may_have_a_width_that_more_tensor_parallelism_does_not_divide():
    narrow = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, ffn_hidden=770))
    assert "tp 4" in remedies_of(narrow, gpus=8, tp=2, etp=1)
    assert "tp 4" not in remedies_of(narrow, gpus=8, tp=2, etp=2)


def test_experts_that_divide_the_replicas_get_no_more_ranks_than_there_are_replicas():
    experts = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, experts=8))
    for framework, proposed in (("megatron-core-2024", False), ("megatron-core-2025", True)):
        layout = {"gpus": 8, "cp": 2, "framework": framework}
        assert "ep 4" in remedies_of(experts, ep=2, **layout)
        assert ("ep 8" in remedies_of(experts, ep=4, **layout)) is proposed


def test_tensor_parallel_ranks_have_whole_shares_of_a_sequence():
    """1,020 tokens over 2 context parallel ranks are 510, of which two tensor parallel ranks have 255, and four not."""
    for length, proposed in ((1020, False), (1024, True)):
        assert ("tp 4" in remedies_of(TINY, gpus=8, tp=2, cp=2, seq_length=length)) is proposed


def test_sequences_are_split_into_parts_of_8192_tokens_and_no_fewer():
    for length, proposed in ((16384, True), (16380, False)):
        assert ("cp 2" in remedies_of(TINY, gpus=2, seq_length=length)) is proposed


def test_stages_are_doubled_while_each_has_a_layer_and_a_microbatch():
    eight = {"gpus": 8, "global_batch": 8}
    assert "pp 8" in remedies_of(TINY, pp=4, **eight)
    assert "pp 8" not in remedies_of(replace(TINY, layers=7), pp=4, **eight)
    # Of two virtual stages each, eight stages need sixteen layers.
    for layers, proposed in ((16, True), (8, False)):
        assert ("pp 8" in remedies_of(replace(TINY, layers=layers), pp=4, vpp=2, **eight)) is proposed
    # Half the replicas have twice the microbatches each.
    assert "pp 8" in remedies_of(TINY, gpus=8, pp=4, global_batch=8)
    assert "pp 8" not in remedies_of(TINY, gpus=8, pp=4, global_batch=6)


def test_two_replicas_share_their_state_and_one_has_nobody_to_share_with():
    assert {"zero 1", "zero 2", "zero 3"} <= set(remedies_of(TINY, gpus=2))
    assert not [name for name in remedies_of(TINY, gpus=1) if name.startswith("zero")]


def test_offloading_is_proposed_where_nothing_else_is_enough_and_the_host_has_room():
    job = job_of("llama3-70b", {"gpus": 8, "tp": 8, "global_batch": 8, "seq_length": 8192})
    hbm_bytes = 80e9
    found = {host: dict(fits(JobMemory(job), hbm_bytes, host_bytes=host).remedies) for host in (0.0, 1e12)}
    assert not any(name.startswith("offload") for name in found[0.0])
    changed = job.with_values(offload_optimizer=1.0)
    freed = peak_of(job) - peak_of(changed)
    assert found[1e12]["offload_optimizer 1"] == pytest.approx(freed)
    both = changed.with_values(offload_activations=80)
    assert found[1e12]["offload_optimizer 1 with offload_activations 80"] == pytest.approx(peak_of(job) - peak_of(both))
    assert "offload_optimizer 1 frees" in fits(JobMemory(job), hbm_bytes, host_bytes=1e12).text
    # Where recomputation is enough, its transfers are not proposed.
    job = job_of("llama3-8b", {"gpus": 8, "tp": 8, "micro_batch": 4})
    enough = fits(JobMemory(job), 0.96 * peak_of(job) / 2**30 * 1e9, host_bytes=1e12)
    assert 0 < enough.shortfall_bytes < enough.remedies[0][1]
    assert not any(name.startswith("offload") for name, _ in enough.remedies)
