import csv
import gzip
import shlex

import pytest

from datafiles import table_path
from traincast.dialects import draft_like
from traincast.errors import ConfigError
from traincast.job.resolve import resolve_job
from traincast.mechanisms.activations import LayerModel
from traincast.model.load import load_model
from traincast.model.recompute import RECOMPUTE_MODULES, modules_of

EXPERTS = """
--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --multi-latent-attention --num-experts 8 --moe-router-topk 2
--moe-ffn-hidden-size 512 --moe-shared-expert-intermediate-size 512 --moe-layer-freq ([0]*1+[1]*7) --moe-grouped-gemm
--swiglu --position-embedding-type rope --vocab-size 32000 --seq-length 1024 --micro-batch-size 1
--global-batch-size 16 --world-size 8 --expert-model-parallel-size 4 --bf16 --use-distributed-optimizer
"""
SELECTIVE = "--recompute-granularity selective --recompute-modules"


LINEAR = """
--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --swiglu --position-embedding-type rope --vocab-size 32000
--seq-length 1024 --micro-batch-size 1 --global-batch-size 16 --world-size 8 --bf16 --linear-attention-freq 4
"""


def test_the_norm_of_linear_attention_is_recomputed_by_itself():
    """It frees the 2-byte inputs of out_proj in 6 of 8 layers, 32 heads of 128 each, and costs its kernel once more."""
    gdn = f"{LINEAR} --experimental-attention-variant gdn"
    jobs = [
        resolve_job(draft_like("megatron", shlex.split(text)).request())
        for text in (gdn, f"{gdn} {SELECTIVE} gdn_norm_out")
    ]
    assert jobs[1].recompute.recomputed_modules == ("gdn_norm_out",)
    plain, again = ([layer_bytes(each, index) for index in range(8)] for each in jobs)
    assert [one - other for one, other in zip(plain, again, strict=True)] == ([1024 * 32 * 128 * 2] * 3 + [0]) * 2
    sparse = "--experimental-attention-variant dsa --multi-latent-attention --q-lora-rank 64 --dsa-indexer-topk 8"
    for text in (LINEAR, f"{LINEAR} {sparse} --dsa-indexer-n-heads 2 --dsa-indexer-head-dim 16"):
        with pytest.raises(ConfigError, match="gdn_norm_out needs --experimental-attention-variant gdn"):
            draft_like("megatron", shlex.split(f"{text} {SELECTIVE} gdn_norm_out"))


def layer_bytes(one, index):
    return sum(LayerModel(one).layer(index).saved.values())


def job(more, less=""):
    draft = draft_like("megatron", shlex.split(EXPERTS.replace(less, "") + " " + more))
    return resolve_job(draft.request())


def test_modules_are_those_of_the_flags():
    found = job(f"{SELECTIVE} moe_act layernorm mla_up_proj")
    assert found.recompute.recomputed_modules == ("mla_up_proj", "layernorm", "moe_act")
    assert job("--recompute-granularity selective").recompute.recomputed_modules == ("core_attn",)
    assert job("--recompute-activations").recompute.recomputed_modules == ("core_attn",)
    assert job(f"{SELECTIVE} mlp --recompute-modules moe").recompute.recomputed_modules == ("moe",)
    assert job("--moe-layer-recompute").recompute.recomputed_modules == ("core_attn", "moe")
    assert job("--recompute-modules mlp").recompute.recomputed_modules == ()
    block, uniform = (
        job(f"--recompute-granularity full --recompute-method {method} --recompute-num-layers 2")
        for method in ("block", "uniform")
    )
    assert (block.recompute.layers, block.recompute.group) == (2, 1)
    assert (uniform.recompute.layers, uniform.recompute.group) == (None, 2)


@pytest.mark.parametrize(
    ("flags", "less", "message"),
    [
        (f"{SELECTIVE} mpl", "", "known: core_attn, mla_up_proj, layernorm, mlp, moe, moe_act, shared_experts"),
        (f"{SELECTIVE} moe_act", "--moe-grouped-gemm", "moe_act needs --moe-grouped-gemm"),
        (f"{SELECTIVE} mla_up_proj", "--multi-latent-attention", "needs --multi-latent-attention"),
        (f"{SELECTIVE} shared_experts --moe-shared-expert-overlap", "", "with --moe-shared-expert-overlap"),
        (f"{SELECTIVE} moe_act --fp8-format hybrid", "", "moe_act cannot be recomputed with fp8 by delayed scaling"),
        (f"{SELECTIVE} layernorm --fp8-format e4m3 --fp8-recipe delayed", "", "layernorm cannot be recomputed"),
        (f"{SELECTIVE} moe --overlap-moe-expert-parallel-comm", "", "with moe among --recompute-modules"),
        ("--moe-layer-recompute --recompute-granularity full", "", "with --recompute-granularity full"),
        ("--exp-avg-dtype bf16", "", "needs --use-precision-aware-optimizer"),
        ("--use-precision-aware-optimizer", "--use-distributed-optimizer", "needs --use-distributed-optimizer"),
        ("--use-precision-aware-optimizer --exp-avg-dtype int8", "", "known: fp32, fp16, bf16, fp8"),
        (
            "--use-precision-aware-optimizer --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32",
            "",
            "--accumulate-allreduce-grads-in-fp32 is given too",
        ),
    ],
)
def test_what_megatron_refuses_is_refused_with_its_rule(flags, less, message):
    with pytest.raises(ConfigError, match=message):
        job(flags, less)


def test_block_scaling_recomputes_activations():
    found = job(f"{SELECTIVE} moe_act layernorm --fp8-format e4m3 --fp8-recipe blockwise")
    assert found.recompute.recomputed_modules == ("layernorm", "moe_act")


def test_types_are_those_of_the_flags():
    flags = "--use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8"
    found = job(flags)
    types = found.optimizer
    assert (types.precision_aware, types.main_params, types.exp_avg, types.exp_avg_sq) == (True, "fp32", "bf16", "fp8")
    assert found.framework.grad_reduce_bytes == 2
    assert not job("").optimizer.precision_aware


def test_every_combination_of_published_recipes_is_known():
    with gzip.open(table_path("recipe_settings.csv"), "rt", encoding="utf-8") as file:
        named = {row["recompute_modules"] for row in csv.DictReader(file) if row["recompute_modules"]}
    assert len(named) >= 5
    deepseek = load_model("deepseek-v3")
    for modules in named:
        assert set(modules_of(deepseek, modules.split("+"))) == set(modules.split("+")) <= set(RECOMPUTE_MODULES)
