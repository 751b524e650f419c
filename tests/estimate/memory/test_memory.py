import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from model_counts import adapter_parameters
from traincast.estimate.memory import JobMemory, chance_of_oom, fits, stage_memory, usable_bytes
from traincast.estimate.memory.activations import ChunkBytes, freed_first, peak_in_flight
from traincast.estimate.memory.fits import memory_deviation
from traincast.job.frameworks import load_framework
from traincast.job.job import Job
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.mechanisms.activations import LayerModel
from traincast.model.blocks.share import LORA_TARGETS
from traincast.model.counts import parameters
from traincast.model.load import load_model
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.schedule import SCHEDULES
from traincast.schedules.slots import Slot, SlotKind

GIB = 2**30
# Table 3 of arXiv 2205.05198: model, heads, hidden, tp, micro batch; the sequence is 2048.
KORTHIKANTI = [("gpt3-175b", 8, 1), ("mt-nlg-530b", 8, 1)]


def job_of(model="llama3-8b", gpus=64, **options) -> Job:
    options = {"seq_length": 4096, "global_batch": 64, "micro_batch": 1, "framework": "megatron-core-2025"} | options
    return resolve_job(JobRequest(model=load_model(model), gpus=gpus, **options))


def plan_of(job: Job) -> SchedulePlan:
    parallel = job.parallel
    return SCHEDULES.get(job.pipeline.schedule).plan(parallel.pp, parallel.vpp, parallel.microbatches)


def memory_of(job: Job):
    return stage_memory(job, plan_of(job))


def peak_of(job: Job) -> float:
    return max(stage.peak for stage in memory_of(job))


def term(stage, start: str) -> float:
    return sum(size for name, size in stage.terms if name.startswith(start))


def gpt(model: str, tp: int, micro_batch: int, **options) -> tuple[Job, LayerModel]:
    job = job_of(
        model,
        gpus=64,
        seq_length=2048,
        micro_batch=micro_batch,
        tp=tp,
        pp=1,
        framework="megatron-2021",
        zero=0,
        **options,
    )
    return job, LayerModel(job)


@pytest.mark.parametrize(("model", "tp", "micro_batch"), KORTHIKANTI)
def test_activations_of_a_layer_are_those_of_korthikanti(model, tp, micro_batch):
    """Table 2 of arXiv 2205.05198: no parallelism, tensor parallelism, with sequence parallelism."""
    for t, sequence in ((1, False), (tp, False), (tp, True)):
        job, layers = gpt(model, t, micro_batch, sequence_parallel=sequence if t > 1 else None)
        sbh = job.batch.seq_length * micro_batch * job.model.hidden
        square = 5 * job.model.attention.heads * job.batch.seq_length / job.model.hidden
        expected = sbh * (10 + 24 / t + square / t)
        if sequence:
            expected = sbh / t * (34 + square)
        layer = layers.layer(0)
        assert layer.all_bytes == pytest.approx(expected, rel=1e-12)
        assert layer.tensors["attention scores"] == pytest.approx(sbh * square / t, rel=1e-12)
        assert layer.input_bytes == pytest.approx(2 * sbh / (t if sequence else 1), rel=1e-12)


def test_sequence_parallelism_and_selective_recomputation_take_34_sbh_over_t():
    job = job_of("gpt3-175b", 64, seq_length=2048, tp=8, pp=8, vpp=1, framework="megatron-2022", recompute="selective")
    first = memory_of(job)[0]
    sbh = 2048 * job.model.hidden
    layers, in_flight = 12, 8
    assert job.kernels.attention == "unfused"
    assert first.activations - term(first, "passing") == pytest.approx(34 * sbh / 8 * layers * in_flight, rel=1e-12)


