"""One layer of GPT-3 175B: 96 heads of 128, hidden size 12,288, sequences of 2,048 (Brown et al., arXiv 2005.14165,
table 2.1), in the kernels and layouts of Megatron-LM.

Sources: tensor parallelism: Shoeybi et al., arXiv 1909.08053, section 3 (queries, keys, values and the first MLP matrix
split by columns, the other two by rows; two all-reduces a pass). Sequence parallelism and activations: Korthikanti et
al., arXiv 2205.05198, sections 4.1 (each tensor), 4.2.1, 4.2.2 (all-gathers and reduce-scatters; the split input alone
is kept and gathered again in the backward pass). Biases: Megatron-LM, megatron/core/tensor_parallel/layers.py (a
row-parallel bias is on every rank). Ring: Liu et al., arXiv 2310.01889. Ulysses: Jacobs et al., arXiv 2309.14509.
"""

from layer.rows import Case, Exchange, Kernel, Tensor, Weight, gemm, gradient_sum, on_a_ring, pointwise

MODEL = "gpt3-175b"
ALONE = {"seq_length": 2048, "framework": "megatron-2021", "zero": 0}
"""Attention that is not fused, dropout, and bias, dropout and residual sum in one kernel, as in the papers above."""
CORE = {"seq_length": 2048, "framework": "megatron-core-2025", "zero": 0}
"""Fused attention, no dropout."""


def attention(kind, *sizes):
    """The attention core: batch, queries, keys, heads, key/value heads, widths of a query and of a value."""
    return Kernel("attention core", kind, sizes)


