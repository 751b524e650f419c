"""Pasted Megatron-LM flags become the job they describe; nothing is ignored in silence."""

import shlex

import pytest
from msgspec.structs import replace

from traincast.dialects import draft_like
from traincast.errors import ConfigError, InfeasibleError, UnknownNameError
from traincast.estimate.memory import JobMemory
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job
from traincast.model.counts import parameters
from traincast.model.load import load_model

LLAMA3_8B = """
torchrun --nproc_per_node 8 --nnodes 2 \\
    pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --swiglu --disable-bias-linear --normalization RMSNorm
    --untie-embeddings-and-output-weights --vocab-size 128256 --micro-batch-size 1 --global-batch-size 128 --bf16
"""
DEEPSEEK = """
--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --multi-latent-attention
--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --num-experts 256
--moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
--moe-layer-freq ([0]*3+[1]*58) --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
--untie-embeddings-and-output-weights --vocab-size 129280 --seq-length 4096 --micro-batch-size 1
--global-batch-size 8192 --world-size 1024 --pipeline-model-parallel-size 16 --expert-model-parallel-size 64 --bf16
--use-distributed-optimizer
"""


def job(text, more=""):
    draft = draft_like("megatron", shlex.split(text + " " + more))
    return resolve_job(draft.request()), {note.code: note.text for note in draft.notes}


def test_the_model_has_the_parameters_of_the_one_it_describes():
    found, _ = job(LLAMA3_8B)
    assert parameters(found.model).total == parameters(load_model("llama3-8b")).total
    assert (found.parallel.world_size, found.parallel.dp) == (16, 16)
    sparse, _ = job(DEEPSEEK)
    published = load_model("deepseek-v3")
    assert parameters(sparse.model).total == pytest.approx(parameters(published).total, rel=1e-3)
    assert parameters(sparse.model).active == pytest.approx(parameters(published).active, rel=1e-3)


def test_an_absent_flag_has_megatrons_default_and_is_not_open():
    found, notes = job(LLAMA3_8B, "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2")
    assert (found.parallel.vpp, found.sharding.zero, found.recompute.granularity) == (1, 0, "none")
    assert not (found.communication.sequence_parallel or found.sharding.overlap_grad_reduce)
    assert not (found.communication.overlap_tp or found.kernels.cuda_graphs)
    assert {note.code for note in found.assumptions} <= {
        "dp-from-gpus", "microbatches-from-batch", "assumed-attention-kernel", "padded-vocab", "assumed-state-types",
    }  # fmt: skip
    assert set(notes) == {"assumed-framework"}
    assert "megatron-core-2026" in notes["assumed-framework"]


def test_a_framework_that_is_given_is_no_assumption():
    draft = draft_like("megatron", shlex.split(LLAMA3_8B)).under(Draft(fields={"framework": "megatron-core-2024"}))
    assert not draft.notes
    found = resolve_job(draft.request())
    assert (found.framework.name, found.framework.grad_reduce_bytes) == ("megatron-core-2024", 4)


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ("--bf16", 4),
        ("--bf16 --grad-reduce-in-bf16", 2),
        ("--bf16 --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32", 2),
        ("--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --main-grads-dtype bf16", 2),
        ("--bf16 --fp8-format hybrid", 4),
        ("--fp16", 2),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 4),
        ("", 4),
    ],
)
def test_gradients_are_reduced_in_the_type_that_megatron_takes(flags, size):
    found, _ = job(LLAMA3_8B.replace("--bf16", ""), flags)
    assert found.framework.grad_reduce_bytes == size


@pytest.mark.parametrize("framework", ["megatron-core-2024", "megatron-core-2025", "megatron-core-2026"])
def test_a_job_that_names_the_framework_keeps_what_its_plain_flags_keep(framework):
    pasted = draft_like("megatron", shlex.split(LLAMA3_8B)).under(Draft(fields={"framework": framework})).request()
    assert pasted.grad_reduce_bytes == 4
    named = resolve_job(replace(pasted, grad_reduce_bytes=None))
    assert JobMemory(named).stages == JobMemory(resolve_job(pasted)).stages
    assert named.framework == resolve_job(pasted).framework