def test_full_recomputation_keeps_layer_inputs_alone():
    job = job_of("gpt3-175b", 64, seq_length=2048, tp=8, pp=8, vpp=1, framework="megatron-2022", recompute="full")
    first = memory_of(job)[0]
    saved = [(name, size) for name, size in first.terms if "in flight" in name]
    assert [name for name, _ in saved] == ["layer inputs x 8 in flight"]
    assert saved[0][1] == pytest.approx(2 * 2048 * job.model.hidden / 8 * 12 * 8)
    some = memory_of(job.with_values(recompute_layers=5))[0]
    assert term(some, "layer inputs") == pytest.approx(saved[0][1] * 5 / 12)
    none = memory_of(job.with_values(recompute="none"))[0]
    assert first.activations < some.activations < none.activations


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(4, 2, 16), (8, 3, 32), (2, 4, 8)])
def test_interleaving_keeps_more_by_the_known_factor(stages, chunks, microbatches):
    """First stage: 1 + (P - 1) / (P V) of 1F1B (arXiv 2205.05198, section 4.2.3), and the microbatch at work."""
    plain = SCHEDULES.get("1f1b").plan(stages, 1, microbatches)
    woven = SCHEDULES.get("interleaved").plan(stages, chunks, microbatches)
    one = ChunkBytes(saved=1.0, for_weights=0.5, forward=0.0, backward=0.0)
    part = {
        chunk * stages: ChunkBytes(saved=1 / chunks, for_weights=0, forward=0, backward=0) for chunk in range(chunks)
    }
    flat = peak_in_flight(plain, 0, {0: one})
    assert flat.saved_bytes == pytest.approx(stages)
    assert flat.in_flight == stages
    looped = peak_in_flight(woven, 0, part).saved_bytes
    assert looped == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)))


@pytest.mark.parametrize("stages", [1, 3, 6])
def test_one_forward_one_backward_keeps_what_is_left_of_the_pipeline(stages):
    one = ChunkBytes(saved=1.0, for_weights=0.5, forward=0.0, backward=0.0)
    for microbatches in (2, 8):
        plan = SCHEDULES.get("1f1b").plan(stages, 1, microbatches)
        held = [peak_in_flight(plan, stage, {stage: one}).saved_bytes for stage in range(stages)]
        assert held == [min(stages - stage, microbatches) for stage in range(stages)]
        gpipe = SCHEDULES.get("gpipe").plan(stages, 1, microbatches)
        assert peak_in_flight(gpipe, 0, {0: one}).saved_bytes == microbatches


def test_split_backward_frees_the_rest_with_the_weight_gradient():
    order = (Slot(SlotKind.F, 0, 0), Slot(SlotKind.B, 0, 0), Slot(SlotKind.F, 0, 1), Slot(SlotKind.W, 0, 0))
    plan = SchedulePlan(name="split", placement=((0,),), slots=(order,), overlapped_p2p=False)
    chunk = ChunkBytes(saved=10.0, for_weights=4.0, forward=1.0, backward=3.0)
    peak = peak_in_flight(plan, 0, {0: chunk})
    assert (peak.saved_bytes, peak.passing_bytes) == (14.0, 1.0)


@pytest.mark.parametrize(
    ("zero", "dp", "parameters_bytes", "gradient_bytes", "optimizer_bytes"),
    [(0, 8, 2, 4, 12), (1, 8, 2, 4, 12 / 8), (2, 8, 2, 4 / 8, 12 / 8), (3, 8, 4 / 8, 4 / 8, 8 / 8)],
)
def test_zero_divides_states_as_its_paper_says(zero, dp, parameters_bytes, gradient_bytes, optimizer_bytes):
    """Figure 1 of arXiv 1910.02054, with gradients in fp32; the master copy of stage 3 is its parameters."""
    job = job_of(gpus=dp, tp=1, pp=1, zero=zero, grad_reduce_bytes=4)
    (stage,) = memory_of(job)
    count = parameters(job.model, job.kernels.padded_vocab).total
    assert stage.parameters == pytest.approx(parameters_bytes * count)
    assert stage.gradients == pytest.approx(gradient_bytes * count)
    assert stage.optimizer == pytest.approx(optimizer_bytes * count)


def test_states_of_all_ranks_add_up_to_the_model():
    job = job_of("mixtral-8x7b", 64, tp=2, pp=4, vpp=1, ep=4, etp=1, zero=1, grad_reduce_bytes=4)
    count = parameters(job.model, job.kernels.padded_vocab)
    matrices = count.layers.attention + count.layers.experts + 2 * count.embedding
    world, replicas = 64, job.parallel.dp
    held = sum(stage.optimizer for stage in memory_of(job)) * world / 4
    # What is not a matrix is on both ranks of a tensor parallel group.
    small = count.layers.norms + count.layers.router + count.final_norm
    assert held == pytest.approx(12 * (matrices + 2 * small), rel=1e-9)
    assert job.parallel.edp * 4 == 2 * replicas


