"""The routed and shared experts of a layer, and how many nodes the experts of a token are on.

Node-limited routing picks some groups of experts for a token, then its experts among these alone; with a group on
each node that bounds the nodes it reaches. Source: DeepSeek-AI, arXiv 2405.04434, section 2.2.2, and arXiv 2412.19437,
section 2.1.2; Megatron-LM, megatron/core/transformer/moe/moe_utils.py (group_limited_topk).
"""

from collections import Counter
from collections.abc import Sequence
from math import comb

import numpy as np
from msgspec import Struct

from traincast.errors import ConfigError
from traincast.model.blocks.common import around, exchange, residual
from traincast.model.blocks.mlp import activation, activations, gemms, mlp_norms, up_matrices
from traincast.model.blocks.part import Exchange, Gemm, Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Experts, Model
from traincast.model.numbers import Number, ceil_div, choose, rounded, smaller
from traincast.model.routing import consecutive_places

IN_LOOP, IN_SAME_CALL = ("kind", "expert_loop"), ("kind", "same_call")
"""Options of kernels that a loop over the experts launches, and that a compiled function launches after its first."""

_COUNT_BYTES = 8
_SCORE_BYTES = 4
"""Routers compute in fp32; their scores and probabilities are kept."""


class MoeMlp(Struct, frozen=True):
    """The MLP block of a layer with experts.

    Tensor parallel ranks share the tokens out before they are routed, whether norms split the sequence or not. Every
    rank sends `topk` copies of its tokens to the ranks that hold their experts and receives as many. Source:
    Megatron-LM, megatron/core/transformer/moe (moe_layer.py, token_dispatcher.py, experts.py, shared_experts.py).
    """

    experts: Experts

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, router, exchanges, routed and shared experts, and the residual sum."""
        return (
            *mlp_norms(share, "layernorm"),
            self._router(share),
            *self._latent(share, "fc1_latent_proj"),
            self._dispatch(share),
            *self._routed(share),
            *self._latent(share, "fc2_latent_proj"),
            *self._shared(share),
            residual(share, "mlp_bda"),
        )

    def own_tokens(self, share: Share) -> Number:
        """Return the tokens that a rank routes."""
        return ceil_div(share.tokens, share.tp)

    def copies(self, share: Share) -> Number:
        """Return the copies of its tokens that a rank sends to experts, without those that are dropped."""
        capacity = self.experts.capacity_factor
        return rounded(self.own_tokens(share) * (self.experts.topk * (min(capacity, 1.0) if capacity else 1.0)))

    def spread(self, share: Share) -> Number:
        """Return the tokens that the busiest expert rank takes over the mean: no more than its capacity."""
        spread, capacity = share.execution.dispatch.imbalance, self.experts.capacity_factor
        return spread if capacity is None else smaller(spread, max(capacity, 1.0))

    def _router(self, share: Share) -> Part:
        """Return the router, which every rank has whole."""
        experts, hidden, dtype = self.experts, share.model.hidden, share.execution.core_dtype
        own = self.own_tokens(share)
        return Part(
            name="mlp.router",
            counts_as="router",
            gemms=(Gemm(m=own, n=experts.experts, k=hidden, dtype=dtype),),
            vectors=(experts.experts if experts.router_bias else 0)
            + (hidden + experts.experts if experts.router_scales else 0),
            kernels=(Kernel(family="route", shape=(own, hidden, experts.experts, experts.topk), dtype=dtype),),
            saved={
                "MLP inputs": share.norm_bytes,
                "routing": 2 * _SCORE_BYTES * experts.experts * share.norm_tokens,
            },
            drops={"MLP inputs": ("layernorm",), "routing": ("moe",)},
            modules=("moe",),
        )

    def token_width(self, share: Share) -> int:
        """Return the width of a token as it is sent to routed experts."""
        return self.experts.latent_hidden or share.model.hidden

    def _latent(self, share: Share, name: str) -> tuple[Part, ...]:
        """Return the projection of a rank's tokens to the width of the experts, or back, which every rank has whole.

        Source: Megatron-LM, megatron/core/transformer/moe/moe_layer.py (moe_latent_size).
        """
        latent, hidden = self.experts.latent_hidden, share.model.hidden
        if not latent:
            return ()
        own, (inputs, outputs) = (
            self.own_tokens(share),
            (hidden, latent) if name.startswith("fc1") else (latent, hidden),
        )
        gemm = Gemm(m=own, n=outputs, k=inputs, dtype=share.execution.precision)
        saved = {"latent tokens": own * latent * share.input_bytes} if name.startswith("fc2") else {}
        return (
            Part(
                name=f"mlp.{name}",
                counts_as="latent_projections",
                gemms=(gemm,),
                saved=saved,
                drops=dict.fromkeys(saved, ("moe",)),
                modules=("moe",),
            ),
        )

    def _dispatch(self, share: Share) -> Part:
        """Return the permutations of the tokens, and their way to the experts and back.

        In the backward pass the gradients of what came back go out, and those of what went out come back.
        """
        experts, width, execution = self.experts, self.token_width(share), share.execution
        own, copies, dispatcher = self.own_tokens(share), self.copies(share), execution.dispatch.kind
        gathered = rounded(copies * self.spread(share)) * width * execution.element_bytes * share.etp * (share.etp > 1)
        sent = width * execution.dispatch.sent_bytes(execution.element_bytes)
        if dispatcher.dense_routing:
            # With their gradients on the way back of the backward pass, which has as many bytes.
            places = smaller(share.ep, ceil_div(execution.ranks_per_node, share.expert_stride))
            sent = sent + _SCORE_BYTES * places * ceil_div(experts.experts, share.ep)
        weights = self._over_ep(share, "out", _SCORE_BYTES) if execution.dispatch.router_weights else ()
        there_and_back = (
            *self._over_ep(share, "out", sent),
            *(weights if dispatcher.sends == "copies" else ()),
            *self._over_ep(share, "back", width * execution.element_bytes),
        )
        # Without sequence parallelism every rank needs the tokens of all again after the experts, and their gradients
        # before.
        exchanges = (
            *there_and_back,
            Exchange(group="etp", operation="all_gather", size_bytes=gathered),
            Exchange(group="etp", operation="reduce_scatter", size_bytes=gathered),
            *exchange(share, "all_gather", share.copies_sequence),
        )
        dtype, order = execution.core_dtype, (("kernel", execution.dispatch.permutation),)
        kernels = [Kernel(family="permute", shape=(own, width, experts.topk), dtype=dtype, count=2, options=order)]
        if dispatcher.sorts_chunks:
            # What arrives for several experts of a rank is put into their order, and back.
            several = (share.ep > 1) & (ceil_div(experts.experts, share.ep) > 1)
            arrived = rounded(copies * self.spread(share)) * several
            kernels.append(Kernel(family="permute", shape=(arrived, width, 1), dtype=dtype, count=2 * several))
        if execution.padded_experts and experts.capacity_factor is None:
            # There and back, with their gradients.
            busiest = rounded(copies * share.etp * self.spread(share)), width
            kernels += [_operation(busiest, dtype, 1, backward=backward, count=2) for backward in (False, True)]
        return Part(
            name="mlp.token_dispatcher",
            counts_as="experts",
            kernels=tuple(kernels),
            forward=(*self._routing_map(share), *self._counts(share), *exchanges),
            backward=exchanges,
            modules=("moe",),
        )

    def _routing_map(self, share: Share) -> tuple[Exchange, ...]:
        """Return the exchange of which experts all tokens go to, a byte for each, where ranks have to know it."""
        if not share.execution.dispatch.kind.dense_routing:
            return ()
        size = self.own_tokens(share) * share.ep * self.experts.experts * (share.ep > 1)
        return (Exchange(group="ep", operation="all_gather", size_bytes=size),)

    def _counts(self, share: Share) -> tuple[Exchange, ...]:
        """Return the exchange of how many tokens come to each expert from every rank, where that is not fixed."""
        kind, fixed = share.execution.dispatch.kind, self.experts.capacity_factor is not None
        if kind.sends != "copies" or fixed:
            return ()
        size = _COUNT_BYTES * self.experts.experts * share.ep * share.etp * (share.ep > 1)
        return (Exchange(group="ep", operation="all_gather", size_bytes=size),)

    def _over_ep(self, share: Share, goes: str, token_bytes: Number) -> tuple[Exchange, ...]:
        """Return the exchange of a rank's tokens over ep, out or back: it takes as long as the busiest rank."""
        experts, dispatcher = self.experts, share.execution.dispatch.kind
        there = share.ep > 1
        if dispatcher.sends == "all":
            # The gathered tensor, and all of it summed up over the ranks.
            size = rounded(self.own_tokens(share) * share.ep * token_bytes * there)
            operation = "all_gather" if goes == "out" else "reduce_scatter"
            return (Exchange(group="ep", operation=operation, size_bytes=size, goes=goes),)
        size = rounded(self.copies(share) * token_bytes * self.spread(share) * there)
        if dispatcher.sends == "once":
            # A token crosses to each place of its experts once, not once for each of them.
            size = rounded(size * _places_reached(share, experts) / experts.topk)
        return (Exchange(group="ep", operation="all_to_all", size_bytes=size, goes=goes),)

    def _routed(self, share: Share) -> tuple[Part, ...]:
        """Return the experts of a rank, with the tokens of the busiest one; kept are those that it has room for."""
        experts, model, execution = self.experts, share.model, share.execution
        up, hidden = up_matrices(share), self.token_width(share)
        busiest = rounded(self.copies(share) * share.etp * self.spread(share))
        width, groups = ceil_div(experts.ffn_hidden, share.etp), ceil_div(experts.experts, share.ep)
        kept = self.own_tokens(share) * share.etp * experts.topk * self._room(share)
        inner = activations(share, kept * width)
        biased = model.linear_bias and not execution.fused_expert_bias
        # Of what is fused the FC1 outputs alone are written in 16 bits, for the backward pass.
        fused = execution.fused_experts
        kernels = () if fused else _activation(share, busiest, width)
        casts: tuple[tuple[str, ...], ...] = (("gradients",), ("inputs",)) if fused else ((), ())
        # A kernel of a gated activation multiplies by the router's weights, too; else that keeps what it multiplies.
        weighted = 0 if model.gated or execution.expert_output_copy else execution.element_bytes * kept * width
        outputs = {"expert outputs": execution.element_bytes * kept * hidden} if execution.expert_output_copy else {}
        return (
            Part(
                name="mlp.experts.linear_fc1",
                counts_as="experts",
                place="experts",
                gemms=(self._gemm(share, busiest, up * width, hidden, casts[0]),),
                vectors=groups * up * width if model.linear_bias else 0,
                saved={"expert inputs": share.input_bytes * kept * hidden},
                drops={"expert inputs": ("moe",)},
                modules=("moe", "expert_fc1"),
                expert=True,
            ),
            Part(
                name="mlp.experts.activation_func",
                counts_as="experts",
                place="experts",
                kernels=kernels,
                saved={"expert FC1 outputs": inner.before, "expert activations": inner.after + weighted},
                drops={"expert FC1 outputs": ("moe",), "expert activations": ("moe", "moe_act")},
                modules=("moe", "moe_act"),
                passing_backward=inner.passing + 2 * execution.element_bytes * kept * hidden,
            ),
            Part(
                name="mlp.experts.linear_fc2",
                counts_as="experts",
                place="experts",
                gemms=(self._gemm(share, busiest, hidden, width, casts[1]),),
                vectors=groups * hidden if model.linear_bias else 0,
                kernels=_weighted_biases(share, busiest, hidden, groups) if biased else (),
                saved=outputs,
                drops={"expert outputs": ("moe",)},
                modules=("moe", "expert_fc2"),
                expert=True,
            ),
        )

    def _gemm(self, share: Share, tokens: Number, n: Number, k: Number, fused_casts: tuple[str, ...]) -> Gemm:
        """Return the GEMMs of so many tokens with a weight of each of a rank's experts."""
        return Gemm(
            m=tokens,
            n=n,
            k=k,
            dtype=share.execution.precision,
            groups=ceil_div(self.experts.experts, share.ep),
            in_one_kernel=share.execution.grouped_experts,
            equal_groups=self.experts.capacity_factor is not None,
            fused_casts=fused_casts,
        )

    def _room(self, share: Share) -> Number:
        """Return the copies that the busiest expert rank keeps over the mean: no more than its capacity."""
        spread, capacity = share.execution.dispatch.imbalance, self.experts.capacity_factor
        if capacity is None:
            return spread
        return choose(spread > 1, smaller(spread, capacity), capacity)

    def _shared(self, share: Share) -> tuple[Part, ...]:
        """Return the shared experts, which are split and exchanged as a dense MLP is."""
        if not self.experts.shared_ffn_hidden:
            return ()
        width, exchanged, model = ceil_div(self.experts.shared_ffn_hidden, share.tp), around(share), share.model
        inner = activations(share, share.tokens * width)
        fc1, fc2 = gemms(share, width)
        return (
            Part(
                name="mlp.shared_experts.linear_fc1",
                counts_as="shared_experts",
                place="with dispatch",
                gemms=(fc1,),
                vectors=up_matrices(share) * width if model.linear_bias else 0,
                forward=exchanged.enter_forward,
                backward=exchanged.enter_backward,
                modules=("moe", "shared_experts", "linear_fc1"),
            ),
            Part(
                name="mlp.shared_experts.activation_func",
                counts_as="shared_experts",
                place="with dispatch",
                kernels=(activation(share, share.tokens, width),),
                saved={"shared experts": inner.before + inner.after},
                drops={"shared experts": ("moe", "shared_experts")},
                modules=("moe", "shared_experts"),
            ),
            Part(
                name="mlp.shared_experts.linear_fc2",
                counts_as="shared_experts",
                place="with combine",
                gemms=(fc2,),
                vectors=(model.hidden if model.linear_bias else 0) + (model.hidden if self.experts.shared_gate else 0),
                forward=exchanged.leave_forward,
                backward=exchanged.leave_backward,
                modules=("moe", "shared_experts", "linear_fc2"),
            ),
        )


