"""What the host launches for parts made up here, each count by hand."""

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from job_parts import TINY_EXPERTS, job_of
from traincast.job.frameworks import load_framework
from traincast.job.share import rank_share
from traincast.lowering.launches import (
    Launches,
    launch_s,
    layer_launches,
    message_launches,
    step_fixed_s,
    update_launches,
)
from traincast.model.blocks.part import Exchange, Gemm, Kernel, Part
from traincast.model.blocks.share import Share

PLAIN = 0.7
"""A launch of what has no module's Python around it."""
ROUTE, PERMUTE, PREPARE, NODES = 25 * PLAIN, 6 * PLAIN, 15 * PLAIN, 5 * 9
"""Kernels of a router and of a permutation, and of a dispatcher before it sends; calls of a layer's five nodes."""
ONE = Gemm(m=64, n=32, k=16, dtype="bf16")
NORM = Kernel(family="norm", shape=(64, 16), dtype="bf16")
DISPATCHER = "mlp.token_dispatcher"


class Rank(NamedTuple):
    """Blocks are their own parts."""

    share: Share

    def of_block(self, block):
        return block


def part(name="mlp.linear_fc1", **fields):
    return Part(name=name, counts_as="mlp", **fields)


def launches(*parts, job=None, block=None, module=1.0):
    """Return the launches of parts, with those of a module in multiples of a kernel's."""
    job = job or job_of()
    job = replace(job, framework=replace(job.framework, module_launches=module))
    return layer_launches(block or (parts,), Rank(rank_share(job)), job)


def counted(*parts, job=None, module=1.0):
    """Return the launches of both passes."""
    found = launches(*parts, job=job, module=module)
    return found.forward.launches, found.backward.launches


def moe(**fields):
    return job_of(TINY_EXPERTS, **{"gpus": 8, "ep": 8, "recompute": "none"} | fields)


def test_a_gemm_is_one_launch_and_its_gradients_two_with_a_hook_of_its_weight():
    assert counted(part(gemms=(ONE,))) == (1, 2 + 1)
    assert counted(part(gemms=(ONE, ONE))) == (2, 4 + 2)
    # All small parameters of a part are one tensor.
    assert counted(part(gemms=(ONE,), vectors=7)) == (1, 2 + 2)
    assert counted(part(vectors=1)) == (0, 1)
    frozen = job_of(task="lora", lora_rank=8)
    assert counted(part(gemms=(ONE,)), job=frozen) == (1, 1)
    assert counted(part(gemms=(ONE,), vectors=7), job=frozen) == (1, 1)
    assert counted(part(gemms=(ONE,), adapter=True), job=frozen) == (1, 2 + 1)


def test_modules_take_so_many_launches_more():
    """Linear layers and attention in either pass; PyTorch's own linear layers of routers and adapters do not."""
    attention = replace(NORM, family="attention")
    assert counted(part(gemms=(ONE, ONE)), module=2.5) == (2 + 2 * 1.5, 6 + 2 * 1.5)
    assert counted(part(kernels=(attention, NORM)), module=2.5) == (2 + 1.5, 2 + 1.5)
    assert counted(part("mlp.router", gemms=(ONE,)), module=2.5) == (1, 3)
    assert counted(part(gemms=(ONE,), adapter=True), module=2.5) == (1, 3)
    assert counted(part("self_attention.qk_layernorm", kernels=(NORM,)), module=2.5) == (1 + 2 * 1.5, 1 + 2 * 1.5)
    grouped = part(gemms=(replace(ONE, groups=4),), place="experts", expert=True)
    assert launches(grouped, module=2.5).forward.launches == pytest.approx(1 + 3 * 0.4 + 1.5)
    apart = job_of(TINY_EXPERTS, unfused=("experts",))
    assert launches(grouped, job=apart, module=2.5).forward.launches == pytest.approx(1 + 3 * 0.4 + 4 * 1.5)


