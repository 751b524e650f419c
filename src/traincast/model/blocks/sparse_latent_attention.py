"""Latent attention whose queries meet some keys alone, which an indexer chooses (DeepSeek-V3.2's DSA).

Sources: DeepSeek-V3.2, arXiv 2512.02556, section 2.1 (the lightning indexer scores every key before a query by a few
narrow heads that share one key; the core then is multi-query attention over latent vectors, of which all heads are
made); Megatron-LM, megatron/core/transformer/experimental_attention_variant/dsa.py and absorbed_mla.py (queries and
outputs, not keys and values, pass through the up-projection; the indexer is whole on every tensor parallel rank, which
gathers what it reads).
"""

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.model.blocks.attention import core_attention, sparse_kernel
from traincast.model.blocks.common import exchange, norm_kernel
from traincast.model.blocks.latent_attention import LatentAttention
from traincast.model.blocks.part import INDEX_FAMILY, Gemm, Kernel, Part, block, mean_keys
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import Number, larger, rounded, smaller

_INDEX_BYTES = 4
"""Bytes of a chosen key's index, which the core's backward pass reads again."""

INDEX_NAMES = ("heads", "head_dim", "topk")
"""Numbers of an indexer, behind ``index_`` in a model's settings."""


class Indexer(Struct, frozen=True):
    """What chooses the keys of a query."""

    heads: int
    head_dim: int
    topk: int
    """Keys of a query."""

    def parts(self, share: Share, rank: int, keys: tuple[Gemm, ...], vectors: int, pool: Number) -> tuple[Part, ...]:
        """Return its projections and scores, the same on every tensor parallel rank.

        Queries are made of latent vectors of width `rank`, keys by some GEMMs of their own with `vectors` more
        parameters; a query meets the half of `pool` of them, which is before it.
        """
        model, execution, split = share.model, share.execution, share.splits_sequence
        tokens, element, dtype = share.tokens, execution.element_bytes, execution.precision
        read = (*exchange(share, "all_gather", split), *exchange(share, "all_gather", split, width=rank))
        kept = tokens * (self.heads * (self.head_dim + 1) + self.head_dim) * element
        projections = Part(
            name="self_attention.indexer",
            counts_as="attention",
            gemms=(
                Gemm(m=tokens, n=self.heads * self.head_dim, k=rank, dtype=dtype),
                Gemm(m=tokens, n=self.heads, k=model.hidden, dtype=execution.core_dtype),
                *keys,
            ),
            vectors=vectors,
            kernels=(norm_kernel(share, tokens, self.head_dim),),
            saved={"indexer inputs": tokens * (model.hidden + rank) * share.input_bytes, "indexer": kept},
            forward=read,
        )
        topk = smaller(self.topk, larger(1, pool))
        met = larger(1, rounded(mean_keys(pool, 0, causal=True)))
        scores = Kernel(
            family=INDEX_FAMILY,
            shape=(share.sequences.count, share.sequence, met, self.heads, self.head_dim, topk),
            dtype=execution.core_dtype,
        )
        chosen = Part(
            name="self_attention.indexer.scores",
            counts_as="attention_core",
            kernels=(scores,),
            saved={"chosen keys": tokens * topk * _INDEX_BYTES},
        )
        return projections, chosen

    def mean_chosen(self, pool: Number) -> Number:
        """Return the keys that a query meets of those before it, on average: all, as long as they are few."""
        return mean_keys(pool, self.topk, causal=True)


class SparseLatentAttention(LatentAttention, frozen=True):
    """The attention block of a layer: latent attention with an indexer."""

    indexer: Indexer | None = None

    def core(self, share: Share) -> tuple[Part, ...]:
        """Return the indexer, and multi-query attention over the latent vectors that it chooses."""
        latent, indexer = self.latent, self.indexer
        if indexer is None or latent.q_rank is None:
            raise ConfigError("sparse attention has no indexer, or no latent queries that it reads", "model.blocks")
        hidden, dtype = share.model.hidden, share.execution.precision
        keys = (Gemm(m=share.tokens, n=indexer.head_dim, k=hidden, dtype=dtype),)
        key, met = latent.kv_rank + latent.rope_head_dim, indexer.mean_chosen(share.sequences.length)
        # The norm of the keys has a bias (its LayerNorm).
        chosen = indexer.parts(share, latent.q_rank, keys, 2 * indexer.head_dim, share.sequences.length)
        kernel = sparse_kernel(share, met, key, latent.kv_rank)
        return (*chosen, core_attention(share, 0, key, latent.kv_rank, key + indexer.head_dim, kernel))

    def kept_width(self) -> int:
        """Return the elements of a token that are kept for each head: its query, as latent vectors, and its output."""
        latent = self.latent
        query = latent.nope_head_dim + latent.rope_head_dim
        return query + latent.kv_rank + latent.rope_head_dim + latent.v_head_dim


@block("sparse_latent_attention", settings=tuple(f"index_{name}" for name in INDEX_NAMES))
def _sparse_latent_attention(model: Model, layer: int) -> SparseLatentAttention:
    latent = model.attention.latent
    if latent is None or latent.q_rank is None:
        raise ConfigError("sparse latent attention needs attention.latent with a q_rank", "model.blocks")
    return SparseLatentAttention(latent, model.window_of(layer), Indexer(**model.sizes("index", INDEX_NAMES)))
