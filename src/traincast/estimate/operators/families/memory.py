"""Operators that memory binds: on each element or row alone, at the ends of the model and around experts.

======================  ====================================  =====================================================
family                  shape                                 bytes per element (b: of the type)
======================  ====================================  =====================================================
``elementwise``         (rows, width)                         b (inputs + outputs); options ``inputs`` 2, ``outputs`` 1
``activation``          (tokens, width of output)             gelu: b 2, backward b 3; gated: b 3, backward b 5; gated
                                                              with ``kernels=2`` b 5, backward b 9; ``writes`` bytes
                                                              of an element instead of b where it casts what it writes
``rotary``              (tokens, heads, head_dim)             b 2, and the table once
``accumulate``          (elements)                            b + 8: reads a gradient, adds it to one in fp32; with
                                                              ``cast=fp32`` b + 16: by way of a copy in fp32; with
                                                              ``into=own`` b 3: to one of its own type
``cast``                (elements), (tensors, elements)       2 r + b c: from bf16 to the type; options ``reads`` r and
                                                              ``copies`` c, 1 each, and ``kernels``
``copy``                (elements)                            b 2
``norm``, ``softmax``   (rows, width)                         b 2; backward b 3: gradient and a saved tensor in
``optimizer``           (parameters)                          30: Adam on 16-bit weights, or ``bytes_per_parameter``
``embedding``           (tokens, hidden, vocabulary)          b 2: looks rows up; backward adds to fp32 gradients
``cross_entropy``       (tokens, vocabulary)                  loss over logits; option ``kernel``: fused, compiled or
                                                              eager, and whose ``code``: megatron, torch or xla
``route``               (tokens, hidden, experts, topk)       softmax and top-k of the router, counts, indices
``permute``             (tokens, hidden, topk)                copies each token topk times, in experts' order, or back;
                                                              option ``kernel``: fused, single or weighted
======================  ====================================  =====================================================

Adam on 16-bit or narrower weights reads and writes two fp32 moments (16 bytes) and the fp32 weight (8), reads the
fp32 gradient (4) and writes the weight in 16 bits (2): 30 bytes per parameter; Megatron runs fit 27
(docs/published-runs.md). SGD keeps one moment. FLOP per element: 5 for softmax, 6 for a norm, as NeuSight counts them
(arXiv 2407.13853). The router's GEMM is a ``gemm`` of its own.
"""

from traincast.estimate.operators.families import (
    BOTH_WAYS,
    FP32_BYTES,
    Size,
    Work,
    element_bytes,
    family,
    memory_bound,
    result_bytes,
)
from traincast.workload.ops import OperatorCall

_GATED = ("swiglu", "geglu")
_MOMENTS = {"adam": 2, "sgd": 1}
INDEX_BYTES = 8.0
"""PyTorch indexes with 64-bit integers."""
LOSS_PASSES = {
    "megatron eager": ((1, 9), (1, 3)),
    "megatron compiled": ((3, 0), (2, 0)),
    "torch eager": ((1, 3), (1, 5)),
    "torch compiled": ((2, 0), (2, 0)),
    "fused": ((3, 0), (2, 0)),
    "xla": ((1, 0), (2, 0)),
}
"""How often a loss moves its logits in their own type and in fp32, forward and backward, by whose it is and what
computes it.

Megatron's operations cast (one and one), take the maximum (1), subtract it (2), exponentiate (2), add up (1) and divide
(2); backward they scale (2) and cast. PyTorch's own cross-entropy casts and makes a log-softmax; backward it fills a
tensor with zeros, reads that and the log-softmax, writes their gradient and casts it. Compiled, it reads the logits for
the maximum, for the sum and for the gradient. Kernels of Transformer Engine read them for their sum, read them again to
write the gradient over them, and scale that. XLA reads them once each way. Megatron's compiled kernels pass over them
(1, 5) and (1, 4) times by their code, and runs with them say less (docs/published-runs.md): here as the fused ones.

Sources: Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py and megatron/core/fusions/fused_cross_entropy.py;
what PyTorch 2.13 compiles of the latter and of torch.nn.functional.cross_entropy (TORCH_LOGS=output_code); Transformer
Engine, transformer_engine/common/triton/cross_entropy.py; pytorch/pytorch, tools/autograd/derivatives.yaml."""
_LOSS_KERNELS = {"eager": 7, "compiled": 2, "fused": 2}
ROUTE_PASSES, ROUTE_KERNELS = 8.0, 10
"""Softmax, top-k, scatter of the mask, counts and their sums, each a small kernel over tokens x experts."""


_COPIES_MOVED = {
    "fused": (1.0, 1.0),
    "single": (2.5, 2.5),
    "weighted": (3.5, 5.5),
}
"""How often the copies of tokens cross memory in a permutation, in the mean of there and back, forward and backward.

Of PyTorch's own kernels ``index_select`` reads and writes them (2), ``scatter_add_`` and ``index_add_``, which is the
gradient of the first, read them and add them to what is there (3). ``weighted``: they are multiplied by the router's
weights on their way back (2), whose gradients take 6. Source: Megatron-LM, megatron/core/transformer/moe/moe_utils.py
(permute, unpermute)."""
_TOKENS_MOVED = {"fused": 1.0, "single": 0.5, "weighted": 0.5}
"""Likewise of the tokens themselves: ``scatter_add_`` and ``index_add_`` begin with zeros."""


