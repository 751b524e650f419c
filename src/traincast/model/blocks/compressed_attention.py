"""Attention to a window of tokens and to compressed ones before it, as DeepSeek-V4 has it: three kinds of layers.

All heads share one vector of each token, which is both key and value. Heavily compressed attention (HCA) meets every
compressed token before the window, compressed sparse attention (CSA) some that an indexer chooses, and the third kind
none. Source: DeepSeek-V4's report, section 2.3, as huggingface/transformers has it,
src/transformers/models/deepseek_v4/modular_deepseek_v4.py; FLOPs as NVIDIA-NeMo/Megatron-Bridge counts them,
src/megatron/bridge/training/utils/flop_utils.py (dsv4_hybrid): every query meets a whole window.
"""

from msgspec import Struct
from msgspec.structs import replace

from traincast.model.blocks.attention import attention_norms, core_attention, rotary, sparse_kernel
from traincast.model.blocks.common import adapters, around, exchange, moved, norm_kernel, residual
from traincast.model.blocks.part import Gemm, Kernel, Part, block, mean_keys
from traincast.model.blocks.share import Share
from traincast.model.blocks.sparse_latent_attention import INDEX_NAMES, Indexer
from traincast.model.model import Model
from traincast.model.numbers import Number, ceil_div, larger, smaller