def test_tied_embeddings_are_kept_once_on_one_stage_and_twice_on_two():
    tied = replace(load_model("llama3-8b"), tied_embeddings=True)
    one = replace(job_of(gpus=8, tp=1, pp=1, zero=0), model=tied)
    two = replace(job_of(gpus=8, tp=1, pp=2, vpp=1, zero=0), model=tied)
    table = 2 * one.kernels.padded_vocab * tied.hidden
    assert sum(stage.parameters for stage in memory_of(two)) - memory_of(one)[0].parameters == pytest.approx(table)


def test_lora_trains_little_and_keeps_the_frozen_weights():
    full, lora = (
        job_of(gpus=8, tp=1, pp=1, zero=0),
        job_of(gpus=8, tp=1, pp=1, zero=0, task="lora", lora_rank=16, lora_targets=LORA_TARGETS),
    )
    (all_of_it,), (adapters,) = memory_of(full), memory_of(lora)
    assert adapters.parameters == all_of_it.parameters + 2 * adapter_parameters(lora.model, 16)
    assert 0 < adapters.optimizer < 0.02 * all_of_it.optimizer


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt3-6.7b"])
@pytest.mark.parametrize(
    "framework", ["megatron-core-2025", "megatron-2021", "torchtitan-2025", "nanotron-2024", "eager"]
)
def test_parts_and_terms_add_up_to_the_peak(model, framework):
    job = job_of(model, 32, seq_length=2048, pp=2, framework=framework)
    for stage in memory_of(job):
        parts = stage.parameters + stage.gradients + stage.optimizer + stage.activations + stage.other
        assert stage.peak == pytest.approx(parts, rel=1e-12)
        assert stage.peak == pytest.approx(sum(size for _, size in stage.terms), rel=1e-12)
        assert all(size > 0 for _, size in stage.terms)
        assert stage.allocated <= stage.reserved < stage.peak


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    micro_batch=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    zero=st.sampled_from([0, 1]),
    recompute=st.sampled_from(["none", "full"]),
    framework=st.sampled_from(["megatron-core-2025", "megatron-2021", "nanotron-2024"]),
)
def test_more_of_anything_that_divides_never_needs_more(micro_batch, tp, pp, zero, recompute, framework):
    def job(**changes):
        options = {"tp": tp, "pp": pp, "zero": zero, "micro_batch": micro_batch, "recompute": recompute} | changes
        return job_of("llama2-7b", 64, vpp=1, framework=framework, global_batch=1024, **options)

    base = peak_of(job())
    messages = 1.5 * GIB  # buffers of one more communicator and messages between stages are not divided
    # The largest moment may be the optimizer's step, when activations are gone.
    assert peak_of(job(micro_batch=2 * micro_batch)) >= base
    activations = [
        max(stage.activations for stage in memory_of(job(micro_batch=each))) for each in (micro_batch, 2 * micro_batch)
    ]
    assert activations[0] <= activations[1]
    assert peak_of(job(tp=2 * tp)) <= base + messages
    assert peak_of(job(recompute="full")) <= base
    wider = [peak_of(job(zero=each)) for each in ((0, 1, 2, 3) if pp == 1 else (0, 1))]
    assert wider[:2] == sorted(wider[:2], reverse=True)
    if zero == 0:
        for name in ("parameters", "optimizer"):
            held = [max(getattr(stage, name) for stage in memory_of(job(pp=each))) for each in (pp, 2 * pp)]
            assert held[1] <= held[0]


def test_attention_that_writes_scores_grows_with_the_square_of_the_sequence():
    def attention(kernel, seq):
        job = job_of("llama2-7b", 8, tp=1, pp=1, seq_length=seq, attention_kernel=kernel, recompute="none")
        return sum(stage.activations for stage in memory_of(job))

    flash = attention("fa2", 4096) / attention("fa2", 2048)
    plain = attention("unfused", 4096) / attention("unfused", 2048)
    assert flash == pytest.approx(2, rel=0.01)
    assert plain > 2.8


def test_context_parallelism_divides_activations_by_its_degree():
    whole = job_of("llama3-8b", 8, seq_length=32768, global_batch=8, tp=1, pp=1, cp=1, recompute="none")
    split = job_of("llama3-8b", 8, seq_length=32768, global_batch=8, tp=1, pp=1, cp=4, recompute="none")
    ratio = memory_of(whole)[0].activations / memory_of(split)[0].activations
    assert 3.8 < ratio <= 4


