"""What the host does to launch the passes of a layer: the same rule for dense layers and those with experts.

Every kernel, every collective and every CUDA graph that is replayed is a launch: a call of Python with what the
framework keeps in its books, PyTorch's dispatcher, the driver. Grouped GEMMs launch one for each local expert, and so
do their casts, in a loop. How long one takes follows from what a framework needs for a dense layer
(`Framework.host_layer_s`), and from the host's processor (`Gpu.host_slowdown`). A linear layer of Transformer Engine,
one kernel, takes 100 us on the host of a GB200, where PyTorch's own takes 37 us, on an x86 server 13.5 us
(NVIDIA/TransformerEngine#2053).
"""

from math import log2

from msgspec import Struct
from msgspec.structs import replace

from traincast.job.frameworks import FULL_ITERATION, Framework
from traincast.job.job import Job
from traincast.lowering.casts import Kernels, casts_of, launches_of
from traincast.model.blocks import eager
from traincast.model.blocks.common import gradient_sums
from traincast.model.blocks.experts import IN_LOOP, IN_SAME_CALL, clamps_inputs
from traincast.model.blocks.part import ATTENTION_FAMILIES, Exchange, Gemm, Kernel, Part
from traincast.model.blocks.share import Share
from traincast.model.dispatch import DISPATCHERS
from traincast.model.numbers import Number, Summed, added
from traincast.model.structure import Blocks, RankParts

_DENSE_LAYER = 6
"""Launches of a dense layer's forward pass in 16 bits besides its modules: two norms, positions, activation and two
residual sums (Megatron-LM, megatron/core/transformer/transformer_layer.py)."""

_MODULES = 5
"""Its modules, each of which takes as many launches as its framework says (`Framework.module_launches`): four linear
layers and attention."""

_EAGER_LAYER = 48
"""Launches of a dense layer's forward pass where each is one operation of PyTorch: two norms of 6 with 5 casts for
those who read them, 7 linear layers with the casts of their weights, 12 of positions, attention, activation and its
gate, two sums (`traincast.model.blocks.eager`)."""

_UNFUSED_SUMS = 2
"""More of them where dropout and bias are kernels of their own."""

_KERNELS = {"unfused_attention": 7, "state_space": 5, "delta_rule": 5}
"""Kernels of one call of a family, where they are more than one: two batched GEMMs, scale, mask, softmax, dropout and
its mask (Megatron-LM, megatron/core/transformer/dot_product_attention.py); the five of a chunked scan
(state-spaces/mamba, ops/triton/ssd_combined.py; fla-org/flash-linear-attention, ops/gated_delta_rule)."""

_ROUTE, _ROUTE_FUSED = 25, 8
"""Kernels of the router: scores, top-k, map and probabilities of the tokens, the auxiliary losses (Megatron-LM,
megatron/core/transformer/moe/router.py and moe_utils.py); fused: three of Transformer Engine, and sums."""

_PERMUTE, _PERMUTE_FUSED = 6, 3
"""Kernels of a permutation: sort or mask, index, gather, weights (moe_utils.py, permute and unpermute); fused:
transformer_engine/pytorch/permutation.py."""

_ORDER_FIXED = 1
"""Likewise of what comes to a rank's experts where each has as many tokens as its capacity says: a transposed copy, and
one of the router's weights where they come with it (token_dispatcher.py, drop_and_pad)."""

_PREPARE_FIXED = 2
"""Kernels of a dispatcher before it sends where every expert has as many tokens as its capacity says: two tensors
filled with it (Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py, preprocess)."""

_DROP, _DROP_BACKWARD = 5, 1
"""Kernels that drop what is beyond a capacity: the top tokens of each expert, their map, and its product with the
probabilities, which alone has a gradient (moe_utils.py, apply_router_token_dropping)."""

_AFTER_WAIT = 2
"""Launches that nothing hides where the host has waited for the GPU: the copy that it reads, and the next kernel."""