@pytest.mark.parametrize(
    ("eager", "autocast", "name", "forward", "backward"),
    [
        # A GEMM for each projection, with the cast of its weight and of its gradient; a hook of the weight.
        (True, False, "linear_qkv", 3 * 1, 3 * 2 + 1),
        (True, False, "linear_fc1", 2 * 1, 2 * 2 + 1),
        (True, False, "linear_fc2", 1, 2 + 1),
        (True, True, "linear_qkv", 3 * 2, 3 * 3 + 1),
        # Compiled layers launch casts with what is around them.
        (False, True, "linear_qkv", 1, 2 + 1),
        (False, False, "linear_qkv", 1, 2 + 1),
    ],
)
def test_layers_of_a_library_are_launched_linear_layer_by_linear_layer(eager, autocast, name, forward, backward):
    job = job_of()
    own = replace(job.framework, eager_layers=eager, autocast=autocast, gradient_sum="gemm")
    found = counted(part(f"self_attention.{name}", gemms=(ONE,)), job=replace(job, framework=own))
    assert found == (forward, backward)


def test_sums_of_gradients_are_no_launches_of_their_own_under_autocast():
    job = job_of()
    for autocast, more in ((False, 1), (True, 0)):
        own = replace(job.framework, autocast=autocast, gradient_sum="kernel")
        assert counted(part(gemms=(ONE,)), job=replace(job, framework=own)) == (1, 3 + more)


def test_positions_are_one_kernel_or_passes_over_their_tensors():
    one, passes = (part(kernels=(replace(NORM, family="rotary", count=count),)) for count in (1, 5))
    assert counted(one) == (1, 1)
    assert counted(passes) == (pytest.approx(7), pytest.approx(7))


def test_messages_updates_and_checks_of_a_step():
    assert message_launches(job_of()) == Launches()
    assert message_launches(job_of(gpus=2, pp=2)) == Launches(10)
    checks = {(): 3, ("params_norm",): 4, ("zeros_in_grad",): 7, ("params_norm", "zeros_in_grad"): 8}
    for said, each in checks.items():
        for gemms in (0, 30):
            found = update_launches(job_of(step_checks=said), 50, gemms)
            assert found.launches == pytest.approx((50 * each + gemms) * 0.12)
    # On one GPU the first of nine parts, log2(256) + 1; on 16 five of them.
    job = job_of(gpus=16, global_batch=16)
    for steady, share in ((256, 5 / 9), (16, 1), (4, 1), (1, 1), (0, 1)):
        own = replace(job, framework=replace(job.framework, step_fixed_s=0.9, steady_gpus=steady))
        assert step_fixed_s(own) == pytest.approx(0.9 * share)


@pytest.mark.parametrize(("groups", "share"), [(1, 1), (2, 1.4), (16, 7)])
def test_further_experts_of_a_grouped_gemm_take_four_tenths_of_a_launch(groups, share):
    """1 + 0.4 (g - 1) for one GEMM each, in the backward pass for two, and the hook of the weights."""
    forward, backward = counted(part(gemms=(replace(ONE, groups=groups),)))
    assert (forward, backward) == (pytest.approx(share), pytest.approx(2 * share + 1))


@pytest.mark.parametrize("groups", [1, 16])
def test_experts_in_one_kernel_are_launched_as_one(groups):
    assert counted(part(gemms=(replace(ONE, groups=groups, in_one_kernel=True),))) == (1, 3)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(("recipe", "kernels"), [("current", 1), ("rowwise", 2)])
def test_casts_are_launched_with_their_gemm_for_each_expert(groups, recipe, kernels):
    """An input in the forward pass; a gradient in the backward pass, on top of two GEMMs and a hook."""
    job = job_of(precision="fp8", fp8_recipe=recipe)
    many = (1 + 0.4 * (groups - 1)) / groups
    forward, backward = counted(part(gemms=(replace(ONE, groups=groups, dtype="fp8"),)), job=job)
    assert forward == pytest.approx(many * groups * (1 + kernels))
    assert backward == pytest.approx(many * groups * (2 + kernels) + 1)