def clamps_inputs(model: Model) -> bool:
    """Return whether the activation of experts is limited and offset, as gpt-oss's is: a gated one with biases."""
    return model.linear_bias and model.gated


def _activation(share: Share, tokens: Number, width: Number) -> tuple[Kernel, ...]:
    """Return the activation of experts, what limits its inputs and gradients of the router's weights, as kernels."""
    clamped = clamps_inputs(share.model) and not share.execution.fused_expert_bias
    clamps = _clamps(share, tokens, width) if clamped else ()
    return (activation(share, tokens, width), *clamps, *_weight_gradients(share, tokens, width))


def _weight_gradients(share: Share, tokens: Number, width: Number) -> tuple[Kernel, ...]:
    """Return what sums up the gradients of the router's weights, where experts multiply their activations by them.

    Compiled, it reads the activation's inputs and the gradient of its output again: a sum over the width of an expert
    has other sizes than the gradient of the inputs, with which it is not fused. Sources: Megatron-LM, megatron/core/
    fusions/fused_bias_swiglu.py (weighted_swiglu_back) and fused_bias_geglu.py; PyTorch, torch/_inductor/lowering.py
    (cat) and scheduler.py.
    """
    if not share.execution.dispatch.router_weights:
        return ()
    read = up_matrices(share) + 1
    dtype = share.execution.core_dtype
    return (_operation((tokens, width), dtype, read, backward=True, outputs=0, launched=IN_SAME_CALL),)


