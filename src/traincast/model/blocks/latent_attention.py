"""Multi-head latent attention: queries and keys/values pass through narrow projections."""

from dataclasses import dataclass

from traincast.model.blocks.attention import attention_norms, head_norms, output_projection, rotary
from traincast.model.blocks.common import adapters, cast, residual
from traincast.model.blocks.core_attention import core_attention
from traincast.model.blocks.part import Gemm, Part
from traincast.model.blocks.share import Share
from traincast.model.blocks.tensor_parallel import around
from traincast.model.model import Latent


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """The attention block of a layer with latent attention.

    Sources: DeepSeek-V2, arXiv 2405.04434, section 2.1; Megatron-LM, megatron/core/transformer/
    multi_latent_attention.py (narrow projections are whole on every tensor parallel rank, each for its tokens), with
    norms of their outputs and, where there are any, biases.
    """

    latent: Latent
    window: int = 0
    """Tokens a query sees back; 0: all."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, narrow and wide projections, core and residual sum."""
        latent, heads = self.latent, share.heads
        query = latent.nope_head_dim + latent.rope_head_dim
        projections = (*self._down(share), *self._up(share))
        proj = output_projection(share, heads * latent.v_head_dim)
        return (
            *attention_norms(share, ("layernorm",)),
            *projections,
            *head_norms(share, query),
            *rotary(share, query, ("mla_up_proj",)),
            core_attention(share, self.window, query, latent.v_head_dim, heads * (query + latent.v_head_dim)),
            proj,
            residual(share, "self_attn_bda"),
            *adapters(share, (*projections, proj)),
        )

    def _down(self, share: Share) -> tuple[Part, ...]:
        """Return the narrow projections, with the norms of their outputs; queries may have none."""
        latent, hidden, execution = self.latent, share.model.hidden, share.execution
        rows, dtype, bias = share.norm_tokens, execution.precision, int(share.model.attention.qkv_bias)
        # Narrow vectors are kept before and after their norms, the key's rotary part once.
        narrow = 2 * ((latent.q_rank or 0) + latent.kv_rank) + latent.rope_head_dim
        keys_values = Part(
            name="self_attention.linear_kv_down_proj",
            counts_as="attention",
            gemms=(Gemm(m=rows, n=latent.kv_rank + latent.rope_head_dim, k=hidden, dtype=dtype),),
            vectors=latent.kv_rank + bias * (latent.kv_rank + latent.rope_head_dim),
            kernels=cast(share, rows * hidden),
            saved={
                "attention inputs": rows * hidden * execution.input_bytes,
                "latent vectors": narrow * share.tokens * execution.element_bytes,
            },
            drops={"attention inputs": ("layernorm",)},
        )
        if latent.q_rank is None:
            return (keys_values,)
        gemm = Gemm(m=rows, n=latent.q_rank, k=hidden, dtype=dtype)
        name = "self_attention.linear_q_down_proj"
        return Part(name=name, counts_as="attention", gemms=(gemm,), vectors=(1 + bias) * latent.q_rank), keys_values

    def _up(self, share: Share) -> tuple[Part, ...]:
        """Return the projections to all heads, which are split over tp."""
        latent, heads, execution, exchanged = self.latent, share.heads, share.execution, around(share)
        query, value, tokens = latent.nope_head_dim + latent.rope_head_dim, latent.v_head_dim, share.tokens
        inputs = latent.q_rank or share.model.hidden
        queries = Gemm(m=tokens, n=heads * query, k=inputs, dtype=execution.precision)
        keys_values = Gemm(
            m=tokens, n=heads * (latent.nope_head_dim + value), k=latent.kv_rank, dtype=execution.precision
        )
        return (
            Part(
                name="self_attention.linear_q_up_proj" if latent.q_rank else "self_attention.linear_q_proj",
                counts_as="attention",
                gemms=(queries,),
                kernels=cast(share, tokens * inputs) if latent.q_rank else (),
                modules=("mla_up_proj",),
            ),
            Part(
                name="self_attention.linear_kv_up_proj",
                counts_as="attention",
                gemms=(keys_values,),
                kernels=cast(share, tokens * latent.kv_rank),
                saved={"queries, keys, values": heads * (2 * query + value) * tokens * execution.element_bytes},
                drops={"queries, keys, values": ("mla_up_proj",)},
                modules=("mla_up_proj",),
            ),
            # Not recomputed with the projections: what tensor parallel ranks exchange around them.
            Part(
                name="self_attention.exchanges",
                counts_as="attention",
                forward=exchanged.enter_forward,
                backward=exchanged.enter_backward,
            ),
        )
