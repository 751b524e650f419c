"""What is noted of a job: where something is decided for it or has no effect, and nowhere else."""

from fractions import Fraction

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_ALL, TINY_EXPERTS, job_of
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework

ISLANDS = replace(
    load_cluster("h100"),
    islands=("east", "west"),
    island_bandwidth_bytes_per_s=1e9,
    island_latency_s=0.5,
    island_gpus=4,
)


def framework(name="megatron-core-2025", **fields):
    return replace(load_framework(name), **fields)


def codes(fields):
    return [note.code for note in job_of(**fields).assumptions]


EP = {"model": TINY_EXPERTS, "gpus": 8, "ep": 8}
"""Experts that are sent to."""


@pytest.mark.parametrize(
    ("code", "where", "where_not"),
    [
        ("assumed-degrees", [{}, {"tp": 1}, {"tp": 1, "pp": 1}], [{"tp": 1, "pp": 1, "cp": 1}]),
        ("dp-from-gpus", [{}], []),
        ("microbatches-from-batch", [{}], []),
        ("assumed-micro-batch", [{}], [{"micro_batch": 1}]),
        ("assumed-ep", [{"model": TINY_EXPERTS}], [{}, EP]),
        ("assumed-etp", [{**EP, "tp": 2, "ep": 4}], [EP, {**EP, "tp": 2, "ep": 4, "etp": 2}]),
        (
            "folded-experts",
            [{**EP, "cp": 2, "framework": "megatron-core-2024"}],
            [
                {**EP, "cp": 2},
                {**EP, "gpus": 16, "cp": 2, "framework": "megatron-core-2024"},
                {**EP, "cp": 2, "ep": 1, "framework": "megatron-core-2024"},
                {"gpus": 8, "cp": 8, "framework": "megatron-core-2024"},
            ],
        ),
        ("assumed-framework", [{"framework": None}], [{}]),
        ("year-unused", [{"year": 2022}], [{}, {"framework": None, "year": 2022}]),
        ("assumed-precision", [{}], [{"precision": "bf16"}]),
        ("precision-of-gpu", [{"precision": "fp4", "cluster": "b200"}], [{"precision": "nvfp4", "cluster": "b200"}]),
        ("assumed-attention-kernel", [{}], [{"attention_kernel": "fa2"}]),
        ("assumed-recompute", [{"recompute_layers": 2}, {"recompute_modules": ("mlp",)}], [{"recompute": "none"}]),
        ("recompute-layers-capped", [{"recompute_layers": 9}], [{"recompute_layers": 8}]),
        ("recompute-modules-unused", [{"recompute_modules": ("moe",)}], [{"recompute_modules": ("mlp",)}]),
        ("assumed-zero", [{"gpus": 2}], [{}, {"gpus": 2, "zero": 1}]),
        ("zero-unused", [{"zero": 1}], [{"gpus": 2, "zero": 1}, {}]),
        (
            "zero-with-pipeline",
            [{"gpus": 4, "pp": 2, "zero": 2}, {"gpus": 4, "pp": 2, "zero": 3}],
            [
                {"gpus": 4, "pp": 2, "zero": 1},
                {"gpus": 4, "zero": 2},
                {"gpus": 4, "pp": 2, "zero": 3, "framework": "torchtitan-2025"},
            ],
        ),
        (
            "reshard-unused",
            [{"gpus": 2, "zero": 2, "reshard_after_forward": True}, {"gpus": 2, "reshard_after_forward": False}],
            [{"gpus": 2, "zero": 3, "reshard_after_forward": True}, {"gpus": 2, "zero": 2}],
        ),
        (
            "param-gather-unused",
            [{"gpus": 2, "zero": 0, "param_gather_bytes": 2}],
            [{"gpus": 2, "zero": 1, "param_gather_bytes": 2}, {"gpus": 2, "zero": 0}],
        ),
        (
            "overlap-grad-reduce-unused",
            [{"overlap_grad_reduce": True}],
            [{"gpus": 2, "overlap_grad_reduce": True}, {"overlap_grad_reduce": False}],
        ),
        (
            "overlap-param-gather-unused",
            [{"gpus": 2, "zero": 0, "overlap_param_gather": True}],
            [{"gpus": 2, "zero": 1, "overlap_param_gather": True}],
        ),
        ("overlap-tp-unused", [{"overlap_tp": True}], [{"gpus": 2, "tp": 2, "overlap_tp": True}]),
        ("overlap-p2p-unused", [{"overlap_p2p": True}], [{"gpus": 2, "pp": 2, "overlap_p2p": True}]),
        ("embedding-as-layer-unused", [{"embedding_as_layer": True, "model": replace(TINY, layers=7)}], [{}]),
        (
            "schedule-unused",
            [{"schedule": "interleaved"}, {"schedule": "dualpipe"}],
            [
                {"gpus": 2, "pp": 2, "vpp": 2, "schedule": "interleaved"},
                {"schedule": "1f1b"},
                {"gpus": 2, "pp": 2, "schedule": "1f1b"},
            ],
        ),
        (
            "sequence-parallel-unused",
            [{"sequence_parallel": True}],
            [{"gpus": 2, "tp": 2, "sequence_parallel": True}, {}],
        ),
        (
            "assumed-sequence-parallel",
            [{"gpus": 2, "tp": 2}, {"gpus": 2, "tp": 2, "seq_length": 1023}],
            [{}, {"gpus": 2, "tp": 2, "sequence_parallel": True}],
        ),
        ("cp-kind-unused", [{"cp_kind": "ring"}], [{"gpus": 2, "cp": 2, "cp_kind": "ring"}, {}]),
        ("assumed-cp-kind", [{"gpus": 2, "cp": 2}], [{"gpus": 2, "cp": 2, "cp_kind": "ring"}, {}]),
        (
            "padded-vocab",
            [{"model": replace(TINY, vocab=32769)}],
            [{}, {"model": replace(TINY, vocab=32769), "vocab_multiple": 128}],
        ),
        (
            "uneven-layers",
            [{"model": replace(TINY, layers=7), "gpus": 2, "pp": 2}],
            [
                {},
                {"model": replace(TINY, layers=7), "gpus": 2, "pp": 2, "first_stage_layers": 3},
                {"model": replace(TINY, layers=7), "gpus": 2, "pp": 2, "last_stage_layers": 3},
            ],
        ),
        ("assumed-vpp", [{"gpus": 2, "pp": 2, "vpp": None}], [{"gpus": 2, "pp": 2}, {"vpp": None}]),
        (
            "long-sequence",
            [{"model": replace(TINY, max_positions=1023)}],
            [{"model": replace(TINY, max_positions=1024)}, {}],
        ),
        (
            "moe-dispatcher-unused",
            [{"moe_dispatcher": "deepep"}, {"model": TINY_EXPERTS, "moe_dispatcher": "deepep"}],
            [{**EP, "moe_dispatcher": "deepep"}, {**EP, "gpus": 2, "ep": 2, "moe_dispatcher": "deepep"}],
        ),
        ("assumed-moe-dispatcher", [EP], [{**EP, "moe_dispatcher": "deepep"}, {"model": TINY_EXPERTS}]),
        (
            "assumed-moe-routing",
            [EP],
            [{**EP, "moe_routing": "balanced"}, {**EP, "expert_imbalance": 1.5}, {"model": TINY_EXPERTS}],
        ),
        ("natural-routing", [{**EP, "moe_routing": "natural"}], [{**EP, "moe_routing": "balanced"}, EP]),
        (
            "moe-a2a-overlap-unused",
            [{**EP, "pp": 2, "ep": 4, "moe_a2a_overlap": True, "schedule": "gpipe"}],
            [{**EP, "moe_a2a_overlap": True}, {**EP, "pp": 2, "ep": 4, "moe_a2a_overlap": False, "schedule": "gpipe"}],
        ),
        (
            "assumed-moe-a2a-overlap",
            [{**EP, "pp": 2, "ep": 4, "schedule": "dualpipe"}],
            [{**EP, "pp": 2, "ep": 4, "schedule": "dualpipe", "moe_a2a_overlap": False}, EP],
        ),
        (
            "delay-wgrad-unused",
            [{**EP, "delay_wgrad": True}, {"delay_wgrad": True}],
            [{**EP, "moe_a2a_overlap": True, "delay_wgrad": True}, EP],
        ),
        (
            "moe-shared-expert-overlap-unused",
            [
                {
                    **EP,
                    "model": replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, shared_ffn_hidden=0)),
                    "moe_shared_expert_overlap": True,
                },
                {**EP, "moe_shared_expert_overlap": True, "moe_a2a_overlap": True},
            ],
            [{**EP, "moe_shared_expert_overlap": True}, EP],
        ),
        ("offload-activations-capped", [{"offload_activations": 9}], [{"offload_activations": 8}]),
        (
            "offload-modules-unused",
            [{"offload_modules": ("core_attn",), "recompute": "full"}],
            [
                {"offload_modules": ("core_attn",)},
                {"offload_modules": ("core_attn",), "recompute_layers": 3},
                {"recompute": "full"},
            ],
        ),
        (
            "overlap-offload-unused",
            [{"overlap_offload": True}, {"overlap_offload": False}],
            [{"overlap_offload": False, "offload_optimizer": 0.5}, {}],
        ),
        (
            "assumed-offload-optimizer",
            [{"gpus": 2, "zero": 3, "offload_parameters": True}],
            [{"gpus": 2, "zero": 3, "offload_parameters": True, "offload_optimizer": 1.0}, {"gpus": 2, "zero": 3}],
        ),
        ("assumed-gradient-type", [{}], [{"grad_reduce_bytes": 4}, {"main_grads_dtype": "fp32"}]),
        ("assumed-state-types", [{}], [{"main_params_dtype": "fp32"}, {"exp_avg_dtype": "fp32"}]),
        (
            "assumed-precision-aware-optimizer",
            [{"gpus": 2, "zero": 1, "exp_avg_dtype": "bf16"}],
            [{"gpus": 2, "zero": 1, "exp_avg_dtype": "bf16", "precision_aware_optimizer": True}, {}],
        ),
        ("muon-unused", [{"muon_steps": 5}], [{"muon_steps": 5, "optimizer": "muon"}, {}]),
        (
            "assumed-muon",
            [{"optimizer": "muon"}],
            [{"optimizer": "muon", "muon_steps": 5, "muon_tp_mode": "blockwise", "muon_owned": True}, {}],
        ),
        (
            "outer-unused",
            [{"outer_bits": 16}, {"overlap_outer": True}],
            [{}, {"cluster": ISLANDS, "local_steps": 2, "outer_bits": 16}],
        ),
        (
            "assumed-offload-outer",
            [{"cluster": ISLANDS, "local_steps": 2}],
            [{"cluster": ISLANDS, "local_steps": 2, "offload_outer": False}, {}],
        ),
        ("one-island", [{"cluster": ISLANDS, "local_steps": 2}], [{"cluster": ISLANDS}]),
        (
            "pipeline-drains",
            [{"pp": 2, "gpus": 8, "local_batch": 1}],
            [{"gpus": 8, "local_batch": 1}, {"pp": 2, "gpus": 8}, {"pp": 2, "gpus": 8, "local_batch": 10_000}],
        ),
        ("local-batch-unused", [{"local_batch": 2}], [{"pp": 2, "gpus": 8, "local_batch": 2}, {}]),
        ("packed-lengths", [{"packed_lengths": "512"}], [{"packed_length": 512}]),
        ("packs-differ", [{"gpus": 8, "packed_lengths": "100:40,700:5"}], [{"packed_lengths": "100:40,700:5"}]),
        ("assumed-lora-targets", [{"task": "lora"}], [{"task": "lora", "lora_targets": ("linear_qkv",)}, {}]),
        ("assumed-lora-rank", [{"task": "lora"}], [{"task": "lora", "lora_rank": 8}, {}]),
        (
            "lora-experts",
            [{"model": TINY_EXPERTS, "task": "lora", "lora_targets": ("linear_fc1",)}],
            [
                {"model": TINY_EXPERTS, "task": "lora", "lora_targets": ("linear_qkv",)},
                {"task": "lora", "lora_targets": ("linear_fc1",)},
            ],
        ),
        (
            "selective-as-layers",
            [{"framework": "torchtitan-2025", "recompute": "selective"}],
            [
                {"recompute": "selective"},
                {"framework": "torchtitan-2025", "recompute": "full"},
                {"framework": "torchtitan-2025", "recompute": "selective", "recompute_modules": ("mlp",)},
            ],
        ),
    ],
)
def test_what_is_decided_or_has_no_effect_is_noted_and_nothing_else(code, where, where_not):
    for fields in where:
        assert codes(fields).count(code) >= 1, fields
    for fields in where_not:
        assert code not in codes(fields), fields


