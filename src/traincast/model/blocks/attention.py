"""Attention with fused queries, keys and values: MHA, GQA, MQA."""

from dataclasses import dataclass

from traincast.model.blocks.common import adapters, cast, norm, norm_kernel, residual
from traincast.model.blocks.core_attention import core_attention
from traincast.model.blocks.part import Gemm, Kernel, Part
from traincast.model.blocks.share import DELAYED_SCALING, Share
from traincast.model.blocks.tensor_parallel import around
from traincast.model.numbers import Number


@dataclass(frozen=True, slots=True)
class Attention:
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
        width, exchanged = share.heads * dim + kv_width, around(share)
        qkv = Part(
            name="self_attention.linear_qkv",
            counts_as="attention",
            gemms=(Gemm(m=tokens, n=width, k=model.hidden, dtype=execution.precision),),
            vectors=width if attention.qkv_bias else 0,
            kernels=cast(share, share.norm_tokens * model.hidden),
            saved={
                "attention inputs": share.norm_tokens * model.hidden * execution.input_bytes,
                "queries, keys, values": width * tokens * execution.element_bytes,
            },
            forward=exchanged.enter_forward,
            backward=exchanged.enter_backward,
        )
        proj = output_projection(share, share.heads * dim)
        return (
            *attention_norms(share),
            qkv,
            *head_norms(share, dim),
            *rotary(share, dim),
            core_attention(share, self.window, dim, dim, kv_width),
            proj,
            residual(share, "self_attn_bda"),
            *adapters(share, (qkv, proj), "attention outputs"),
        )


def attention_norms(share: Share, modules: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """Return the norms of the attention's input and, where there are more than two in a layer, its output."""
    count = share.model.norms_per_layer
    before = (norm(share, "input_layernorm", modules=modules),) if count else ()
    return (*before, *((norm(share, "post_self_attn_layernorm"),) if count > MLP_AND_ATTENTION else ()))


MLP_AND_ATTENTION = 2
"""Norms of a layer with one before each of its blocks."""


def output_projection(share: Share, inputs: Number) -> Part:
    """Return the output projection, of whose inputs a rank has some and sums up what it makes of them."""
    model, exchanged, execution = share.model, around(share), share.execution
    # Attention keeps its output for its own backward pass, in 16 bits. The projection keeps its 8-bit input beside it
    # with delayed scaling alone: in other recipes it reads attention's (Megatron-LM, megatron/core/transformer/
    # attention.py, set_save_original_input).
    copied = execution.precision == DELAYED_SCALING and execution.eight_bit_inputs and share.trains_weights
    return Part(
        name="self_attention.linear_proj",
        counts_as="attention",
        gemms=(Gemm(m=share.tokens, n=model.hidden, k=inputs, dtype=execution.precision),),
        vectors=model.hidden if model.linear_bias else 0,
        kernels=cast(share, share.tokens * inputs),
        saved={"attention outputs": share.tokens * inputs * execution.input_bytes} if copied else {},
        forward=exchanged.leave_forward,
        backward=exchanged.leave_backward,
    )


def head_norms(share: Share, query: int) -> tuple[Part, ...]:
    """Return the norms of every head's query and key, with one scale for all queries and one for all keys or more."""
    attention, heads = share.model.attention, share.heads + share.kv_heads
    if not attention.qk_norm:
        return ()
    scales = (heads if attention.qk_norm_whole else 2) * query
    return (
        Part(
            name="self_attention.qk_layernorm",
            counts_as="attention",
            vectors=scales,
            kernels=(norm_kernel(share, share.tokens * heads, query),),
            saved={"queries, keys, values": share.tokens * heads * query * share.execution.element_bytes},
        ),
    )


def rotary(share: Share, query: int, modules: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """Return the rotary embedding, where positions are not learned."""
    if share.model.learned_positions:
        return ()
    shape = (share.tokens, share.heads + share.kv_heads, query)
    kernel = Kernel(family="rotary", shape=shape, dtype=share.execution.core_dtype)
    return (Part(name="self_attention.rotary_pos_emb", counts_as="attention", kernels=(kernel,), modules=modules),)