_BLOCKED_S = 6e-6
"""More for a launch whose kernel the host waits for: 9.6 us from one kernel of 2.9 us to the next, where launches that
do not wait for each other take 3.8 us (NVIDIA, Getting Started with CUDA Graphs, developer.nvidia.com/blog)."""

_NODES, _OF_NODE = 5, 9
"""Nodes of a layer's pass whose exchanges another microbatch hides, attention, router, dispatch, experts and
combination, and calls for each: it waits for an event of the other stream and records its own, opens and closes a range
of the profiler, changes the stream and back, makes views of its own of what it reads and returns, and tells the
allocator who uses them (Megatron-LM, megatron/core/models/gpt/fine_grained_callables.py, megatron/core/
pipeline_parallel/utils.py, ScheduleNode: core_v0.15.0). None of these computes; backward each runs autograd once."""

_IN_GROUP = 0.4
"""Time of a launch for one more expert of a grouped GEMM over that of a single one: a loop in C++ makes it, but its
tensors are made in Python. Of what has no such tensors it is 0.1: 128 GEMMs in 1.2 ms where a linear layer takes 0.1
(NVIDIA/TransformerEngine#2897, #2053). Of 50 published MoE runs that launches decide the 90th percentile of errors is
23 % with 0.4, 29 % with 0.6 and 24 % with 0.3."""

_PLAIN = 0.7
"""Time of a plain operation of PyTorch in routing and dispatch over that of a launch, which has a module's Python with
it. Megatron-LM's own tests on two of A100, H100 and GB200 say 0.5 to 0.7, and then forecast those on the third with
errors of 10 to 18 % in the median (studies/judges/golden.py); published MoE runs need the upper end."""

_OF_LOOP = 0.12
"""Likewise in a loop over tensors that does nothing else: 8 us; the same tests say 0.11 to 0.14. Code that PyTorch
compiled does no more, either."""

_MESSAGE = 10
"""Launches of a message between pipeline stages: its buffer, the shapes and the list of sends and receives, the call
of NCCL, the wait, and what schedules make of it (Megatron-LM, megatron/core/pipeline_parallel/p2p_communication.py and
schedules.py). The same tests say 5 to 15."""

_UPDATE = 3
"""Operations of an update for each tensor of parameters: its gradient is copied into that of the main parameter, which
is copied back when the fused kernel has updated it, and the norm, the clipping and the optimizer look at each one
(Megatron-LM, megatron/core/optimizer/distrib_optimizer.py and optimizer.py)."""

_CHECKS = {"params_norm": 1, "zeros_in_grad": 4}
"""More of them for what is logged: a copy in fp32; the zeros, their number, and two sums (Megatron-LM,
megatron/training/utils.py, calc_params_l2_norm; megatron/core/optimizer/clip_grads.py, count_zeros_fp32)."""

_COPIED = 1
"""Tensors that are copied to where a graph reads them before each of its replays: the hidden states, or their gradient.
The call itself is one of autograd's functions with the books of Transformer Engine, as a linear layer is, and the hooks
of the parameters that a graph holds run outside of it (NVIDIA/TransformerEngine, transformer_engine/pytorch/graph.py,
Graphed and new_fwd; Megatron-LM, megatron/core/transformer/module.py, _te_cuda_graph_replay)."""

_MORE_OUTPUTS = {"mlp.router": 2, "mlp.shared_experts.linear_fc2": 1}
"""Further outputs of a graph that ends where tokens go to their experts, whose gradients are copied, too: these tokens,
their probabilities, and what shared experts made of all (Megatron-LM, megatron/core/transformer/transformer_layer.py,
_te_cuda_graph_replay_impl)."""

_ROUTER = "mlp.router"
_NORM_MODULES = {"self_attention.qk_layernorm": 2}
"""Parts with norms that are modules of their own, and how many; others are in the linear layer that follows."""

_SCOPE_OF_NAME = {"self_attention": "attn", "cross_attention": "attn", "mixer": "mamba", "mlp": "mlp"}
_WITH_EXPERTS = {
    "moe_router": ("mlp.router", "pre_mlp_layernorm", "mlp.shared_experts"),
    "moe_preprocess": ("mlp.fc1_latent_proj",),
    "moe": ("",),
}
"""Parts of a block with experts by the scope that holds them, as their names begin, in the order in which they run."""