class Compressor(Struct, frozen=True):
    """What makes one vector of some tokens: a sum of their projections, weighted by a second one and by position.

    It is whole on every tensor parallel rank, each for its own tokens.
    """

    ratio: int
    """Tokens that one compressed token stands for."""
    series: int
    """Projections of each kind: two where windows overlap."""

    def gemms(self, share: Share, width: int) -> tuple[Gemm, ...]:
        """Return both projections of a rank's tokens to vectors of a width, which stay in 16 bits (Compressor)."""
        n, dtype = 2 * self.series * width, share.execution.core_dtype
        return (Gemm(m=share.norm_tokens, n=n, k=share.model.hidden, dtype=dtype),)

    def kernels(self, share: Share, width: int) -> tuple[Kernel, ...]:
        """Return what makes the weighted sums and their norm: operations of PyTorch, the scores' in fp32.

        They read and write so many tensors of 16 bits: positions are added to scores (1, 2), softmax (2, 2), its
        weights cast (2, 1), vectors weighted (2, 1) and added up (1). Backward gradients of a product (2, 2), a cast
        (1, 2), softmax (4, 2), a cast (2, 1) and a sum for the positions (2). Two series are laid side by side, both
        vectors and scores: filled and copied (3, 6), and copied twice backward (6, 6). Source: Megatron-LM (dev),
        megatron/core/transformer/experimental_attention_variant/csa.py (Compressor._forward_sbhd).
        """
        rows, wide, two = share.norm_tokens, self.series * width, self.series > 1
        forward = moved(share, rows, wide, 8 + 3 * two, 6 + 6 * two)
        backward = moved(share, rows, wide, 11 + 6 * two, 7 + 6 * two)
        summed = norm_kernel(share, ceil_div(rows, self.ratio), width)
        return replace(forward, has_backward=False), replace(backward, has_forward=False), summed

    def pool(self, share: Share) -> Number:
        """Return the compressed tokens of a sequence."""
        return larger(1, share.sequences.length // self.ratio)

    def vectors(self, width: int) -> int:
        """Return the parameters of positions in a window, and the scale of the norm."""
        return self.ratio * self.series * width + width


class Widths(Struct, frozen=True):
    """Sizes that all three kinds of layers have."""

    window: int
    """Tokens that a query meets as they are."""
    query_rank: int
    """Width of the vector that queries are made of."""
    output_rank: int
    """Width of the vector that a group of heads makes of its output."""
    groups: int
    """Groups of heads that have such a projection each."""
    rope_dim: int
    """Part of a head that carries the position."""


class CompressedAttention(Struct, frozen=True):
    """The attention block of a layer.

    Queries and outputs pass through narrow vectors: those of the queries are whole on every tensor parallel rank, the
    output's are made of groups of heads, which are split over tp as heads are.
    """

    widths: Widths
    compressor: Compressor | None = None
    indexer: Indexer | None = None

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, projections, compressor, indexer, core, both output projections and residual sum."""
        dim = share.model.attention.head_dim
        narrow, queries = self._queries(share)
        compressed = self._compressed(share, dim) if self.compressor else ()
        met = smaller(self.widths.window, share.sequences.length) + self._met(share)
        kernel = sparse_kernel(share, met, dim, dim)
        kept = dim + (dim // self.compressor.ratio if self.compressor else 0)
        first, last = self._outputs(share, dim)
        return (
            *attention_norms(share, ("layernorm",)),
            narrow,
            queries,
            *compressed,
            *rotary(share, self.widths.rope_dim),
            core_attention(share, 0, dim, dim, kept, kernel),
            first,
            last,
            residual(share, "self_attn_bda"),
            *adapters(share, (narrow, queries, first, last), "attention outputs"),
        )

    def _met(self, share: Share) -> Number:
        """Return the compressed tokens that a query meets, as a mean: of those before it all, or the chosen ones."""
        if self.compressor is None:
            return 0
        pool = self.compressor.pool(share)
        return self.indexer.mean_chosen(pool) if self.indexer else mean_keys(pool, 0, causal=True)

    def _queries(self, share: Share) -> tuple[Part, Part]:
        """Return the narrow projections of queries, keys and values, and the wide one to all queries."""
        model, execution, dim = share.model, share.execution, share.model.attention.head_dim
        rows, split, rank = share.norm_tokens, share.splits_sequence, self.widths.query_rank
        heads, read, element = share.heads * dim, around(share, self.widths.query_rank), execution.element_bytes
        narrow = Part(
            name="self_attention.linear_q_down_proj",
            counts_as="attention",
            gemms=tuple(Gemm(m=rows, n=n, k=model.hidden, dtype=execution.precision) for n in (rank, dim)),
            vectors=rank + dim,
            kernels=(
                norm_kernel(share, rows, rank),
                norm_kernel(share, rows, dim),
            ),
            saved={
                "attention inputs": rows * model.hidden * share.input_bytes,
                "latent vectors": 2 * rows * (rank + dim) * element,
            },
            drops={"attention inputs": ("layernorm",)},
            # All heads of all ranks read the one vector of each token.
            forward=exchange(share, "all_gather", split, width=dim),
            backward=exchange(share, "reduce_scatter", split, width=dim),
        )
        wide = Part(
            name="self_attention.linear_q_up_proj",
            counts_as="attention",
            gemms=(Gemm(m=share.tokens, n=heads, k=rank, dtype=execution.precision, split="outputs"),),
            kernels=(norm_kernel(share, share.tokens * share.heads, dim),),
            saved={"queries, keys, values": 2 * share.tokens * heads * element},
            drops={"queries, keys, values": ("mla_up_proj",)},
            forward=read.enter_forward,
            backward=read.enter_backward,
            modules=("mla_up_proj",),
        )
        return narrow, wide

    def _compressed(self, share: Share, dim: int) -> tuple[Part, ...]:
        """Return the compressor, and where there is one the indexer, whose keys have a compressor of their own."""
        compressor, indexer = self.compressor, self.indexer
        if compressor is None:
            return ()
        split, element, rows = share.splits_sequence, share.execution.element_bytes, share.norm_tokens
        every = exchange(share, "all_gather", split, width=dim)
        main = Part(
            name="self_attention.compressor",
            counts_as="attention",
            gemms=compressor.gemms(share, dim),
            vectors=compressor.vectors(dim),
            kernels=compressor.kernels(share, dim),
            saved={"compressed tokens": rows * 2 * compressor.series * dim * element},
            forward=tuple(replace(each, size_bytes=each.size_bytes / compressor.ratio) for each in every),
        )
        if indexer is None:
            return (main,)
        width, pool, rank = indexer.head_dim, compressor.pool(share), self.widths.query_rank
        projections, scores = indexer.parts(
            share, rank, compressor.gemms(share, width), compressor.vectors(width), pool
        )
        return main, replace(projections, kernels=compressor.kernels(share, width)), scores

    def _outputs(self, share: Share, dim: int) -> tuple[Part, Part]:
        """Return the projection of each group of heads to a narrow vector, and of these to the hidden state."""
        model, execution, tokens = share.model, share.execution, share.tokens
        groups, exchanged = ceil_div(self.widths.groups, share.tp), around(share)
        each, narrow = ceil_div(share.heads * dim, groups), groups * self.widths.output_rank
        first = Part(
            name="self_attention.linear_o_down_proj",
            counts_as="attention",
            # A parameter and no linear layer: one batched GEMM in 16 bits, whatever the precision.
            gemms=(
                Gemm(
                    m=tokens * groups,
                    n=self.widths.output_rank,
                    k=each,
                    dtype=execution.core_dtype,
                    groups=groups,
                    in_one_kernel=True,
                ),
            ),
            # The core's outputs are turned back by their positions, which the gradient of the core needs as they were.
            kernels=(moved(share, tokens, share.heads * dim),),
        )
        last = Part(
            name="self_attention.linear_proj",
            counts_as="attention",
            gemms=(Gemm(m=tokens, n=model.hidden, k=narrow, dtype=execution.precision, split="inputs"),),
            saved={"attention outputs": tokens * narrow * share.input_bytes},
            forward=exchanged.leave_forward,
            backward=exchanged.leave_backward,
        )
        return first, last


_NAMES = ("window", "query_rank", "output_rank", "groups", "rope_dim")
_SETTINGS = tuple(f"compressed_{name}" for name in _NAMES)
_INDEX = tuple(f"index_{name}" for name in INDEX_NAMES)


@block("window_attention", settings=_SETTINGS)
def _window_attention(model: Model, _layer: int) -> CompressedAttention:
    return _attention(model, None, None)


@block("heavily_compressed_attention", settings=(*_SETTINGS, "compressed_heavy_ratio"))
def _heavily_compressed_attention(model: Model, _layer: int) -> CompressedAttention:
    return _attention(model, Compressor(**model.sizes("compressed_heavy", ("ratio",)), series=1), None)


@block("compressed_sparse_attention", settings=(*_SETTINGS, *_INDEX, "compressed_sparse_ratio"))
def _compressed_sparse_attention(model: Model, _layer: int) -> CompressedAttention:
    compressor = Compressor(**model.sizes("compressed_sparse", ("ratio",)), series=2)
    return _attention(model, compressor, Indexer(**model.sizes("index", INDEX_NAMES)))


def _attention(model: Model, compressor: Compressor | None, indexer: Indexer | None) -> CompressedAttention:
    return CompressedAttention(Widths(**model.sizes("compressed", _NAMES)), compressor, indexer)
