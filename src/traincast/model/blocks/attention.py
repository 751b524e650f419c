"""Attention with fused queries, keys and values (MHA, GQA, MQA), and what latent attention shares with it."""

from msgspec import Struct
from msgspec.structs import replace

from traincast.model.blocks import eager
from traincast.model.blocks.common import (
    MASK_BYTES,
    MLP_AND_ATTENTION,
    adapters,
    around,
    norm,
    norm_kernel,
    residual,
)
from traincast.model.blocks.part import Exchange, Gemm, Kernel, Part, block
from traincast.model.blocks.share import DELAYED_SCALING, Share
from traincast.model.model import Model
from traincast.model.numbers import Number, ceil_div, choose, larger, rounded, smaller

_SUM_BYTES = 4
"""Flash attention keeps one fp32 sum per query and head (Dao et al. 2022, arXiv 2205.14135, algorithm 2)."""

_UNFUSED_ROTARY = 5
"""Passes over queries and keys where the rotary embedding is not fused: halves turned round, two products, their sum,
and what is not turned put next to it (Megatron-LM, megatron/core/models/common/embeddings/rope_utils.py)."""

_RING_CHUNKS = 2
"""Keys and values of two other ranks, one in use and one on its way (Liu et al. 2023, arXiv 2310.01889)."""


class AttentionBlock(Struct, frozen=True):
    """The attention block of a layer.

    Heads are split over tp: the fused projection by its outputs, the output projection by its inputs. Source:
    Shoeybi et al. 2019, arXiv 1909.08053, section 3.
    """

    window: int = 0
    """Tokens a query sees back; 0: all."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, projections, core and residual sum."""
        model, attention, execution = share.model, share.model.attention, share.execution
        tokens, dim = share.tokens, attention.head_dim
        kv_width = 2 * share.kv_heads * dim
        gates = share.heads * dim * int(attention.output_gate)
        own = share.heads * dim + gates + (0 if attention.keys_of_another else kv_width)
        width, exchanged = own - (share.kv_heads * dim if attention.values_are_keys else 0), around(share)
        qkv = Part(
            name="self_attention.linear_qkv",
            counts_as="attention",
            gemms=(Gemm(m=tokens, n=width, k=model.hidden, dtype=execution.precision, split="outputs"),),
            vectors=width if attention.qkv_bias else 0,
            saved={
                "attention inputs": share.norm_tokens * model.hidden * share.input_bytes,
                # Keys and values of one projection have norms and positions of their own, and are both kept.
                "queries, keys, values": own * tokens * execution.element_bytes,
            },
            forward=exchanged.enter_forward,
            backward=exchanged.enter_backward,
            modules=("linear_qkv",),
        )
        proj = output_projection(share, share.heads * dim)
        return (
            *attention_norms(share),
            qkv,
            *head_norms(share, dim),
            *rotary(share, dim, ("linear_qkv",)),
            core_attention(share, self.window, dim, dim, kv_width),
            *output_gate(share, gates),
            proj,
            residual(share, "self_attn_bda", adds_bias=True),
            *adapters(share, (qkv, proj), "attention outputs"),
        )


@block("attention")
def _attention(model: Model, layer: int) -> AttentionBlock:
    return AttentionBlock(model.window_of(layer))


