"""One layer of Mixtral 8x7B: hidden size 4,096, 32 heads of 128 with 8 key/value heads, 8 experts of 14,336 of which a
token uses 2, sequences of 4,096 (Jiang et al., arXiv 2401.04088, table 1), in the layouts of Megatron Core.

Sources: the token dispatcher and what it exchanges: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py
(MoEFlexTokenDispatcher: to each rank of its experts once, all-gather over etp, permute; reduce-scatter over etp, back,
unpermute); its experts: moe/experts.py (TEGroupedMLP); its router, which is on every rank and has logits and
probabilities in fp32: moe/router.py. The rest as of a dense layer: `layer.llama3_70b`.
"""

from layer.rows import Case, Exchange, Kernel, Tensor, Weight, gemm, grouped, on_a_ring, pointwise

MODEL = "mixtral-8x7b"
CORE = {"seq_length": 4096, "framework": "megatron-core-2025", "zero": 0}


def attention(*sizes, kind="causal attention"):
    """The attention core: batch, queries, keys, heads, key/value heads, widths of a query and of a value."""
    return Kernel("attention core", kind, sizes)


def kernels(core, *, tokens=4096, rows=4096, own=4096, heads=32, kv_heads=8, experts=8, routed=8192, ffn=14336):
    """The kernels of a rank: `own` tokens are routed, `routed` rows reach its experts, each `ffn` wide."""
    up, down = ((routed, 2 * ffn, 4096), (routed, 4096, ffn))
    return (
        pointwise("RMSNorms", "norm", rows, 4096, count=2),
        gemm("queries, keys, values", tokens, (heads + 2 * kv_heads) * 128, 4096),
        pointwise("rotary embedding", "rotary", tokens, heads + kv_heads, 128),
        core,
        gemm("attention output", tokens, 4096, heads * 128),
        gemm("router", own, 8, 4096),
        pointwise("softmax and the 2 of 8", "route", own, 4096, 8, 2),
        pointwise("tokens into the order of experts, and back", "permute", own, 4096, 2, count=2),
        gemm("gate and up of its expert", *up) if experts == 1 else grouped("gate and up", *up, experts),
        pointwise("SwiGLU", "swiglu", routed, ffn),
        Kernel("gradients of the router's weights", "elementwise", (routed, ffn), 0, 1),
        gemm("down of its expert", *down) if experts == 1 else grouped("down", *down, experts),
        pointwise("residual sums", "elementwise", rows, 4096, count=2),
    )


def tensors(*, tokens=4096, rows=4096, heads=32, kv_heads=8, routed=8192, ffn=14336):
    """What autograd keeps: router weights multiply the experts' activations, so that no expert output stays."""
    return (
        Tensor("inputs of both RMSNorms", "layernorm inputs", 2 * 2 * rows * 4096),
        Tensor("input of queries, keys, values", "attention inputs", 2 * rows * 4096),
        Tensor("queries, keys, values", "queries, keys, values", 2 * tokens * (heads + 2 * kv_heads) * 128),
        Tensor("log of the softmax's sum", "softmax", 4 * tokens * heads),
        Tensor("input of the attention output projection", "attention outputs", 2 * tokens * heads * 128),
        Tensor("input of the router and of the permutation", "MLP inputs", 2 * rows * 4096),
        Tensor("router logits, fp32", "routing", 4 * rows * 8),
        Tensor("router probabilities, fp32", "routing", 4 * rows * 8),
        Tensor("tokens of its experts, in their order", "expert inputs", 2 * routed * 4096),
        Tensor("gate and up", "expert up outputs", 2 * routed * 2 * ffn),
        Tensor("input of down", "expert activations", 2 * routed * ffn),
    )


