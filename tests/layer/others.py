"""Layers that the four models do not show: norms of queries and keys, windows and biases (Qwen3, gpt-oss), adapters,
8-bit GEMMs, kernels that are not fused.

Sources: Qwen3-30B-A3B: arXiv 2505.09388, table 2 (and its ``config.json``); its norms are over a head's 128.
gpt-oss-20b: arXiv 2508.10925, section 2, and openai/gpt-oss, gpt_oss/torch/model.py (a window of 128 on every other
layer, a sink for each head, biases everywhere, ``swiglu`` as bias, split, clamp, shift and product). 8-bit GEMMs:
Transformer Engine, pytorch/module/linear.py and layernorm_linear.py, with delayed scaling, Megatron Core's recipe
unless told otherwise (``--fp8-recipe``): one kernel casts the input of a GEMM, another the gradient of its output, and
each writes a transposed copy, too, which the GEMM of the weight's gradient reads: Hopper's matrix units read 8 bits
along the reduction alone. Inputs are kept in 8 bits; norms, attention, router and head stay in 16 bits. Ranks that
split the sequence cast their own tokens and gather these 8 bits without their transposed copy; that is made of the
gathered tensor, in the backward pass alone: of the gradient, and of the input, which is gathered again there
(layernorm_linear.py, backward). Adapters: Hu et al., arXiv 2106.09685, section 4.2. nanotron: its models/llama.py.
"""

from math import comb

from layer import llama3_70b, mixtral_8x7b
from layer.llama3_70b import EIGHTH, attention, split, tensors, weights
from layer.rows import Case, Exchange, Kernel, Tensor, Weight, cast, gemm, gradient_sum, grouped, pointwise
from layer.state import EVERYWHERE

QWEN_RANKS = 8 * (1 - comb(112, 8) / comb(128, 8))
"""Ranks of eight that the 8 of 128 experts of a token are on; it is sent to each of them once."""
GPT_OSS_RANKS = 4 * (1 - comb(24, 4) / comb(32, 4))
"""Ranks of four with its 4 of 32."""

QWEN = Case(
    "ep 8",
    "qwen3-30b-a3b",
    {"seq_length": 4096, "framework": "megatron-core-2025", "zero": 0, "gpus": 8, "ep": 8},
    (
        pointwise("RMSNorms", "norm", 4096, 2048, count=2),
        gemm("queries, keys, values", 4096, (32 + 2 * 4) * 128, 2048),
        pointwise("RMSNorms of the heads of queries and keys", "norm", 4096 * (32 + 4), 128),
        pointwise("rotary embedding", "rotary", 4096, 32 + 4, 128),
        Kernel("attention core", "causal attention", (1, 4096, 4096, 32, 4, 128, 128)),
        gemm("attention output", 4096, 2048, 32 * 128),
        gemm("router", 4096, 128, 2048),
        pointwise("softmax and the 8 of 128", "route", 4096, 2048, 128, 8),
        pointwise("tokens into the order of experts, and back", "permute", 4096, 2048, 8, count=2),
        grouped("gate and up", 32768, 2 * 768, 2048, 16),
        pointwise("SwiGLU", "swiglu", 32768, 768),
        Kernel("gradients of the router's weights", "elementwise", (32768, 768), 0, 1),
        grouped("down", 32768, 2048, 768, 16),
        pointwise("residual sums", "elementwise", 4096, 2048, count=2),
    ),
    (Exchange("dispatch and combine", "ep", "all_to_all", round(4096 * QWEN_RANKS * 2048 * 2), 2, 2),),
    (
        Tensor("inputs of both RMSNorms", "layernorm inputs", 2 * 2 * 4096 * 2048),
        Tensor("input of queries, keys, values", "attention inputs", 2 * 4096 * 2048),
        Tensor("queries, keys, values", "queries, keys, values", 2 * 4096 * (32 + 8) * 128),
        Tensor("queries and keys before their norms", "queries, keys, values", 2 * 4096 * (32 + 4) * 128),
        Tensor("log of the softmax's sum", "softmax", 4 * 4096 * 32),
        Tensor("input of the attention output projection", "attention outputs", 2 * 4096 * 32 * 128),
        Tensor("input of the router and of the permutation", "MLP inputs", 2 * 4096 * 2048),
        Tensor("router logits and probabilities, fp32", "routing", 2 * 4 * 4096 * 128),
        Tensor("tokens of its experts, in their order", "expert inputs", 2 * 32768 * 2048),
        Tensor("gate and up", "expert up outputs", 2 * 32768 * 2 * 768),
        Tensor("input of down", "expert activations", 2 * 32768 * 768),
    ),
    (
        Weight("queries, keys, values", 10_485_760, 10_485_760),
        Weight("attention output", 8_388_608, 8_388_608),
        Weight("norms of queries and keys", 256, 256),
        Weight("router", 262_144, 262_144),
        Weight("128 experts of 3 matrices", 603_979_776, 75_497_472, expert=True),
        Weight("RMSNorms", 4_096, 4_096),
    ),
)