@pytest.mark.parametrize(("how", "more"), [("gemm", 0), ("kernel", 1), ("cast", 1), ("autograd", 1)])
def test_sums_of_gradients_are_launches_of_their_own_where_weights_are_trained(how, more):
    def decided(**fields):
        job = job_of(**fields)
        return replace(job, framework=replace(job.framework, gradient_sum=how))

    assert counted(part(gemms=(ONE,)), job=decided()) == (1, 3 + more)
    assert counted(part(gemms=(ONE,)), job=decided(task="lora", lora_rank=8)) == (1, 1)


@pytest.mark.parametrize(
    ("kernel", "forward", "backward"),
    [
        (NORM, 1, 1),
        (replace(NORM, count=3), 3, 3),
        (replace(NORM, has_backward=False), 1, 0),
        (replace(NORM, has_forward=False), 0, 1),
        (replace(NORM, family="unfused_attention"), 7, 7),
        (replace(NORM, family="state_space", count=2), 10, 10),
        (replace(NORM, family="delta_rule"), 5, 5),
        (replace(NORM, family="permute", count=2), 2 * PERMUTE, 2 * PERMUTE),
        (replace(NORM, family="route", has_backward=False), ROUTE, 0),
    ],
)
def test_a_kernel_is_as_many_launches_as_its_family_has(kernel, forward, backward):
    assert counted(part(kernels=(kernel,))) == (pytest.approx(forward), pytest.approx(backward))


def test_fused_routers_and_permutations_are_fewer():
    kernels = (replace(NORM, family="route"), replace(NORM, family="permute", count=2))
    plain = moe()
    for router, permute in ((False, False), (True, False), (False, True)):
        job = replace(plain, experts=replace(plain.experts, fused_router=router, fused_permute=permute))
        wanted = pytest.approx(PLAIN * ((8 if router else 25) + 2 * (3 if permute else 6)))
        assert counted(part(kernels=kernels), job=job) == (wanted, wanted)


def exchanging(group, size_bytes=8):
    each = (Exchange(group=group, operation="all_gather", size_bytes=size_bytes),)
    return part(forward=each, backward=2 * each)


@pytest.mark.parametrize(
    ("gpus", "tp", "pp", "more"),
    [
        # A pipeline that leaves its node: for each of two ranks a quarter of a launch.
        (16, 2, 2, 0.5),
        (16, 4, 2, 1.0),
        (16, 2, 1, 0.0),
        (8, 2, 2, 0.0),
        (4, 2, 2, 0.0),
    ],
)
def test_a_tensor_parallel_exchange_takes_its_peers_too_where_a_pipeline_leaves_its_node(gpus, tp, pp, more):
    job = job_of(gpus=gpus, tp=tp, pp=pp, global_batch=16)
    slow = replace(job.framework, host_layer_s=11 * 40e-6, host_peer_s=10e-6)
    job = replace(job, framework=slow)
    assert counted(exchanging("tp"), job=job) == (pytest.approx(1 + more), pytest.approx(2 * (1 + more)))
    assert counted(exchanging("ep"), job=job) == (1, 2)
    assert counted(exchanging("tp", size_bytes=0), job=job) == (0, 0)
    assert counted(exchanging("ep", size_bytes=1), job=job) == (1, 2)
    # A host that takes no time takes none for peers.
    free = replace(job, framework=replace(slow, host_layer_s=0.0))
    assert counted(exchanging("tp"), job=free) == (1, 2)