def _single(call: OperatorCall) -> str:
    """Return the class of work of what is counted kernel by kernel, apart from what stands for more than it says."""
    return "pointwise" if ("kind", "eager") in call.options else "memory"


def _of_permutation(call: OperatorCall) -> str:
    """Return the class of work of a permutation: PyTorch's own kernels are counted one by one."""
    return "permute" if dict(call.options).get("kernel", "fused") == "fused" else "pointwise"


def _loss_name(kernel: str, code: str) -> str:
    """Return the name of a loss in `LOSS_PASSES`."""
    return "xla" if code == "xla" else kernel if kernel == "fused" else f"{code} {kernel}"


def _of_loss(call: OperatorCall) -> str:
    """Return the class of work of a loss: PyTorch's kernels are counted one by one."""
    options = dict(call.options)
    name = _loss_name(str(options.get("kernel", "fused")), str(options.get("code", "megatron")))
    return "memory" if name in ("fused", "xla", "megatron compiled") else "pointwise"


@family("elementwise", "rows", "width", options={"inputs": 2.0, "outputs": 1.0, "kind": ""}, cost_class=_single)
def elementwise(call: OperatorCall, *, inputs: float, outputs: float, kind: str) -> Work:
    """Return the work of an operator on each element: addition, scaling, dropout, mask."""
    rows, width = call.shape
    names = (f"elementwise_{kind}", kind, "elementwise") if kind else ("elementwise",)
    return _on_elements(*names, elements=rows * width, bytes_each=(inputs + outputs) * result_bytes(call.dtype))


@family(
    "activation",
    *("tokens", "width"),
    directions=BOTH_WAYS,
    options={"kind": ("gelu", "relu", "silu", "tanh", *_GATED), "kernels": 1.0, "writes": 0.0},
)
def activation(call: OperatorCall, *, kind: str, kernels: float, writes: float) -> Work:
    """Return the work of an activation function; gated ones multiply it with a second input.

    In one kernel, or in kernels of their own: the function (2 tensors, backward 3) and the product (3, backward 6: the
    gradients of its two inputs are a product each). One that casts as it writes has `writes` bytes of an element of its
    output, and of each gradient of an input.
    """
    tokens, width = call.shape
    tensors = {"forward": 2, "backward": 3}
    if kind in _GATED:
        tensors = {"forward": 3, "backward": 5} if kernels <= 1 else {"forward": 5, "backward": 9}
    bytes_each = tensors[call.direction] * result_bytes(call.dtype)
    if writes:
        written = 2 if kind in _GATED and call.direction == "backward" else 1
        bytes_each += written * (writes - result_bytes(call.dtype))
    return _on_elements("activation", "elementwise", elements=tokens * width, bytes_each=bytes_each, flops=8.0)


@family("rotary", "tokens", "heads", "head_dim", directions=BOTH_WAYS)
def rotary(call: OperatorCall) -> Work:
    """Return the work of rotating queries and keys; its gradient is the rotation back."""
    tokens, heads, head_dim = call.shape
    bytes_each = 2 * result_bytes(call.dtype) + 2 * FP32_BYTES / heads
    return _on_elements("rotary", "elementwise", elements=tokens * heads * head_dim, bytes_each=bytes_each, flops=3.0)


@family(
    "accumulate",
    "elements",
    options={"cast": ("none", "fp32"), "into": ("fp32", "own")},
    cost_class=lambda _: "sums",
)
def accumulate(call: OperatorCall, *, cast: str, into: str) -> Work:
    """Return the work of adding a gradient to the fp32 one in memory, perhaps after a cast that is written and read.

    ``into=own``: to one of its own type.
    """
    bytes_each = element_bytes(call.dtype) + 2 * FP32_BYTES * (2 if cast == "fp32" else 1)
    if into == "own":
        bytes_each = 3 * result_bytes(call.dtype)
    return _on_elements("accumulate", "elementwise", elements=call.shape[0], bytes_each=bytes_each)


@family(
    "cast",
    Size("tensors", 1),
    "elements",
    drops_batch=True,
    options={"copies": 1.0, "reads": 1.0, "kernels": 1.0},
    cost_class=lambda _: "cast",
)
def cast(call: OperatorCall, *, copies: float, reads: float, kernels: float) -> Work:
    """Return the work of a cast from bf16 to the type of the call, with its scales."""
    *tensors, elements = call.shape
    moved = elements * (reads * element_bytes("bf16") + copies * element_bytes(call.dtype))
    launches = max(1, round(kernels * (tensors[0] if tensors else 1)))
    return memory_bound("cast", "elementwise", flops=2.0 * elements, bytes_moved=moved, kernels=launches)


@family("copy", "elements")
def copy(call: OperatorCall) -> Work:
    """Return the work of copying elements from one place in memory to another."""
    bytes_each = 2 * element_bytes(call.dtype)
    return _on_elements("copy", "elementwise", elements=call.shape[0], bytes_each=bytes_each, flops=0.0)


