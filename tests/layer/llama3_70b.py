"""One layer of Llama 3 70B: hidden size 8,192, 64 heads of 128 with 8 key/value heads, SwiGLU of 28,672, sequences of
8,192 (Dubey et al., arXiv 2407.21783, table 3), in the kernels and layouts of Megatron Core.

Sources: grouped queries: Ainslie et al., arXiv 2305.13245. SwiGLU, whose gate and up matrices are one GEMM: Shazeer,
arXiv 2002.05202; Megatron-LM, megatron/core/transformer/mlp.py. Rotary embedding of queries and keys: Su et al., arXiv
2104.09864. Tensor and sequence parallelism: Korthikanti et al., arXiv 2205.05198, section 4.2. Key/value heads on more
ranks than heads are copied: Megatron-LM, megatron/core/transformer/attention.py. Ring: Liu et al., arXiv 2310.01889;
all-gather of keys and values: arXiv 2407.21783, section 3.3.2; Ulysses: Jacobs et al., arXiv 2309.14509. Sharded state:
Rajbhandari et al., arXiv 1910.02054, figure 1; Zhao et al., arXiv 2304.11277, section 3.
"""

from layer.rows import Case, Exchange, Kernel, Tensor, Weight, gemm, on_a_ring, pointwise

MODEL = "llama3-70b"
CORE = {"seq_length": 8192, "framework": "megatron-core-2025", "zero": 0}


def attention(*sizes, kind="causal attention"):
    """The attention core: batch, queries, keys, heads, key/value heads, widths of a query and of a value."""
    return Kernel("attention core", kind, sizes)


def kernels(core, *, tokens=8192, rows=8192, heads=64, kv_heads=8, ffn=28672):
    """The kernels of a layer on a rank with so many heads and so much of the MLP; `rows` are what RMSNorms see."""
    return (
        pointwise("RMSNorms", "norm", rows, 8192, count=2),
        gemm("queries, keys, values", tokens, (heads + 2 * kv_heads) * 128, 8192),
        pointwise("rotary embedding", "rotary", tokens, heads + kv_heads, 128),
        core,
        gemm("attention output", tokens, 8192, heads * 128),
        gemm("MLP gate and up", tokens, 2 * ffn, 8192),
        pointwise("SwiGLU", "swiglu", tokens, ffn),
        gemm("MLP down", tokens, 8192, ffn),
        pointwise("residual sums", "elementwise", rows, 8192, count=2),
    )


def tensors(*, tokens=8192, rows=8192, heads=64, kv_heads=8, ffn=28672):
    """What autograd keeps in bf16, and flash attention's fp32 sums (arXiv 2205.14135, algorithm 2); no dropout."""
    return (
        Tensor("inputs of both RMSNorms", "layernorm inputs", 2 * 2 * rows * 8192),
        Tensor("input of queries, keys, values", "attention inputs", 2 * rows * 8192),
        Tensor("queries", "queries, keys, values", 2 * tokens * heads * 128),
        Tensor("keys", "queries, keys, values", 2 * tokens * kv_heads * 128),
        Tensor("values", "queries, keys, values", 2 * tokens * kv_heads * 128),
        Tensor("log of the softmax's sum", "softmax", 4 * tokens * heads),
        Tensor("input of the attention output projection", "attention outputs", 2 * tokens * heads * 128),
        Tensor("input of gate and up", "MLP inputs", 2 * rows * 8192),
        Tensor("gate and up, the inputs of SwiGLU", "MLP activations", 2 * tokens * 2 * ffn),
        Tensor("input of down", "MLP activations", 2 * tokens * ffn),
    )


