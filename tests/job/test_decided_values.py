"""What groups of a job decide of what is said, left open and usual, as tables."""

import pytest
from msgspec.structs import replace

from job_parts import TINY, TINY_EXPERTS, job_of
from traincast.errors import ConfigError, TraincastError
from traincast.hardware.clusters import cluster_for, load_cluster
from traincast.job.frameworks import framework_of_year, load_framework, under_new_fields
from traincast.job.precision import Precision
from traincast.job.recompute import Recomputation
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.sharding import Sharding
from traincast.job.share import rank_share
from traincast.model.routing import busiest_rank
from traincast.model.structure import layer_blocks, parts_of

EP = {"model": TINY_EXPERTS, "gpus": 8, "ep": 8}
NO_SHARED = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, shared_ffn_hidden=0))


def framework(**fields):
    return replace(load_framework("megatron-core-2025"), **fields)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_first_and_last_layer_stay_in_16_bits_where_others_do_not(layers):
    kept = Precision(dtype="fp8", bf16_first_last=True)
    ends = [kept.keeps_sixteen_bits(layer, layers) for layer in range(layers)]
    assert ends == [layer in (0, layers - 1) for layer in range(layers)]
    for others in (replace(kept, dtype="bf16"), replace(kept, bf16_first_last=False)):
        assert not any(others.keeps_sixteen_bits(layer, layers) for layer in range(layers))


@pytest.mark.parametrize(
    ("fields", "count", "whole"),
    [
        ({"granularity": "none", "layers": None}, 0, (False, False)),
        ({"granularity": "selective", "layers": None}, 0, (False, False)),
        ({"granularity": "full", "layers": None}, 5, (True, True)),
        ({"granularity": "full", "layers": 3}, 3, (True, False)),
        ({"granularity": "full", "layers": 9}, 5, (True, False)),
    ],
)
def test_so_many_layers_of_a_stage_are_recomputed(fields, count, whole):
    found = Recomputation(**fields)
    assert found.layers_of(5) == count
    assert (found.whole_layers, found.all_layers) == whole