@family("norm", "rows", "width", directions=BOTH_WAYS, options={"kind": ("rms", "layer")})
def norm(call: OperatorCall, *, kind: str) -> Work:  # noqa: ARG001 - both kinds move the same bytes
    """Return the work of a layer norm or RMS norm."""
    return _on_rows(call, "norm", 6.0)


@family("softmax", "rows", "width", directions=BOTH_WAYS)
def softmax(call: OperatorCall) -> Work:
    """Return the work of a softmax over each row."""
    return _on_rows(call, "softmax", 5.0)


@family(
    "optimizer",
    "parameters",
    options={"kind": tuple(_MOMENTS), "bytes_per_parameter": None, "kernels": 1.0},
    cost_class=lambda call: "pointwise" if call.dtype == "fp32" else "sums",
)
def optimizer(call: OperatorCall, *, kind: str, bytes_per_parameter: float | None, kernels: float) -> Work:
    """Return the work of a step of the optimizer over a rank's parameters, one launch per bucket of tensors."""
    (parameters,) = call.shape
    narrow = result_bytes(call.dtype) if call.dtype not in ("fp32", "tf32") else 0.0
    usual = FP32_BYTES * (2 * _MOMENTS[kind] + 2 + 1) + narrow
    return memory_bound(
        "optimizer",
        "elementwise",
        flops=12.0 * parameters,
        bytes_moved=(usual if bytes_per_parameter is None else bytes_per_parameter) * parameters,
        kernels=max(1, round(kernels)),
    )


@family("embedding", "tokens", "hidden", "vocabulary", directions=BOTH_WAYS)
def embedding(call: OperatorCall) -> Work:
    """Return the work of looking up the rows of tokens."""
    tokens, hidden, _ = call.shape
    element = result_bytes(call.dtype)
    moved = element + 2 * FP32_BYTES if call.direction == "backward" else 2 * element
    return _on_tokens("embedding", tokens * hidden, moved * tokens * hidden + INDEX_BYTES * tokens)


@family(
    "cross_entropy",
    "tokens",
    "vocabulary",
    directions=BOTH_WAYS,
    options={"kernel": ("fused", "compiled", "eager"), "code": ("megatron", "torch", "xla")},
    cost_class=_of_loss,
)
def cross_entropy(call: OperatorCall, *, kernel: str, code: str) -> Work:
    """Return the work of the loss over logits."""
    tokens, vocabulary = call.shape
    own, full = LOSS_PASSES[_loss_name(kernel, code)][BOTH_WAYS.index(call.direction)]
    each = result_bytes(call.dtype)
    casts = full > 0 and each == FP32_BYTES  # of logits in fp32, which are none
    moved = (own - casts) * each + (full - casts) * FP32_BYTES
    elements = tokens * vocabulary
    return _on_tokens("cross_entropy", elements, moved * elements, flops=5.0, kernels=_LOSS_KERNELS[kernel])


@family("route", "tokens", "hidden", "experts", "topk", directions=BOTH_WAYS)
def route(call: OperatorCall) -> Work:
    """Return the work of choosing experts from router scores."""
    tokens, _, experts, topk = call.shape
    moved = tokens * (ROUTE_PASSES * FP32_BYTES * experts + 2 * INDEX_BYTES * topk)
    return _on_tokens("route", tokens * experts, moved, flops=8.0, kernels=ROUTE_KERNELS)


@family(
    "permute",
    "tokens",
    "hidden",
    "topk",
    directions=BOTH_WAYS,
    options={"kernel": tuple(_COPIES_MOVED)},
    cost_class=_of_permutation,
)
def permute(call: OperatorCall, *, kernel: str) -> Work:
    """Return the work of bringing tokens into the order of experts, or back."""
    tokens, hidden, topk = call.shape
    forward, backward = _COPIES_MOVED[kernel]
    rows = tokens * (_TOKENS_MOVED[kernel] + topk * (backward if call.direction == "backward" else forward))
    moved = rows * hidden * result_bytes(call.dtype) + INDEX_BYTES * tokens * topk
    return _on_tokens("permute", rows * hidden, moved)


def _on_tokens(name: str, elements: float, moved: float, flops: float = 1.0, kernels: int = 1) -> Work:
    return memory_bound(name, "elementwise", flops=flops * elements, bytes_moved=moved, kernels=kernels)


def _on_elements(*names: str, elements: float, bytes_each: float, flops: float = 1.0) -> Work:
    moved = elements * bytes_each
    return memory_bound(*names, flops=flops * elements, bytes_moved=moved, coordinates=(moved,))


def _on_rows(call: OperatorCall, name: str, flops_per_element: float) -> Work:
    rows, width = call.shape
    backward, element = call.direction == "backward", result_bytes(call.dtype)
    return memory_bound(
        *((f"{name}_backward", name) if backward else (name,)),
        flops=flops_per_element * rows * width * (1.5 if backward else 1.0),
        bytes_moved=(3 if backward else 2) * rows * width * element,
        coordinates=(rows, width * element),
    )
