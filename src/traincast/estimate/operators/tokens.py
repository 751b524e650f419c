"""Operators at the ends of the model and around experts.

=================  ==================================  ====================================================
family             shape                               what it does
=================  ==================================  ====================================================
``embedding``      (tokens, hidden, vocabulary)        looks rows up; backward adds to fp32 gradients
``cross_entropy``  (tokens, vocabulary)                loss over logits; option ``kernel``: fused or eager
``route``          (tokens, hidden, experts, topk)     softmax and top-k of the router, counts, indices
``permute``        (tokens, hidden, topk)              copies each token topk times, in experts' order
=================  ==================================  ====================================================

The router's matrix product is a ``gemm`` of its own; putting tokens back is a ``permute`` too.
"""

from traincast.estimate.operators.calls import GRAD_BYTES, direction, only_options, option, result_bytes, sizes
from traincast.estimate.operators.contract import FAMILIES, OperatorCall, Work

INDEX_BYTES = 8.0
"""PyTorch indexes with 64-bit integers."""
EAGER_PASSES = {"forward": 9.0, "backward": 4.0}
"""fp32 passes over the logits of a loss made of single kernels: cast (1.5), maximum (1), subtract (2), exponential
(2), sum (1), gather (~0), log-softmax (1.5); backward copies, subtracts the target, scales and casts."""
ROUTE_PASSES, ROUTE_KERNELS = 8.0, 10
"""Softmax, top-k, scatter of the mask, counts and their sums, each a small kernel over tokens x experts."""


@FAMILIES.register("embedding")
def embedding(call: OperatorCall) -> Work:
    """Return the work of looking up the rows of tokens."""
    tokens, hidden, _ = sizes(call, "tokens", "hidden", "vocabulary")
    only_options(call)
    backward = direction(call, "forward", "backward") == "backward"
    element = result_bytes(call.dtype)
    moved = element + 2 * GRAD_BYTES if backward else 2 * element
    return _memory("embedding", tokens * hidden, moved * tokens * hidden + INDEX_BYTES * tokens)


@FAMILIES.register("cross_entropy")
def cross_entropy(call: OperatorCall) -> Work:
    """Return the work of the loss over logits."""
    tokens, vocabulary = sizes(call, "tokens", "vocabulary")
    only_options(call, "kernel")
    way = direction(call, "forward", "backward")
    fused = option(call, "kernel", "fused", ("fused", "eager")) == "fused"
    # Fused: the forward pass reads the logits once, the backward pass reads and overwrites them.
    passes = (1.0 if way == "forward" else 2.0) * result_bytes(call.dtype) if fused else EAGER_PASSES[way] * GRAD_BYTES
    elements = tokens * vocabulary
    return _memory("cross_entropy", elements, passes * elements, flops=5.0, kernels=1 if fused else 7)


@FAMILIES.register("route")
def route(call: OperatorCall) -> Work:
    """Return the work of choosing experts from router scores."""
    tokens, _, experts, topk = sizes(call, "tokens", "hidden", "experts", "topk")
    only_options(call)
    direction(call, "forward", "backward")
    moved = tokens * (ROUTE_PASSES * GRAD_BYTES * experts + 2 * INDEX_BYTES * topk)
    return _memory("route", tokens * experts, moved, flops=8.0, kernels=ROUTE_KERNELS)


@FAMILIES.register("permute")
def permute(call: OperatorCall) -> Work:
    """Return the work of bringing tokens into the order of experts, or back."""
    tokens, hidden, topk = sizes(call, "tokens", "hidden", "topk")
    only_options(call)
    direction(call, "forward", "backward")
    rows = tokens * (1 + topk)
    return _memory("permute", rows * hidden, rows * hidden * result_bytes(call.dtype) + INDEX_BYTES * tokens * topk)


def _memory(name: str, elements: float, moved: float, flops: float = 1.0, kernels: int = 1) -> Work:
    return Work(
        constants=(name, "elementwise"),
        flops=flops * elements,
        bytes_moved=moved,
        compute_dtype="fp32",
        kernels=kernels,
    )
