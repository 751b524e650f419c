"""A request becomes a job: open values follow framework and GPU and are listed, impossible ones name their rule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from traincast.errors import ConfigError, InfeasibleError, TraincastError, UnknownNameError
from traincast.hardware.clusters import cluster_for
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model

DENSE = JobRequest(model=load_model("llama3-70b"), gpus=64, seq_length=8192, global_batch=128, tp=4, pp=4)
SPARSE = JobRequest(model=load_model("mixtral-8x7b"), gpus=64, seq_length=4096, global_batch=128, tp=4, pp=1)


def codes(job):
    return {note.code for note in job.assumptions}


def test_what_is_open_follows_the_framework_and_is_listed():
    job = resolve_job(DENSE)
    assert job.parallel.dp == 4
    assert job.parallel.microbatches == 32
    assert job.parallel.vpp == 10
    assert job.pipeline.schedule == "interleaved"
    assert job.pipeline.layers_Q == (2,) * 40
    assert (job.communication.sequence_parallel, job.sharding.zero) == (True, 1)
    assert (job.sharing, job.precision.dtype) == (4, "bf16")
    assert job.kernels.padded_vocab % (128 * 4) == 0
    assert job.kernels.padded_vocab - job.model.vocab in range(128 * 4)
    assert {"assumed-framework", "assumed-vpp", "assumed-micro-batch", "assumed-degrees", "assumed-precision"} <= codes(
        job
    )
    texts = {note.code: note.text for note in job.assumptions}
    assert "64 GPUs / (tp 4 x pp 4 x cp 1) = 4" in texts["dp-from-gpus"]
    assert texts["assumed-degrees"] == "cp is not given: 1"


def test_what_is_said_is_kept_and_needs_no_note():
    said = replace(
        DENSE, framework="megatron-core-2024", vpp=5, cp=1, micro_batch=2, zero=0, precision="fp8", recompute="full",
        sequence_parallel=False, overlap_grad_reduce=False, overlap_param_gather=False, overlap_tp=False,
        overlap_p2p=False, attention_kernel="fa2", cuda_graphs=True, vocab_multiple=64,
        grad_reduce_bytes=4, main_params_dtype="fp32",
    )  # fmt: skip
    job = resolve_job(said)
    assert codes(job) == {"dp-from-gpus", "microbatches-from-batch"}
    assert (job.parallel.vpp, job.batch.micro_batch, job.sharding.zero) == (5, 2, 0)
    assert (job.sharing, job.precision.dtype) == (1, "fp8")
    assert not (job.communication.sequence_parallel or job.sharding.overlap_grad_reduce)
    assert not (job.communication.overlap_tp or job.pipeline.overlap_p2p)
    assert job.kernels.cuda_graphs
    assert job.kernels.padded_vocab % 256 == 0


def test_generations_decide_differently():
    old = resolve_job(replace(DENSE, year=2021))
    assert old.framework.name == "megatron-2021"
    assert (old.parallel.vpp, old.pipeline.schedule) == (1, "1f1b")
    assert (old.recompute.granularity, old.sharding.zero) == ("full", 0)
    assert not old.communication.sequence_parallel
    assert resolve_job(replace(DENSE, framework="megatron-core-2024")).parallel.vpp == 20
    sharded = resolve_job(replace(DENSE, framework="torchtitan-2025", tp=1, pp=1, cp=2))
    assert (sharded.sharding.zero, sharded.sharing) == (3, 64)
    assert sharded.communication.cp_kind == "all_gather"


def test_a_pipeline_is_not_interleaved_where_microbatches_or_layers_forbid_it():
    assert resolve_job(replace(DENSE, global_batch=4 * 6)).parallel.vpp == 1
    odd = replace(DENSE.model, layers=79)
    assert resolve_job(replace(DENSE, model=odd)).parallel.vpp == 1
    assert resolve_job(replace(DENSE, schedule="1f1b")).parallel.vpp == 1


@pytest.mark.parametrize(("layers", "vpp"), [(16, 2), (18, 1), (22, 3), (32, 4), (33, 1), (36, 3), (38, 5)])
def test_a_pipeline_is_interleaved_down_to_two_layers_where_they_divide(layers, vpp):
    job = resolve_job(replace(DENSE, model=replace(DENSE.model, layers=layers), framework="megatron-core-2025"))
    assert job.parallel.vpp == vpp
    assert sum(job.pipeline.layers_Q) == layers


@pytest.mark.parametrize(
    ("framework", "pp", "said", "reshards"),
    [
        ("torchtitan-2025", 1, None, True),
        ("torchtitan-2025", 2, None, False),
        ("torchtitan-2025", 4, None, False),
        ("torchtitan-2025", 2, True, True),
        ("torchtitan-2025", 1, False, False),
        ("megatron-core-2025", 2, None, True),
    ],
)
def test_fsdp_keeps_parameters_for_a_pipeline_of_two_stages_and_more(framework, pp, said, reshards):
    job = resolve_job(replace(DENSE, framework=framework, tp=1, pp=pp, zero=3, reshard_after_forward=said))
    assert job.sharding.reshard_after_forward is reshards
    codes = {note.code for note in job.assumptions}
    assert ("fsdp-with-pipeline" in codes) == (pp > 1 and framework == "torchtitan-2025")
    assert ("assumed-reshard-after-forward" in codes) == (not reshards and said is None)


@pytest.mark.parametrize(("shard", "zero", "sharing"), [(None, 1, 4), (4, 1, 4), (2, 1, 2), (1, 1, 1), (1, 0, 1)])
def test_a_share_for_every_replica_is_the_same_layout_as_none_said(shard, zero, sharing):
    job = resolve_job(replace(DENSE, shard=shard, zero=zero))
    assert (job.sharding.zero, job.sharing, job.decided("shard")) == (zero, sharing, sharing)
    assert (job.parallel == resolve_job(DENSE).parallel) == (sharing == 4 or zero == 0)


def test_expert_tensor_parallelism_follows_the_framework():
    assert resolve_job(replace(SPARSE, ep=8)).parallel.expert_tp == 1
    assert resolve_job(replace(SPARSE, ep=8, framework="megatron-core-2024")).parallel.expert_tp == 4
    assert resolve_job(replace(SPARSE, ep=8, etp=2)).parallel.edp == 64 // (8 * 2)


def test_the_gpu_chooses_kernel_and_precision():
    volta, ampere, hopper = (cluster_for(name) for name in ("V100", "A100-SXM-80GB", "H100-SXM-80GB"))
    on_volta = resolve_job(DENSE, volta)
    assert (on_volta.precision.dtype, on_volta.kernels.attention) == ("fp16", "unfused")
    assert resolve_job(DENSE, ampere).kernels.attention == "fa2"
    assert resolve_job(DENSE, hopper).kernels.attention == "cudnn"


def test_selective_of_torchtitan_computes_every_other_product_again():
    job = resolve_job(replace(DENSE, framework="torchtitan-2025", tp=1, pp=1, recompute="selective"))
    assert (job.recompute.granularity, job.recompute.layers) == ("full", 40)
    assert "selective-as-layers" in codes(job)
    assert resolve_job(replace(DENSE, recompute="selective")).recompute.granularity == "selective"


def test_what_has_no_effect_is_said():
    assert "sequence-parallel-unused" in codes(resolve_job(replace(DENSE, tp=1, pp=4, sequence_parallel=True)))
    assert "zero-with-pipeline" in codes(resolve_job(replace(DENSE, zero=3)))
    assert "year-unused" in codes(resolve_job(replace(DENSE, framework="megatron-2021", year=2024)))
    capped = resolve_job(replace(DENSE, recompute_layers=99))
    texts = {note.code: note.text for note in capped.assumptions}
    assert capped.recompute.layers == max(capped.pipeline.layers_Q)
    assert texts["recompute-layers-capped"] == (
        "recompute_layers 99: a virtual stage has at most 2, all of which are recomputed"
    )
    assert texts["assumed-recompute"] == "recompute is not given: full, as recompute_layers is given"
    assert "cp-kind-unused" in codes(resolve_job(replace(DENSE, cp_kind="ring")))
    assert "cp-kind-unused" not in codes(resolve_job(replace(DENSE, cp_kind="ring", cp=2)))


@pytest.mark.parametrize("field", ["first_stage_layers", "last_stage_layers"])
def test_layers_of_an_end_need_a_pipeline(field):
    with pytest.raises(ConfigError, match=f"{field}: has a meaning only with pp above 1"):
        resolve_job(replace(DENSE, pp=1, **{field: 4}))


def test_the_busiest_expert_rank_has_at_most_all_tokens():
    for ep, most in ((None, 1.0), (1, 1.0), (4, 4.0)):
        assert resolve_job(replace(SPARSE, ep=ep, expert_imbalance=most)).experts.imbalance == most
        with pytest.raises(ConfigError, match=f"expert_imbalance: is {most + 0.5:g}; one of ep {ep or 1} has at most"):
            resolve_job(replace(SPARSE, ep=ep, expert_imbalance=most + 0.5))


ONE_GPU = replace(DENSE, model=load_model("llama3-8b"), gpus=1, tp=1, pp=1)


@pytest.mark.parametrize(
    ("base", "change", "fields"),
    [
        (ONE_GPU, {"schedule": "interleaved"}, {"schedule"}),
        (ONE_GPU, {"schedule": "gpipe"}, set()),
        (ONE_GPU, {"overlap_tp": True, "overlap_p2p": True}, {"overlap-tp", "overlap-p2p"}),
        (ONE_GPU, {"overlap_grad_reduce": True}, {"overlap-grad-reduce"}),
        (ONE_GPU, {"overlap_tp": False, "overlap_p2p": False, "overlap_grad_reduce": False, "zero": 0}, set()),
        (ONE_GPU, {"zero": 3, "overlap_param_gather": True}, {"zero", "overlap-param-gather"}),
        (ONE_GPU, {"embedding_as_layer": True, "head_as_layer": True}, {"embedding-as-layer", "head-as-layer"}),
        (ONE_GPU, {"deduplicated_dispatch": True}, {"deduplicated-dispatch"}),
        (ONE_GPU, {"deduplicated_dispatch": False}, set()),
        (SPARSE, {"deduplicated_dispatch": True}, {"deduplicated-dispatch"}),
        (SPARSE, {"deduplicated_dispatch": True, "ep": 8}, set()),
        # Experts that are not split over tp have replicas of their own.
        (SPARSE, {"gpus": 4, "etp": 1, "overlap_grad_reduce": True}, set()),
        (DENSE, {"overlap_tp": True, "overlap_p2p": True, "overlap_grad_reduce": True, "zero": 1, "vpp": 2}, set()),
        (DENSE, {"schedule": "interleaved"}, set()),
    ],
)
def test_what_is_turned_on_where_it_means_nothing_is_said(base, change, fields):
    found = codes(resolve_job(replace(base, **change)))
    assert {code for code in found if code.endswith("-unused")} == {f"{field}-unused" for field in fields}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": 60}, "60 GPUs do not divide into tp 4 x pp 4 x cp 1 = 16"),
        ({"global_batch": 130}, r"130 sequences does not divide into dp 4 x micro_batch 1 = 4; use 128 or 132"),
        ({"micro_batch": 3}, "dp 4 x micro_batch 3 = 12"),
        ({"tp": 3, "gpus": 48}, "tp 3 does not divide the 64 attention heads"),
        ({"model": replace(DENSE.model, attention=replace(DENSE.model.attention, heads=48, kv_heads=6)), "tp": 8,
          "gpus": 128}, "neither divides the 6 key/value heads"),
        ({"pp": 1, "gpus": 16, "vpp": 4}, "vpp 4 needs pp above 1"),
        ({"pp": 32, "gpus": 128, "vpp": 4}, r"80 layers cannot fill pp 32 x vpp 4 = 128 virtual stages"),
        ({"cp": 4, "seq_length": 8196}, "cuts a causal sequence into 8 pieces"),
        ({"cp": 2, "cp_kind": "all_to_all", "tp": 64, "gpus": 512}, "splits heads: 64 do not divide by cp 2 x tp 64"),
        ({"sequence_parallel": True, "seq_length": 8190}, "needs a sequence that tp x cp divides: 8190"),
        ({"shard": 3}, "shard 3 does not divide the 4 ranks"),
        ({"first_stage_layers": 10}, "leave 70, which do not divide over the other 3 stages"),
    ],
)  # fmt: skip
def test_an_impossible_combination_names_its_rule(change, message):
    with pytest.raises(InfeasibleError, match=message):
        resolve_job(replace(DENSE, **change))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ep": 2}, ConfigError, "ep: is 2, but llama3-70b has no experts"),
        ({"precision": "fp9"}, UnknownNameError, "unknown precision 'fp9'; known: bf16"),
        ({"zero": 4}, ConfigError, "zero: is 4; it must be a whole number from 0 to 3"),
        ({"tp": 0}, ConfigError, "tp: is 0; it must be a whole number from 1 to"),
        ({"zero": 0, "shard": 2}, ConfigError, "shard: is 2, but zero is 0"),
        ({"recompute": "none", "recompute_layers": 2}, ConfigError, "recompute_layers: is 2"),
        ({"vpp": 5, "schedule": "1f1b"}, ConfigError, "schedule: is 1f1b, which has no virtual stages"),
        ({"lora_rank": 8}, ConfigError, "lora_rank: is 8, but the task is pretrain"),
        ({"stage_layers": (20, 20, 20, 19)}, ConfigError, "stage_layers: sums to 79"),
        ({"stage_layers": (80,)}, ConfigError, "stage_layers: names 1 virtual stages"),
        ({"framework": "no-such"}, UnknownNameError, "unknown framework"),
        ({"expert_imbalance": 0.5}, ConfigError, "expert_imbalance"),
        ({"expert_imbalance": 1.5}, ConfigError, "expert_imbalance: is 1.5, but llama3-70b has no experts"),
    ],
)
def test_a_wrong_value_names_its_field(change, error, message):
    with pytest.raises(error, match=message):
        resolve_job(replace(DENSE, **change))


@pytest.mark.parametrize(
    ("precision", "gpu", "hint"),
    [
        ("fp8", "A100-SXM-80GB", "use bf16"),
        ("bf16", "V100", "use fp16"),
        ("mxfp8", "H100-SXM-80GB", "use fp8"),
        ("nvfp4", "H100-SXM-80GB", "use fp8"),
    ],
)
def test_a_type_that_the_gpu_lacks_is_refused(precision, gpu, hint):
    with pytest.raises(InfeasibleError, match=f"no matrix units for {precision}; {hint}"):
        resolve_job(replace(DENSE, precision=precision), cluster_for(gpu))
    resolve_job(replace(DENSE, precision=precision), cluster_for("B200"))


def test_experts_must_divide():
    with pytest.raises(InfeasibleError, match="ep 3 does not divide the 8 experts"):
        resolve_job(replace(SPARSE, ep=3))
    with pytest.raises(InfeasibleError, match="etp 3 does not divide the width"):
        resolve_job(replace(SPARSE, ep=1, etp=3))


@settings(max_examples=150, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
    pp=st.sampled_from([1, 2, 4, 5, 8]),
    cp=st.sampled_from([1, 2, 4]),
    gpus=st.sampled_from([8, 64, 96, 512]),
    batch=st.integers(1, 512),
    micro=st.sampled_from([None, 1, 2]),
    framework=st.sampled_from(["megatron-core-2025", "megatron-2021", "torchtitan-2025", "nanotron-2024"]),
)
def test_a_job_keeps_gpus_batch_and_layers_or_is_refused(tp, pp, cp, gpus, batch, micro, framework):
    request = replace(DENSE, tp=tp, pp=pp, cp=cp, gpus=gpus, global_batch=batch, micro_batch=micro, framework=framework)
    try:
        job = resolve_job(request)
    except TraincastError as error:
        assert str(error)
        return
    assert job.parallel.world_size == gpus
    assert job.parallel.microbatches * job.batch.micro_batch * job.parallel.dp == batch
    assert sum(job.pipeline.layers_Q) == request.model.layers
    assert len(job.pipeline.layers_Q) == job.parallel.pp * job.parallel.vpp
    assert (job.parallel.dp * job.parallel.cp) % job.sharing == 0
    assert (job.pipeline.schedule == "interleaved") == (job.parallel.vpp > 1)
