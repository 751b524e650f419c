"""Operators and communications of one layer, on one rank, for one microbatch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from traincast.spec.job import EIGHT_BIT
from traincast.workload.build.kernels import Counted, Kernels
from traincast.workload.build.slice import Slice
from traincast.workload.calls import OperatorCall
from traincast.workload.words import Group, Operation

UNFUSED_EXPERT_PASSES = 5
"""Passes over both halves of an expert's input where bias and gated activation are kernels of their own: bias, split,
clamp, shift and product (gpt-oss, openai/gpt-oss, gpt_oss/torch/model.py, swiglu)."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A communication that a layer does so many times in a pass."""

    group: Group
    operation: Operation
    size_bytes: int
    count: float = 1


@dataclass(frozen=True, slots=True)
class ForwardWork:
    """What a part of a layer runs and exchanges in the forward pass."""

    calls: list[Counted] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)


@dataclass(slots=True)
class LayerWork:
    """What a layer runs and exchanges in each pass."""

    kernels: Kernels = field(default_factory=Kernels)
    forward: list[Exchange] = field(default_factory=list)
    backward: list[Exchange] = field(default_factory=list)
    modules: dict[str, ForwardWork] = field(default_factory=dict)
    """The share of `kernels` and `forward` of each module that can be recomputed by itself; one may hold another."""

    @contextmanager
    def within(self, *modules: str) -> Iterator[None]:
        """Count what is added meanwhile as parts of modules (`traincast.model.recompute`), too."""
        calls, exchanges = len(self.kernels.forward), len(self.forward)
        yield
        for name in modules:
            module = self.modules.setdefault(name, ForwardWork())
            module.calls.extend(self.kernels.forward[calls:])
            module.exchanges.extend(self.forward[exchanges:])


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What tells layers of a model apart."""

    experts: bool
    window: int


def layer_work(part: Slice, kind: LayerKind) -> LayerWork:
    """Return the work of a layer of a kind.

    Parameters
    ----------
    part : Slice
        What a rank holds.
    kind : LayerKind
        Which layer of the model.

    Returns
    -------
    LayerWork
        Forward and backward calls, and what is exchanged over tp, cp and ep.

    Notes
    -----
    Tensor parallel exchanges: Korthikanti et al., arXiv 2205.05198, section 4.2.2 (with sequence
    parallelism an all-gather before and a reduce-scatter after each block, and one more all-gather in the
    backward pass); Shoeybi et al., arXiv 1909.08053, section 3 (an all-reduce each otherwise).
    """
    work = LayerWork()
    _attention(part, kind, work)
    _tensor_exchanges(part, work)
    _norms(part, kind, work)
    _between(part, work)
    if kind.experts:
        with work.within("moe"):
            _experts(part, work)
    else:
        with work.within("mlp"):
            _mlp(part, work)
            _tensor_exchanges(part, work)
    _adapters(part, work)
    return work


def trains_weights(part: Slice) -> bool:
    """Return whether the weights of the model itself are trained (not so with adapters)."""
    return part.job.task != "lora"


def _attention(part: Slice, kind: LayerKind, work: LayerWork) -> None:
    model, attention = part.job.model, part.job.model.attention
    tokens, hidden, dtype = part.tokens, model.hidden, part.linear_dtype
    trained = trains_weights(part)
    latent = attention.latent
    if latent is None:
        query, value = attention.head_dim, attention.head_dim
        width = (part.heads + 2 * part.kv_heads) * attention.head_dim
        work.kernels.linear(tokens, width, hidden, dtype, trained=trained)
    else:
        query, value = latent.nope_head_dim + latent.rope_head_dim, latent.v_head_dim
        if latent.q_rank is not None:
            work.kernels.linear(part.norm_tokens, latent.q_rank, hidden, dtype, trained=trained)
        work.kernels.linear(part.norm_tokens, latent.kv_rank + latent.rope_head_dim, hidden, dtype, trained=trained)
    with work.within("mla_up_proj"):
        if latent is not None:
            work.kernels.linear(tokens, part.heads * query, latent.q_rank or hidden, dtype, trained=trained)
            up = part.heads * (latent.nope_head_dim + latent.v_head_dim)
            work.kernels.linear(tokens, up, latent.kv_rank, dtype, trained=trained)
        if model.learned_positions == 0:
            work.kernels.simple("rotary", (tokens, part.heads + part.kv_heads, query), part.core_dtype)
    work.kernels.linear(tokens, hidden, part.heads * value, dtype, trained=trained)
    if attention.qk_norm:
        work.kernels.simple("norm", (tokens * (part.heads + part.kv_heads), query), part.core_dtype)
    with work.within("core_attn"):
        _core(part, kind, work, query, value)


def _core(part: Slice, kind: LayerKind, work: LayerWork, query: int, value: int) -> None:
    job, attention = part.job, part.job.model.attention
    unfused = job.attention_kernel == "unfused"
    kv_heads = part.heads if attention.latent or part.heads % part.kv_heads else part.kv_heads
    call = OperatorCall(
        family="unfused_attention" if unfused else "attention",
        shape=(job.micro_batch, part.sequence, part.sequence, part.heads, kv_heads, query, value),
        dtype=part.core_dtype,
        causal=attention.causal,
        window=kind.window,
        options=() if unfused else (("kernel", job.attention_kernel),),
    )
    if job.parallel.cp > 1:
        call = _by_heads(part, call) if job.cp_kind == "all_to_all" else _by_sequence(part, call)
        _context_exchanges(part, work, query, value)
    work.kernels.both(call)


def _by_sequence(part: Slice, call: OperatorCall) -> OperatorCall:
    """Return the attention of a rank that holds some of the queries and meets all keys.

    Of a causal sequence ranks hold a piece from each half, so that each meets half of all keys.
    """
    batch, queries, _, *heads = call.shape
    keys = queries * part.job.parallel.cp
    shape = (batch, queries, -(-keys // 2) if call.causal else keys, *heads)
    return replace(call, shape=shape, causal=False)


def _by_heads(part: Slice, call: OperatorCall) -> OperatorCall:
    """Return the attention of a rank that holds some of the heads and whole sequences.

    Source: Jacobs et al., arXiv 2309.14509 (DeepSpeed-Ulysses).
    """
    batch, queries, _, heads, kv_heads, *dims = call.shape
    cp = part.job.parallel.cp
    tokens, own = queries * cp, -(-heads // cp)
    shared = max(1, kv_heads // cp)
    return replace(call, shape=(batch, tokens, tokens, own, shared if own % shared == 0 else own, *dims))


def _context_exchanges(part: Slice, work: LayerWork, query: int, value: int) -> None:
    """Add what context parallel ranks exchange around attention.

    A ring passes the keys and values of every rank to all others, an all-gather as many bytes at once; their
    gradients come back as a reduce-scatter. All-to-alls turn queries, keys, values and the result instead.
    """
    attention, element = part.job.model.attention, part.element_bytes
    latent = attention.latent is not None
    keys_values = part.heads * (query + value) if latent else 2 * part.kv_heads * attention.head_dim
    if part.job.cp_kind == "all_to_all":
        turned = part.tokens * (part.heads * (query + value) + keys_values) * element
        work.forward.append(Exchange(Group.CP, Operation.ALL_TO_ALL, turned))
        work.backward.append(Exchange(Group.CP, Operation.ALL_TO_ALL, turned))
        return
    gathered = part.tokens * part.job.parallel.cp * keys_values * element
    work.forward.append(Exchange(Group.CP, Operation.ALL_GATHER, gathered))
    work.backward.append(Exchange(Group.CP, Operation.ALL_GATHER, gathered))
    work.backward.append(Exchange(Group.CP, Operation.REDUCE_SCATTER, gathered))


def _norms(part: Slice, kind: LayerKind, work: LayerWork) -> None:
    """Add the two layernorms: kernels of their own before latent attention and experts, else part of what follows.

    Source: Megatron-LM, megatron/core/models/gpt/gpt_layer_specs.py.
    """
    attention = ("layernorm",) if part.job.model.attention.latent is not None else ()
    for modules in (attention, ("layernorm",) if kind.experts else ("mlp",)):
        with work.within(*modules):
            work.kernels.simple("norm", (part.norm_tokens, part.job.model.hidden), part.core_dtype)


def _between(part: Slice, work: LayerWork) -> None:
    """Add residual sums, and the casts of GEMMs in 8 bits or less."""
    model, tokens, dtype = part.job.model, part.norm_tokens, part.core_dtype
    work.kernels.alike("elementwise", (tokens, model.hidden), dtype, count=2)
    if not part.job.stack.fused_elementwise:
        # Dropout and bias as kernels of their own.
        work.kernels.alike("elementwise", (tokens, model.hidden), dtype, count=2)
    if part.linear_dtype in EIGHT_BIT:
        width = 2 * model.hidden + part.heads * model.attention.head_dim
        work.kernels.alike("cast", (part.norm_tokens * width,), part.linear_dtype)


def _mlp(part: Slice, work: LayerWork) -> None:
    model = part.job.model
    width = -(-model.ffn_hidden // part.job.parallel.tp)
    _feed_forward(part, work, part.tokens, width)
    if part.linear_dtype in EIGHT_BIT:
        work.kernels.alike("cast", (part.tokens * width,), part.linear_dtype)


def _feed_forward(part: Slice, work: LayerWork, tokens: int, width: int) -> None:
    model, dtype, trained = part.job.model, part.linear_dtype, trains_weights(part)
    inputs = 2 if model.gated else 1
    work.kernels.linear(tokens, inputs * width, model.hidden, dtype, trained=trained)
    work.kernels.simple("activation", (tokens, width), part.core_dtype, kind=_activation(model.gated))
    work.kernels.linear(tokens, model.hidden, width, dtype, trained=trained)


def _activation(gated: bool) -> str:
    return "swiglu" if gated else "gelu"


def _experts(part: Slice, work: LayerWork) -> None:
    """Add routing, the exchange over ep, the experts of this rank, and the shared ones.

    Every rank sends `topk` copies of its share of the tokens to the ranks that hold their experts, and
    receives as many. Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py.
    """
    job, model, experts = part.job, part.job.model, part.job.model.experts
    if experts is None:
        return
    dtype, etp, ep = part.linear_dtype, job.parallel.expert_tp, job.parallel.ep
    # Tensor parallel ranks share the tokens out before they are routed, whether norms split the sequence or not.
    own = -(-part.tokens // job.parallel.tp)
    taken = experts.topk * (min(experts.capacity_factor, 1.0) if experts.capacity_factor else 1.0)
    routed = round(own * taken)
    work.kernels.linear(own, experts.experts, model.hidden, part.core_dtype, trained=trains_weights(part))
    work.kernels.simple("route", (own, model.hidden, experts.experts, experts.topk), part.core_dtype)
    work.kernels.simple("permute", (own, model.hidden, experts.topk), part.core_dtype, count=2)
    busiest = round(routed * etp * job.expert_imbalance)
    width, groups = -(-experts.ffn_hidden // etp), -(-experts.experts // ep)
    inputs = 2 if model.gated else 1
    trained = trains_weights(part)
    work.kernels.grouped(groups, busiest, inputs * width, model.hidden, dtype, trained=trained)
    with work.within("moe_act"):
        work.kernels.simple("activation", (busiest, width), part.core_dtype, kind=_activation(model.gated))
        if model.linear_bias and not job.stack.fused_expert_bias:
            work.kernels.alike("elementwise", (busiest, inputs * width), part.core_dtype, count=UNFUSED_EXPERT_PASSES)
    work.kernels.grouped(groups, busiest, model.hidden, width, dtype, trained=trained)
    if part.linear_dtype in EIGHT_BIT:
        work.kernels.alike("cast", (busiest * (model.hidden + width),), dtype)
    _shared_experts(part, work, experts.shared_ffn_hidden)
    size = routed * model.hidden * part.element_bytes
    nodes = part.nodes_of_token(experts) if job.stack.deduplicated_dispatch else None
    if nodes is not None:
        # A token crosses to each node of its experts once, not once for each of them.
        size = round(size * nodes / experts.topk)
    if ep > 1:
        work.forward.append(Exchange(Group.EP, Operation.ALL_TO_ALL, size, 2))
        work.backward.append(Exchange(Group.EP, Operation.ALL_TO_ALL, size, 2))
    if etp > 1:
        gathered = routed * model.hidden * part.element_bytes * etp
        for exchanges in (work.forward, work.backward):
            exchanges.append(Exchange(Group.ETP, Operation.ALL_GATHER, gathered))
            exchanges.append(Exchange(Group.ETP, Operation.REDUCE_SCATTER, gathered))


def _shared_experts(part: Slice, work: LayerWork, width: int) -> None:
    """Add the shared experts, which are split and exchanged as a dense part is."""
    if part.job.parallel.tp > 1 and not part.splits_sequence:
        # Every rank needs the tokens of all again after the experts, and their gradients before.
        work.forward.append(Exchange(Group.TP, Operation.ALL_GATHER, part.activation_bytes))
        work.backward.append(Exchange(Group.TP, Operation.ALL_GATHER, part.activation_bytes))
    if width:
        with work.within("shared_experts"):
            _feed_forward(part, work, part.tokens, -(-width // part.job.parallel.tp))
            _tensor_exchanges(part, work)


def _tensor_exchanges(part: Slice, work: LayerWork) -> None:
    """Add what tensor parallel ranks exchange around one block."""
    if part.job.parallel.tp == 1:
        return
    size = part.activation_bytes
    if part.splits_sequence:
        for exchanges in (work.forward, work.backward):
            exchanges.append(Exchange(Group.TP, Operation.ALL_GATHER, size))
            exchanges.append(Exchange(Group.TP, Operation.REDUCE_SCATTER, size))
        if trains_weights(part):
            work.backward.append(Exchange(Group.TP, Operation.ALL_GATHER, size))
    else:
        for exchanges in (work.forward, work.backward):
            exchanges.append(Exchange(Group.TP, Operation.ALL_REDUCE, size))


def _adapters(part: Slice, work: LayerWork) -> None:
    """Add low-rank adapters beside the projections of attention.

    Two products of rank r beside each frozen one, and the sum of both results. Source: Hu et al., arXiv
    2106.09685, section 4.2 (adapters on attention alone).
    """
    job, model = part.job, part.job.model
    if job.task != "lora":
        return
    rank, tokens = job.lora_rank, part.tokens
    width = (part.heads + 2 * part.kv_heads) * model.attention.head_dim
    for outputs, inputs in ((width, model.hidden), (model.hidden, part.heads * model.attention.head_dim)):
        work.kernels.linear(tokens, rank, inputs, part.core_dtype)
        work.kernels.linear(tokens, outputs, rank, part.core_dtype)
        work.kernels.alike("elementwise", (tokens, outputs), part.core_dtype)