def test_experts_are_divided_by_expert_parallelism_and_tokens_by_nothing():
    job = job_of("mixtral-8x7b", 16, tp=1, pp=1, ep=1, zero=0)
    wide = job_of("mixtral-8x7b", 16, tp=1, pp=1, ep=8, zero=0)
    (before,), (after,) = memory_of(job), memory_of(wide)
    count = parameters(job.model, job.kernels.padded_vocab)
    assert before.parameters - after.parameters == pytest.approx(2 * count.layers.experts * 7 / 8)
    assert after.activations == before.activations
    (crowded,) = memory_of(wide.with_values(expert_imbalance=2.0))
    assert term(crowded, "expert FC1 outputs") == pytest.approx(2 * term(after, "expert FC1 outputs"))


def test_eight_bit_products_save_eight_bit_inputs_and_copy_weights():
    bf16, fp8 = job_of(gpus=8, tp=1, pp=1), job_of(gpus=8, tp=1, pp=1, precision="fp8")
    (wide,), (narrow,) = memory_of(bf16), memory_of(fp8)
    assert term(narrow, "attention inputs") == pytest.approx(term(wide, "attention inputs") / 2)
    assert term(narrow, "8-bit copies") > 0
    assert term(wide, "8-bit copies") == 0
    assert narrow.activations < wide.activations


def test_logits_are_on_the_last_stage_alone():
    stages = memory_of(job_of(gpus=32, tp=2, pp=4, vpp=1))
    assert [term(stage, "logits") > 0 for stage in stages] == [False, False, False, True]
    job = job_of(gpus=32, tp=2, pp=4, vpp=1)
    assert term(stages[-1], "logits") == pytest.approx(4 * 4096 * job.kernels.padded_vocab / 2)


def test_known_frameworks_keep_what_is_said_of_them():
    megatron, nanotron = (load_framework(name).memory_policy(0) for name in ("megatron-core-2025", "nanotron-2024"))
    assert nanotron.gradient_bytes + nanotron.passing_gradient_bytes == 6
    assert nanotron.activation_copy
    assert not megatron.activation_copy
    assert load_framework("megatron-2021").memory_policy(0).dropout
    assert not megatron.dropout


def test_a_job_that_fits_says_so_and_has_no_remedies():
    job = job_of(gpus=64, tp=8, pp=1)
    verdict = fits(JobMemory(job), 80e9)
    assert verdict.fits
    assert verdict.shortfall_bytes == 0
    assert verdict.remedies == ()
    assert not verdict.refused
    assert "fits" in verdict.text


def test_a_job_that_does_not_fit_names_what_would_free_memory_truthfully():
    job = job_of("llama3-70b", 64, tp=4, pp=2, vpp=1, zero=0, micro_batch=2)
    verdict = fits(JobMemory(job), 80e9)
    assert not verdict.fits
    assert verdict.shortfall_bytes == pytest.approx(peak_of(job) - usable_bytes(80e9))
    saved = dict(verdict.remedies)
    assert {"recompute full", "zero 1", "micro batch 1", "tp 8", "pp 4"} <= set(saved)
    assert saved["zero 1"] == pytest.approx(peak_of(job) - peak_of(job.with_values(zero=1)))
    again = job_of("llama3-70b", 64, tp=8, pp=2, vpp=1, zero=0, micro_batch=2)
    again = again.with_values(padded_vocab=job.kernels.padded_vocab)
    assert saved["tp 8"] == pytest.approx(peak_of(job) - peak_of(again))
    assert list(saved.values()) == sorted(saved.values(), reverse=True)
    assert "does not fit" in verdict.text
    assert "chance of running out of memory above 99 %" in fits(JobMemory(job), 1e9).text, "nothing is certain"
    even = fits(JobMemory(job), 80e9 * peak_of(job) / usable_bytes(80e9))
    assert "may not fit" in even.text
    assert "chance of running out of memory 50 %" in even.text
    little = fits(JobMemory(job), 80e9 * (peak_of(job) + GIB) / usable_bytes(80e9))
    assert "1.0 GiB to spare" in little.text


def test_only_changes_that_are_enough_are_named_where_there_are_any():
    job = job_of("llama3-70b", 64, tp=4, pp=2, vpp=1, zero=0, micro_batch=2)
    verdict = fits(JobMemory(job), 80e9)
    (first, most), *_, (last, least) = verdict.remedies
    lacks = {size: replace(verdict, shortfall_bytes=size) for size in (least, (least + most) / 2, most, 2 * most)}
    texts = {size: found.text for size, found in lacks.items()}
    for size, text in texts.items():
        assert (f"; {first} frees" in text) and ("none is enough alone" in text) == (size > most)
    assert texts[most].count(" frees ") == 1
    assert texts[2 * most].count(" frees ") == texts[least].count(" frees ") > 1
    assert "; use more GPUs" in replace(verdict, remedies=()).text
    assert last not in texts[(least + most) / 2]


