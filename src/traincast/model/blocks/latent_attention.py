"""Multi-head latent attention: queries and keys/values pass through narrow projections."""

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.model.blocks.attention import attention_norms, core_attention, head_norms, output_projection, rotary
from traincast.model.blocks.common import adapters, around, exchange, norm_kernel, residual
from traincast.model.blocks.part import Gemm, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Latent, Model
from traincast.model.numbers import Number


class LatentAttention(Struct, frozen=True):
    """The attention block of a layer with latent attention.

    Sources: DeepSeek-V2, arXiv 2405.04434, section 2.1; Megatron-LM, megatron/core/transformer/
    multi_latent_attention.py (narrow projections are whole on every tensor parallel rank, each for its tokens, with
    biases where there are any) and megatron/core/models/gpt/gpt_layer_specs.py (the norms of narrow vectors belong to
    the projections to all heads, which gather and reduce these vectors over tp as others do the hidden state).
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
            *rotary(share, query, ("mla_up_proj", "linear_qkv")),
            *self.core(share),
            proj,
            residual(share, "self_attn_bda"),
            *adapters(share, (*projections, proj), "attention outputs"),
        )

    def core(self, share: Share) -> tuple[Part, ...]:
        """Return queries times keys and weights times values, of keys and values that are made for every head."""
        query, value = self.latent.nope_head_dim + self.latent.rope_head_dim, self.latent.v_head_dim
        return (core_attention(share, self.window, query, value, share.heads * (query + value)),)

    def kept_width(self) -> int:
        """Return the elements of a token that the core keeps for each head: its query, key and value."""
        return 2 * (self.latent.nope_head_dim + self.latent.rope_head_dim) + self.latent.v_head_dim

    def _down(self, share: Share) -> tuple[Part, ...]:
        """Return the narrow projections; queries may have none."""
        latent, hidden, execution = self.latent, share.model.hidden, share.execution
        rows, dtype, bias = share.norm_tokens, execution.precision, int(share.model.attention.qkv_bias)
        split = share.splits_sequence
        keys_values = Part(
            name="self_attention.linear_kv_down_proj",
            counts_as="attention",
            gemms=(Gemm(m=rows, n=latent.kv_rank + latent.rope_head_dim, k=hidden, dtype=dtype),),
            vectors=bias * (latent.kv_rank + latent.rope_head_dim),
            saved={
                "attention inputs": rows * hidden * share.input_bytes,
                "latent vectors": (latent.kv_rank + latent.rope_head_dim) * rows * execution.element_bytes,
            },
            drops={"attention inputs": ("layernorm",)},
            # The part of keys that has the position is the same for all heads.
            forward=exchange(share, "all_gather", split, width=latent.rope_head_dim),
            backward=exchange(share, "reduce_scatter", split, width=latent.rope_head_dim),
        )
        if latent.q_rank is None:
            return (keys_values,)
        queries = Part(
            name="self_attention.linear_q_down_proj",
            counts_as="attention",
            gemms=(Gemm(m=rows, n=latent.q_rank, k=hidden, dtype=dtype),),
            vectors=bias * latent.q_rank,
            saved={"latent vectors": latent.q_rank * rows * execution.element_bytes},
        )
        return queries, keys_values

    def _up(self, share: Share) -> tuple[Part, ...]:
        """Return the projections to all heads, which are split over tp, with the norms of what they read."""
        latent, heads, execution = self.latent, share.heads, share.execution
        query, value = latent.nope_head_dim + latent.rope_head_dim, latent.v_head_dim
        keys_values = self._wide(share, "linear_kv_up_proj", latent.kv_rank, heads * (latent.nope_head_dim + value))
        kept = heads * self.kept_width() * share.tokens * execution.element_bytes
        queries = self._wide(share, "linear_q_up_proj", latent.q_rank, heads * query)
        return queries, replace(
            keys_values,
            saved={**keys_values.saved, "queries, keys, values": kept},
            drops={**keys_values.drops, "queries, keys, values": ("mla_up_proj",)},
        )

    def _wide(self, share: Share, name: str, rank: int | None, outputs: Number) -> Part:
        """Return a projection from narrow vectors to a rank's heads, or from the hidden state where there are none."""
        exchanged, execution, inputs = around(share, rank), share.execution, rank or share.model.hidden
        part = Part(
            name=f"self_attention.{name if rank else 'linear_q_proj'}",
            counts_as="attention",
            gemms=(Gemm(m=share.tokens, n=outputs, k=inputs, dtype=execution.precision, split="outputs"),),
            forward=exchanged.enter_forward,
            backward=exchanged.enter_backward,
            modules=("mla_up_proj", "linear_qkv"),
        )
        if not rank:
            return part
        return replace(
            part,
            vectors=rank,
            kernels=(norm_kernel(share, share.norm_tokens, rank),),
            saved={"latent vectors": share.norm_tokens * rank * share.input_bytes},
            drops={"latent vectors": ("mla_up_proj",)},
        )


@block("latent_attention")
def _latent_attention(model: Model, layer: int) -> LatentAttention:
    if model.attention.latent is None:
        raise ConfigError("latent attention has no widths; give attention.latent", "model.blocks")
    return LatentAttention(model.attention.latent, model.window_of(layer))