def test_types_and_times_of_parameter_gathers():
    plain = "--fp8-format hybrid --use-distributed-optimizer"
    assert job(LLAMA3_8B, plain)[0].sharding.param_gather_bytes == 2
    assert job(LLAMA3_8B, f"{plain} --fp8-param-gather")[0].sharding.param_gather_bytes == 1
    assert job(LLAMA3_8B, "--use-torch-fsdp2")[0].sharding.reshard_after_forward
    kept, _ = job(LLAMA3_8B, "--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward")
    assert not kept.sharding.reshard_after_forward


def test_the_group_that_switches_reduce_for():
    assert job(LLAMA3_8B, "")[0].communication.sharp is None
    assert job(LLAMA3_8B, "--use-sharp")[0].communication.sharp == "dp"
    assert job(LLAMA3_8B, "--use-sharp --sharp-enabled-group dp_replica")[0].communication.sharp == "dp_replica"
    with pytest.raises(ConfigError, match="--sharp-enabled-group: needs --use-sharp"):
        draft_like("megatron", shlex.split(f"{LLAMA3_8B} --sharp-enabled-group dp"))


def test_groups_of_node_limited_routing():
    groups = "--moe-router-num-groups 8 --moe-router-group-topk 4"
    assert (job(DEEPSEEK, groups)[0].model.experts.groups, job(DEEPSEEK, groups)[0].model.experts.group_topk) == (8, 4)
    devices = job(DEEPSEEK, "--expert-model-parallel-size 8 --moe-router-topk-limited-devices 3")[0].model.experts
    assert (devices.groups, devices.group_topk) == (8, 3)
    with pytest.raises(ConfigError, match="--moe-router-num-groups: needs --moe-router-group-topk"):
        draft_like("megatron", shlex.split(f"{DEEPSEEK} --moe-router-num-groups 8"))
    with pytest.raises(ConfigError, match="1 of 64 groups hold 4 experts, fewer than the top-8"):
        draft_like("megatron", shlex.split(f"{DEEPSEEK} --moe-router-num-groups 64 --moe-router-group-topk 1"))


@pytest.mark.parametrize(
    ("flags", "dispatcher"),
    [
        ("", "allgather"),
        ("--moe-token-dispatcher-type alltoall", "alltoall"),
        ("--moe-token-dispatcher-type allgather", "allgather"),
        ("--moe-token-dispatcher-type flex", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "hybridep"),
    ],
)
def test_the_dispatcher_is_that_of_the_flags(flags, dispatcher):
    assert job(DEEPSEEK, flags)[0].experts.dispatcher == dispatcher
    assert not draft_like("megatron", shlex.split(f"{DEEPSEEK} {flags}")).warnings


def test_exchanges_overlap_and_are_in_8_bits_where_flags_say_so():
    plain = job(DEEPSEEK, "--expert-model-parallel-size 8")[0]
    assert (plain.experts.a2a_overlap, plain.experts.delay_wgrad) == (False, False)
    assert plain.experts.dispatch_dtype == "bf16"
    flags = "--overlap-moe-expert-parallel-comm --delay-wgrad-compute --moe-dispatch-fwd-dtype fp8"
    found = job(DEEPSEEK, f"--expert-model-parallel-size 8 {flags}")[0]
    assert (found.experts.a2a_overlap, found.experts.delay_wgrad, found.experts.dispatch_dtype) == (True, True, "fp8")


def test_a_back_end_of_the_flex_dispatcher_needs_it():
    backend, flex = "--moe-flex-dispatcher-backend deepep", "--moe-token-dispatcher-type flex"
    assert job(DEEPSEEK, backend)[1]["flag-unused"].endswith(f"it needs {flex}")
    assert "flag-unused" not in job(DEEPSEEK, f"{flex} {backend}")[1]


def test_the_dispatcher_counts_where_the_flags_leave_the_model_open():
    assert draft_like("megatron", ["--moe-token-dispatcher-type", "flex"]).fields["moe_dispatcher"] == "deepep"
    assert "moe_dispatcher" not in draft_like("megatron", ["--bf16"]).fields