def test_a_launch_is_a_dense_layer_s_time_over_its_kernels():
    framework = replace(load_framework("megatron-core-2025"), host_layer_s=330e-6, module_launches=1.0)
    assert launch_s(replace(framework, module_launches=3.0)) == pytest.approx(330e-6 / (6 + 5 * 3))
    assert launch_s(replace(framework, eager_layers=True)) == pytest.approx(330e-6 / 48)
    for kernel, fused, kernels in (
        ("fa2", True, 11),
        ("fa2", False, 13),
        ("unfused", True, 17),
        ("unfused", False, 19),
    ):
        found = replace(framework, attention_kernel=kernel, fused_elementwise=fused)
        assert launch_s(found) == pytest.approx(330e-6 / kernels)
    host = Launches(22, after_wait=4, waits=3)
    assert host.seconds(framework) == pytest.approx(660e-6)
    assert host.idle_s(framework) == pytest.approx(3 * 2 * 30e-6)
    assert host.parts == (Launches(18), Launches(4, waits=3))
    assert host + host * 2 == Launches(66, after_wait=12, waits=9)


EXPERTS = (
    part("pre_mlp_layernorm", kernels=(NORM,)),
    part("mlp.router", gemms=(ONE,)),
    part(DISPATCHER, kernels=(NORM,)),
    part("mlp.experts.linear_fc1", gemms=(ONE, ONE), expert=True, place="experts"),
    part("mlp.shared_experts.linear_fc1", gemms=(ONE,), place="with dispatch"),
)
BEFORE, EXCHANGED = 1 + 1 + 1, 1 + 2
"""Launches before a dispatcher's and after, and those of dispatcher and experts."""


def test_what_a_dispatcher_and_experts_launch_follows_the_wait_for_counts_of_tokens():
    found = launches(*EXPERTS, job=moe())
    assert found.forward == Launches(BEFORE + EXCHANGED + PREPARE, after_wait=EXCHANGED, waits=1)
    # Two for each of four GEMMs, and a hook.
    assert found.backward == Launches(1 + 3 + 1 + 6 + 3)
    gathered = launches(*EXPERTS, job=moe(moe_dispatcher="allgather"))
    assert gathered.forward.launches == pytest.approx(BEFORE + EXCHANGED + 5 * PLAIN)
    stashed = launches(*EXPERTS, job=moe(moe_paged_stash=True))
    assert stashed.forward == Launches(BEFORE + EXCHANGED + PREPARE)
    dense = launches(*EXPERTS, job=job_of())
    assert dense.forward == Launches(BEFORE + EXCHANGED + PREPARE)


def test_passes_of_two_microbatches_at_once_take_calls_for_each_node():
    plain, paired = (launches(*EXPERTS, job=moe(moe_a2a_overlap=each)) for each in (False, True))
    assert paired.forward.launches == pytest.approx(plain.forward.launches + NODES * 0.12)
    assert paired.backward.launches == pytest.approx(plain.backward.launches + 5 + NODES * 0.12)
    assert (paired.forward.waits, paired.backward.waits) == (plain.forward.waits, plain.backward.waits)


def graphs(*scopes):
    job = moe()
    return replace(job, kernels=replace(job.kernels, cuda_graphs=True, cuda_graph_scope=scopes))


REPLAY = 1 + 1
"""Launches of a graph: its call, a module of one launch here, and a copy of what it reads."""


def test_a_graph_is_one_call_for_neighbours_that_it_holds_with_hooks_of_their_parameters():
    whole = launches(*EXPERTS, job=graphs())
    assert (whole.forward, whole.backward) == (Launches(REPLAY), Launches(REPLAY + 4))
    nothing = launches(*EXPERTS, job=graphs("full_iteration"))
    assert (nothing.forward, nothing.backward) == (Launches(), Launches())
    # Norm, router and shared experts, which precede the dispatch, are neighbours.
    router = launches(*EXPERTS, job=graphs("moe_router"))
    assert router.forward == Launches(REPLAY + EXCHANGED + PREPARE, after_wait=EXCHANGED, waits=1)
    # Gradients of tokens and probabilities are copied in addition to that of the layer; hooks of router and shared FC1.
    assert router.backward == Launches(REPLAY + 2 + 2 + 1 + 6)
    prepared = launches(*EXPERTS, job=graphs("moe_router", "moe_preprocess"))
    assert prepared.forward == router.forward + Launches(-PREPARE)
    # A graph of all of it waits for nothing.
    held = launches(*EXPERTS, job=graphs("moe"))
    assert (held.forward, held.backward) == (whole.forward, whole.backward)
    module = launches(*EXPERTS, job=graphs("moe"), module=2.7)
    assert module.forward == Launches(REPLAY + 1.7)