def test_chances_follow_from_the_measured_error():
    usable = usable_bytes(80e9)
    assert chance_of_oom(usable, usable) == 0.5
    assert chance_of_oom(0.0, usable) == 0.0
    for framework in ("", "megatron-core-2026", "nanotron-2024"):
        deviation = memory_deviation(framework)
        above, below = (chance_of_oom(usable * math.exp(way * deviation), usable, framework) for way in (1, -1))
        assert above == pytest.approx(0.8413, abs=1e-4)
        assert above + below == pytest.approx(1)


def test_a_framework_that_nobody_measured_is_less_sure_than_one_that_was():
    usable = usable_bytes(80e9)
    for share in (0.8, 0.9):
        known = chance_of_oom(share * usable, usable, "megatron-core-2026")
        assert known < chance_of_oom(share * usable, usable) == chance_of_oom(share * usable, usable, "our own")


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0.3, 3).filter(lambda share: abs(share - 1) > 1e-9))  # the product of shares rounds
def test_jobs_are_refused_warned_of_or_run_by_their_chance(share):
    job = job_of("llama3-70b", 64, tp=4, pp=2, vpp=1, zero=0, micro_batch=2)
    need = peak_of(job)
    verdict = fits(JobMemory(job), 80e9 * share * need / usable_bytes(80e9))
    assert verdict.chance_of_oom == pytest.approx(chance_of_oom(need, share * need, job.framework.name))
    assert verdict.fits == (share >= 1)
    assert verdict.refused <= verdict.doubtful
    assert verdict.refused == (verdict.chance_of_oom > 0.9)
    assert ("over by" in verdict.text) == (not verdict.fits)
    assert ("chance of running out" in verdict.text) == verdict.doubtful == bool(verdict.remedies)


@pytest.mark.parametrize(
    ("model", "layout", "gpus_per_node", "absent"),
    [
        ("llama3-70b", {"tp": 8, "pp": 1}, 8, "tp 16"),
        ("llama3-70b", {"tp": 4, "pp": 1}, 4, "tp 8"),
        # 8 key/value heads.
        ("llama3-70b", {"tp": 8, "pp": 1}, 72, "tp 16"),
        ("mixtral-8x7b", {"tp": 1, "pp": 1, "ep": 8}, 8, "ep 16"),
        # Sequences of 8,192 tokens are not split.
        ("llama3-70b", {"tp": 4, "pp": 1}, 8, "cp 2"),
        # No microbatches to fill the pipeline with.
        ("llama3-70b", {"tp": 4, "pp": 16, "global_batch": 8}, 8, "pp 32"),
    ],
)
def test_only_layouts_that_one_would_run_are_proposed(model, layout, gpus_per_node, absent):
    job = job_of(model, 64, **{"seq_length": 8192, "vpp": 1, "recompute": "none"} | layout)
    verdict = fits(JobMemory(job), 1e9, gpus_per_node)
    assert verdict.refused
    assert absent not in dict(verdict.remedies)
    assert "recompute full" in dict(verdict.remedies)


def test_long_sequences_may_be_split_further():
    job = job_of("llama3-70b", 64, tp=4, pp=1, seq_length=32768, zero=1)
    saved = dict(fits(JobMemory(job), 1e9).remedies)
    again = job_of("llama3-70b", 64, tp=4, pp=1, seq_length=32768, zero=1, cp=2)
    assert saved["cp 2"] == pytest.approx(peak_of(job) - peak_of(again))


