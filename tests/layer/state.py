"""What replicas exchange of one layer's gradients and parameters, and what a rank keeps of its state.

Sources: Rajbhandari et al., arXiv 1910.02054, section 5 and figure 1 (a mixed-precision Adam keeps 2 bytes of
parameter, the gradient, and 12 of master copy and moments; stage 1 divides the last, 2 also gradients, 3 also
parameters) and section 7 (what is exchanged: a reduce-scatter of gradients and an all-gather of parameters are the two
halves of an all-reduce; stage 3 gathers in both passes). Zhao et al., arXiv 2304.11277, section 3 (FSDP does so for
every microbatch; hybrid sharding sums each share over its copies). Gradients of 4 bytes: Megatron-LM,
``--accumulate-allreduce-grads-in-fp32``. Experts have replicas of their own: Megatron-LM,
megatron/core/parallel_state.py (expert data parallel group). Adapters: Hu et al., arXiv 2106.09685. 8-bit parameters:
Megatron-LM, ``--fp8-param-gather``.
"""

from typing import NamedTuple

MATRICES = 855_638_016
"""Elements of the GEMMs of a layer of Llama 3 70B: 83,886,080 + 67,108,864 + 469,762,048 + 234,881,024."""
LAYER = MATRICES + 16_384
"""With its two RMSNorms."""
ATTENTION_ALONE = {"lora_targets": ("linear_qkv", "linear_proj")}
EVERYWHERE = {"lora_targets": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")}
ADAPTERS = 16 * (8192 + 10240) + 16 * (8192 + 8192)
"""Two matrices of rank 16 beside queries, keys and values together, and beside the attention output."""
DENSE, EXPERTS = 41_984_000, 1_409_286_144
"""A layer of Mixtral 8x7B: 25,165,824 + 16,777,216 + 32,768 + 8,192, and 8 x 3 x 4,096 x 14,336."""


class State(NamedTuple):
    """One layout: bytes of a step's exchanges by (group, operation), and bytes that a rank keeps."""

    name: str
    case: tuple[str, str]
    fields: dict
    exchanges: dict
    kept: dict
    updated: int
    """Parameters whose Adam step one rank does."""


def llama(name, fields, exchanges, kept, updated=LAYER):
    """Eight replicas of Llama 3 70B and three microbatches, unless fields say otherwise."""
    usual = {"gpus": 8, "global_batch": 24, "grad_reduce_bytes": 4}
    return State(name, ("llama3-70b", "alone"), usual | fields, exchanges, kept, updated)


def mixtral(name, fields, exchanges, kept, updated):
    """Mixtral 8x7B on eight ranks, each expert on two of them."""
    usual = {"gpus": 8, "ep": 4, "global_batch": 16, "grad_reduce_bytes": 4}
    return State(name, ("mixtral-8x7b", "alone"), usual | fields, exchanges, kept, updated)


GATHER, SCATTER, REDUCE = (("dp", each) for each in ("all_gather", "reduce_scatter", "all_reduce"))

STATES = (
    llama(
        "ZeRO 0",
        {"zero": 0},
        {REDUCE: 4 * LAYER},
        {"parameters": 2 * LAYER, "gradients": 4 * LAYER, "optimizer": 12 * LAYER},
    ),
    llama(
        "ZeRO 1",
        {"zero": 1},
        {SCATTER: 4 * LAYER, GATHER: 2 * LAYER},
        {"parameters": 2 * LAYER, "gradients": 4 * LAYER, "optimizer": 12 * LAYER / 8},
        LAYER // 8,
    ),
    llama(
        "ZeRO 1, nothing overlapped",
        {"zero": 1, "overlap_grad_reduce": False, "overlap_param_gather": False},
        {SCATTER: 4 * LAYER, GATHER: 2 * LAYER},
        {"parameters": 2 * LAYER, "gradients": 4 * LAYER, "optimizer": 12 * LAYER / 8},
        LAYER // 8,
    ),
    llama(
        "ZeRO 1, gradients of 2 bytes",
        {"zero": 1, "grad_reduce_bytes": 2},
        {SCATTER: 2 * LAYER, GATHER: 2 * LAYER},
        {"parameters": 2 * LAYER, "gradients": 2 * LAYER, "optimizer": 12 * LAYER / 8},
        LAYER // 8,
    ),
    llama(
        "ZeRO 1 over context parallel replicas",
        {"zero": 1, "cp": 2, "global_batch": 12},
        {SCATTER: 4 * LAYER, GATHER: 2 * LAYER},
        {"parameters": 2 * LAYER, "gradients": 4 * LAYER, "optimizer": 12 * LAYER / 8},
        LAYER // 8,
    ),
    llama(
        "ZeRO 1 of 8-bit parameters",
        {"zero": 1, "precision": "fp8", "param_gather_bytes": 1},
        {SCATTER: 4 * LAYER, GATHER: MATRICES + 2 * 16_384},
        # One of both 8-bit copies is the parameter itself. (The product takes the 16,384 of norms for matrices, too.)
        {
            "parameters": LAYER,
            "gradients": 4 * LAYER,
            "optimizer": 12 * LAYER / 8,
            "8-bit copies of weights": LAYER,
        },
        LAYER // 8,
    ),
    llama(
        "ZeRO 1 of 16-bit parameters beside 8-bit GEMMs",
        {"zero": 1, "precision": "fp8"},
        {SCATTER: 4 * LAYER, GATHER: 2 * LAYER},
        {
            "parameters": 2 * LAYER,
            "gradients": 4 * LAYER,
            "optimizer": 12 * LAYER / 8,
            "8-bit copies of weights": 2 * LAYER,
        },
        LAYER // 8,
    ),
    llama(
        "ZeRO 1 with moments of 2 bytes and 2 bytes of the master copy",
        {"zero": 1, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
        {SCATTER: 4 * LAYER, GATHER: 2 * LAYER},
        {"parameters": 2 * LAYER, "gradients": 4 * LAYER, "optimizer": 6 * LAYER / 8},
        LAYER // 8,
    ),
    llama(
        "ZeRO 2",
        {"zero": 2},
        {SCATTER: 3 * 4 * LAYER, GATHER: 2 * LAYER},
        {"parameters": 2 * LAYER, "gradients": 4 * LAYER / 8, "optimizer": 12 * LAYER / 8},
        LAYER // 8,
    ),
    llama(
        "ZeRO 3",
        {"zero": 3},
        {SCATTER: 3 * 4 * LAYER, GATHER: 3 * 2 * 2 * LAYER},
        # Sharded parameters are kept in fp32 and are their own master copy (FSDP2, MixedPrecisionPolicy).
        {"parameters": 4 * LAYER / 8, "gradients": 4 * LAYER / 8, "optimizer": 8 * LAYER / 8},
        LAYER // 8,
    ),
    llama(
        "ZeRO 3, whole between the passes",
        {"zero": 3, "reshard_after_forward": False},
        {SCATTER: 3 * 4 * LAYER, GATHER: 3 * 2 * LAYER},
        {
            "parameters": 4 * LAYER / 8,
            "gradients": 4 * LAYER / 8,
            "optimizer": 8 * LAYER / 8,
            "gathered layers": 2 * LAYER,
        },
        LAYER // 8,
    ),
    llama(
        "FSDP2 with 8-bit GEMMs, which keeps no 8-bit copies",
        {"zero": 3, "precision": "fp8", "framework": "torchtitan-2025"},
        {SCATTER: 3 * 4 * LAYER, GATHER: 3 * 2 * 2 * LAYER},
        {"parameters": 4 * LAYER / 8, "gradients": 4 * LAYER / 8, "optimizer": 8 * LAYER / 8},
        LAYER // 8,
    ),
    llama(
        "FSDP2 that gathers 8 bits",
        {"zero": 3, "precision": "fp8", "framework": "torchtitan-2025", "param_gather_bytes": 1},
        {SCATTER: 3 * 4 * LAYER, GATHER: 3 * 2 * (MATRICES + 2 * 16_384)},
        {"parameters": 4 * LAYER / 8, "gradients": 4 * LAYER / 8, "optimizer": 8 * LAYER / 8},
        LAYER // 8,
    ),
    llama(
        "hybrid ZeRO 3 on two groups of four",
        {"zero": 3, "shard": 4},
        {
            ("shard", "reduce_scatter"): 3 * 4 * LAYER,
            ("shard", "all_gather"): 3 * 2 * 2 * LAYER,
            ("replica", "all_reduce"): 4 * LAYER / 4,
        },
        {"parameters": 4 * LAYER / 4, "gradients": 4 * LAYER / 4, "optimizer": 8 * LAYER / 4},
        LAYER // 4,
    ),
    llama(
        "hybrid ZeRO 1 on two groups of four",
        {"zero": 1, "shard": 4},
        {
            ("shard", "reduce_scatter"): 4 * LAYER,
            ("shard", "all_gather"): 2 * LAYER,
            ("replica", "all_reduce"): 4 * LAYER / 4,
        },
        {"parameters": 2 * LAYER, "gradients": 4 * LAYER, "optimizer": 12 * LAYER / 4},
        LAYER // 4,
    ),
    llama(
        "adapters, ZeRO 1",
        {"zero": 1, "task": "lora", "lora_rank": 16} | ATTENTION_ALONE,
        {SCATTER: 4 * ADAPTERS, GATHER: 2 * ADAPTERS},
        {},
        ADAPTERS // 8,
    ),
    llama(
        "adapters, ZeRO 3: frozen weights are gathered, too",
        {"zero": 3, "task": "lora", "lora_rank": 16} | ATTENTION_ALONE,
        {SCATTER: 3 * 4 * ADAPTERS, GATHER: 3 * 2 * 2 * (LAYER + ADAPTERS)},
        {},
        ADAPTERS // 8,
    ),
    mixtral(
        "experts, ZeRO 0",
        {"zero": 0},
        {REDUCE: 4 * DENSE, ("edp", "all_reduce"): 4 * EXPERTS // 4},
        {
            "parameters": 2 * (DENSE + EXPERTS / 4),
            "gradients": 4 * (DENSE + EXPERTS / 4),
            "optimizer": 12 * (DENSE + EXPERTS / 4),
        },
        DENSE + EXPERTS // 4,
    ),
    mixtral(
        "experts, ZeRO 1",
        {"zero": 1},
        {
            SCATTER: 4 * DENSE,
            GATHER: 2 * DENSE,
            ("edp", "reduce_scatter"): 4 * EXPERTS // 4,
            ("edp", "all_gather"): 2 * EXPERTS // 4,
        },
        {
            "parameters": 2 * (DENSE + EXPERTS / 4),
            "gradients": 4 * (DENSE + EXPERTS / 4),
            "optimizer": 12 * (DENSE / 8 + EXPERTS / 4 / 2),
        },
        DENSE // 8 + EXPERTS // 8,
    ),
    mixtral(
        "experts, ZeRO 3",
        {"zero": 3},
        {
            SCATTER: 2 * 4 * DENSE,
            GATHER: 2 * 2 * 2 * DENSE,
            ("edp", "reduce_scatter"): 2 * 4 * EXPERTS // 4,
            ("edp", "all_gather"): 2 * 2 * 2 * EXPERTS // 4,
        },
        {
            "parameters": 4 * (DENSE / 8 + EXPERTS / 4 / 2),
            "gradients": 4 * (DENSE / 8 + EXPERTS / 4 / 2),
            "optimizer": 8 * (DENSE / 8 + EXPERTS / 4 / 2),
        },
        DENSE // 8 + EXPERTS // 8,
    ),
    mixtral(
        "experts on one rank each, ZeRO 1",
        {"zero": 1, "ep": 8},
        {SCATTER: 4 * DENSE, GATHER: 2 * DENSE},
        {
            "parameters": 2 * (DENSE + EXPERTS / 8),
            "gradients": 4 * (DENSE + EXPERTS / 8),
            "optimizer": 12 * (DENSE / 8 + EXPERTS / 8),
        },
        DENSE // 8 + EXPERTS // 8,
    ),
    mixtral(
        "experts over half the tensor parallel ranks, ZeRO 1",
        # tp 2 x dp 4 = etp 1 x ep 4 x edp 2.
        {"zero": 1, "tp": 2, "etp": 1, "global_batch": 8},
        {
            SCATTER: 4 * (25_165_824 // 2 + 16_777_216 // 2 + 32_768 + 8_192),
            GATHER: 2 * (25_165_824 // 2 + 16_777_216 // 2 + 32_768 + 8_192),
            ("edp", "reduce_scatter"): 4 * EXPERTS // 4,
            ("edp", "all_gather"): 2 * EXPERTS // 4,
        },
        {},
        (25_165_824 // 2 + 16_777_216 // 2 + 32_768 + 8_192) // 4 + EXPERTS // 8,
    ),
)