def gpt_oss(name, kind, **fields):
    """A layer of gpt-oss-20b on four ranks of experts, with a window or without."""
    return Case(
        name,
        "gpt-oss-20b",
        {"seq_length": 4096, "framework": "megatron-core-2025", "zero": 0, "gpus": 4, "ep": 4, **fields},
        (
            pointwise("RMSNorms", "norm", 4096, 2880, count=2),
            gemm("queries, keys, values", 4096, (64 + 2 * 8) * 64, 2880),
            # YaRN's factor is not in the fused kernel: cosine, sine, both products and their sum.
            pointwise("rotary embedding", "rotary", 4096, 64 + 8, 64, count=5),
            Kernel("attention core", kind, (1, 4096, 4096, 64, 8, 64, 64)),
            gemm("attention output", 4096, 2880, 64 * 64),
            Kernel("its bias, added apart, and the bias's gradient", "elementwise", (4096, 2880), 1, 1),
            gemm("router", 4096, 32, 2880),
            pointwise("softmax and the 4 of 32", "route", 4096, 2880, 32, 4),
            pointwise("tokens into the order of experts, and back", "permute", 4096, 2880, 4, count=2),
            grouped("gate and up", 16384, 2 * 2880, 2880, 8),
            pointwise("SwiGLU", "swiglu", 16384, 2880),
            Kernel("gradients of the router's weights", "elementwise", (16384, 2880), 0, 1),
            # Each half is clamped and both are joined; a clamp reads its input again backward.
            Kernel("clamps", "elementwise", (16384, 2880), 2, 2),
            pointwise("both halves, joined", "elementwise", 16384, 2 * 2880),
            # FC2's biases of each of 8 experts times the router's weights, in fp32: a product and a sum; backward
            # two products and their sums over rows and columns. Then all are joined, and cast from and to 16 bits.
            Kernel("biases of experts", "elementwise", (2048, 2880), 2 * 8, 4 * 8, 0, "fp32"),
            Kernel("joined and cast", "elementwise", (16384, 2880), 2, 2, 0, "fp32"),
            Kernel("gradients, joined", "elementwise", (16384, 2880), 0, 1),
            grouped("down", 16384, 2880, 2880, 8),
            pointwise("residual sums", "elementwise", 4096, 2880, count=2),
        ),
        (Exchange("dispatch and combine", "ep", "all_to_all", round(4096 * GPT_OSS_RANKS * 2880 * 2), 2, 2),),
        (
            Tensor("inputs of both RMSNorms", "layernorm inputs", 2 * 2 * 4096 * 2880),
            Tensor("input of queries, keys, values", "attention inputs", 2 * 4096 * 2880),
            Tensor("queries, keys, values", "queries, keys, values", 2 * 4096 * (64 + 16) * 64),
            Tensor("log of the softmax's sum", "softmax", 4 * 4096 * 64),
            Tensor("input of the attention output projection", "attention outputs", 2 * 4096 * 64 * 64),
            Tensor("input of the router and of the permutation", "MLP inputs", 2 * 4096 * 2880),
            Tensor("router logits and probabilities, fp32", "routing", 2 * 4 * 4096 * 32),
            Tensor("tokens of its experts, in their order", "expert inputs", 2 * 16384 * 2880),
            Tensor("gate and up", "expert up outputs", 2 * 16384 * 2 * 2880),
            Tensor("input of down", "expert activations", 2 * 16384 * 2880),
        ),
        (
            Weight("queries, keys, values", 2880 * 5120, 2880 * 5120),
            Weight("their bias", 5120, 5120),
            Weight("attention output", 4096 * 2880, 4096 * 2880),
            Weight("its bias", 2880, 2880),
            Weight("a sink for each head", 64, 64),
            Weight("router", 32 * 2880, 32 * 2880),
            Weight("its bias", 32, 32),
            Weight("32 experts of 2 matrices", 32 * 2880 * 8640, 8 * 2880 * 8640, expert=True),
            Weight("their biases", 32 * 8640, 8 * 8640, expert=True),
            Weight("RMSNorms", 2 * 2880, 2 * 2880),
        ),
    )