def _clamps(share: Share, tokens: Number, width: Number) -> tuple[Kernel, ...]:
    """Return what limits both halves of a gated activation's input, as gpt-oss does: operations of PyTorch in 16 bits.

    Each half is clamped, then both are joined; backward each clamp reads the gradient and what it clamped. Source:
    Megatron-LM, megatron/core/fusions/fused_bias_geglu.py (weighted_bias_quick_geglu_impl).
    """
    dtype, each = share.execution.core_dtype, (tokens, width)
    return (
        _operation(each, dtype, 1, backward=False, count=2),
        _operation((tokens, 2 * width), dtype, 1, backward=False),
        _operation(each, dtype, 2, backward=True, count=2),
        _operation((tokens, 2 * width), dtype, 1, backward=True),
    )


def _weighted_biases(share: Share, tokens: Number, hidden: Number, experts: Number) -> tuple[Kernel, ...]:
    """Return what adds FC2's biases, times the router's weights, to the tokens of each expert: operations of PyTorch.

    For each expert a product and a sum with it, in the type of the weights; then all are joined and cast to 16 bits.
    Backward casts, two products for each expert, each summed up over its rows or columns, and joined gradients.
    Dispatchers that send a token once have the weights in fp32. Source: Megatron-LM,
    megatron/core/transformer/moe/experts.py (_apply_bias) and token_dispatcher.py (token_probs).
    """
    core, wide = share.execution.core_dtype, share.execution.dispatch.kind.sends == "once"
    dtype, whole, each = "fp32" if wide else core, (tokens, hidden), (ceil_div(tokens, experts), hidden)
    casts = (_operation(whole, dtype, 0.5, backward=False), _operation(whole, dtype, 0.5, backward=True, count=2))
    return (
        _operation(each, dtype, 0, backward=False, count=experts, launched=IN_LOOP),
        _operation(each, dtype, 1.5 if wide else 2, backward=False, count=experts, launched=IN_LOOP),
        _operation(whole, dtype, 1, backward=False),
        _operation(each, dtype, 1, backward=True, count=2 * experts, launched=IN_LOOP),
        _operation(each, dtype, 1, backward=True, outputs=0, count=2 * experts, launched=IN_LOOP),
        _operation(whole, core, 1, backward=True),
        *(casts if wide else ()),
    )


