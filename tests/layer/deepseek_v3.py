"""One layer of DeepSeek-V3, dense and with experts: hidden size 7,168, 128 heads with latent attention (queries through
1,536, keys and values through 512, of a head 128 without and 64 with position, values of 128), MLP of 18,432, 256
experts of 2,048 of which a token uses 8 and one that all use, sequences of 4,096 (arXiv 2412.19437, section 4.2).

Sources: latent attention: DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C. In Megatron Core
(megatron/core/transformer/multi_latent_attention.py; models/gpt/gpt_layer_specs.py) the down-projections are on every
rank (``parallel_mode = 'duplicated'``) and see the split sequence, their results have RMSNorms of their own, and with
sequence parallelism it is these narrow results that are gathered, not the hidden state. Rotary embedding writes whole
queries and keys (``torch.cat`` of both parts). Node-limited routing: arXiv 2412.19437, section 2.1.2. Shared experts
are split as a dense MLP: moe/shared_experts.py. The rest: `layer.mixtral_8x7b`.
"""

from math import comb

from layer.rows import Case, Exchange, Kernel, Tensor, Weight, gemm, grouped, on_a_ring, pointwise

MODEL = "deepseek-v3"
CORE = {"seq_length": 4096, "framework": "megatron-core-2025", "zero": 0}


def attention(*sizes, kind="causal attention"):
    """The attention core: batch, queries, keys, heads, key/value heads, widths of a query and of a value."""
    return Kernel("attention core", kind, sizes)


def latent_attention(core, *, tokens, rows, heads):
    """What both kinds of layers have; `rows` are the tokens that norms and down-projections see."""
    return (
        pointwise("RMSNorms", "norm", rows, 7168, count=2),
        gemm("queries down", rows, 1536, 7168),
        gemm("keys and values down, with the part of keys that has position", rows, 512 + 64, 7168),
        pointwise("RMSNorm of compressed queries", "norm", rows, 1536),
        pointwise("RMSNorm of compressed keys and values", "norm", rows, 512),
        gemm("queries up", tokens, heads * (128 + 64), 1536),
        gemm("keys and values up", tokens, heads * (128 + 128), 512),
        pointwise("rotary embedding", "rotary", tokens, 2 * heads, 128 + 64),
        core,
        gemm("attention output", tokens, 7168, heads * 128),
        pointwise("residual sums", "elementwise", rows, 7168, count=2),
    )


def mlp(tokens, ffn):
    """The dense MLP."""
    return (
        gemm("gate and up", tokens, 2 * ffn, 7168),
        pointwise("SwiGLU", "swiglu", tokens, ffn),
        gemm("down", tokens, 7168, ffn),
    )


def experts(*, own, count, routed, tokens, ffn=2048, shared=2048):
    """Router, experts of a rank, and its part of the shared expert."""
    return (
        gemm("router", own, 256, 7168),
        pointwise("sigmoid and the 8 of 256", "route", own, 7168, 256, 8),
        pointwise("tokens into the order of experts, and back", "permute", own, 7168, 8, count=2),
        grouped("gate and up of experts", routed, 2 * ffn, 7168, count),
        pointwise("SwiGLU of experts", "swiglu", routed, ffn),
        Kernel("gradients of the router's weights", "elementwise", (routed, ffn), 0, 1),
        grouped("down of experts", routed, 7168, ffn, count),
        gemm("gate and up of the shared expert", tokens, 2 * shared, 7168),
        pointwise("SwiGLU of the shared expert", "swiglu", tokens, shared),
        gemm("down of the shared expert", tokens, 7168, shared),
    )


