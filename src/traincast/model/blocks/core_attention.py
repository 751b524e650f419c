"""The core of attention: queries times keys, softmax, weights times values; with or without context parallelism."""

from traincast.model.blocks.part import Exchange, Kernel, Part
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, ceil_div, choose, larger, smaller

_SUM_BYTES = 4
"""Flash attention keeps one fp32 sum per query and head (Dao et al. 2022, arXiv 2205.14135, algorithm 2)."""

_MASK_BYTES = 1

RING_CHUNKS = 2
"""Keys and values of two other ranks, one in use and one on its way (Liu et al. 2023, arXiv 2310.01889)."""


def core_attention(share: Share, window: int, query: int, value: int, kv_width: Number) -> Part:
    """Return the core of attention.

    Parameters
    ----------
    share : Share
        Of a rank.
    window : int
        Tokens a query sees back; 0: all.
    query, value : int
        Width of a head's query and key, and of its value.
    kv_width : int or array
        Elements of keys and values of a token on a rank.

    Returns
    -------
    Part
        Megatron Core's ``core_attention``, with what context parallel ranks exchange for it.
    """
    execution, heads = share.execution, share.heads
    around = _exchanges(share, heads * (query + value), kv_width)
    copies = 2 if execution.core_output_copy else 1
    saved = {"attention outputs": heads * value * share.tokens * execution.element_bytes * copies}
    drops: dict[str, tuple[str, ...]] = {}
    if execution.attention_kernel == "unfused":
        # The softmax, and with dropout its mask and its outcome, all over every pair of tokens.
        width = execution.element_bytes
        per_pair = width + (width + _MASK_BYTES if execution.dropout else 0)
        saved["attention scores"] = per_pair * heads * share.seq_length * share.tokens
        drops["attention scores"] = ("core_attn",)
    else:
        saved["attention sums"] = _SUM_BYTES * heads * share.tokens
        drops["attention sums"] = ("core_attn",)
    others = _keys_of_others(share, kv_width)
    return Part(
        name="self_attention.core_attention",
        counts_as="attention_core",
        vectors=heads if share.model.attention.sinks else 0,
        kernels=(_kernel(share, window, query, value),),
        forward=around[0],
        backward=around[1],
        saved=saved,
        drops=drops,
        modules=("core_attn",),
        passing_forward=others,
        passing_backward=2 * others,
    )


def _kernel(share: Share, window: int, query: int, value: int) -> Kernel:
    """Return the kernel that one rank runs.

    With all-to-alls a rank has some of the heads and whole sequences (Jacobs et al. 2023, arXiv 2309.14509); else
    some of the queries meet all keys. Of a causal sequence ranks then hold a piece from each half, so that each meets
    half of all keys.
    """
    execution, attention = share.execution, share.model.attention
    heads, kv_heads, causal = share.heads, share.kv_heads, attention.causal
    if attention.latent is not None:
        kv_heads = heads
    queries, keys = share.sequence, share.sequence * share.cp
    if execution.cp_kind == "all_to_all":
        queries = keys
        heads, kv_heads = ceil_div(heads, share.cp), larger(1, kv_heads // share.cp)
    elif causal:
        keys = choose(share.cp > 1, ceil_div(keys, 2), keys)
        causal = share.cp == 1
    unfused = execution.attention_kernel == "unfused"
    return Kernel(
        family="unfused_attention" if unfused else "attention",
        shape=(share.micro_batch, queries, keys, heads, choose(heads % kv_heads == 0, kv_heads, heads), query, value),
        dtype=execution.core_dtype,
        causal=causal,
        window=window,
        options=() if unfused else (("kernel", execution.attention_kernel),),
    )


def _exchanges(
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
    return own * (others if share.execution.cp_kind == "all_gather" else smaller(others, RING_CHUNKS))