def test_a_padded_vocabulary_is_noted_with_what_it_may_add():
    job = job_of(replace(TINY, vocab=32769), gpus=2, tp=2)
    (note,) = (each for each in job.assumptions if each.code == "padded-vocab")
    assert job.kernels.padded_vocab == 32768 + 2 * 128
    assert note.effect == pytest.approx(float(Fraction(32768 + 256, 32769) - 1))
    assert "padded to 33024, a multiple of 128 x tp 2" in note.text
    assert job_of(replace(TINY, vocab=32769), vocab_multiple=4).kernels.padded_vocab == 32772
    assert job_of(gpus=2, tp=2).kernels.padded_vocab == 32768


def test_degrees_that_are_open_are_named_in_one_note():
    def text(**fields):
        return next(note.text for note in job_of(**fields).assumptions if note.code == "assumed-degrees")

    assert text() == "tp, pp, cp are not given: 1"
    assert text(tp=1, pp=1) == "cp is not given: 1"
    (dp,) = (note.text for note in job_of(gpus=16, tp=2, pp=2, cp=2).assumptions if note.code == "dp-from-gpus")
    assert dp == "dp = 16 GPUs / (tp 2 x pp 2 x cp 2) = 2"
    (batch,) = (n.text for n in job_of(gpus=2, micro_batch=2).assumptions if n.code == "microbatches-from-batch")
    assert batch == "microbatches = 8 sequences / (dp 2 x micro_batch 2) = 2"