def weights(tp=1, ep=1, etp=1):
    """The parameters: attention over tp, experts over ep x etp, router and norms on every rank."""
    return (
        Weight("queries, keys, values", 25_165_824, 25_165_824 // tp),
        Weight("attention output", 16_777_216, 16_777_216 // tp),
        Weight("router", 32_768, 32_768),
        Weight("8 experts of 3 matrices", 1_409_286_144, 1_409_286_144 // (ep * etp), expert=True),
        Weight("RMSNorms", 8_192, 8_192),
    )


HIDDEN_STATE = 4096 * 4096 * 2
"""33,554,432 bytes of a microbatch of one sequence."""


RANKS = {2: 2 * (1 - 6 / 28), 4: 4 * (1 - 15 / 28), 8: 2.0}
"""Ranks that the two experts of a token are on: one of n misses it with a chance of C(8 - 8 / n, 2) / C(8, 2)."""


def dispatch(own, ep, busiest=1):
    """Each of a rank's own tokens goes once to each rank of its two experts and comes back; so do the gradients."""
    return (Exchange("dispatch and combine", "ep", "all_to_all", round(own * RANKS[ep] * 4096 * 2 * busiest), 2, 2),)


SPLIT_ATTENTION = (
    Exchange("before attention; gradient of its output", "tp", "all_gather", HIDDEN_STATE, 1, 1),
    Exchange("after attention; gradient of its input", "tp", "reduce_scatter", HIDDEN_STATE, 1, 1),
    Exchange("its input again, for the weight gradient", "tp", "all_gather", HIDDEN_STATE, 0, 1),
)
"""Of a layer with experts only attention is exchanged over tp: tokens are routed where the sequence is split."""


def case(name, fields, core, *, exchanges=(), **share):
    """One layout, with the shares of a rank."""
    kept = {key: share[key] for key in ("tokens", "rows", "heads", "kv_heads", "routed", "ffn") if key in share}
    degrees = {key: fields.get(key, 1) for key in ("tp", "ep", "etp")}
    return Case(name, MODEL, CORE | fields, kernels(core, **share), exchanges, tensors(**kept), weights(**degrees))


ALL_HEADS = attention(1, 4096, 4096, 32, 8, 128, 128)
HALF_OF_THE_HEADS = attention(1, 4096, 4096, 16, 4, 128, 128)

CASES = (
    case("alone", {}, ALL_HEADS),
    case("ep 4", {"gpus": 4, "ep": 4}, ALL_HEADS, exchanges=dispatch(4096, 4), experts=2),
    # One expert on a rank is a plain GEMM.
    case("ep 8", {"gpus": 8, "ep": 8}, ALL_HEADS, exchanges=dispatch(4096, 8), experts=1),
    case(
        "tp 2 sp, ep 4 etp 1",
        {"gpus": 4, "tp": 2, "ep": 4, "etp": 1, "sequence_parallel": True},
        HALF_OF_THE_HEADS,
        exchanges=(*SPLIT_ATTENTION, *dispatch(2048, 4)),
        rows=2048,
        own=2048,
        heads=16,
        kv_heads=4,
        experts=2,
        routed=4096,
    ),
    case(
        "tp 2 sp, ep 2 etp 2",
        {"gpus": 4, "tp": 2, "ep": 2, "etp": 2, "sequence_parallel": True},
        HALF_OF_THE_HEADS,
        exchanges=(
            *SPLIT_ATTENTION,
            *dispatch(2048, 2),
            # Both ranks of an expert need the 4,096 rows of each other.
            Exchange("rows of both; gradients of outputs", "etp", "all_gather", 2 * 4096 * 4096 * 2, 1, 1),
            Exchange("sums of outputs; gradients of rows", "etp", "reduce_scatter", 2 * 4096 * 4096 * 2, 1, 1),
        ),
        rows=2048,
        own=2048,
        heads=16,
        kv_heads=4,
        experts=4,
        routed=8192,
        ffn=7168,
    ),
    case(
        "tp 2, ep 2 etp 1",
        # Megatron Core refuses experts with tp and without sequence parallelism; other frameworks share tokens out.
        {"gpus": 4, "tp": 2, "ep": 2, "etp": 1, "sequence_parallel": False},
        HALF_OF_THE_HEADS,
        exchanges=(
            Exchange("after attention, and before it in the backward pass", "tp", "all_reduce", HIDDEN_STATE),
            *dispatch(2048, 2),
            Exchange("tokens of both ranks, and gradients", "tp", "all_gather", HIDDEN_STATE),
        ),
        own=2048,
        heads=16,
        kv_heads=4,
        experts=4,
        routed=4096,
    ),
    on_a_ring(
        case(
            "cp 2 ring, ep 2",
            {"gpus": 2, "cp": 2, "cp_kind": "ring", "ep": 2},
            attention(1, 2048, 2048, 32, 8, 128, 128, kind="attention"),
            exchanges=(
                Exchange("keys and values of all ranks", "cp", "all_gather", 4096 * 2 * 8 * 128 * 2, 1, 1),
                Exchange("their gradients", "cp", "reduce_scatter", 4096 * 2 * 8 * 128 * 2, 0, 1),
                *dispatch(2048, 2),
            ),
            tokens=2048,
            rows=2048,
            own=2048,
            experts=4,
            routed=4096,
        ),
        2,
        2048,
        outputs=32 * 128,
        queries=32 * 128,
        keys_values=2 * 8 * 128,
    ),
    case(
        "cp 2 Ulysses, ep 2",
        {"gpus": 2, "cp": 2, "cp_kind": "all_to_all", "ep": 2},
        attention(1, 4096, 4096, 16, 4, 128, 128),
        exchanges=(
            Exchange("turns", "cp", "all_to_all", 2048 * (32 + 8 + 8 + 32) * 128 * 2, 1, 1),
            *dispatch(2048, 2),
        ),
        tokens=2048,
        rows=2048,
        own=2048,
        experts=4,
        routed=4096,
    ),
    # The busiest rank has one and a half times the mean.
    case(
        "ep 4, imbalance 1.5",
        {"gpus": 4, "ep": 4, "expert_imbalance": 1.5},
        ALL_HEADS,
        exchanges=dispatch(4096, 4, 1.5),
        experts=2,
        routed=12288,
    ),
)