_DISPATCHER = "mlp.token_dispatcher"
_ACTIVATION = "mlp.experts.activation_func"


class Launches(Summed, frozen=True):
    """What the host does in some passes."""

    launches: Number = 0.0
    after_wait: Number = 0.0
    """Those of them that follow a wait at once: exchanges with experts and what is between."""
    waits: Number = 0.0
    """Times that it waits for the GPU to tell it a number."""

    @property
    def parts(self) -> tuple["Launches", "Launches"]:
        """Return what precedes the waits, and what follows each of them at once."""
        return Launches(self.launches - self.after_wait), Launches(self.after_wait, waits=self.waits)

    def seconds(self, framework: Framework) -> Number:
        """Return the time of its launches on an x86 server."""
        return self.launches * launch_s(framework)

    def blocking_s(self, framework: Framework) -> Number:
        """Return the time of its launches where the host waits for each kernel, likewise."""
        return self.launches * (launch_s(framework) + _BLOCKED_S)

    def idle_s(self, framework: Framework) -> Number:
        """Return the time for which its waits leave the GPU without work, likewise."""
        return self.waits * _AFTER_WAIT * launch_s(framework)


def message_launches(job: Job) -> Launches:
    """Return what the host does in a pass of a virtual stage to receive its input and to send its output."""
    return Launches(_MESSAGE) if job.parallel.pp > 1 else Launches()


def update_launches(job: Job, tensors: Number, gemms: Number = 0) -> Launches:
    """Return what the host does to update so many tensors of parameters, and to log what the job asks for.

    `gemms` are those of the update itself: three for each matrix and step of Muon.
    """
    each = _UPDATE + sum(_CHECKS[name] for name in job.kernels.step_checks)
    return Launches((tensors * each + gemms) * _OF_LOOP)


def step_fixed_s(job: Job) -> float:
    """Return the time of a step besides its work, on an x86 server."""
    whole, steady = job.framework.step_fixed_s, job.framework.steady_gpus
    if not steady:
        return whole
    return whole * (1 + log2(min(job.parallel.world_size, steady))) / (1 + log2(steady))


def launch_s(framework: Framework) -> float:
    """Return the time of a launch on an x86 server, from that of a dense layer's in 16 bits."""
    if framework.eager_layers:
        return framework.host_layer_s / _EAGER_LAYER
    attention = _KERNELS["unfused_attention"] - 1 if framework.attention_kernel == "unfused" else 0
    others = _DENSE_LAYER + attention + (0 if framework.fused_elementwise else _UNFUSED_SUMS)
    return framework.host_layer_s / (others + _MODULES * framework.module_launches)


_INTERLEAVED = (Launches(_NODES * _OF_NODE * _OF_LOOP), Launches(_NODES * (_OF_NODE * _OF_LOOP + 1)))


class LayerLaunches(Struct, frozen=True):
    """What the host does in each pass of a layer, and to recompute a module of it."""

    forward: Launches
    backward: Launches
    modules: dict[str, Launches]