@pytest.mark.parametrize(
    ("tp", "ep", "gpus", "expert_tp", "etp"),
    [
        (2, 4, 8, True, 2),
        (2, 8, 8, True, 1),
        (4, 8, 16, True, 1),
        (4, 4, 16, True, 4),
        (2, 4, 8, False, 1),
        (1, 8, 8, True, 1),
        (2, 2, 4, True, 2),
    ],
)
def test_experts_are_split_as_other_layers_where_ranks_allow_it(tp, ep, gpus, expert_tp, etp):
    """With tp x dp ranks of a stage that etp x ep does not divide, they are not."""
    job = job_of(TINY_EXPERTS, gpus=gpus, tp=tp, ep=ep, framework=framework(expert_tp=expert_tp), global_batch=16)
    assert job.parallel.expert_tp == etp
    assert job.parallel.edp == gpus // (etp * ep)
    notes = [note.text for note in job.assumptions if note.code == "assumed-etp"]
    why = "as tp" if etp == tp else "experts are not split"
    assert notes == ([f"etp is not given: {etp} ({why}), as megatron-core-2025 does"] if tp > 1 else [])


def test_context_parallel_ranks_hold_experts_too():
    """Of 2 x 2 x 2 ranks each expert is on two, split over both of a tensor parallel group or whole on one."""
    job = job_of(TINY_EXPERTS, gpus=8, tp=2, cp=2, ep=2, framework=framework(expert_tp=True))
    assert (job.parallel.expert_tp, job.parallel.edp) == (2, 2)


def test_a_model_of_all_kinds_has_modules_of_each():
    modules = job_of(TINY_ALL, recompute_modules=("mlp", "moe", "core_attn")).recompute
    assert (modules.granularity, modules.recomputed_modules) == ("selective", ("core_attn", "mlp", "moe"))
    assert job_of(recompute="full").recompute.recomputed_modules == ()