def test_flags_of_a_model_that_is_left_open_are_said_to_have_no_effect():
    words = ["--hidden-size", "512", "--swiglu", "--bf16", "--moe-router-topk", "3"]
    found = draft_like("megatron", words)
    (note,) = [note for note in found.notes if note.code == "model-flags-unused"]
    assert note.text.endswith("without effect are --hidden-size, --swiglu, --moe-router-topk")
    plain = draft_like("megatron", ["--bf16"])
    assert (found.model, found.fields) == (None, plain.fields)
    assert "model-flags-unused" not in {note.code for note in plain.notes} | set(job(LLAMA3_8B)[1])


def test_experts_are_split_as_the_rest_unless_a_flag_says_otherwise():
    split = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 --expert-model-parallel-size 8"
    assert job(DEEPSEEK, split)[0].parallel.expert_tp == 4
    assert job(DEEPSEEK, f"{split} --expert-tensor-parallel-size 1")[0].parallel.expert_tp == 1


@pytest.mark.parametrize(
    "flag",
    [
        "--moe-expert-capacity-factor 1.5",
        "--moe-router-topk 4",
        "--moe-token-dispatcher-type flex",
        "--kv-lora-rank 256",
        "--fp8-recipe blockwise",
        "--recompute-modules mlp",
        "--recompute-method uniform",
        "--recompute-num-layers 3",
    ],
)
def test_a_flag_without_the_one_it_needs_is_said_to_have_no_effect(flag):
    found, notes = job(LLAMA3_8B, flag)
    plain, _ = job(LLAMA3_8B)
    assert notes["flag-unused"].startswith(f"{flag.split()[0]} has no effect: it needs --")
    assert (found.model, found.precision, found.recompute) == (plain.model, plain.precision, plain.recompute)


def test_flags_that_have_what_they_need_are_not_said_to_be_unused():
    assert "flag-unused" not in job(DEEPSEEK, "--fp8-format e4m3 --fp8-recipe blockwise")[1]
    assert "flag-unused" not in job(LLAMA3_8B, "--recompute-activations --recompute-modules core_attn")[1]
    found, _ = job(LLAMA3_8B, "--cp-comm-type a2a")
    assert "cp-kind-unused" in {note.code for note in found.assumptions}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--fp16", "--fp16: cannot be combined with --bf16"),
        ("--overlap-param-gather --overlap-grad-reduce", "--overlap-param-gather: needs --use-distributed-optimizer"),
        ("--use-distributed-optimizer --overlap-param-gather", "--overlap-param-gather: needs --overlap-grad-reduce"),
        ("--num-distributed-optimizer-instances 2", "instances: needs --use-distributed-optimizer"),
        ("--moe-enable-deepep", "--moe-enable-deepep: needs --moe-token-dispatcher-type flex"),
        ("--recompute-activations --recompute-num-layers 2", "needs --recompute-granularity full, not selective"),
    ],
)
def test_what_megatron_asserts_against_is_refused(flags, message):
    with pytest.raises(ConfigError, match=message):
        job(LLAMA3_8B, flags)
    job(LLAMA3_8B, "--use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce")


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--use-distributed-optimizer", "zero", 1),
        ("--data-parallel-sharding-strategy optim_grads_params", "zero", 3),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 4", "shard", 4),
        ("--overlap-grad-reduce", "overlap_grad_reduce", True),
        ("--fp8-format hybrid", "precision", "fp8"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "precision", "fp8_block"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", "recompute_layers", None),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2", "recompute_layers", 2),
        ("--recompute-activations", "recompute", "selective"),
        ("--enable-cuda-graph", "cuda_graphs", True),
        ("--moe-permute-fusion", "fused_permute", True),
        ("--moe-router-fusion", "fused_router", True),
        ("--attention-backend flash", "attention_kernel", "fa2"),
        ("--context-parallel-size 2 --cp-comm-type a2a", "cp_kind", "all_to_all"),
        ("--micro_batch_size=2", "micro_batch", 2),
    ],
)
def test_a_flag_sets_its_field(flags, field, value):
    found, _ = job(LLAMA3_8B, flags)
    assert found.decided(field) == value