def kernels(core, *, tokens=2048, tp=1, rows=None):
    """The kernels of a layer; `rows` are the tokens that layernorms see."""
    rows = rows or tokens
    return (
        pointwise("layernorms", "norm", rows, 12288, count=2),
        gemm("queries, keys, values", tokens, 3 * 12288 // tp, 12288),
        core,
        gemm("attention output", tokens, 12288, 12288 // tp),
        gemm("MLP up", tokens, 49152 // tp, 12288),
        pointwise("GELU with bias", "gelu", tokens, 49152 // tp),
        gemm("MLP down", tokens, 12288, 49152 // tp),
        pointwise("bias, dropout and residual sums", "elementwise", rows, 12288, count=2),
    )


def sums(tp=1):
    """What adds gradients to those of the step: of the matrices alone, beside which biases and norms are nothing."""
    h2 = 12288 * 12288 // tp
    return (
        gradient_sum("queries, keys, values", 3 * h2),
        gradient_sum("attention output", h2),
        gradient_sum("MLP up", 4 * h2),
        gradient_sum("MLP down", 4 * h2),
    )


def tensors(tokens, tp, sp):
    """Section 4.1 of arXiv 2205.05198, in its order; s b h is tokens x 12,288, a s^2 b is 96 x 2,048 x tokens."""
    sbh, as2b = tokens * 12288, 96 * 2048 * tokens
    return (
        Tensor("input of queries, keys, values", "attention inputs", 2 * sbh / sp),
        Tensor("queries and keys", "queries, keys, values", 4 * sbh / tp),
        Tensor("softmax output", "softmax", 2 * as2b / tp),
        Tensor("softmax dropout mask", "softmax", as2b / tp),
        Tensor("softmax dropout output", "softmax", 2 * as2b / tp),
        Tensor("values", "queries, keys, values", 2 * sbh / tp),
        Tensor("input of the attention output projection", "attention outputs", 2 * sbh / tp),
        Tensor("attention dropout mask", "dropout masks", sbh / sp),
        Tensor("input of the first MLP matrix", "MLP inputs", 2 * sbh / sp),
        Tensor("input of GELU", "MLP activations", 8 * sbh / tp),
        Tensor("input of the second MLP matrix", "MLP activations", 8 * sbh / tp),
        Tensor("MLP dropout mask", "dropout masks", sbh / sp),
        Tensor("inputs of both layernorms", "layernorm inputs", 4 * sbh / sp),
    )


def fused_tensors(tokens, tp=1):
    """With flash attention (arXiv 2205.14135, algorithm 2) and no dropout: one fp32 sum a query and head."""
    sbh = tokens * 12288
    return (
        Tensor("input of queries, keys, values", "attention inputs", 2 * sbh),
        Tensor("queries, keys and values", "queries, keys, values", 6 * sbh / tp),
        Tensor("log of the softmax's sum", "softmax", 4 * 96 * tokens / tp),
        Tensor("input of the attention output projection", "attention outputs", 2 * sbh / tp),
        Tensor("input of the first MLP matrix", "MLP inputs", 2 * sbh),
        Tensor("inputs of GELU and of the second MLP matrix", "MLP activations", 16 * sbh / tp),
        Tensor("inputs of both layernorms", "layernorm inputs", 4 * sbh),
    )


def weights(tp=1):
    """12 h^2 + 13 h parameters, of which 12 h^2 + 7 h are split (arXiv 2104.04473, section 2; Megatron-LM)."""
    h = 12288
    return (
        Weight("queries, keys, values", 3 * h * h, 3 * h * h // tp),
        Weight("their bias", 3 * h, 3 * h // tp),
        Weight("attention output", h * h, h * h // tp),
        Weight("its bias", h, h),
        Weight("MLP up", 4 * h * h, 4 * h * h // tp),
        Weight("its bias", 4 * h, 4 * h // tp),
        Weight("MLP down", 4 * h * h, 4 * h * h // tp),
        Weight("its bias", h, h),
        Weight("layernorms: weights", 2 * h, 2 * h),
        Weight("layernorms: biases", 2 * h, 2 * h),
    )


HIDDEN_STATE = 2048 * 12288 * 2
"""50,331,648 bytes of a microbatch of one sequence."""

WHOLE = (
    Exchange("after attention, and before it in the backward pass", "tp", "all_reduce", HIDDEN_STATE),
    Exchange("after the MLP, and before it in the backward pass", "tp", "all_reduce", HIDDEN_STATE),
)
SPLIT = (
    Exchange("before attention; its input again for the weight gradient", "tp", "all_gather", HIDDEN_STATE, 1, 1),
    Exchange("after attention; its output's gradient", "tp", "reduce_scatter", HIDDEN_STATE, 1, 0),
    Exchange("gradient of the attention's output", "tp", "all_gather", HIDDEN_STATE, 0, 1),
    Exchange("gradient of the attention's input", "tp", "reduce_scatter", HIDDEN_STATE, 0, 1),
    Exchange("before the MLP; its input again for the weight gradient", "tp", "all_gather", HIDDEN_STATE, 1, 1),
    Exchange("after the MLP", "tp", "reduce_scatter", HIDDEN_STATE, 1, 0),
    Exchange("gradient of the MLP's output", "tp", "all_gather", HIDDEN_STATE, 0, 1),
    Exchange("gradient of the MLP's input", "tp", "reduce_scatter", HIDDEN_STATE, 0, 1),
)

KEYS_VALUES = 2048 * 2 * 12288 * 2
"""100,663,296 bytes of the keys and values of a sequence."""
RING = (
    Exchange("keys and values of all ranks", "cp", "all_gather", KEYS_VALUES, 1, 1),
    Exchange("their gradients", "cp", "reduce_scatter", KEYS_VALUES, 0, 1),
)
ULYSSES = (
    # Section 3.2 of arXiv 2309.14509: messages of 3 N h and N h for queries, keys and values and for the output,
    # of which a rank has the share of its 512 tokens.
    Exchange("queries, keys, values; the output", "cp", "all_to_all", 4 * 512 * 12288 * 2, 1, 1),
)

NO_BIASES = "the workload's count has two weights of a layernorm and the GEMMs alone"
UNFUSED = "causal unfused attention"

CASES = (
    Case(
        "alone",
        MODEL,
        ALONE,
        kernels(attention(UNFUSED, 1, 2048, 2048, 96, 96, 128, 128)) + sums(),
        (),
        tensors(2048, 1, 1),
        weights(),
    ),
    Case(
        "tp 8",
        MODEL,
        ALONE | {"gpus": 8, "tp": 8, "sequence_parallel": False},
        kernels(attention(UNFUSED, 1, 2048, 2048, 12, 12, 128, 128), tp=8) + sums(8),
        WHOLE,
        tensors(2048, 8, 1),
        weights(8),
    ),
    Case(
        "tp 8 sp",
        MODEL,
        ALONE | {"gpus": 8, "tp": 8, "sequence_parallel": True},
        kernels(attention(UNFUSED, 1, 2048, 2048, 12, 12, 128, 128), tp=8, rows=256) + sums(8),
        SPLIT,
        tensors(2048, 8, 8),
        weights(8),
    ),
    on_a_ring(
        Case(
            "cp 4 ring",
            MODEL,
            CORE | {"gpus": 4, "cp": 4, "cp_kind": "ring"},
            # A rank holds a piece of each half of the sequence: its 512 queries meet 1,024 keys on average.
            kernels(attention("attention", 1, 512, 1024, 96, 96, 128, 128), tokens=512),
            RING,
            fused_tensors(512),
            weights(),
        ),
        4,
        512,
        outputs=96 * 128,
        queries=96 * 128,
        keys_values=2 * 96 * 128,
    ),
    Case(
        "cp 4 all-gather",
        MODEL,
        CORE | {"gpus": 4, "cp": 4, "cp_kind": "all_gather"},
        kernels(attention("attention", 1, 512, 1024, 96, 96, 128, 128), tokens=512),
        RING,
        fused_tensors(512),
        weights(),
    ),
    Case(
        "cp 4 Ulysses",
        MODEL,
        CORE | {"gpus": 4, "cp": 4, "cp_kind": "all_to_all"},
        # A quarter of the heads, whole sequences.
        kernels(attention("causal attention", 1, 2048, 2048, 24, 24, 128, 128), tokens=512),
        ULYSSES,
        fused_tensors(512),
        weights(),
    ),
)
