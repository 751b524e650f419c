"""What the host launches for layers, counted by hand."""

import pytest
from msgspec.structs import replace

from job_parts import job_of
from traincast.hardware.clusters import load_cluster
from traincast.job.frameworks import load_framework
from traincast.job.share import rank_share
from traincast.lowering.launches import Launches, layer_launches, message_launches, step_fixed_s, update_launches
from traincast.model.structure import RankParts, layer_blocks
from traincast.simulation.job_step import run_job
from traincast.simulation.step import Setting


def of(job):
    return layer_launches(layer_blocks(job.model, job.model.layers - 1), RankParts(rank_share(job)), job)


def moe(**changes):
    return job_of("qwen3-30b-a3b", gpus=8, ep=8, **changes)


def test_a_dense_layer_takes_the_time_that_its_framework_says():
    found = of(job_of("llama3-8b", gpus=1))
    # Five modules, of 2.7 launches each; norms, positions, activation and sums.
    assert found.forward.launches == pytest.approx(5 * 2.7 + 6)
    # Four more GEMMs, and a hook of each of four weights and two norms.
    assert found.backward.launches == pytest.approx(5 * 2.7 + 6 + 4 + 6)
    framework = load_framework("megatron-core-2025")
    assert found.forward.seconds(framework) == pytest.approx(framework.host_layer_s)


def test_launches_grow_with_local_experts_and_their_casts():
    few, many = of(moe()), of(job_of("qwen3-30b-a3b", gpus=8, ep=2))
    # 64 instead of 16 experts on a rank: two GEMMs each, twice as many in the backward pass, 0.4 of a launch each.
    assert many.forward.launches - few.forward.launches == pytest.approx(0.4 * 2 * 48)
    assert many.backward.launches - few.backward.launches == pytest.approx(0.4 * 4 * 48)
    cast = of(moe(precision="fp8_block"))
    assert cast.forward.launches - few.forward.launches >= 0.4 * 2 * 16
    fused = of(moe(precision="fp8_block", te_op_fuser=True))
    assert fused.forward.launches < cast.forward.launches - 0.4 * 2 * 14


@pytest.mark.parametrize(("recipe", "casts"), [("delayed", 1), ("current", 1), ("rowwise", 2)])
def test_a_dense_layer_launches_the_casts_of_its_recipe(recipe, casts):
    """Four GEMMs cast an input each in the forward pass and a gradient in the backward pass."""
    plain = of(job_of("llama3-8b", gpus=1))
    found = of(job_of("llama3-8b", gpus=1, precision="fp8", fp8_recipe=recipe))
    for cast, usual in ((found.forward, plain.forward), (found.backward, plain.backward)):
        assert cast.launches - usual.launches == pytest.approx(4 * casts)


def test_the_host_waits_for_counts_of_tokens_that_are_not_fixed():
    assert of(moe()).forward.waits == 1
    assert of(moe()).backward.waits == 0
    assert of(moe(moe_paged_stash=True)).forward.waits == 0
    job = moe()
    dropping = replace(job.model, experts=replace(job.model.experts, capacity_factor=1.0))
    assert of(replace(job, model=dropping)).forward.waits == 0
    assert of(job_of("llama3-8b", gpus=1)).forward.waits == 0


def test_what_arrives_is_put_in_order_by_one_copy_where_experts_have_a_capacity_and_not_at_all_for_one():
    job = moe(moe_dispatcher="alltoall")
    dropping = replace(job.model, experts=replace(job.model.experts, capacity_factor=1.0))
    plain, fixed = (of(each).backward.launches for each in (job, replace(job, model=dropping)))
    # There and back: six kernels, or tokens and the weights of the router, whose backward pass drops what is too much.
    assert plain - fixed == pytest.approx((2 * (6 - 2) - 1) * 0.7)
    for ep, count in ((8, 0), (4, 2)):
        _, of_arrived = kernels_of(job_of("mixtral-8x7b", gpus=ep, ep=ep, moe_dispatcher="alltoall"), "permute")
        assert of_arrived.count == count