def attention_norms(share: Share, modules: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """Return the norms of the attention's input and, where there are more than two in a layer, its output."""
    count = share.model.norms_per_layer
    before = (norm(share, "input_layernorm", modules=modules),) if count else ()
    return (*before, *((norm(share, "post_self_attn_layernorm"),) if count > MLP_AND_ATTENTION else ()))


def output_gate(share: Share, gates: Number) -> tuple[Part, ...]:
    """Return the product of every head's output with its gate, where a rank has any gates."""
    if not share.model.attention.output_gate:
        return ()
    options = (("kind", "swiglu"),)
    kernel = Kernel(family="activation", shape=(share.tokens, gates), dtype=share.execution.core_dtype, options=options)
    kept = {"gated attention outputs": share.tokens * gates * share.execution.element_bytes}
    return (Part(name="self_attention.output_gate", counts_as="attention", kernels=(kernel,), saved=kept),)


def output_projection(share: Share, inputs: Number) -> Part:
    """Return the output projection, of whose inputs a rank has some and sums up what it makes of them."""
    model, exchanged, execution = share.model, around(share), share.execution
    # Attention keeps its output for its own backward pass, in 16 bits. The projection keeps its 8-bit input in addition
    # with delayed scaling alone: in other recipes it reads attention's (Megatron-LM, megatron/core/transformer/
    # attention.py, set_save_original_input).
    copied = execution.precision == DELAYED_SCALING and execution.eight_bit_inputs and share.trains_weights
    return Part(
        name="self_attention.linear_proj",
        counts_as="attention",
        gemms=(Gemm(m=share.tokens, n=model.hidden, k=inputs, dtype=execution.precision, split="inputs"),),
        vectors=model.hidden if model.linear_bias else 0,
        saved={"attention outputs": share.tokens * inputs * execution.input_bytes} if copied else {},
        forward=exchanged.leave_forward,
        backward=exchanged.leave_backward,
        modules=("linear_proj",),
    )


def head_norms(share: Share, query: int) -> tuple[Part, ...]:
    """Return the norms of every head's query and key, with one scale for all queries and one for all keys or more."""
    attention, heads = share.model.attention, _heads_of_own(share)
    if not attention.qk_norm:
        return ()
    scales = 1 if attention.keys_of_another else 2
    return (
        Part(
            name="self_attention.qk_layernorm",
            counts_as="attention",
            vectors=(heads if attention.qk_norm_whole else scales) * query,
            kernels=(norm_kernel(share, share.tokens * heads, query),),
            saved={"queries, keys, values": share.tokens * heads * query * share.execution.element_bytes},
            modules=("linear_qkv",),
        ),
    )


def rotary(share: Share, query: int, modules: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """Return the rotary embedding, where positions are not learned, and not left to other layers."""
    if share.model.learned_positions or not share.model.attention.rotary:
        return ()
    fused, latent = share.execution.fused_rope, share.model.attention.latent
    # Latent attention turns a part of each query, and one key for all heads: the passes that its keys save are as many
    # as it takes to put both together (megatron/core/transformer/multi_latent_attention.py).
    turned = query if fused or latent is None else latent.rope_head_dim
    shape, passes = (share.tokens, _heads_of_own(share), turned), 1 if fused else _UNFUSED_ROTARY
    kernels: tuple[Kernel, ...] = (
        Kernel(family="rotary", shape=shape, dtype=share.execution.core_dtype, count=passes),
    )
    if share.execution.eager_layers:
        kernels = eager.rotary(share, _heads_of_own(share), query)
    return (Part(name="self_attention.rotary_pos_emb", counts_as="attention", kernels=kernels, modules=modules),)


def _heads_of_own(share: Share) -> Number:
    """Return a rank's heads of queries, and of keys where they are those of the layer itself."""
    return share.heads + (0 if share.model.attention.keys_of_another else share.kv_heads)


def core_attention(
    share: Share, window: int, query: int, value: int, kv_width: Number, sparse: Kernel | None = None
) -> Part:
    """Return the core of attention: queries times keys, softmax, weights times values, and what cp ranks exchange.

    `query` and `value` are the widths of a head's query and key, and of its value; `kv_width` are the elements of keys
    and values of a token on a rank; `sparse` is the kernel where queries meet some keys alone (`sparse_kernel`).
    """
    execution, heads, width = share.execution, share.heads, share.execution.element_bytes
    forward, backward = _core_exchanges(share, heads * (query + value), kv_width)
    copies = 2 if execution.core_output_copy else 1
    if execution.attention_kernel == "unfused" and sparse is None:
        # The softmax, and with dropout its mask and its outcome, all over every pair of tokens.
        per_pair = width + (width + MASK_BYTES if execution.dropout else 0)
        name, size = "attention scores", per_pair * heads * share.sequences.length * share.tokens
    else:
        name, size = "softmax statistics", _SUM_BYTES * heads * share.tokens
    others = _keys_of_others(share, kv_width)
    return Part(
        name="self_attention.core_attention",
        counts_as="attention_core",
        vectors=heads if share.model.attention.sinks else 0,
        kernels=(sparse,)
        if sparse
        else (*_core_kernels(share, window, query, value, kv_width), *_ring_sums(share, query, value, kv_width)),
        forward=forward,
        backward=backward,
        saved={"attention outputs": heads * value * share.tokens * width * copies, name: size},
        drops={name: ("core_attn",)},
        modules=("core_attn",),
        passing_forward=others,
        passing_backward=2 * others,
    )


def _ring_sums(share: Share, query: int, value: int, kv_width: Number) -> tuple[Kernel, ...]:
    """Return what a ring adds up, once for the keys and values of each rank: outputs in fp32, then all gradients.

    Of a causal sequence a rank holds a piece of each half, and keys of half of the other ranks meet the second alone:
    three quarters of its tokens on average.

    Source: Transformer Engine, transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py
    (AttnFuncWithCPAndKVP2P: flash_attn_fwd_out_correction; dq.add_ and the sums of dkv).
    """
    several = share.cp > 1
    if several is False or share.execution.cp_kind != "ring":
        return ()
    tokens, dtype, steps = share.tokens, share.execution.core_dtype, choose(several, share.cp, 0)
    if share.model.attention.causal:
        steps = choose(several, (1 + 3 * share.cp) / 4, 0)
    gradients = ((tokens, share.heads * query), (tokens, kv_width))
    return (
        Kernel(
            family="elementwise", shape=(tokens, share.heads * value), dtype="fp32", count=steps, has_backward=False
        ),
        *(
            Kernel(family="elementwise", shape=shape, dtype=dtype, count=steps, has_forward=False, backward_alike=True)
            for shape in gradients
        ),
    )


def _core_kernels(share: Share, window: int, query: int, value: int, kv_width: Number) -> tuple[Kernel, ...]:
    """Return attention's kernel; in 8 bits with casts of queries, keys and values, and of the output's gradient.

    Source: Transformer Engine, transformer_engine/pytorch/attention/dot_product_attention/utils.py
    (combine_and_quantize).
    """
    core, dtype, tokens = _core_kernel(share, window, query, value), share.execution.attention_dtype, share.tokens
    if core.dtype == share.execution.core_dtype:
        return (core,)
    read, gradient = tokens * (share.heads * query + kv_width), tokens * share.heads * value
    return (
        Kernel(family="cast", shape=(read,), dtype=dtype, has_backward=False),
        core,
        Kernel(family="cast", shape=(gradient,), dtype=dtype, has_forward=False, backward_alike=True),
    )


def _core_kernel(share: Share, window: int, query: int, value: int) -> Kernel:
    """Return the kernel that one rank runs.

    With all-to-alls a rank has some of the heads and whole sequences (Jacobs et al. 2023, arXiv 2309.14509); else
    some of the queries meet all keys. Of a causal sequence ranks then hold a piece from each half, so that each meets
    half of all keys. Sequences that are packed into one meet none of the others, nor chunks of a sequence, taken as
    equally long, but where all scores are written; of several lengths the kernel runs so often that it has their work.
    """
    execution, attention, sequences = share.execution, share.model.attention, share.sequences
    unfused = execution.attention_kernel == "unfused"
    if window and attention.chunked and not unfused:
        chunks = ceil_div(sequences.length, window)
        length = ceil_div(sequences.length, chunks)
        sequences, window = replace(sequences, length=length, count=sequences.count * chunks), 0
        share = replace(share, sequences=sequences)
    heads, kv_heads, causal = share.heads, share.kv_heads, attention.causal
    if attention.latent is not None:
        kv_heads = heads
    batch, queries, count = sequences.count, share.sequence, 1
    if sequences.packed_length and not unfused:
        length, tokens = smaller(sequences.packed_length, sequences.length), sequences.count * sequences.length
        batch, queries = ceil_div(tokens, length), ceil_div(length, share.cp)
        whole = tokens / (batch * length)
        count = choose(sequences.packed_work > 0, sequences.packed_work * whole, 1)
    keys = queries * share.cp
    if execution.cp_kind == "all_to_all":
        queries = keys
        heads, kv_heads = ceil_div(heads, share.cp), larger(1, kv_heads // share.cp)
    elif causal:
        keys = choose(share.cp > 1, ceil_div(keys, 2), keys)
        causal = share.cp == 1
    return Kernel(
        family="unfused_attention" if unfused else "attention",
        shape=(batch, queries, keys, heads, choose(heads % kv_heads == 0, kv_heads, heads), query, value),
        dtype=execution.core_dtype if unfused else execution.attention_dtype,
        count=count,
        causal=causal,
        window=window,
        options=(("passes", str(execution.score_passes)),) if unfused else _fused_options(share),
    )


def _fused_options(share: Share) -> tuple[tuple[str, str], ...]:
    """Return what a fused kernel is told: its generation, and of dropout where layers have it."""
    kernel = (("kernel", share.execution.attention_kernel),)
    return (*kernel, ("dropout", "yes")) if share.execution.dropout else kernel


def sparse_kernel(share: Share, met: Number, query: int, value: int) -> Kernel:
    """Return the kernel of a rank whose queries meet so many keys each, as a mean, of one head that all heads share."""
    queries, heads = share.sequence, share.heads
    if share.execution.cp_kind == "all_to_all":
        queries, heads = queries * share.cp, ceil_div(heads, share.cp)
    return Kernel(
        family="attention",
        shape=(share.sequences.count, queries, larger(1, rounded(met)), heads, 1, query, value),
        dtype=share.execution.core_dtype,
        # Whatever computes dense attention, sparse attention has fused kernels of its own.
        options=_fused_options(share) if share.execution.attention_kernel != "unfused" else (),
    )


def _core_exchanges(
    share: Share, query_width: Number, kv_width: Number
) -> tuple[tuple[Exchange, ...], tuple[Exchange, ...]]:
    """Return what context parallel ranks exchange in each pass.

    A ring passes the keys and values of every rank to all others, an all-gather as many bytes at once; their
    gradients come back as a reduce-scatter. All-to-alls turn queries, keys, values and the result instead.
    """
    split = share.cp > 1
    if split is False:
        return (), ()
    token_bytes = share.tokens * share.execution.element_bytes * split
    if share.execution.cp_kind == "all_to_all":
        turned = Exchange(group="cp", operation="all_to_all", size_bytes=token_bytes * (query_width + kv_width))
        return (turned,), (turned,)
    size = token_bytes * share.cp * kv_width
    gathered = Exchange(group="cp", operation="all_gather", size_bytes=size)
    return (gathered,), (gathered, Exchange(group="cp", operation="reduce_scatter", size_bytes=size))


def _keys_of_others(share: Share, kv_width: Number) -> Number:
    """Return the bytes of keys and values of other context parallel ranks that are there at a time."""
    if share.execution.cp_kind == "all_to_all":
        return 0
    own = kv_width * share.tokens * share.execution.element_bytes
    others = share.cp - 1
    return own * (others if share.execution.cp_kind == "all_gather" else smaller(others, _RING_CHUNKS))
