"""The work of all ranks of a job is that of its model, however it is laid out."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, TINY_LATENT, calls_of, job_of, total_flops
from model_counts import adapter_parameters
from traincast.model.blocks.share import LORA_TARGETS
from traincast.model.counts import token_flops
from traincast.workload.words import Phase

MODELS = {"gqa": TINY, "experts": TINY_EXPERTS, "latent": TINY_LATENT}
DENSE = [
    {},
    {"gpus": 4, "tp": 4},
    {"gpus": 4, "tp": 4, "sequence_parallel": False},
    {"gpus": 4, "cp": 4},
    {"gpus": 8, "pp": 4},
    {"gpus": 8, "pp": 2, "vpp": 4},
    {"gpus": 16, "tp": 2, "cp": 2, "pp": 2, "vpp": 2, "micro_batch": 2},
]
EXPERTS = [
    {"gpus": 8, "ep": 8},
    {"gpus": 8, "tp": 2, "ep": 4, "etp": 1},
    {"gpus": 8, "tp": 4, "ep": 2, "etp": 4},
    {"gpus": 8, "tp": 2, "pp": 2, "ep": 2, "etp": 2},
    {"gpus": 8, "tp": 4, "ep": 2, "etp": 2},
    {"gpus": 8, "tp": 4, "ep": 2, "etp": 1, "sequence_parallel": False},
    {"gpus": 8, "tp": 4, "ep": 2, "etp": 4, "sequence_parallel": False},
]


def model_flops(job):
    """Return the forward FLOPs of a step as the model counts them, with the padding of the vocabulary."""
    return token_flops(job.model, job.batch.seq_length, job.kernels.padded_vocab).forward * job.batch.tokens_per_step


def _copies_work(name, layout):
    """Tell whether tensor parallel ranks all run the narrow projections of latent attention on all tokens."""
    return name == "latent" and layout.get("sequence_parallel") is False


LAYOUTS = [(name, layout) for name in MODELS for layout in DENSE if not _copies_work(name, layout)]
LAYOUTS += [("experts", layout) for layout in EXPERTS]


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_forward_work_of_all_ranks_is_that_of_the_model(name, layout):
    job = job_of(MODELS[name], **layout)
    assert total_flops(job, "forward") == pytest.approx(model_flops(job), rel=0.002)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("gpt3-175b", {"gpus": 64, "tp": 8, "pp": 8, "seq_length": 2048}),
        ("llama3.1-405b", {"gpus": 128, "tp": 8, "pp": 16, "stage_layers": (7, *[8] * 14, 7), "vpp": None}),
        ("mixtral-8x7b", {"gpus": 8, "ep": 8, "seq_length": 4096}),
        ("deepseek-v3", {"gpus": 64, "pp": 4, "ep": 16, "tp": 1, "global_batch": 64}),
        ("qwen3-30b-a3b", {"gpus": 8, "ep": 8, "seq_length": 4096}),
        ("gemma2-9b", {"gpus": 2, "tp": 2, "seq_length": 8192}),
        ("gemma3-4b", {"gpus": 1, "tp": 1, "seq_length": 8192}),
    ],
)
def test_forward_work_of_known_models(name, layout):
    job = job_of(name, **layout)
    assert total_flops(job, "forward") == pytest.approx(model_flops(job), rel=0.01)


def test_latent_projections_are_copied_on_tensor_parallel_ranks_that_do_not_split_the_sequence():
    job = job_of(TINY_LATENT, gpus=4, tp=4, sequence_parallel=False)
    latent = job.model.attention.latent
    narrow = 2.0 * job.model.hidden * (latent.q_rank + latent.kv_rank + latent.rope_head_dim) * job.model.layers
    copied = 3 * narrow * job.batch.tokens_per_step
    assert total_flops(job, "forward") == pytest.approx(model_flops(job) + copied, rel=0.002)


@pytest.mark.parametrize("cp", [2, 4])
def test_a_window_is_no_wider_on_context_parallel_ranks(cp):
    job = job_of("gemma3-4b", gpus=cp, cp=cp, seq_length=8192)
    assert total_flops(job, "forward") == pytest.approx(model_flops(job), rel=0.01)


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("layout", [{}, {"gpus": 8, "tp": 2, "pp": 2, "vpp": 2}, {"gpus": 4, "cp": 2, "zero": 3}])
def test_backward_products_are_twice_the_forward_ones(name, layout):
    job, products = job_of(MODELS[name], **layout), ("gemm", "grouped_gemm")
    forward = total_flops(job, "forward", families=products)
    assert total_flops(job, "backward", families=products, directions=("dgrad",)) == pytest.approx(forward)
    assert total_flops(job, "backward", families=products, directions=("wgrad",)) == pytest.approx(forward)
    attention = total_flops(job, "forward", families=("attention",))
    assert total_flops(job, "backward", families=("attention",), directions=("backward",)) == pytest.approx(attention)


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("layout", [{}, {"gpus": 8, "tp": 2, "pp": 2, "vpp": 2}])
def test_full_recomputation_adds_one_forward_pass_of_the_layers(name, layout):
    job = job_of(MODELS[name], recompute="full", **layout)
    flops = token_flops(job.model, job.batch.seq_length, job.kernels.padded_vocab)
    again = total_flops(job, "backward", phases=(Phase.RECOMPUTE,))
    assert again == pytest.approx((flops.forward - flops.head) * job.batch.tokens_per_step, rel=0.002)


def test_recomputing_some_layers_adds_their_share():
    whole = total_flops(job_of(recompute="full"), "backward", phases=(Phase.RECOMPUTE,))
    some = total_flops(job_of(recompute="full", recompute_layers=2), "backward", phases=(Phase.RECOMPUTE,))
    assert some == pytest.approx(whole * 2 / 8)
    more = total_flops(job_of(recompute="full", recompute_layers=99), "backward", phases=(Phase.RECOMPUTE,))
    assert more == pytest.approx(whole)


def test_selective_recomputation_is_the_attention_core_or_the_share_of_the_framework():
    job = job_of(recompute="selective")
    core = token_flops(job.model, job.batch.seq_length).attention_core * job.batch.tokens_per_step
    assert total_flops(job, "backward", phases=(Phase.RECOMPUTE,)) == pytest.approx(core, rel=0.002)
    titan = job_of(recompute="selective", framework="torchtitan-2025", gpus=2)
    whole = total_flops(job_of(recompute="full"), "backward", phases=(Phase.RECOMPUTE,))
    again = total_flops(titan, "backward", phases=(Phase.RECOMPUTE,))
    assert again == pytest.approx(whole * titan.framework.selective_share)


def test_adapters_have_weight_gradients_and_frozen_matrices_none():
    job = job_of(task="lora", lora_rank=16, lora_targets=LORA_TARGETS)
    weight = {call: count for call, count in calls_of(job, "backward").items() if call.direction == "wgrad"}
    assert weight
    assert all(16 in call.shape[1:3] for call in weight)
    trained = sum(call.shape[1] * call.shape[2] * count for call, count in weight.items()) / job.parallel.microbatches
    assert trained == adapter_parameters(job.model, 16)
    frozen = total_flops(job_of(), "forward", families=("gemm",))
    dgrad = total_flops(job, "backward", families=("gemm",), directions=("dgrad",))
    assert dgrad == pytest.approx(frozen + 2 * adapter_parameters(job.model, 16) * job.batch.tokens_per_step)


def test_layers_that_predict_further_tokens_are_like_the_last_one():
    for model in (TINY, TINY_EXPERTS):
        job = job_of(replace(model, mtp_layers=2), gpus=2, pp=2)
        assert total_flops(job, "forward") == pytest.approx(model_flops(job), rel=0.002)


def test_capacity_drops_tokens_and_imbalance_adds_work():
    kept = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, capacity_factor=0.5))
    routed = ("grouped_gemm",)
    balanced = total_flops(job_of(TINY_EXPERTS), "forward", families=routed)
    assert total_flops(job_of(kept), "forward", families=routed) == pytest.approx(balanced / 2)
    # More room than tokens takes no more of them.
    roomy = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, capacity_factor=2.0))
    assert total_flops(job_of(roomy), "forward", families=routed) == pytest.approx(balanced)
    # All experts have as many rows then, which one kernel for all of them can tell.
    called = calls_of(job_of(roomy, framework="torchtitan-2025"), "forward")
    assert {dict(each.options).get("sizes") for each in called if each.family in routed} == {"equal"}
    spread = {"gpus": 2, "ep": 2}
    even, uneven = (job_of(TINY_EXPERTS, **spread, expert_imbalance=factor) for factor in (1.0, 1.5))
    more = total_flops(uneven, "forward", families=routed) / total_flops(even, "forward", families=routed)
    assert more == pytest.approx(1.5)