def layer_launches(blocks: Blocks, of_rank: RankParts, job: Job) -> LayerLaunches:
    """Return what the host does for a layer of some blocks."""
    held = job.kernels.cuda_graph_scope if job.kernels.cuda_graphs else ()
    forward, backward, modules = Launches(), Launches(), dict[str, Launches]()
    if FULL_ITERATION in held:
        return LayerLaunches(forward, backward, modules)
    parts = [(part, scope) for block in blocks for part, scope in _scopes(of_rank.of_block(block))]
    graph, waits, share = False, _waits(job) and not _is_held("moe", job), of_rank.share
    # The experts of the layer before precede a graph that a layer begins with, and nothing of it runs before its call.
    follows = waits and parts[0][1] not in _WITH_EXPERTS and _is_held(parts[0][1], job)
    for part, scope in parts:
        inside = _is_held(scope, job)
        if inside:
            # Neighbours that are held are one graph.
            own = Launches() if graph else Launches(job.framework.module_launches + _COPIED)
            ends = _MORE_OUTPUTS.get(part.name, 0) if held and "moe" not in held else 0
            back = own + Launches(ends + _hooks(part, share))
        else:
            own, back = Launches(_forward(part, share, job)), Launches(_backward(part, share, job))
            follows = follows or (waits and part.name == _DISPATCHER)
        if follows:
            own = replace(own, after_wait=own.launches)
        follows = follows and not inside
        if part.name == _DISPATCHER and not inside:
            # Counts of tokens, which the host waits for before it sends them.
            own += Launches(0 if "moe_preprocess" in held else _prepare(job) * _PLAIN, waits=float(waits))
            if job.experts.a2a_overlap:
                own, back = own + _INTERLEAVED[0], back + _INTERLEAVED[1]
        if part.name == _ACTIVATION and not inside:
            own += Launches(waits=float(_copies_offset(job)))
        graph = inside
        forward, backward = forward + own, backward + back
        for name in () if inside else part.modules:
            modules[name] = modules.get(name, Launches()) + own
    return LayerLaunches(forward, backward, modules)


def _is_held(scope: str, job: Job) -> bool:
    """Say whether CUDA graphs hold a module: those of its scope, those of all that experts need, or of whole layers."""
    held = job.kernels.cuda_graph_scope
    return job.kernels.cuda_graphs and (not held or scope in held or ("moe" in held and scope in _WITH_EXPERTS))


def _scopes(parts: tuple[Part, ...]) -> list[tuple[Part, str]]:
    """Return the parts of a block, each with the module that a graph's scope names for it, in their order.

    Shared experts precede the dispatch, and so does the projection to the width that is sent. Sources: Megatron-LM,
    megatron/core/transformer/transformer_config.py (cuda_graph_scope); megatron/core/transformer/moe/moe_layer.py
    (forward, preprocess).
    """
    if any(part.expert for part in parts):
        scopes = list(_WITH_EXPERTS)
        found = [(part, next(each for each in scopes if part.name.startswith(_WITH_EXPERTS[each]))) for part in parts]
        return sorted(found, key=lambda each: scopes.index(each[1]))
    names = (_SCOPE_OF_NAME.get(part.name.partition(".")[0]) for part in parts)
    scope = next((name for name in names if name), "")
    return [(part, scope) for part in parts]


def _waits(job: Job) -> bool:
    """Say whether the host waits for how many tokens come to its experts, for that is not fixed."""
    return not job.experts.paged_stash and job.model.experts is not None and _capacity(job) is None


def _copies_offset(job: Job) -> bool:
    """Say whether the host waits for a number that it copies to the GPU: what gpt-oss's activation adds to a half.

    Source: Megatron-LM, megatron/core/fusions/fused_bias_geglu.py (weighted_bias_quick_geglu_impl: torch.tensor on the
    device, a copy from memory that is not pinned).
    """
    return clamps_inputs(job.model) and not job.kernels.te_op_fuser


def _prepare(job: Job) -> int:
    """Return the kernels of a dispatcher before it sends."""
    kernels = DISPATCHERS[job.experts.dispatcher].prepares
    return kernels if _capacity(job) is None else min(kernels, _PREPARE_FIXED)


def _capacity(job: Job) -> float | None:
    return None if job.model.experts is None else job.model.experts.capacity_factor


def _forward(part: Part, share: Share, job: Job) -> Number:
    sent = _sent(part.forward, share, job)
    kernels = added(_kernels(each, job) for each in part.kernels if each.has_forward)
    trained = _trained(part, share)
    gemms = added(
        _of_group(gemm, _own(gemm) + _casts(casts_of(gemm, share, trained=trained).forward, gemm, share))
        for gemm in part.gemms
    )
    return sent + eager.linear_layers(share, part.name) * gemms + kernels + _of_modules(part, job)