def test_a_gpu_of_80_gb_shows_79_gib():
    assert usable_bytes(80e9) / GIB == pytest.approx(79.1, abs=0.05)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize(
    "framework", ["megatron-core-2025", "megatron-2021", "megatron-deepspeed-2022", "torchtitan-2025", "nanotron-2024"]
)
def test_sharding_more_never_needs_more(framework, precision):
    """What ZeRO shards is not part of the loss: stage 3 peaks nowhere above 2, 2 above 1, 1 above 0."""
    # Under a pipeline torchtitan keeps gathered parameters and their gradients whole.
    layout = {"tp": 2, "pp": 1 if "torchtitan" in framework else 2, "seq_length": 8192, "global_batch": 128}
    peaks = [peak_of(job_of(framework=framework, zero=zero, precision=precision, **layout)) for zero in range(4)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[3] < peaks[0]


def test_the_loss_is_the_frameworks_whatever_is_sharded():
    megatron = load_framework("megatron-core-2025")
    assert {megatron.memory_policy(zero).logit_bytes for zero in range(4)} == {4}
    assert {load_framework("megatron-core-2024").memory_policy(zero).logit_bytes for zero in range(4)} == {6}
    assert load_framework("torchtitan-2025").memory_policy(0).logit_bytes == 12
    assert load_framework("fms-fsdp-2024").memory_policy(0).logit_bytes == 14


@pytest.mark.parametrize(("kernel", "logit_bytes"), [("fused", 4), ("unfused", 6), ("compiled", 10)])
def test_what_computes_the_loss_decides_how_much_of_the_logits_is_there(kernel, logit_bytes):
    """4 bytes of a logit wait for the backward pass; what else is there at a time passes in the forward pass."""
    job = job_of(gpus=8, tp=1, pp=1, vocab_multiple=2**19, loss_kernel=kernel)
    (stage,) = memory_of(job)
    logits = job.kernels.padded_vocab * 4096
    assert term(stage, "logits") == 4 * logits
    assert term(stage, "passing activations") == max((logit_bytes - 4) * logits, term(stage, "passing activations"))
    if kernel != "fused":
        assert term(stage, "passing activations") == (logit_bytes - 4) * logits


def test_dropout_keeps_two_masks_of_every_layer():
    without, masks = job_of(gpus=8, tp=2, pp=1), job_of(gpus=8, tp=2, pp=1, dropout=True)
    (plain,), (dropped,) = memory_of(without), memory_of(masks)
    assert term(plain, "dropout masks") == 0
    assert term(dropped, "dropout masks") == 2 * masks.model.layers * masks.model.hidden * 4096 / 2
    assert dropped.activations - plain.activations == term(dropped, "dropout masks")


def test_gradients_that_a_kernel_adds_up_leave_no_tensor_behind():
    job = job_of(tp=2, pp=2, vpp=1)
    assert min(placeholders(job)) > 0
    assert placeholders(job.with_values(unfused=("gradient_sums",))) == [0, 0]


def test_gemms_have_workspaces_and_those_of_experts_more():
    dense, experts = (memory_of(job_of(model, gpus=8, tp=1, pp=1))[0] for model in ("llama3-8b", "mixtral-8x7b"))
    assert [term(each, "GEMM workspaces") / 2**20 for each in (dense, experts)] == [96, 192]


@pytest.mark.parametrize(
    ("pp", "micro_batch", "passes"),
    [(1, 1, 1), (4, 1, 2), (4, 16, 3), (8, 1, 6)],
    ids=["one stage", "host slower", "GPU slower", "deep"],
)
def test_whole_outputs_wait_for_the_gpu_in_forward_passes_that_follow_each_other(pp, micro_batch, passes):
    """Both outputs that a block reduces, whole, where messages cross nodes: of all but the last one or two."""
    whole = 2 * 4096 * micro_batch * load_model("llama3-8b").hidden
    batch = {"micro_batch": micro_batch, "global_batch": 32 * micro_batch}
    job = job_of(framework="nanotron-2024", gpus=4 * pp, tp=4, pp=pp, **batch)
    policy = replace(job.framework.memory, waiting_tensors=0)
    alone = replace(job, framework=replace(job.framework, memory=policy))
    more = memory_of(job)[0].activations - memory_of(alone)[0].activations
    assert more == pytest.approx(2 * whole * job.pipeline.layers_Q[0] * passes)


def test_nothing_waits_where_no_ranks_split_a_layer_or_one_microbatch_is_in_flight():
    (alone,) = memory_of(job_of(framework="nanotron-2024", gpus=1, tp=1, pp=1, global_batch=1))
    last = memory_of(job_of(framework="nanotron-2024", gpus=16, tp=4, pp=4, micro_batch=1, global_batch=32))[-1]
    assert term(alone, "waiting outputs") == term(last, "waiting outputs") == 0


def test_holes_are_a_share_of_what_comes_and_goes():
    """Not of state, whatever there is of it: twice the activations leave twice the holes."""
    one, two = (memory_of(job_of(tp=2, pp=1, gpus=8, micro_batch=each))[0] for each in (1, 2))
    slack = load_framework("megatron-core-2025").memory.slack
    assert term(one, "allocator slack") == pytest.approx(slack * one.activations)
    assert term(two, "allocator slack") == pytest.approx(slack * two.activations)
    assert two.activations > 1.9 * one.activations
    assert one.reserved - one.allocated == pytest.approx(term(one, "allocator slack"))


def test_operators_that_are_recomputed_leave_every_other_product_of_a_layer():
    """torchtitan: of a token each layer keeps its input, attention's output, and half of what its GEMMs write."""
    job = job_of(framework="torchtitan-2025", gpus=8, tp=1, pp=1, micro_batch=1, global_batch=8, recompute="selective")
    model, (stage,) = job.model, memory_of(job)
    attention = model.attention
    queries, pairs = attention.heads * attention.head_dim, 2 * attention.kv_heads * attention.head_dim
    written = queries + pairs + model.hidden + 2 * model.ffn_hidden + model.hidden
    tokens = 4096 * model.layers
    assert term(stage, "layer inputs") == 2 * tokens * model.hidden
    assert term(stage, "outputs of GEMMs") == pytest.approx(2 * tokens * written / 2)
    assert term(stage, "attention outputs") == pytest.approx(tokens * (2 * queries + 4 * attention.heads))
    (whole,) = memory_of(job.with_values(recompute_layers=None))
    assert term(whole, "outputs of GEMMs") == 0
    assert whole.activations < stage.activations < memory_of(job.with_values(recompute="none"))[0].activations


def test_passes_that_run_alongside_each_other_free_layers_as_they_save_them():
    """With one stage a pair of a forward and a backward pass keeps as much as one microbatch."""
    layout = {"gpus": 8, "tp": 1, "pp": 1, "ep": 8, "global_batch": 64, "cuda_graphs": False}
    paired, apart = (job_of("mixtral-8x7b", moe_a2a_overlap=overlap, **layout) for overlap in (True, False))
    kept, alone = (JobMemory(job).stages[0] for job in (paired, apart))
    assert JobMemory(paired).plan.slots != JobMemory(apart).plan.slots
    assert kept.activations == pytest.approx(alone.activations)
    order = freed_first(np.array([0, 0, 1, 0, 1, 0, 0]))
    assert order.tolist() == [0, 1, 3, 2, 5, 4, 6]


def placeholders(job: Job) -> list[float]:
    return [term(stage, "unused weight gradients") for stage in memory_of(job)]


def test_an_unused_gradient_stays_of_each_shape_of_weight():
    """Transformer Engine keeps one placeholder a shape (get_dummy_wgrad), whatever the layers; the head is another."""
    job = job_of(tp=2, pp=2, vpp=1)
    model = job.model
    width = model.attention.heads * model.attention.head_dim
    queries_keys_values = width + 2 * model.attention.kv_heads * model.attention.head_dim
    layer = model.hidden * (queries_keys_values + width + 3 * model.ffn_hidden)
    head = model.hidden * job.kernels.padded_vocab
    assert placeholders(job) == [2 * layer / 2, 2 * (layer + head) / 2]
    deeper = replace(model, layers=2 * model.layers)
    assert placeholders(replace(job.with_values(layers_Q=(32, 32)), model=deeper)) == placeholders(job)


def test_experts_of_one_layer_share_a_placeholder():
    job = job_of("qwen3-30b-a3b", ep=8, pp=1)
    fewer = replace(job.model, experts=replace(job.model.experts, experts=8))
    assert placeholders(job) == placeholders(replace(job, model=fewer))
    assert placeholders(job)[0] > 0


@pytest.mark.parametrize("fields", [{"framework": "megatron-core-2024"}, {"zero": 3, "pp": 1}, {"task": "lora"}])
def test_no_placeholder_where_no_fused_product_adds_to_whole_gradients(fields):
    assert not any(placeholders(job_of(**fields)))


# SimuMax, docs/b200/b200_release_v1.2_summary.json (Apache-2.0): Megatron-LM on 8 B200, sequences of 4,096, largest
# allocated memory of a rank. Truncated models, fp32 gradients, distributed optimizer, fused cross-entropy.
B200_RUNS = [
    ("llama3-70b", 12, {"pp": 2}, 66.55),
    ("llama3-70b", 12, {"tp": 8}, 28.29),
    ("llama3-70b", 12, {"cp": 8, "seq_length": 131072, "global_batch": 4}, 147.99),
    ("llama3.1-405b", 4, {"pp": 2}, 87.08),
    ("llama3.1-405b", 4, {"tp": 4}, 52.89),
    ("deepseek-v3", 4, {"ep": 8}, 104.3),
    ("deepseek-v3", 4, {"ep": 4, "pp": 2}, 114.0),
]


@pytest.mark.parametrize(("name", "layers", "layout", "gib"), B200_RUNS)
def test_measured_memory_of_megatron_core(name, layers, layout, gib):
    model = replace(load_model(name), layers=layers, mtp_layers=0)
    if model.experts is not None:
        model = replace(model, experts=replace(model.experts, first_dense_layers=1))
    framework = replace(load_framework("megatron-core-2025"), grad_reduce_bytes=4)
    request = JobRequest(
        model=model, gpus=8, seq_length=4096, global_batch=64, micro_batch=1, framework=framework, vpp=1
    )
    found = memory_of(resolve_job(replace(request, **layout)))
    assert max(stage.allocated for stage in found) / GIB == pytest.approx(gib, rel=0.01)


def test_weight_gradients_that_run_later_hold_half_of_what_a_microbatch_saved():
    """What GEMMs read waits for the weight gradient: half (docs/memory.md), below what the next microbatch saves."""
    job = job_of("llama3-8b", gpus=1, global_batch=2)
    orders = {
        "split": ((SlotKind.F, 0), (SlotKind.B, 0), (SlotKind.F, 1), (SlotKind.W, 0), (SlotKind.B, 1), (SlotKind.W, 1)),
        "whole": ((SlotKind.F, 0), (SlotKind.BW, 0), (SlotKind.F, 1), (SlotKind.BW, 1)),
    }
    saved = {}
    for name, order in orders.items():
        slots = tuple(Slot(kind, 0, microbatch) for kind, microbatch in order)
        plan = SchedulePlan(name=name, placement=((0,),), slots=(slots,), overlapped_p2p=False)
        (stage,) = stage_memory(job, plan)
        saved[name] = term(stage, "layernorm inputs")
    assert saved["split"] == pytest.approx(1.5 * saved["whole"])


def test_a_microbatch_is_in_flight_until_the_gradient_of_its_input_is_there():
    """After a first microbatch is done with, two more run forward."""
    job = job_of("llama3-8b", gpus=1, global_batch=3)
    order = ("F0", "B0", "W0", "F1", "F2", "B1", "W1", "B2", "W2")
    slots = tuple(Slot(SlotKind[kind], 0, int(microbatch)) for kind, microbatch in order)
    plan = SchedulePlan(name="by hand", placement=((0,),), slots=(slots,), overlapped_p2p=False)
    (stage,) = stage_memory(job, plan)
    assert "layernorm inputs x 2 in flight" in dict(stage.terms)


def test_sharding_over_one_rank_is_none():
    alone, sharded = (memory_of(job_of("llama3.2-1b", gpus=1, zero=zero)) for zero in (0, 3))
    for kind in ("parameters", "gradients", "optimizer"):
        assert getattr(sharded[0], kind) == getattr(alone[0], kind)
    assert "gathered layers" not in dict(sharded[0].terms)


def test_the_verdict_says_what_is_needed_and_what_is_missing_in_gib():
    job = job_of("llama3-8b", gpus=8, global_batch=8, tp=1, zero=0)
    verdict = fits(JobMemory(job), 80e9)
    assert not verdict.fits
    needed, usable = (size / 2**30 for size in (verdict.peak_bytes, verdict.usable_bytes))
    assert verdict.text.startswith(f"the job does not fit: stage 0 needs {needed:,.1f} GiB, {usable:.1f} GiB usable")
    assert f"over by {needed - usable:,.1f} GiB" in verdict.text
    assert usable == pytest.approx(79.1, abs=0.1)


def test_gradients_of_a_backward_pass_are_there_where_they_are_added_to_wider_ones():
    """DeepSpeed's BF16 optimizer: 4 bytes that wait for the update, 2 that pass; none pass where 2 are kept."""
    wide, narrow = (
        memory_of(job_of(framework="megatron-deepspeed-2022", gpus=8, tp=8, pp=1, grad_reduce_bytes=each))[0]
        for each in (4, 2)
    )
    assert wide.gradients == pytest.approx(3 * narrow.gradients)
    assert narrow.gradients == pytest.approx(narrow.parameters)