def test_the_host_waits_for_the_offset_of_an_activation_that_it_copies():
    job = job_of("gpt-oss-20b", gpus=8, ep=8)
    assert of(job).forward.waits == 2
    assert of(replace(job, kernels=replace(job.kernels, te_op_fuser=True))).forward.waits == 1
    # It is copied again where the activation is recomputed, while counts of tokens are known.
    assert of(job).modules["moe_act"].waits == 1
    # With a capacity counts of tokens are fixed, and the offset is copied all the same.
    capacity = replace(job.model.experts, capacity_factor=1.0)
    assert of(replace(job, model=replace(job.model, experts=capacity))).forward.waits == 1


def test_what_sums_up_gradients_of_the_routers_weights_is_launched_with_the_activation():
    job = moe()
    before = replace(job, framework=replace(job.framework, sends_router_weights=False))
    assert of(job).backward.launches - of(before).backward.launches == pytest.approx(1 + 0.12 - 1)


def test_a_dispatcher_with_fixed_numbers_of_tokens_prepares_little_but_drops():
    job = moe()
    dropping = replace(job.model, experts=replace(job.model.experts, capacity_factor=1.0))
    # Two kernels instead of fifteen, and five that drop, each a plain operation.
    fewer = of(job).forward.launches - of(replace(job, model=dropping)).forward.launches
    assert fewer == pytest.approx((15 - 2 - 5) * 0.7)


def test_hybridep_makes_its_maps_itself():
    plain, fused = (of(moe(moe_dispatcher=name)).forward.launches for name in ("deepep", "hybridep"))
    # Eleven plain operations less, and an exchange of the routing map more.
    assert plain - fused == pytest.approx((15 - 4) * 0.7 - 1)


def test_a_layer_that_is_interleaved_with_another_microbatch_takes_calls_for_its_nodes():
    plain, nodes = of(moe()), of(moe(moe_a2a_overlap=True))
    for found, once, runs in ((nodes.forward, plain.forward, 0), (nodes.backward, plain.backward, 5)):
        # Attention, router, dispatch, experts, combination: nine calls each, none of which computes or waits.
        assert found.launches == pytest.approx(once.launches + runs + 5 * 9 * 0.12)
    whole = moe(moe_a2a_overlap=True, cuda_graph_impl="full_iteration")
    assert of(whole).forward == Launches()


def test_graphs_remove_the_launches_of_what_they_hold():
    def forward(**graphs):
        return of(moe(**graphs)).forward.launches

    none = forward()
    attention = forward(cuda_graph_scope=("attn",))
    # Norm, two GEMMs, positions, norms of queries and keys, attention and the sum become one.
    assert attention < none - 5
    router = forward(cuda_graph_scope=("moe_router", "moe_preprocess"))
    # 0.7 launches for each kernel of the router and of what precedes the dispatch.
    assert router < none - 12
    both = forward(cuda_graph_scope=("attn", "moe_router", "moe_preprocess"))
    # What is held side by side is one graph: a call as of a linear layer, and a copy of what it reads.
    assert both == pytest.approx(attention + router - none - (2.7 + 1))
    assert of(moe(cuda_graph_impl="full_iteration")).forward == Launches()
    whole = of(moe(cuda_graphs=True))
    assert whole.forward == Launches(2.7 + 1)
    # Hooks of five linear layers, and of the scales of norms before both blocks, of queries and of keys.
    assert whole.backward.launches == pytest.approx(2.7 + 1 + 5 + 3)


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
def test_tensors_of_experts_are_made_one_by_one_though_one_kernel_casts_all(recipe):
    plain, cast = of(moe(cluster="b200")), of(moe(cluster="b200", precision=recipe))
    # Sixteen tensors each are cast for two GEMMs, and one for each of two linear layers of attention. Tokens are copied
    # to where matrix units take them, and back.
    each = (1 + 0.4 * 15) / 16
    assert cast.forward.launches - plain.forward.launches == pytest.approx(2 * 16 * each + 2 + 2)
    fused = of(moe(cluster="b200", precision=recipe, te_op_fuser=True))
    assert cast.forward.launches - fused.forward.launches >= 2 * 15 * each