def eight_bits(rows, casts):
    """Rows with GEMMs of 8-bit inputs, and the casts of these."""
    found = [row._replace(dtype="fp8") if row.kind == "gemm" else row for row in rows]
    return (*found, *casts)


def gradient(what, elements, **how):
    """The cast of a gradient of the output of a GEMM, as wide as that output."""
    return cast(f"gradient of {what}", elements, backward=True, **how)


def transposed(what, elements):
    """The copy of a gathered tensor of 8 bits that has its columns as rows, made in the backward pass."""
    return Kernel(f"{what}, gathered and transposed", "copy", (elements,), 0, 1, 0, "fp8")


def kept_in_eight_bits(found, copy):
    """Tensors with the inputs of GEMMs kept in 8 bits; that of the attention output beside what attention keeps."""
    inputs = ("input of queries, keys, values", "input of gate and up", "input of down")
    halved = tuple(row._replace(size_bytes=row.size_bytes / 2) if row.what in inputs else row for row in found)
    beside = Tensor("8-bit input of the attention output projection", "attention outputs", copy)
    return (*halved, beside)


ALL_HEADS = attention(1, 8192, 8192, 64, 8, 128, 128)
ONE_EIGHTH = attention(1, 8192, 8192, 8, 1, 128, 128)
UNREAD = ("input of queries, keys, values", "input of gate and up", "input of down")
FROZEN = tuple(row._replace(weight=0) for row in llama3_70b.kernels(ALL_HEADS))


def adapter(what, inputs, outputs, rank):
    """Return what a pair of matrices beside a frozen one adds: sums of outputs, and of gradients of the input."""
    return (
        gemm(f"{what}: down", 8192, rank, inputs),
        gemm(f"{what}: up", 8192, outputs, rank),
        pointwise(f"sum with {what}", "elementwise", 8192, outputs)._replace(backward=0),
        pointwise(f"sum of both gradients of the input of {what}", "elementwise", 8192, inputs)._replace(forward=0),
    )


QKV_ADAPTER = adapter("queries, keys, values", 8192, 10240, 16)
PROJ_ADAPTER = adapter("attention output", 8192, 8192, 16)