def _operation(
    shape: tuple[Number, Number],
    dtype: str,
    inputs: float,
    *,
    backward: bool,
    outputs: int = 1,
    count: Number = 1,
    launched: tuple[str, str] | None = None,
) -> Kernel:
    """Return an operation of PyTorch in one of the passes, by how many tensors of a shape it reads and writes."""
    return Kernel(
        family="elementwise",
        shape=shape,
        dtype=dtype,
        count=count,
        options=(("inputs", str(inputs)), ("outputs", str(outputs)), *((launched,) if launched else ())),
        has_forward=not backward,
        has_backward=backward,
        backward_alike=backward,
    )


@block("experts")
def _experts(model: Model, _layer: int) -> MoeMlp:
    if model.experts is None:
        raise ConfigError("experts have no number and width; give experts", "model.blocks")
    return MoeMlp(model.experts)


def nodes_of_token(
    experts: Experts, ep: int, stride: int, ranks_per_node: int, *, limited: bool = True, consecutive: bool = False
) -> float | None:
    """Return the expected nodes that a token's experts are on; None where one node holds all experts.

    `ep` ranks share the experts out, each `stride` ranks from the next; `ranks_per_node` reach each other without the
    network.
    Without `limited` it is as if no groups limited the routing; `consecutive` experts are of no groups.
    """
    each = experts.experts // ep
    node_E = tuple(at // each * stride // ranks_per_node for at in range(experts.experts))
    if len(set(node_E)) == 1:
        return None
    if consecutive:
        return consecutive_places(experts.topk, node_E)
    return expected_nodes(node_E, experts.topk, *((experts.groups, experts.group_topk) if limited else (1, 1)))


def ranks_of_token(experts: Experts, ep: int, *, consecutive: bool = False) -> float:
    """Return the expected expert ranks that a token's experts are on."""
    each = experts.experts // ep
    ranks_E = tuple(at // each for at in range(experts.experts))
    if consecutive:
        return consecutive_places(experts.topk, ranks_E)
    return expected_nodes(ranks_E, experts.topk, experts.groups, experts.group_topk)


def expected_nodes(node_of_expert: tuple[int, ...], topk: int, groups: int = 1, group_topk: int = 1) -> float:
    """Return the expected number of distinct nodes that the experts of a token are on, from the node of each expert.

    Consecutive experts form `groups` of equal size, of which `group_topk` are drawn evenly, and of these `topk` experts
    without replacement. A node is missed if none of the k experts is one of its own c among the e experts of the chosen
    groups, with a chance of C(e - c, k) / C(e, k); that is averaged over the choices of groups by how many of them give
    each c.
    """
    size = len(node_of_expert) // groups
    allowed = group_topk * size
    total, reached = 0.0, dict[tuple[int, ...], float]()
    for node in set(node_of_expert):
        own = (node_of_expert[at : at + size].count(node) for at in range(0, len(node_of_expert), size))
        # Which of the groups it has how many experts of does not matter, and most nodes are alike.
        held = tuple(sorted(own))
        if held not in reached:
            missed = sum(ways * comb(allowed - mine, topk) for mine, ways in _choices(held, group_topk).items())
            reached[held] = 1 - missed / (comb(groups, group_topk) * comb(allowed, topk))
        total += reached[held]
    return total


def _choices(held: Sequence[int], chosen: int) -> Counter[int]:
    """Return in how many choices of groups a node has each number of experts, from what it has of each group."""
    ways: Counter[tuple[int, int]] = Counter({(0, 0): 1})
    for own in held:
        ways += Counter({(count + 1, total + own): number for (count, total), number in ways.items() if count < chosen})
    return Counter({total: number for (count, total), number in ways.items() if count == chosen})


def _places_reached(share: Share, experts: Experts) -> Number:
    """Return how often a token is sent: once to each node of its experts, or to each rank where a node holds all."""
    ep_L, stride_L = np.broadcast_arrays(share.ep, share.expert_stride)
    # Layouts are many, pairs of both few.
    pairs, pair_L = np.unique(np.stack([ep_L.ravel(), stride_L.ravel()]), axis=1, return_inverse=True)
    ranks, order = share.execution.ranks_per_node, share.execution.dispatch.consecutive
    places = [
        nodes_of_token(experts, int(ep), int(stride), ranks, consecutive=order)
        or ranks_of_token(experts, int(ep), consecutive=order)
        for ep, stride in pairs.T
    ]
    return np.array(places, dtype=np.float64)[pair_L].reshape(ep_L.shape) if ep_L.ndim else places[0]