def test_shared_experts_of_a_graph_have_an_output_of_their_own():
    last = part("mlp.shared_experts.linear_fc2", gemms=(ONE,), place="with combine")
    without, held = (launches(*parts, job=graphs("moe_router")) for parts in (EXPERTS, (*EXPERTS, last)))
    assert held.forward == without.forward
    assert held.backward == without.backward + Launches(1 + 1)


def test_what_precedes_the_dispatch_is_held_with_its_preparation():
    latent = part("mlp.fc1_latent_proj", gemms=(ONE,))
    router = launches(*EXPERTS, latent, job=graphs("moe_router"))
    prepared = launches(*EXPERTS, latent, job=graphs("moe_router", "moe_preprocess"))
    assert prepared.forward == router.forward + Launches(-PREPARE - 1)


def test_what_follows_experts_until_a_graph_is_called_waits_with_them():
    back = part("mlp.fc2_latent_proj", gemms=(ONE,))
    found = launches(*EXPERTS, back, job=graphs("moe_router"))
    assert found.forward.after_wait == EXCHANGED + 1
    mixer = (part("mixer.in_proj", gemms=(ONE,)), part("mixer.conv1d", kernels=(NORM,)))
    assert launches(*mixer, job=graphs("mamba")).forward == Launches(REPLAY, after_wait=REPLAY)
    # A kernel is launched while the one before it runs; a router follows a layer without experts.
    assert launches(*mixer, job=graphs("attn")).forward == Launches(2)
    assert launches(*EXPERTS[:2], job=graphs("moe_router")).forward.after_wait == 0
    stashed = moe(moe_paged_stash=True)
    held = replace(stashed, kernels=replace(stashed.kernels, cuda_graphs=True, cuda_graph_scope=("mamba",)))
    assert launches(*mixer, job=held).forward == Launches(REPLAY)


@pytest.mark.parametrize(
    ("name", "scope"), [("self_attention.linear_qkv", "attn"), ("mixer.in_proj", "mamba"), ("mlp.linear_fc1", "mlp")]
)
def test_a_block_without_experts_has_the_scope_of_its_module(name, scope):
    parts = (part("input_layernorm", kernels=(NORM, NORM)), part(name, gemms=(ONE,)))
    for held in ("attn", "mamba", "mlp", "moe"):
        assert launches(*parts, job=graphs(held)).forward.launches == (REPLAY if held == scope else 3)


def test_blocks_of_a_layer_add_up_and_those_that_are_held_side_by_side_are_one_graph():
    attention, mlp = (part("self_attention.linear_qkv", gemms=(ONE,)),), (part("mlp.linear_fc1", gemms=(ONE, ONE)),)
    both = {"block": (attention, mlp)}
    assert launches(job=job_of(), **both).forward.launches == 3
    assert launches(job=graphs("attn", "mlp"), **both).forward.launches == REPLAY
    assert launches(job=graphs("attn"), **both).forward.launches == REPLAY + 2
    assert launches(job=graphs("mlp"), **both).forward.launches == 1 + REPLAY


def test_modules_are_launched_again_with_what_runs_them():
    parts = (
        part("self_attention.core_attention", kernels=(NORM,), modules=("core_attn", "attn")),
        part("self_attention.linear_proj", gemms=(ONE, ONE), modules=("attn",)),
        part("mlp.linear_fc1", gemms=(ONE,)),
    )
    assert launches(*parts).modules == {"core_attn": Launches(1), "attn": Launches(3)}
    assert launches(*parts, job=graphs()).modules == {}