@pytest.mark.parametrize(
    ("fields", "granularity", "layers", "group"),
    [
        ({"recompute_layers": 3}, "full", 3, 1),
        ({"recompute_layers": 99}, "full", 8, 1),
        ({"recompute": "full"}, "full", None, 1),
        ({"recompute": "full", "recompute_method": "uniform"}, "full", None, 1),
        ({"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2}, "full", None, 2),
        ({"recompute": "full", "recompute_method": "block", "recompute_layers": 2}, "full", 2, 1),
        ({"recompute_method": "uniform", "recompute_layers": 99}, "full", None, 8),
        ({"recompute": "selective"}, "selective", None, 1),
        ({"recompute": "none"}, "none", None, 1),
        ({"recompute": "selective", "framework": framework(selective_share=0.3)}, "full", 2, 1),
        # No less than one layer.
        ({"recompute": "selective", "framework": framework(selective_share=0.01)}, "full", 1, 1),
        ({"recompute": "selective", "framework": framework(selective_share=0.5), "gpus": 2, "pp": 2}, "full", 2, 1),
    ],
)
def test_recomputation_is_of_layers_groups_or_modules(fields, granularity, layers, group):
    found = job_of(**fields).recompute
    assert (found.granularity, found.layers, found.group) == (granularity, layers, group)


@pytest.mark.parametrize(("norms", "unneeded"), [(1, ("linear_fc2",)), (2, ("linear_fc2",)), (4, ())])
def test_the_last_gemm_runs_again_only_where_a_norm_of_the_output_needs_it(norms, unneeded):
    """XLA removes what nothing needs; two norms are of the inputs of attention and MLP, four of their outputs too."""
    given = {"model": replace(TINY, norms_per_layer=norms), "recompute": "full"}
    removes = framework(recompute_keeps=("linear_fc2",))
    assert job_of(**given, framework=removes).recompute.keeps == unneeded
    asked = job_of(**given, framework=removes, recompute_keeps=("core_attn",)).recompute
    assert asked.keeps == ("core_attn", *unneeded)
    assert job_of(**given).recompute.keeps == ()


@pytest.mark.parametrize(("model", "kept"), [(TINY, ("linear_proj", "linear_fc2")), (TINY_EXPERTS, ("linear_fc2",))])
def test_halves_of_a_layer_that_are_checkpoints_each_leave_out_their_last_gemm(model, kept):
    given = {"model": model, "recompute": "full"}
    halves = framework(recompute_keeps=("linear_fc2",), recomputes_halves=True)
    assert job_of(**given, framework=halves).recompute.keeps == kept
    assert job_of(**given, framework="automodel-2025").recompute.keeps == kept


@pytest.mark.parametrize(
    ("fields", "optimizer", "gradients", "parameters", "activations", "kept"),
    [
        ({}, 0, False, False, 0, False),
        ({"offload_optimizer": 0.5}, 0.5, False, False, 0, True),
        ({"offload_optimizer": 0.5, "zero": 2}, 0.5, True, False, 0, True),
        ({"offload_optimizer": 0.5, "zero": 1}, 0.5, False, False, 0, True),
        ({"offload_optimizer": 0.5, "zero": 2, "gpus": 2}, 0.5, False, False, 0, True),
        ({"zero": 2}, 0, False, False, 0, False),
        ({"offload_parameters": True, "gpus": 2, "zero": 3}, 1, False, True, 0, True),
        ({"offload_activations": 3}, 0, False, False, 3, True),
        ({"offload_activations": 1}, 0, False, False, 1, True),
        ({"offload_activations": 99}, 0, False, False, 8, True),
        ({"offload_modules": ("core_attn",)}, 0, False, False, 0, True),
    ],
)
def test_the_host_keeps_what_is_asked_for(fields, optimizer, gradients, parameters, activations, kept):
    found = job_of(**fields).offload
    assert (found.optimizer, found.gradients, found.parameters) == (optimizer, gradients, parameters)
    assert (found.activations, found.any) == (activations, kept)
    assert found.any_activations is bool(activations or found.modules)
    assert found.overlap
    assert not job_of(**fields, overlap_offload=False).offload.overlap


@pytest.mark.parametrize(
    ("zero", "param_gather_bytes", "gathered"), [(0, 2, 0), (1, 1, 0), (2, 2, 0), (3, 2, 2), (3, 1, 1)]
)
def test_weights_are_gathered_for_every_pass_where_they_are_sharded(zero, param_gather_bytes, gathered):
    found = Sharding(
        zero=zero, overlap_grad_reduce=False, overlap_param_gather=False, param_gather_bytes=param_gather_bytes
    )
    assert found.gathered_weight_bytes == gathered


@pytest.mark.parametrize(
    ("usual", "fields", "zero"),
    [
        ({}, {"gpus": 2}, 1),
        ({"distributed_optimizer": False}, {"gpus": 2}, 0),
        ({"fsdp": True}, {"gpus": 2}, 3),
        ({"fsdp": True, "distributed_optimizer": False}, {"gpus": 2}, 3),
        ({"fsdp": True}, {"gpus": 2, "zero": 2}, 2),
        # Nobody to share with.
        ({"fsdp": True}, {}, 0),
        ({}, {"zero": 3}, 0),
        ({}, {"gpus": 2, "tp": 2}, 0),
        ({}, {"gpus": 2, "cp": 2}, 1),
    ],
)
def test_state_is_shared_as_the_framework_does_where_there_are_replicas(usual, fields, zero):
    assert job_of(framework=framework(**usual), **fields).sharding.zero == zero


@pytest.mark.parametrize("usual", [False, True])
def test_overlaps_are_the_framework_s_where_they_matter_and_what_is_said_elsewhere(usual):
    names = ("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p")
    own = framework(**dict.fromkeys(names, usual))

    def decided(**fields):
        job = job_of(framework=own, **fields)
        sharding, others = job.sharding, (job.communication.overlap_tp, job.pipeline.overlap_p2p)
        return (sharding.overlap_grad_reduce, sharding.overlap_param_gather, *others)

    assert decided(gpus=8, tp=2, pp=2) == (usual,) * 4
    assert decided() == (False,) * 4
    assert decided(gpus=8, tp=2, pp=2, **dict.fromkeys(names, not usual)) == (not usual,) * 4
    assert decided(gpus=2) == (usual, usual, False, False)
    assert decided(gpus=2, zero=0) == (usual, False, False, False)
    assert decided(gpus=2, tp=2) == (False, False, usual, False)
    assert decided(gpus=2, pp=2) == (False, False, False, usual)


@pytest.mark.parametrize(
    ("fields", "split"),
    [
        ({"gpus": 2, "tp": 2}, True),
        ({"gpus": 2, "tp": 2, "sequence_parallel": False}, False),
        ({"gpus": 2, "tp": 2, "seq_length": 1023}, False),
        ({"gpus": 4, "tp": 2, "cp": 2, "seq_length": 1020}, True),
        ({"gpus": 16, "tp": 8, "cp": 2, "seq_length": 1000}, False),
        ({"sequence_parallel": True}, False),
        ({}, False),
    ],
)
def test_sequences_are_split_where_tp_and_cp_divide_them(fields, split):
    assert job_of(**fields).communication.sequence_parallel is split


def test_tensor_transfers_are_not_overlapped_over_pcie():
    """With NVLink as the framework does; said is said."""
    pcie = replace(load_cluster("h100"), intra=replace(load_cluster("h100").intra, kind="pcie"))
    two = {"gpus": 2, "tp": 2, "framework": framework(overlap_tp=True)}
    assert job_of(**two).communication.overlap_tp
    assert not job_of(cluster=pcie, **two).communication.overlap_tp
    assert job_of(cluster=pcie, **two, overlap_tp=True).communication.overlap_tp
    notes = [note.code for note in job_of(cluster=pcie, **two).assumptions]
    assert "assumed-overlap-tp" in notes
    alone = [note.code for note in job_of(cluster=pcie).assumptions]
    assert "assumed-overlap-tp" not in alone


@pytest.mark.parametrize(
    ("fields", "overlaps", "delays", "shared"),
    [
        (EP, False, False, False),
        ({**EP, "moe_a2a_overlap": True}, True, False, False),
        ({**EP, "moe_a2a_overlap": True, "delay_wgrad": True}, True, True, False),
        ({**EP, "delay_wgrad": True}, False, False, False),
        ({**EP, "moe_shared_expert_overlap": True}, False, False, True),
        ({**EP, "moe_shared_expert_overlap": True, "moe_a2a_overlap": True}, True, False, False),
        ({**EP, "model": NO_SHARED, "moe_shared_expert_overlap": True}, False, False, False),
        ({**EP, "framework": framework(moe_shared_expert_overlap=True)}, False, False, True),
        (
            {**EP, "framework": framework(moe_shared_expert_overlap=True), "moe_shared_expert_overlap": False},
            False,
            False,
            False,
        ),
        ({**EP, "framework": framework(moe_a2a_overlap=True, delay_wgrad=True)}, True, True, False),
        (
            {**EP, "framework": framework(moe_a2a_overlap=True, delay_wgrad=True), "delay_wgrad": False},
            True,
            False,
            False,
        ),
        ({**EP, "framework": framework(moe_a2a_overlap=True), "moe_a2a_overlap": False}, False, False, False),
        # One expert rank sends nothing.
        ({"model": TINY_EXPERTS, "moe_a2a_overlap": True, "moe_shared_expert_overlap": True}, False, False, False),
        ({"moe_a2a_overlap": True}, False, False, False),
        ({**EP, "pp": 2, "ep": 4, "schedule": "gpipe", "moe_a2a_overlap": True}, False, False, False),
        ({**EP, "pp": 2, "ep": 4, "schedule": "dualpipe"}, True, False, False),
        ({**EP, "pp": 2, "ep": 4, "schedule": "dualpipe", "moe_a2a_overlap": False}, False, False, False),
    ],
)
def test_exchanges_with_experts_are_overlapped_with_one_thing_or_another(fields, overlaps, delays, shared):
    found = job_of(**fields).experts
    assert (found.a2a_overlap, found.delay_wgrad, found.shared_expert_overlap) == (overlaps, delays, shared)
    assert found.hides_exchanges is (overlaps or shared)
    assert found.pairs_passes is overlaps


@pytest.mark.parametrize(
    ("fields", "dispatcher"),
    [
        ({}, "deepep"),
        ({"moe_dispatcher": "hybridep"}, "hybridep"),
        ({"deduplicated_dispatch": True}, "deepep"),
        ({"deduplicated_dispatch": False}, "alltoall"),
        ({"moe_dispatcher": "hybridep", "deduplicated_dispatch": True}, "hybridep"),
        ({"framework": framework(moe_dispatcher="deepep")}, "deepep"),
        ({"framework": framework(moe_dispatcher="deepep"), "moe_dispatcher": "allgather"}, "allgather"),
    ],
)
def test_tokens_are_sent_as_said_or_as_the_framework_does(fields, dispatcher):
    assert job_of(**EP | fields).experts.dispatcher == dispatcher


def test_two_expert_ranks_exchange_as_many_do():
    two = {"model": TINY_EXPERTS, "gpus": 2, "ep": 2}
    assert job_of(**two, moe_a2a_overlap=True).experts.a2a_overlap
    assert job_of(**two, moe_shared_expert_overlap=True).experts.shared_expert_overlap
    assert job_of(**two, moe_routing="natural").experts.imbalance == busiest_rank(8, 2, 2) > 1


def test_routing_says_what_the_busiest_rank_gets():
    natural = busiest_rank(8, 2, 8)
    assert 1 < natural < 4
    assert job_of(**EP).experts.imbalance == 1
    assert job_of(**EP, expert_imbalance=1.5).experts.imbalance == 1.5
    assert job_of(**EP, moe_routing="natural").experts.imbalance == natural
    assert job_of(model=TINY_EXPERTS, moe_routing="natural").experts.imbalance == 1
    assert job_of(moe_routing="natural").experts.imbalance == 1


@pytest.mark.parametrize("said", [None, False, True])
@pytest.mark.parametrize("usual", [False, True])
def test_routers_and_permutations_are_fused_as_said_or_as_usual(said, usual):
    own = framework(fused_router=usual, fused_permute=usual)
    found = job_of(**EP, framework=own, fused_router=said, fused_permute=said).experts
    assert (found.fused_router, found.fused_permute) == (usual if said is None else said,) * 2


@pytest.mark.parametrize(
    ("usual", "fields", "graphs", "scope"),
    [
        (False, {}, False, ()),
        (True, {}, True, ()),
        (True, EP, True, ("attn",)),
        (True, {"cuda_graphs": False}, False, ()),
        (True, {"cuda_graph_impl": "none"}, False, ()),
        (True, {"cuda_graph_impl": "local"}, True, ()),
        (False, {"cuda_graph_impl": "local"}, True, ()),
        (False, {"cuda_graphs": True}, True, ()),
        (False, {"cuda_graph_scope": ("attn", "mlp")}, True, ("attn", "mlp")),
        (True, {**EP, "cuda_graph_scope": ("mlp",)}, True, ("mlp",)),
        (False, {"cuda_graph_impl": "full_iteration"}, True, ("full_iteration",)),
        (False, {"cuda_graph_scope": ("full_iteration",)}, True, ("full_iteration",)),
    ],
)
def test_graphs_hold_what_is_said_or_usual(usual, fields, graphs, scope):
    own = framework(cuda_graphs=usual, moe_cuda_graph_scope=("attn",))
    found = job_of(framework=own, **fields).kernels
    assert (found.cuda_graphs, found.cuda_graph_scope) == (graphs, scope)


def test_graphs_of_dense_models_hold_what_their_framework_says():
    own = framework(cuda_graphs=True, cuda_graph_scope=("full_iteration",), moe_cuda_graph_scope=("attn",))
    assert job_of(framework=own).kernels.cuda_graph_scope == ("full_iteration",)
    assert job_of(framework=own, cuda_graph_impl="transformer_engine").kernels.cuda_graph_scope == ()


@pytest.mark.parametrize(
    ("cluster", "precision", "found"),
    [
        ("h100", None, "bf16"),
        ("V100", None, "fp16"),
        ("h100", "fp32", "fp32"),
        ("b200", "fp4", "nvfp4"),
        ("mi355x", "fp4", "mxfp4"),
        ("b200", "mxfp4", "mxfp4"),
    ],
)
def test_gemms_run_in_what_the_gpu_has(cluster, precision, found):
    assert job_of(cluster=cluster_for(cluster), precision=precision).precision.dtype == found


@pytest.mark.parametrize(
    ("usual", "precision", "said", "recipe"),
    [
        ("delayed", "bf16", None, "none"),
        ("delayed", "fp8", None, "delayed"),
        ("current", "fp8", None, "current"),
        ("current", "fp8", "rowwise", "rowwise"),
        ("current", "mxfp8", None, "mxfp8"),
        ("delayed", "bf16", "none", "none"),
    ],
)
def test_types_are_scaled_as_said_or_as_usual_for_them(usual, precision, said, recipe):
    job = job_of(cluster="b200", framework=framework(fp8_recipe=usual), precision=precision, fp8_recipe=said)
    assert job.precision.fp8_recipe == recipe
    assert not job.precision.fp8_transposes
    assert job_of(precision="fp8").precision.fp8_transposes


@pytest.mark.parametrize(
    ("said", "cp", "kind"),
    [(None, 1, "ring"), (None, 2, "ring"), ("all_gather", 2, "all_gather"), ("all_to_all", 2, "all_to_all")],
)
def test_keys_and_values_are_exchanged_as_said_or_as_usual(said, cp, kind):
    own = framework(cp_kind="ring")
    assert job_of(gpus=cp, cp=cp, cp_kind=said, framework=own).communication.cp_kind == kind


@pytest.mark.parametrize(
    ("precision", "fuser", "fused_experts"),
    [
        ("mxfp8", True, True),
        ("mxfp8", False, False),
        ("fp8", True, False),
        ("bf16", True, False),
        ("bf16", False, False),
    ],
)
def test_a_rank_works_with_what_was_decided(precision, fuser, fused_experts):
    job = job_of(cluster="b200", precision=precision, te_op_fuser=fuser)
    found = rank_share(job, 4).execution
    assert (found.precision, found.ranks_per_node) == (precision, 4)
    assert found.recipe == {"bf16": "", "fp8": "delayed", "mxfp8": "mxfp8"}[precision]
    assert (found.fused_operations, found.fused_expert_casts, found.fused_experts) == (fuser, fuser, fused_experts)
    assert found.fused_expert_bias is fuser
    assert rank_share(job).execution.ranks_per_node == 8


def test_sequences_without_a_mask_need_no_halves():
    """A causal one has two pieces on each rank, so that all have as much work."""
    free = replace(TINY, attention=replace(TINY.attention, causal=False))
    assert job_of(free, gpus=4, cp=4, seq_length=1020).parallel.cp == 4


@pytest.mark.parametrize(
    ("year", "name"),
    [
        (None, "megatron-core-2026"),
        (2019, "megatron-2021"),
        (2021, "megatron-2021"),
        (2022, "megatron-2022"),
        (2023, "megatron-2022"),
        (2024, "megatron-core-2024"),
        (2025, "megatron-core-2025"),
        (2026, "megatron-core-2026"),
        (2030, "megatron-core-2026"),
    ],
)
def test_a_year_stands_for_the_framework_that_runs_then(year, name):
    assert framework_of_year(year) == name
    assert load_framework(name).name == name


@pytest.mark.parametrize("leaves", [False, True])
def test_unused_gradients_are_left_unless_they_are_reduced_into_shards(leaves):
    own = framework(gradient_placeholders=leaves)
    assert [own.memory_policy(zero).gradient_placeholders for zero in (0, 1, 2, 3)] == [leaves] * 3 + [False]
    for fused in (False, True):
        assert framework(fused_elementwise=fused).memory_policy(1).activation_copy is not fused


@pytest.mark.parametrize("name", ["layers_per_chunk", "vocab_multiple"])
def test_numbers_that_divide_are_not_zero(name):
    assert getattr(framework(**{name: 1}), name) == 1
    with pytest.raises(ConfigError, match=f"{name}: is 0"):
        framework(**{name: 0})


def test_attention_runs_in_a_kernel_that_the_gpu_has():
    def decided(cluster, said=None):
        job = job_of(cluster=cluster_for(cluster), attention_kernel=said)
        return job.kernels.attention, [n.text for n in job.assumptions if n.code == "assumed-attention-kernel"]

    said = "attention_kernel is not given: "
    assert decided("h100") == ("cudnn", [f"{said}cudnn, as megatron-core-2025 does"])
    assert decided("h100", "fa3") == ("fa3", [])
    older, (note,) = decided("A100-SXM-80GB")
    assert older == "fa2"
    assert "as megatron-core-2025 does" not in note
    with pytest.raises(TraincastError, match="flash attention 3 needs Hopper"):
        decided("A100-SXM-80GB", "fa3")
    assert resolve_job(JobRequest(model=TINY, gpus=1, seq_length=8, global_batch=1, attention_kernel="fa3")).kernels


@pytest.mark.parametrize(
    ("framework", "gpu", "kernel"),
    [
        ("torchtitan-2025", "H100", "fa2"),
        ("torchtitan-2025", "MI300X", "triton"),
        ("transformers-2024", "MI355X", "triton"),
        ("nanotron-2024", "MI355X", "fa2"),
        ("primus-2025", "MI355X", "ck"),
        ("megatron-core-2026", "MI300X", "ck"),
    ],
)
def test_pytorch_has_another_attention_on_amd(framework, gpu, kernel):
    job = job_of(cluster=cluster_for(gpu), framework=framework)
    assert job.kernels.attention == kernel


def test_fields_of_once_are_read_as_those_of_today():
    once = {"value": True, "source": "x"}
    assert under_new_fields({"deduplicated_dispatch": once, "unhidden_ep": 0.5}) == {"moe_dispatcher": "deepep"}
    assert under_new_fields({"deduplicated_dispatch": False}) == {"moe_dispatcher": "alltoall"}
    both = {"deduplicated_dispatch": True, "moe_dispatcher": "hybridep"}
    assert under_new_fields(both) == {"moe_dispatcher": "hybridep"}
    assert under_new_fields({"year": 2024}) == {"year": 2024}


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, (1, 8)),
        ({"micro_batch": 2}, (2, 4)),
        ({"gpus": 4, "micro_batch": 2}, (2, 1)),
        ({"gpus": 4, "cp": 4}, (1, 8)),
    ],
)
def test_a_step_has_as_many_microbatches_as_its_batch_divides_into(fields, count):
    job = job_of(**fields)
    assert (job.batch.micro_batch, job.parallel.microbatches) == count


@pytest.mark.parametrize(
    ("framework", "dropout", "passes"),
    # Softmax and dropout each read and write the scores; OneFlow's kernel of both reads once and writes twice.
    [("megatron-2021", None, 4), ("megatron-2021", False, 2), ("oneflow-2021", None, 3), ("oneflow-2021", False, 2)],
)
def test_scores_cross_memory_as_often_as_softmax_and_dropout_take(framework, dropout, passes):
    job = job_of(framework=framework, dropout=dropout, attention_kernel="unfused")
    assert rank_share(job).execution.score_passes == passes
    (core,) = (
        kernel
        for part in parts_of(layer_blocks(job.model, 0), rank_share(job))
        for kernel in part.kernels
        if kernel.family == "unfused_attention"
    )
    assert core.options == (("passes", str(passes)),)