def test_the_age_of_a_framework_is_in_its_kernels():
    old = load_framework("megatron-2021")
    counted = {
        name: of(job_of("llama3-8b", gpus=1, framework=name)).forward
        for name in ("megatron-2021", "megatron-core-2025")
    }
    # Attention is seven kernels, and linear layers are lighter.
    assert counted["megatron-2021"].launches - counted["megatron-core-2025"].launches == pytest.approx(6 - 5 * 1.2)
    assert counted["megatron-2021"].seconds(old) == pytest.approx(old.host_layer_s, rel=0.1)


def test_collectives_take_longer_for_each_peer_where_a_pipeline_crosses_nodes():
    """Ten collectives of a layer, 40 us for each of two ranks: that of one launch."""
    slow = replace(load_framework("megatron-core-2025"), host_peer_s=40e-6)

    def both(job, framework):
        found = of(replace(job, framework=framework))
        return found.forward.launches + found.backward.launches

    usual = load_framework("megatron-core-2025")
    over = job_of("llama3-8b", gpus=16, tp=2, pp=2)
    assert both(over, slow) - both(over, usual) == pytest.approx(10 * 2)
    for job in (job_of("llama3-8b", gpus=8, tp=2, pp=2), job_of("llama3-8b", gpus=16, tp=2, pp=1)):
        assert both(job, slow) == both(job, usual)


@pytest.mark.parametrize(("how", "more"), [("gemm", 0), ("kernel", 4), ("cast", 4)])
def test_gradients_that_gemms_do_not_add_up_are_launches_of_their_own(how, more):
    job = job_of("llama3-8b", gpus=1)
    usual, found = of(job), of(replace(job, framework=replace(job.framework, gradient_sum=how)))
    assert found.backward.launches - usual.backward.launches == pytest.approx(more)
    assert found.forward == usual.forward


def test_what_is_not_fused_is_launched_by_itself():
    usual, job = of(job_of("llama3-8b", gpus=1)), job_of("llama3-8b", gpus=1, unfused=("rope", "gradient_sums"))
    # Five passes over queries and over keys instead of one kernel; a sum for each of four weights.
    assert of(job).forward.launches - usual.forward.launches == pytest.approx(2 * 5 * 0.7 - 1)
    assert of(job).backward.launches - usual.backward.launches == pytest.approx(2 * 5 * 0.7 - 1 + 4)
    assert rank_share(job).execution.gradient_sum == "kernel"
    # Sixteen experts of a rank, one after the other, are two linear modules each.
    each = of(moe(unfused=("experts",)))
    assert each.forward.launches - of(moe()).forward.launches == pytest.approx(2 * 15 * 1.7)


def kernels_of(job, family):
    parts = RankParts(rank_share(job)).of_blocks(layer_blocks(job.model, job.model.layers - 1))
    return [kernel for part in parts for kernel in part.kernels if kernel.family == family]


def test_latent_attention_turns_a_part_of_each_head():
    (turned,) = kernels_of(job_of("deepseek-v3", gpus=1, unfused=("rope",)), "rotary")
    assert (turned.count, turned.shape[-1]) == (5, 64)
    (fused,) = kernels_of(job_of("deepseek-v3", gpus=1), "rotary")
    assert (fused.count, fused.shape[-1]) == (1, 192)


@pytest.mark.parametrize(
    ("framework", "fused", "kernel"),
    [
        ("megatron-core-2025", True, "fused"),
        ("megatron-core-2025", False, "single"),
        ("megatron-core-2024", False, "weighted"),
    ],
)
def test_the_routers_weights_go_with_tokens_or_multiply_what_comes_back(framework, fused, kernel):
    permutes = kernels_of(moe(framework=framework, fused_permute=fused), "permute")
    assert dict(permutes[0].options)["kernel"] == kernel
    # What arrives is put into the order of the experts in the same way, however tokens are permuted.
    assert all(not each.options for each in permutes[1:])