def test_layers_per_virtual_stage_become_virtual_stages():
    split = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage"
    assert job(LLAMA3_8B, f"{split} 2")[0].pipeline.layers_Q == (2,) * 16
    with pytest.raises(InfeasibleError, match="32 layers do not divide into pp 4 x 3"):
        job(LLAMA3_8B, f"{split} 3")
    found, _ = job(DEEPSEEK, "--pipeline-model-parallel-layout 'Et*3|(t*4|)*14,t*2mL' --mtp-num-layers 1")
    assert found.pipeline.layers_Q == (3, *(4,) * 14, 2)
    assert found.layout.stages[-1] == "ttmL"
    with pytest.raises(InfeasibleError, match="places 0 MTP layers, but megatron model has 1: 1 too few"):
        job(DEEPSEEK, "--pipeline-model-parallel-layout 'Et*3|(t*4|)*14,t*2L' --mtp-num-layers 1")


def test_what_has_no_effect_is_listed_once_and_what_is_not_modelled_by_name():
    flags = "--lr 1e-4 --save /x --data-path a b --defer-embedding-wgrad-compute --squared-relu"
    draft = draft_like("megatron", shlex.split(f"{LLAMA3_8B} {flags}"))
    notes = {note.code: note.text for note in draft.notes}
    without = notes["flags-without-effect"]
    assert [without.find(f"{flag} (") > 0 for flag in ("--lr", "--save", "--data-path")] == [True] * 3
    assert "--save (reads or writes checkpoints, between steps)" in without
    assert notes["flags-of-small-effect"].endswith(": --squared-relu")
    assert [(note.code, "usual place" in note.text) for note in draft.warnings] == [("flag-not-modelled", True)]


def test_the_default_batch_is_one_microbatch_on_every_replica():
    text = LLAMA3_8B.replace("--global-batch-size 128", "")
    assert job(text)[0].batch.global_batch == 16


def test_a_tokenizer_tells_its_vocabulary_or_it_is_assumed():
    text = LLAMA3_8B.replace("--vocab-size 128256", "--tokenizer-type Llama2Tokenizer")
    found, notes = job(text)
    assert found.model.vocab == 32000
    assert "assumed-vocabulary" not in notes
    _, notes = job(LLAMA3_8B.replace("--vocab-size 128256", ""))
    assert "50257" in notes["assumed-vocabulary"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-layers x --hidden-size 8 --num-attention-heads 1", "--num-layers: is 'x'; it must be a whole number"),
        ("--num-layers 2", "--hidden-size: is missing; --num-layers needs it"),
        ("word", "'word' belongs to no flag"),
        ("--seq-length 3 4", "'4' belongs to no flag; --seq-length takes 1"),
        ("--tensor-model-parallel-size 0", "--tensor-model-parallel-size: is 0; it must be a whole number from 1 to"),
        ("--recompute-granularity some", "known: full, selective"),
        ("", "model: is missing"),
        ("--num-layers 2 --hidden-size 8 --num-attention-heads 1 --seq-length 8", "gpus: is missing; give gpus="),
    ],
)
def test_a_wrong_flag_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        draft_like("megatron", shlex.split(words)).request()


def test_only_known_frameworks_have_flags():
    with pytest.raises(UnknownNameError, match="megatron, torchtitan"):
        draft_like("other", [])


@pytest.mark.parametrize("name", ["muon", "dist_muon"])
def test_muon_is_read(name):
    flags = f"--use-distributed-optimizer --optimizer {name} --muon-num-ns-steps 6 --muon-tp-mode duplicated"
    found, _ = job(LLAMA3_8B, flags)
    assert (found.optimizer.muon.steps, found.optimizer.muon.tp_mode) == (6, "duplicated")
    assert job(LLAMA3_8B, "--optimizer adam")[0].optimizer.muon is None