def latent_tensors(*, tokens, rows, heads):
    """What both kinds of layers keep; compressed vectors are gathered where they are used, not where they are kept."""
    return (
        Tensor("inputs of both RMSNorms", "layernorm inputs", 2 * 2 * rows * 7168),
        Tensor("input of the down-projections", "attention inputs", 2 * rows * 7168),
        Tensor("compressed queries before their norm", "latent vectors", 2 * rows * 1536),
        Tensor("compressed keys and values before their norm, with position", "latent vectors", 2 * rows * (512 + 64)),
        Tensor("compressed queries after their norm", "latent vectors", 2 * rows * 1536),
        Tensor("compressed keys and values after their norm", "latent vectors", 2 * rows * 512),
        Tensor("queries and keys", "queries, keys, values", 2 * tokens * heads * 2 * (128 + 64)),
        Tensor("values", "queries, keys, values", 2 * tokens * heads * 128),
        Tensor("log of the softmax's sum", "softmax", 4 * tokens * heads),
        Tensor("input of the attention output projection", "attention outputs", 2 * tokens * heads * 128),
        Tensor("input of the MLP, or of router and experts", "MLP inputs", 2 * rows * 7168),
    )


def mlp_tensors(tokens, ffn):
    """What the dense MLP keeps."""
    return (
        Tensor("gate and up", "MLP activations", 2 * tokens * 2 * ffn),
        Tensor("input of down", "MLP activations", 2 * tokens * ffn),
    )


def expert_tensors(*, rows, routed, tokens, ffn=2048, shared=2048):
    """What router and experts keep; `rows` are the tokens of which a rank keeps the routing."""
    return (
        Tensor("router logits and scores, fp32", "routing", 2 * 4 * rows * 256),
        Tensor("tokens of its experts, in their order", "expert inputs", 2 * routed * 7168),
        Tensor("gate and up of experts", "expert up outputs", 2 * routed * 2 * ffn),
        Tensor("input of down of experts", "expert activations", 2 * routed * ffn),
        Tensor("gate, up and input of down of the shared expert", "shared experts", 2 * tokens * 3 * shared),
    )


