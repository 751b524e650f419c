"""Operators at the ends of the model and around experts.

=================  ==================================  ====================================================
family             shape                               what it does
=================  ==================================  ====================================================
``embedding``      (tokens, hidden, vocabulary)        looks rows up; backward adds to fp32 gradients
``cross_entropy``  (tokens, vocabulary)                loss over logits; option ``kernel``: fused or eager
``route``          (tokens, hidden, experts, topk)     softmax and top-k of the router, counts, indices
``permute``        (tokens, hidden, topk)              copies each token topk times, in experts' order
=================  ==================================  ====================================================

The router's GEMM is a ``gemm`` of its own; putting tokens back is a ``permute`` too.
"""

from traincast.estimate.operators.families import BOTH_WAYS, FP32_BYTES, Work, family, memory_bound, result_bytes
from traincast.workload.ops import OperatorCall

INDEX_BYTES = 8.0
"""PyTorch indexes with 64-bit integers."""
EAGER_PASSES = {"forward": 9.0, "backward": 4.0}
"""fp32 passes over the logits of a loss made of single kernels: cast (1.5), maximum (1), subtract (2), exponential
(2), sum (1), gather (~0), log-softmax (1.5); backward copies, subtracts the target, scales and casts."""
ROUTE_PASSES, ROUTE_KERNELS = 8.0, 10
"""Softmax, top-k, scatter of the mask, counts and their sums, each a small kernel over tokens x experts."""


@family("embedding", "tokens", "hidden", "vocabulary", directions=BOTH_WAYS)
def embedding(call: OperatorCall) -> Work:
    """Return the work of looking up the rows of tokens."""
    tokens, hidden, _ = call.shape
    element = result_bytes(call.dtype)
    moved = element + 2 * FP32_BYTES if call.direction == "backward" else 2 * element
    return _on_tokens("embedding", tokens * hidden, moved * tokens * hidden + INDEX_BYTES * tokens)


@family("cross_entropy", "tokens", "vocabulary", directions=BOTH_WAYS, options={"kernel": ("fused", "eager")})
def cross_entropy(call: OperatorCall, *, kernel: str) -> Work:
    """Return the work of the loss over logits."""
    tokens, vocabulary = call.shape
    elements = tokens * vocabulary
    if kernel == "eager":
        passes = EAGER_PASSES[call.direction] * FP32_BYTES
        return _on_tokens("cross_entropy", elements, passes * elements, flops=5.0, kernels=7)
    # Fused: the forward pass reads the logits once, the backward pass reads and overwrites them.
    passes = (1.0 if call.direction == "forward" else 2.0) * result_bytes(call.dtype)
    return _on_tokens("cross_entropy", elements, passes * elements, flops=5.0)


@family("route", "tokens", "hidden", "experts", "topk", directions=BOTH_WAYS)
def route(call: OperatorCall) -> Work:
    """Return the work of choosing experts from router scores."""
    tokens, _, experts, topk = call.shape
    moved = tokens * (ROUTE_PASSES * FP32_BYTES * experts + 2 * INDEX_BYTES * topk)
    return _on_tokens("route", tokens * experts, moved, flops=8.0, kernels=ROUTE_KERNELS)


@family("permute", "tokens", "hidden", "topk", directions=BOTH_WAYS)
def permute(call: OperatorCall) -> Work:
    """Return the work of bringing tokens into the order of experts, or back."""
    tokens, hidden, topk = call.shape
    rows = tokens * (1 + topk)
    moved = rows * hidden * result_bytes(call.dtype) + INDEX_BYTES * tokens * topk
    return _on_tokens("permute", rows * hidden, moved)


def _on_tokens(name: str, elements: float, moved: float, flops: float = 1.0, kernels: int = 1) -> Work:
    return memory_bound(name, "elementwise", flops=flops * elements, bytes_moved=moved, kernels=kernels)