def weights(tp=1, kv_copies=1):
    """The parameters; keys and values are copied where there are more ranks than heads."""
    return (
        Weight("queries", 67_108_864, 67_108_864 // tp),
        Weight("keys and values", 16_777_216, 16_777_216 * kv_copies // tp),
        Weight("attention output", 67_108_864, 67_108_864 // tp),
        Weight("MLP gate and up", 469_762_048, 469_762_048 // tp),
        Weight("MLP down", 234_881_024, 234_881_024 // tp),
        Weight("RMSNorms", 16_384, 16_384),
    )


HIDDEN_STATE = 8192 * 8192 * 2
"""134,217,728 bytes of a microbatch of one sequence."""


def whole(size=HIDDEN_STATE):
    """Without sequence parallelism: f and g of arXiv 1909.08053, section 3."""
    return (
        Exchange("after attention, and before it in the backward pass", "tp", "all_reduce", size),
        Exchange("after the MLP, and before it in the backward pass", "tp", "all_reduce", size),
    )


def split(size=HIDDEN_STATE, gathered=None):
    """With sequence parallelism: g and its conjugate of arXiv 2205.05198, section 4.2.2, around both blocks; `gathered`
    are the bytes of what GEMMs read, where it is not a 16-bit hidden state."""
    gathered = gathered or size
    return (
        Exchange("blocks' inputs; gradients of their outputs", "tp", "all_gather", gathered, 2, 2),
        Exchange("blocks' outputs; gradients of their inputs", "tp", "reduce_scatter", size, 2, 2),
        Exchange("blocks' inputs again, for weight gradients", "tp", "all_gather", gathered, 0, 2),
    )


def ring(kv_heads=8):
    """Keys and values of the whole sequence pass every rank, in the backward pass with their gradients."""
    size = 8192 * 2 * kv_heads * 128 * 2
    return (
        Exchange("keys and values of all ranks", "cp", "all_gather", size, 1, 1),
        Exchange("their gradients", "cp", "reduce_scatter", size, 0, 1),
    )


def case(name, fields, core, *, exchanges=(), kv_copies=1, **share):
    """One layout, with the shares of a rank."""
    tensor_share = {key: share[key] for key in ("tokens", "rows", "heads", "kv_heads", "ffn") if key in share}
    tp = fields.get("tp", 1)
    return Case(
        name,
        MODEL,
        CORE | fields,
        kernels(core, **share),
        exchanges,
        tensors(**tensor_share),
        weights(tp, kv_copies),
    )


EIGHTH = {"heads": 8, "kv_heads": 1, "ffn": 3584}

CASES = (
    case("alone", {}, attention(1, 8192, 8192, 64, 8, 128, 128)),
    case(
        "micro batch 2",
        {"micro_batch": 2},
        attention(2, 8192, 8192, 64, 8, 128, 128),
        tokens=16384,
        rows=16384,
    ),
    case(
        "tp 8",
        {"gpus": 8, "tp": 8, "sequence_parallel": False},
        attention(1, 8192, 8192, 8, 1, 128, 128),
        exchanges=whole(),
        **EIGHTH,
    ),
    case(
        "tp 8 sp",
        {"gpus": 8, "tp": 8, "sequence_parallel": True},
        attention(1, 8192, 8192, 8, 1, 128, 128),
        exchanges=split(),
        rows=1024,
        **EIGHTH,
    ),
    case(
        "tp 16 sp",
        {"gpus": 16, "tp": 16, "sequence_parallel": True},
        # Two ranks have the same key/value head.
        attention(1, 8192, 8192, 4, 1, 128, 128),
        exchanges=split(),
        rows=512,
        heads=4,
        kv_heads=1,
        ffn=1792,
        kv_copies=2,
    ),
    on_a_ring(
        case(
            "cp 4 ring",
            {"gpus": 4, "cp": 4, "cp_kind": "ring"},
            # A rank holds a piece of each half of the sequence: its 2,048 queries meet 4,096 keys on average.
            attention(1, 2048, 4096, 64, 8, 128, 128, kind="attention"),
            exchanges=ring(),
            tokens=2048,
            rows=2048,
        ),
        4,
        2048,
        outputs=64 * 128,
        queries=64 * 128,
        keys_values=2 * 8 * 128,
    ),
    case(
        "cp 4 all-gather",
        {"gpus": 4, "cp": 4, "cp_kind": "all_gather"},
        attention(1, 2048, 4096, 64, 8, 128, 128, kind="attention"),
        exchanges=ring(),
        tokens=2048,
        rows=2048,
    ),
    case(
        "cp 4 Ulysses",
        {"gpus": 4, "cp": 4, "cp_kind": "all_to_all"},
        attention(1, 8192, 8192, 16, 2, 128, 128),
        # 64 heads of queries, 8 of keys, 8 of values, 64 of the output.
        exchanges=(Exchange("turns", "cp", "all_to_all", 2048 * (64 + 8 + 8 + 64) * 128 * 2, 1, 1),),
        tokens=2048,
        rows=2048,
    ),
    on_a_ring(
        case(
            "tp 4 sp, cp 2 ring",
            {"gpus": 8, "tp": 4, "cp": 2, "cp_kind": "ring", "sequence_parallel": True},
            attention(1, 4096, 4096, 16, 2, 128, 128, kind="attention"),
            exchanges=(*split(HIDDEN_STATE // 2), *ring(2)),
            tokens=4096,
            rows=1024,
            heads=16,
            kv_heads=2,
            ffn=7168,
        ),
        2,
        4096,
        outputs=16 * 128,
        queries=16 * 128,
        keys_values=2 * 2 * 128,
    ),
    case(
        "tp 2 sp, cp 4 Ulysses",
        {"gpus": 8, "tp": 2, "cp": 4, "cp_kind": "all_to_all", "sequence_parallel": True},
        attention(1, 8192, 8192, 8, 1, 128, 128),
        exchanges=(
            *split(HIDDEN_STATE // 4),
            Exchange("turns", "cp", "all_to_all", 2048 * (32 + 4 + 4 + 32) * 128 * 2, 1, 1),
        ),
        tokens=2048,
        rows=1024,
        heads=32,
        kv_heads=4,
        ffn=14336,
    ),
)