def attention_weights(tp):
    """187,107,328 parameters of attention, of which the down-projections and norms are on every rank."""
    return (
        Weight("queries down", 11_010_048, 11_010_048),
        Weight("keys and values down", 4_128_768, 4_128_768),
        Weight("norms of compressed vectors", 2_048, 2_048),
        Weight("queries up", 37_748_736, 37_748_736 // tp),
        Weight("keys and values up", 16_777_216, 16_777_216 // tp),
        Weight("attention output", 117_440_512, 117_440_512 // tp),
        Weight("RMSNorms", 14_336, 14_336),
    )


def mlp_weights(tp=1):
    """The dense MLP."""
    return (Weight("gate, up and down", 396_361_728, 396_361_728 // tp),)


def expert_weights(tp=1, ep=1, etp=1):
    """Router, experts and the shared expert; the bias of the router is updated without a gradient (section 2.1.2)."""
    return (
        Weight("router", 1_835_008, 1_835_008),
        Weight("256 experts of 3 matrices", 11_274_289_152, 11_274_289_152 // (ep * etp), expert=True),
        Weight("shared expert", 44_040_192, 44_040_192 // tp),
    )


HIDDEN_STATE = 4096 * 7168 * 2
"""58,720,256 bytes of a microbatch of one sequence."""
QUERIES, KEYS_VALUES, POSITION = 4096 * 1536 * 2, 4096 * 512 * 2, 4096 * 64 * 2
"""Bytes of its compressed vectors, and of the part of keys with position, which all heads share."""


def split_block():
    """An MLP or a shared expert with sequence parallelism (arXiv 2205.05198, section 4.2.2)."""
    return (
        Exchange("before it; gradient of its output", "tp", "all_gather", HIDDEN_STATE, 1, 1),
        Exchange("after it; gradient of its input", "tp", "reduce_scatter", HIDDEN_STATE, 1, 1),
        Exchange("its input again, for the weight gradient", "tp", "all_gather", HIDDEN_STATE, 0, 1),
    )


SPLIT_ATTENTION = (
    Exchange("gradient of the output", "tp", "all_gather", HIDDEN_STATE, 0, 1),
    Exchange("after attention", "tp", "reduce_scatter", HIDDEN_STATE, 1, 0),
    # Before the up-projections, and in the backward pass again for their weight gradients.
    Exchange("compressed queries", "tp", "all_gather", QUERIES, 1, 1),
    Exchange("compressed keys and values", "tp", "all_gather", KEYS_VALUES, 1, 1),
    Exchange("keys' position", "tp", "all_gather", POSITION, 1, 0),
    Exchange("gradient of compressed queries", "tp", "reduce_scatter", QUERIES, 0, 1),
    Exchange("gradient of compressed keys and values", "tp", "reduce_scatter", KEYS_VALUES, 0, 1),
    Exchange("gradient of keys' position", "tp", "reduce_scatter", POSITION, 0, 1),
)
WHOLE_ATTENTION = (
    Exchange("after attention", "tp", "all_reduce", HIDDEN_STATE, 1, 0),
    Exchange("gradient of compressed queries", "tp", "all_reduce", QUERIES, 0, 1),
    Exchange("gradient of compressed keys and values", "tp", "all_reduce", KEYS_VALUES, 0, 1),
)


def dispatch(own, copies=8):
    """Each of a rank's own tokens goes to its experts and comes back; so do the gradients."""
    return (Exchange("dispatch and combine", "ep", "all_to_all", round(own * copies * 7168 * 2), 2, 2),)


MISSED = 96 * 95 * 94 * 93 * 92 * 91 * 90 * 89 / (128 * 127 * 126 * 125 * 124 * 123 * 122 * 121)
"""Chance that none of a token's 8 experts, among the 128 of 4 groups, is one of the 32 of a given one of these."""
NODES = 8 * (1 - MISSED) / 2
"""3.63 of 8 nodes that a token reaches with a group of 32 experts on each: half of the groups are chosen."""


SHARE_OF_TWO = sum(
    comb(2, own) * comb(6, 4 - own) / comb(8, 4) * comb(128 - 32 * own, 8) / comb(128, 8) for own in range(3)
)
"""Chance that none of a token's experts is on a rank that has two of the eight groups."""
RANKS_OF_4 = 4 * (1 - SHARE_OF_TWO)
"""Ranks of four that a token reaches inside a node, where it is sent to each of them once."""


def dense(name, fields, core, *, exchanges=(), tokens=4096, rows=4096, heads=128, ffn=18432):
    """A dense layer under one layout."""
    tp = fields.get("tp", 1)
    return Case(
        name,
        MODEL,
        CORE | fields,
        (*latent_attention(core, tokens=tokens, rows=rows, heads=heads), *mlp(tokens, ffn)),
        exchanges,
        (*latent_tensors(tokens=tokens, rows=rows, heads=heads), *mlp_tensors(tokens, ffn)),
        (*attention_weights(tp), *mlp_weights(tp)),
        dense=True,
    )


def moe(
    name,
    fields,
    core,
    *,
    own=4096,
    count=256,
    routed=32768,
    tokens=4096,
    rows=4096,
    heads=128,
    ffn=2048,
    shared=2048,
    exchanges=(),
    sorts=False,
):
    """A layer with experts under one layout; `sorts` where what arrives is put in the experts' order by itself."""
    tp, ep, etp = (fields.get(key, 1) for key in ("tp", "ep", "etp"))
    return Case(
        name,
        MODEL,
        CORE | fields,
        (
            *latent_attention(core, tokens=tokens, rows=rows, heads=heads),
            *experts(own=own, count=count, routed=routed, tokens=tokens, ffn=ffn, shared=shared),
            *((pointwise("rows of ranks into the order of experts", "permute", routed, 7168, 1, count=2),) * sorts),
        ),
        exchanges,
        (
            *latent_tensors(tokens=tokens, rows=rows, heads=heads),
            *expert_tensors(rows=rows, routed=routed, tokens=tokens, ffn=ffn, shared=shared),
        ),
        (*attention_weights(tp), *expert_weights(tp, ep, etp)),
    )


ALL_HEADS = attention(1, 4096, 4096, 128, 128, 192, 128)
HALF_OF_THE_HEADS = attention(1, 4096, 4096, 64, 64, 192, 128)
SPLIT_IN_TWO = {"tp": 2, "sequence_parallel": True}

CASES = (
    dense("dense alone", {}, ALL_HEADS),
    dense(
        "dense tp 2",
        {"gpus": 2, "tp": 2, "sequence_parallel": False},
        HALF_OF_THE_HEADS,
        exchanges=(
            *WHOLE_ATTENTION,
            Exchange("after the MLP; gradient of its input", "tp", "all_reduce", HIDDEN_STATE),
        ),
        heads=64,
        ffn=9216,
    ),
    dense(
        "dense tp 2 sp",
        {"gpus": 2, **SPLIT_IN_TWO},
        HALF_OF_THE_HEADS,
        exchanges=(*SPLIT_ATTENTION, *split_block()),
        rows=2048,
        heads=64,
        ffn=9216,
    ),
    on_a_ring(
        dense(
            "dense cp 2 ring",
            {"gpus": 2, "cp": 2, "cp_kind": "ring"},
            attention(1, 2048, 2048, 128, 128, 192, 128, kind="attention"),
            # Keys of 192 and values of 128 of every head, as they leave the up-projections.
            exchanges=(
                Exchange("keys and values of all ranks", "cp", "all_gather", 4096 * 128 * (192 + 128) * 2, 1, 1),
                Exchange("their gradients", "cp", "reduce_scatter", 4096 * 128 * (192 + 128) * 2, 0, 1),
            ),
            tokens=2048,
            rows=2048,
        ),
        2,
        2048,
        outputs=128 * 128,
        queries=128 * 192,
        keys_values=128 * (192 + 128),
    ),
    dense(
        "dense cp 2 Ulysses",
        {"gpus": 2, "cp": 2, "cp_kind": "all_to_all"},
        HALF_OF_THE_HEADS,
        # Queries and keys of 192, values and the output of 128.
        exchanges=(Exchange("turns", "cp", "all_to_all", 2048 * 128 * (192 + 192 + 128 + 128) * 2, 1, 1),),
        tokens=2048,
        rows=2048,
    ),
    moe("alone", {}, ALL_HEADS),
    # A rank of eight has one group of 32, as a node of eight has.
    moe("ep 8", {"gpus": 8, "ep": 8}, ALL_HEADS, exchanges=dispatch(4096, NODES), count=32),
    # Eight nodes of eight ranks, and a token sent once to each node of its experts (DeepEP).
    moe("ep 64", {"gpus": 64, "ep": 64}, ALL_HEADS, exchanges=dispatch(4096, NODES), count=4),
    moe(
        "ep 64, sent once for each expert",
        {"gpus": 64, "ep": 64, "deduplicated_dispatch": False},
        ALL_HEADS,
        exchanges=(
            *dispatch(4096),
            Exchange("weights of the router, and their gradients", "ep", "all_to_all", 4096 * 8 * 4, 1, 1),
            Exchange("how many tokens of each rank come to each expert", "ep", "all_gather", 64 * 256 * 8, 1, 0),
        ),
        count=4,
        sorts=True,
    ),
    moe(
        "tp 2 sp, ep 8 etp 1",
        {"gpus": 8, **SPLIT_IN_TWO, "ep": 8, "etp": 1},
        HALF_OF_THE_HEADS,
        exchanges=(*SPLIT_ATTENTION, *split_block(), *dispatch(2048, NODES)),
        own=2048,
        count=32,
        routed=16384,
        rows=2048,
        heads=64,
        shared=1024,
    ),
    moe(
        "tp 2 sp, ep 4 etp 2",
        {"gpus": 8, **SPLIT_IN_TWO, "ep": 4, "etp": 2},
        HALF_OF_THE_HEADS,
        exchanges=(
            *SPLIT_ATTENTION,
            *split_block(),
            *dispatch(2048, RANKS_OF_4),
            Exchange("rows of both; gradients of outputs", "etp", "all_gather", 2 * 16384 * 7168 * 2, 1, 1),
            Exchange("sums of outputs; gradients of rows", "etp", "reduce_scatter", 2 * 16384 * 7168 * 2, 1, 1),
        ),
        own=2048,
        count=64,
        routed=32768,
        rows=2048,
        heads=64,
        ffn=1024,
        shared=1024,
    ),
)
