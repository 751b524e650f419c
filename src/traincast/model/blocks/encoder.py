"""Layers of a model with an encoder and a decoder (T5): those of the encoder, and the decoder's look at what it made.

The sequence of the job is the decoder's; that of the encoder has a length of its own. The encoder's layers see all of
it in both directions. Source: Raffel et al. 2019, arXiv 1910.10683, section 2.1; Megatron-LM,
megatron/core/models/T5 (t5_spec.py) and megatron/core/transformer/attention.py (CrossAttention).
"""

from msgspec import Struct
from msgspec.structs import replace

from traincast.model.blocks.attention import AttentionBlock, output_projection
from traincast.model.blocks.common import around, norm, residual
from traincast.model.blocks.mlp import Mlp
from traincast.model.blocks.part import Block, Exchange, Gemm, Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import Number

LENGTH = "encoder_length"
"""Setting of a model: tokens of a sequence of its encoder."""
_SUM_BYTES = 4
"""Attention keeps one fp32 sum per query and head where it is fused."""


def of_encoder(share: Share, length: int) -> Share:
    """Return a rank's share of a microbatch of the encoder's sequences, of which every token sees all others."""
    attention = replace(share.model.attention, causal=False)
    sequences = replace(share.sequences, length=length, packed_length=0, packed_work=0)
    return replace(share, model=replace(share.model, attention=attention), sequences=sequences)


class InEncoder(Struct, frozen=True):
    """A block of the encoder."""

    block: Block
    length: int

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the parts of the block on the encoder's sequences."""
        return self.block.parts(of_encoder(share, self.length))


class CrossAttention(Struct, frozen=True):
    """The attention of a decoder's tokens to those of the encoder, whose heads are split over tp."""

    length: int
    """Tokens of a sequence of the encoder."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, projections of queries and of keys and values, core, output projection and residual sum."""
        encoder = of_encoder(share, self.length)
        dim, bias = share.model.attention.head_dim, share.model.attention.qkv_bias
        queries, keys = share.heads * dim, 2 * share.kv_heads * dim
        return (
            norm(share, "pre_cross_attn_layernorm"),
            _projection(share, "cross_attention.linear_q", queries, bias=bias),
            _projection(encoder, "cross_attention.linear_kv", keys, bias=bias),
            self._core(share, encoder),
            replace(output_projection(share, queries), name="cross_attention.linear_proj"),
            residual(share, "cross_attn_bda"),
        )

    def _core(self, share: Share, encoder: Share) -> Part:
        """Return queries times keys, softmax and weights times values: of each query with all keys."""
        execution, attention = share.execution, share.model.attention
        unfused, dim, element = execution.attention_kernel == "unfused", attention.head_dim, execution.element_bytes
        kernel = Kernel(
            family="unfused_attention" if unfused else "attention",
            shape=(share.sequences.count, share.sequence, self.length, share.heads, share.kv_heads, dim, dim),
            dtype=execution.core_dtype,
            options=(("passes", str(execution.score_passes)),)
            if unfused
            else (("kernel", execution.attention_kernel),),
        )
        others = 2 * share.kv_heads * dim * encoder.tokens * element
        gathered = Exchange(group="cp", operation="all_gather", size_bytes=others * share.cp * (share.cp > 1))
        name = "attention scores" if unfused else "softmax statistics"
        kept = element * self.length if unfused else _SUM_BYTES
        return Part(
            name="cross_attention.core_attention",
            counts_as="attention_core",
            kernels=(kernel,),
            saved={
                "attention outputs": share.heads * dim * share.tokens * element,
                name: kept * share.heads * share.tokens,
            },
            drops={name: ("core_attn",)},
            forward=(gathered,),
            backward=(gathered, replace(gathered, operation="reduce_scatter")),
            modules=("core_attn",),
            passing_forward=others * (share.cp - 1),
            passing_backward=2 * others * (share.cp - 1),
        )


def _projection(share: Share, name: str, width: Number, *, bias: bool) -> Part:
    """Return the projection of the tokens of a share to a rank's queries, or to its keys and values."""
    exchanged, execution = around(share), share.execution
    return Part(
        name=name,
        counts_as="attention",
        gemms=(Gemm(m=share.tokens, n=width, k=share.model.hidden, dtype=execution.precision, split="outputs"),),
        vectors=width if bias else 0,
        saved={
            "attention inputs": share.norm_tokens * share.model.hidden * share.input_bytes,
            "queries, keys, values": width * share.tokens * execution.element_bytes,
        },
        forward=exchanged.enter_forward,
        backward=exchanged.enter_backward,
    )


@block("encoder_attention", settings=(LENGTH,))
def _encoder_attention(model: Model, _layer: int) -> InEncoder:
    return InEncoder(AttentionBlock(), int(model.setting(LENGTH)))


@block("encoder_mlp", settings=(LENGTH,))
def _encoder_mlp(model: Model, _layer: int) -> InEncoder:
    return InEncoder(Mlp(), int(model.setting(LENGTH)))


@block("cross_attention", settings=(LENGTH,))
def _cross_attention(model: Model, _layer: int) -> CrossAttention:
    return CrossAttention(int(model.setting(LENGTH)))