@pytest.mark.parametrize(
    ("fields", "padded"),
    [
        ({}, False),
        ({"precision": "fp8"}, True),
        ({"precision": "fp8", "moe_dispatcher": "deepep"}, True),
        ({"precision": "fp8", "moe_dispatcher": "hybridep"}, False),
    ],
)
def test_tokens_of_experts_are_copied_to_where_matrix_units_take_them(fields, padded):
    """Once there and once back in either pass, but where the dispatcher or a fixed number of tokens sees to it."""
    job = moe(**fields)
    fixed = replace(job, model=replace(job.model, experts=replace(job.model.experts, capacity_factor=1.0)))
    copies, none = (
        [(each.count, each.has_forward) for each in kernels_of(one, "elementwise") if each.shape == (8 * 1024, 2048)]
        for one in (job, fixed)
    )
    assert (copies, none) == ([(2, True), (2, False)] if padded else [], [])


def test_norms_of_heads_are_modules_of_their_own():
    plain, normed = (of(job_of(name, gpus=1)).forward.launches for name in ("llama3-8b", "qwen3-8b"))
    assert normed - plain == pytest.approx(1 + 2 * 1.7)


def test_layers_without_transformer_engine_have_lighter_modules_and_unfused_attention():
    job = job_of("llama3-8b", gpus=1, framework="megatron-core-local")
    assert job.kernels.attention == "unfused"
    assert of(job).forward.seconds(job.framework) == pytest.approx(job.framework.host_layer_s)


def test_messages_between_stages_are_launched():
    one, two = (message_launches(job_of("llama3-8b", gpus=8, pp=pp)).launches for pp in (1, 2))
    assert (one, two > 5) == (0, True)


def test_an_update_takes_time_for_each_tensor_and_each_check():
    job = job_of("llama3-8b", gpus=1)
    logged = job_of("llama3-8b", gpus=1, step_checks=("params_norm", "zeros_in_grad"))
    usual = update_launches(job, 100, 0).launches
    assert update_launches(job, 200, 0).launches == pytest.approx(2 * usual)
    assert update_launches(logged, 100, 0).launches == pytest.approx(usual * (3 + 1 + 4) / 3)
    # Three GEMMs of each step of Muon and matrix.
    assert update_launches(job, 100, 300).launches == pytest.approx(2 * usual)


def test_launches_that_block_keep_the_gpu_waiting_for_each_of_them():
    """Where a GPU is never idle its step grows by all launches of its layers, and by no more than once where it is."""
    setting = Setting(cluster=load_cluster("h100"), engine="kernel")

    def step_s(**changes):
        return run_job(job_of("llama3-8b", gpus=1, micro_batch=1, global_batch=2, seq_length=8192, **changes), setting)

    usual, blocking = step_s(), step_s(launch_blocking=True)
    layers = of(usual.job)
    factor = usual.factors.factor("host layers")
    launches = 2 * 32 * factor * sum(each.blocking_s(usual.job.framework) for each in (layers.forward, layers.backward))
    assert blocking.step_s - usual.step_s == pytest.approx(launches, rel=0.1)
    graphs = [step_s(cuda_graph_impl="full_iteration", launch_blocking=said).step_s for said in (False, True)]
    assert graphs[1] == pytest.approx(graphs[0], rel=0.01)


def test_nothing_overlaps_where_launches_block():
    setting = Setting(cluster=load_cluster("h100"), engine="kernel")
    job = job_of("llama3-8b", gpus=64, tp=4, global_batch=64, launch_blocking=True, cuda_graph_impl="full_iteration")
    apart = job_of("llama3-8b", gpus=64, tp=4, global_batch=64, cuda_graph_impl="full_iteration", overlap_tp=False)
    assert run_job(job, setting).step_s >= run_job(apart, setting).step_s


def test_the_fixed_part_of_a_step_grows_with_the_logarithm_of_the_ranks():
    times = [step_fixed_s(job_of("llama3-8b", gpus=gpus, global_batch=gpus)) for gpus in (1, 2, 4, 256)]
    assert times[1] - times[0] == pytest.approx(times[2] - times[1])
    assert times[-1] == pytest.approx(load_framework("megatron-core-2025").step_fixed_s)