def _of_modules(part: Part, job: Job) -> Number:
    """Return what the modules of a part take in either pass in addition to their kernels."""
    if part.name == _ROUTER or part.adapter:
        return 0  # PyTorch's own linear layers
    norms = _NORM_MODULES.get(part.name, 0)
    cores = sum(each.family in ATTENTION_FAMILIES for each in part.kernels)
    linear: Number = len(part.gemms)
    if part.place == "experts" and "experts" in job.kernels.unfused:
        linear = added(gemm.groups for gemm in part.gemms)
    return (linear + norms + cores) * (job.framework.module_launches - 1)


def _sent(exchanges: tuple[Exchange, ...], share: Share, job: Job) -> Number:
    """Return the launches of some exchanges, in those of kernels (`Framework.host_peer_s`)."""
    framework, ranks = job.framework, share.execution.ranks_per_node
    crosses = job.parallel.pp > 1 and job.parallel.world_size > ranks
    launch = launch_s(framework)
    peer = framework.host_peer_s / launch if crosses and launch else 0.0  # a host that takes no time takes none here
    return added((1 + share.tp * peer * (each.group == "tp")) * (each.size_bytes > 0) for each in exchanges)


def _backward(part: Part, share: Share, job: Job) -> Number:
    """Return those of a backward pass: of a GEMM the gradients of its input and of its weight."""
    sent = _sent(part.backward, share, job)
    trained = _trained(part, share)
    times = 2 if trained else 1
    gemms = added(
        _of_group(gemm, times * _own(gemm) + _casts(casts_of(gemm, share, trained=trained).backward, gemm, share))
        + (len(gradient_sums(share, gemm.elements)) if trained and not share.execution.autocast else 0)
        for gemm in part.gemms
    )
    kernels = added(_kernels(each, job, backward=True) for each in part.kernels if each.has_backward)
    hooks, modules = _hooks(part, share), _of_modules(part, job)
    return sent + eager.linear_layers(share, part.name) * gemms + kernels + hooks + modules


def _hooks(part: Part, share: Share) -> Number:
    """Return the hooks of a part's tensors of parameters: each counts one as ready to be reduced, or adds it."""
    return len(part.gemms) + (part.vectors > 0) if _trained(part, share) else 0


def _own(gemm: Gemm) -> Number:
    return 1 if gemm.in_one_kernel else gemm.groups


def _of_group(gemm: Gemm, launches: Number) -> Number:
    """Return launches for a GEMM of several experts in those of single ones: all but the first come from one call."""
    if gemm.in_one_kernel:
        return launches
    return launches * (1 + _IN_GROUP * (gemm.groups - 1)) / gemm.groups


def _casts(kernels: Kernels, gemm: Gemm, share: Share) -> Number:
    """Return the launches of the casts of a GEMM; compiled layers launch those of weights with what is around.

    The operation fuser of Transformer Engine keeps the tensors of all experts as one (ops, grouped_linear.py).
    """
    if share.execution.autocast and not share.execution.eager_layers:
        return 0
    return launches_of(kernels, 1 if share.execution.fused_expert_casts else gemm.groups)


def _trained(part: Part, share: Share) -> bool:
    return share.trains_weights or part.adapter


def _kernels(kernel: Kernel, job: Job, *, backward: bool = False) -> Number:
    """Return the kernels of a part's work besides its GEMMs and their casts."""
    if kernel.family == "route":
        dropped = 0 if _capacity(job) is None else _DROP_BACKWARD if backward else _DROP
        return ((_ROUTE_FUSED if job.experts.fused_router else _ROUTE) + dropped) * _PLAIN
    if kernel.family == "permute":
        each = _PERMUTE_FUSED if job.experts.fused_permute else _PERMUTE
        if not kernel.options and _capacity(job) is not None:
            each = _ORDER_FIXED * (2 if job.framework.sends_router_weights else 1)
        return kernel.count * each * _PLAIN
    if kernel.family == "rotary" and kernel.count > 1:
        return 2 * kernel.count * _PLAIN
    if IN_LOOP in kernel.options or IN_SAME_CALL in kernel.options:
        return kernel.count * _OF_LOOP
    return kernel.count * _KERNELS.get(kernel.family, 1)