LLAMA = (
    Case(
        "8-bit GEMMs",
        "llama3-70b",
        llama3_70b.CORE | {"precision": "fp8"},
        eight_bits(
            llama3_70b.kernels(ALL_HEADS),
            (
                cast("input of queries, keys, values", 8192 * 8192),
                gradient("64 queries, 8 keys and 8 values of 128", 8192 * (64 + 2 * 8) * 128),
                cast("input of the output", 8192 * 8192),
                gradient("the output", 8192 * 8192),
                cast("input of gate and up", 8192 * 8192),
                gradient("gate and up", 8192 * 2 * 28672),
                cast("input of down", 8192 * 28672),
                gradient("down", 8192 * 8192),
            ),
        ),
        (),
        kept_in_eight_bits(tensors(), 8192 * 8192),
        weights(),
    ),
    Case(
        "8-bit GEMMs, tp 8 sp",
        "llama3-70b",
        llama3_70b.CORE | {"precision": "fp8", "gpus": 8, "tp": 8, "sequence_parallel": True},
        eight_bits(
            llama3_70b.kernels(ONE_EIGHTH, rows=1024, **EIGHTH),
            (
                # Along rows alone where it is gathered next; with both copies where a rank's GEMMs read its own.
                cast("input of queries, keys, values, before it is gathered", 1024 * 8192, copies=1),
                transposed("input of queries, keys, values", 8192 * 8192),
                gradient("a rank's 8 queries, key and value of all tokens", 8192 * (8 + 2) * 128),
                cast("input of the output, a rank's heads of all tokens", 8192 * 8 * 128),
                gradient("the output, before it is gathered", 1024 * 8192, copies=1),
                transposed("gradient of the output", 8192 * 8192),
                cast("input of gate and up, before it is gathered", 1024 * 8192, copies=1),
                transposed("input of gate and up", 8192 * 8192),
                gradient("gate and up", 8192 * 2 * 3584),
                cast("input of down", 8192 * 3584),
                gradient("down, before it is gathered", 1024 * 8192, copies=1),
                transposed("gradient of down", 8192 * 8192),
            ),
        ),
        # GEMMs give 16 bits, which are summed up; what they read is gathered in 8.
        split(gathered=llama3_70b.HIDDEN_STATE // 2),
        kept_in_eight_bits(tensors(rows=1024, **EIGHTH), 8192 * 8 * 128),
        weights(8),
    ),
    Case(
        "adapters of rank 16",
        "llama3-70b",
        llama3_70b.CORE | {"task": "lora", "lora_rank": 16, "lora_targets": ("linear_qkv", "linear_proj")},
        (*FROZEN, *QKV_ADAPTER, *PROJ_ADAPTER),
        (),
        (
            *(row for row in tensors() if row.what not in UNREAD),
            # PyTorch and Transformer Engine keep the input of a GEMM for the gradient of its weight alone.
            Tensor("input of the first matrix beside queries, keys, values", "adapter inputs", 2 * 8192 * 8192),
            Tensor("inputs of both adapters' second matrices", "attention outputs", 2 * 2 * 8192 * 16),
        ),
    ),
    Case(
        "adapters of rank 32 beside all",
        "llama3-70b",
        llama3_70b.CORE | {"task": "lora"} | EVERYWHERE,
        (
            *FROZEN,
            *adapter("queries, keys, values", 8192, 10240, 32),
            *adapter("attention output", 8192, 8192, 32),
            *adapter("gate and up", 8192, 57344, 32),
            *adapter("down", 28672, 8192, 32),
        ),
        (),
        (
            *(row for row in tensors() if row.what not in UNREAD),
            Tensor("input of the first matrix beside queries, keys, values", "adapter inputs", 2 * 8192 * 8192),
            Tensor("input of that beside gate and up", "adapter inputs", 2 * 8192 * 8192),
            Tensor("input of that beside down", "adapter inputs", 2 * 8192 * 28672),
            Tensor("inputs of the second matrices of attention's", "attention outputs", 2 * 2 * 8192 * 32),
            Tensor("inputs of the second matrices of the MLP's", "MLP activations", 2 * 2 * 8192 * 32),
        ),
    ),
    Case(
        "adapters of rank 16, tp 8 sp",
        "llama3-70b",
        llama3_70b.CORE
        | {"task": "lora", "lora_rank": 16, "lora_targets": ("linear_qkv", "linear_proj")}
        | {"gpus": 8, "tp": 8, "sequence_parallel": True},
        (
            *(row._replace(weight=0) for row in llama3_70b.kernels(ONE_EIGHTH, rows=1024, **EIGHTH)),
            # Beside the columns that a rank has, 2 of the 16 and its own outputs of all of them.
            gemm("queries, keys, values: down", 8192, 2, 8192),
            gemm("queries, keys, values: up", 8192, 1280, 16),
            pointwise("sum with queries, keys, values", "elementwise", 8192, 1280)._replace(backward=0),
            pointwise("sum of both gradients of their input", "elementwise", 8192, 8192)._replace(forward=0),
            # Beside the rows that a rank has, and then a part of the outputs.
            gemm("attention output: down", 8192, 16, 1024),
            gemm("attention output: up", 8192, 1024, 16),
            pointwise("sum with the attention output", "elementwise", 1024, 8192)._replace(backward=0),
            pointwise("sum of both gradients of its input", "elementwise", 8192, 1024)._replace(forward=0),
        ),
        (
            # Frozen weights need no input once more in the backward pass.
            *split()[:2],
            Exchange("narrow vectors of queries, keys, values", "tp", "all_gather", 8192 * 16 * 2, 1, 1),
            Exchange("narrow vectors of the attention output", "tp", "reduce_scatter", 8192 * 16 * 2, 1, 1),
            Exchange("and to all ranks again", "tp", "all_gather", 8192 * 16 * 2, 1, 1),
            Exchange("outputs to the ranks of their tokens", "tp", "all_to_all", 8192 * 1024 * 2, 1, 1),
        ),
        (
            *(row for row in tensors(rows=1024, **EIGHTH) if row.what not in UNREAD),
            Tensor("input of the first matrix beside queries, keys, values", "adapter inputs", 2 * 8192 * 8192),
            Tensor("inputs of both adapters' second matrices", "attention outputs", 2 * 2 * 8192 * 16),
        ),
    ),
    Case(
        "nanotron",
        "llama3-70b",
        {"seq_length": 8192, "framework": "nanotron-2024", "zero": 0},
        (
            *llama3_70b.kernels(ALL_HEADS),
            pointwise("sums and copies that are not fused", "elementwise", 8192, 8192, count=2),
            gradient_sum("queries, keys, values", 8192 * (8192 + 2 * 1024)),
            gradient_sum("attention output", 8192 * 8192),
            gradient_sum("MLP up and gate", 8192 * 2 * 28672),
            gradient_sum("MLP down", 28672 * 8192),
        ),
        (),
        (
            *tensors(),
            Tensor("the gate's output", "MLP activations", 2 * 8192 * 28672),
            Tensor("a transposed copy of the attention's output", "attention outputs", 2 * 8192 * 8192),
        ),
        weights(),
    ),
)

MIXTRAL_2024 = Case(
    "in Megatron Core of 2024, which keeps the experts' outputs",
    "mixtral-8x7b",
    mixtral_8x7b.CORE | {"framework": "megatron-core-2024", "gpus": 8, "ep": 8},
    # Their outputs are multiplied by the router's weights where they are put back.
    tuple(
        row
        for row in mixtral_8x7b.kernels(mixtral_8x7b.ALL_HEADS, experts=1)
        if row.what != "gradients of the router's weights"
    ),
    # By all-to-all a copy goes to each of its two experts, one on a rank: nothing is left to sort. Weights stay.
    (
        *mixtral_8x7b.dispatch(4096, 8),
        Exchange("how many tokens of each rank come to each expert", "ep", "all_gather", 8 * 8 * 8, 1, 0),
    ),
    (
        *mixtral_8x7b.tensors(),
        Tensor("experts' outputs, which router weights multiply", "expert outputs", 2 * 8192 * 4096),
    ),
    mixtral_8x7b.weights(ep=8),
)

CASES = (
    QWEN,
    gpt_oss("whole attention", "causal attention"),
    gpt_oss("a window of 128", "causal window 128 attention", window_period=1),
    *LLAMA,
    MIXTRAL_2024,
)
