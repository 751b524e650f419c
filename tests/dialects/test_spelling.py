"""A change is told in the words of the framework, and nothing else is."""

import pytest

from traincast.dialects.spelling import dialect_name, spelled
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model

MOE = {"model": "qwen3-30b-a3b", "gpus": 16, "ep": 8, "global_batch": 64, "seq_length": 4096}
DENSE = {"model": "llama3-8b", "gpus": 16, "global_batch": 32, "seq_length": 4096}


def told(framework, job, fields, cluster="b200"):
    def resolved(**more):
        said = {**job, "framework": framework, **more}
        return resolve_job(JobRequest(**{**said, "model": load_model(said["model"])}), load_cluster(cluster))

    return spelled(resolved(), resolved(**fields), fields)


@pytest.mark.parametrize(
    ("job", "fields", "flags"),
    [
        (
            MOE | {"precision": "mxfp8", "moe_dispatcher": "hybridep", "te_op_fuser": True, "cuda_graphs": False},
            {"cuda_graphs": None, "cuda_graph_impl": "full_iteration", "moe_paged_stash": True},
            "--cuda-graph-impl full_iteration --moe-paged-stash --moe-expert-rank-capacity-factor 1.5 "
            "--moe-paged-stash-buffer-size-factor-cuda 1.2 --no-check-for-nan-in-loss-and-grad",
        ),
        (
            MOE | {"moe_dispatcher": "alltoall"},
            {"moe_dispatcher": "hybridep"},
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
        ),
        (
            MOE | {"moe_dispatcher": "alltoall", "moe_a2a_overlap": False},
            {"moe_a2a_overlap": True, "delay_wgrad": True},
            "--overlap-moe-expert-parallel-comm --delay-wgrad-compute",
        ),
        (
            DENSE,
            {"offload_modules": ("core_attn",)},
            "--fine-grained-activation-offloading --offload-modules core_attn",
        ),
        (DENSE | {"unfused": ("rope",)}, {"unfused": ()}, "without --no-rope-fusion"),
        (DENSE, {"sharp": "dp"}, "--use-sharp --sharp-enabled-group dp"),
        (MOE | {"fused_router": False}, {"fused_router": True}, "--moe-router-fusion"),
        (DENSE | {"precision": "mxfp8"}, {"param_gather_bytes": 1}, "--fp8-param-gather"),
        (DENSE, {"precision": "mxfp8"}, "--fp8-format hybrid --fp8-recipe mxfp8"),
        (
            DENSE | {"recompute": "full"},
            {"recompute": "selective", "recompute_modules": ("core_attn",)},
            "--recompute-granularity selective --recompute-modules core_attn; without --recompute-method, "
            "--recompute-num-layers",
        ),
        (
            DENSE,
            {"precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
            "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
        ),
    ],
)
def test_megatron_is_told_flags(job, fields, flags):
    assert told("megatron-core-2026", job, fields) == flags


@pytest.mark.parametrize(
    ("framework", "fields", "words", "whose"),
    [
        ("megatron-bridge-2025", {"overlap_grad_reduce": False}, "ddp.overlap_grad_reduce=false", "Megatron-Bridge"),
        ("torchtitan-2025", {"recompute": "full"}, 'activation_checkpoint.mode = "full"', "torchtitan"),
        ("torchtitan-2025", {"framework": "torchtitan-eager-2024"}, "without compile.enable", "torchtitan"),
        ("deepspeed-2024", {"zero": 2}, '"zero_optimization.stage": 2', "DeepSpeed"),
        ("transformers-2024", {"recompute": "full"}, "gradient_checkpointing=True", "Transformers"),
        ("maxtext-2024", {"recompute": "full"}, "remat_policy=full", "MaxText"),
        ("maxtext-2024", {"precision": "fp8"}, "quantization=te_fp8_delayedscaling", "MaxText"),
        ("nanotron-2024", {"recompute": "full"}, 'recompute = "full"', "job file"),
    ],
)
def test_others_are_told_keys_and_arguments(framework, fields, words, whose):
    before = {"zero": 3} if framework not in ("megatron-bridge-2025",) else {"overlap_grad_reduce": True}
    assert words in told(framework, DENSE | {"recompute": "none"} | before, fields, "h100")
    assert dialect_name(load_framework(framework)) == whose


def test_what_has_no_words_there_is_told_as_our_job_files_have_it():
    assert told("megatron-core-2026", DENSE, {"vocab_multiple": 256}) == "in a job file: vocab_multiple = 256"
    assert told("megatron-core-2026", DENSE, {}) == ""
