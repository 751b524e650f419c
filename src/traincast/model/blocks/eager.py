"""What layers run that a model library writes as single operations of PyTorch, each a kernel that reads and writes all.

Hugging Face Transformers computes norms in fp32, and turns queries and keys by tables of the hidden state's type.
Where PyTorch's autocast casts, weights are fp32, and so is what passes from layer to layer: every GEMM that reads a
norm has a cast of its own, whose gradient is cast back and added to that of the others. Sources:
huggingface/transformers, models/llama/modeling_llama.py (LlamaRMSNorm, apply_rotary_pos_emb, LlamaDecoderLayer) and
loss/loss_utils.py; what autograd runs for them: pytorch/pytorch, tools/autograd/derivatives.yaml; casts:
aten/src/ATen/autocast_mode.h (cached_cast).

Bytes below are those of an element, in the order of the operations: what each reads, then what it writes.
"""

from typing import NamedTuple

from traincast.model.blocks.part import Gemm, Kernel
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number

KIND = "eager"
"""What such kernels are of the family ``elementwise``."""

AUTOCAST = ("bf16", "fp16")
"""Types to which PyTorch's autocast casts."""

ADAPTER = ".adapter"
"""How names of adapters end."""

_FULL, _HALF = 4, 2
"""Bytes of an element of fp32, and of 16 bits."""

_READERS = {"input_layernorm": 3, "pre_mlp_layernorm": 2, "final_layernorm": 1}
"""Linear layers that read a norm: of queries, keys and values; gate and up."""


class Moved(NamedTuple):
    """What some kernels over the same elements move."""

    bytes_each: float
    """Of an element, all kernels together."""
    kernels: int
    """As many as the host launches, those over rows alone included."""

    def plus(self, other: "Moved") -> "Moved":
        """Return both together."""
        return Moved(self.bytes_each + other.bytes_each, self.kernels + other.kernels)

    def and_casts(self, count: int) -> "Moved":
        """Return them with so many casts from fp32 to 16 bits, or back."""
        return self.plus(Moved(count * (_FULL + _HALF), count))


def kernels_of(rows: Number, width: Number, forward: Moved, backward: Moved) -> tuple[Kernel, ...]:
    """Return the kernels of both passes over so many elements."""
    found = []
    for moved, ahead in ((forward, True), (backward, False)):
        if not moved.kernels:
            continue
        tensors = moved.bytes_each / moved.kernels / _FULL
        options = (("inputs", f"{tensors / 2:.6g}"), ("outputs", f"{tensors / 2:.6g}"), ("kind", KIND))
        found.append(
            Kernel(
                family="elementwise",
                shape=(rows, width),
                dtype="fp32",
                count=moved.kernels,
                has_forward=ahead,
                has_backward=not ahead,
                backward_alike=not ahead,
                options=options,
            )
        )
    return tuple(found)


def norm(share: Share, name: str) -> tuple[Kernel, ...]:
    """Return a norm over the hidden size, and the casts of those who read it.

    An RMS norm squares (8), takes the mean (4) and the root of it over rows alone, scales its input (8) and that again
    by weights; in the backward pass come the gradients of both products, each with a sum over rows or tokens, of the
    mean and of the squares, a power of their own, and the sum of both ways to the input. A layer norm is one kernel.
    """
    width, rows, hidden = share.hidden_bytes, share.norm_tokens, share.model.hidden
    if share.model.norm == "layer":
        forward, backward = Moved(2 * width, 1), Moved(4 * width, 2)
    else:
        scaled = Moved(6 * width, 3) if share.trains_weights else Moved(2 * width, 1)
        backward = Moved(scaled.bytes_each + (8 + 12 + 4) + 4 + (8 + 8 + 12) + 12, scaled.kernels + 11)
        forward = Moved(8 + 4 + 8 + 2 * width, 6)
        if not share.wide:
            forward, backward = forward.and_casts(2), backward.and_casts(2)
    readers, casts = _readers(name), _readers(name) if share.wide else 0
    sums = Moved(3 * width * (readers - 1), readers - 1)
    return kernels_of(rows, hidden, forward.and_casts(casts), backward.and_casts(casts).plus(sums))


def kept_of_norm(share: Share, name: str) -> Number:
    """Return the bytes that it keeps: its input and what is scaled in fp32, and casts for all that read it but one."""
    if share.model.norm == "layer":
        return share.norm_bytes
    each = 2 * _FULL + _HALF * (_readers(name) - 1) if share.wide else _FULL
    return share.norm_tokens * share.model.hidden * each


def _readers(name: str) -> int:
    return _READERS.get(name.rpartition(".")[2], 1)


def residual(share: Share) -> tuple[Kernel, ...]:
    """Return the sum of a block's output, in 16 bits, and its input; then of both their gradients."""
    width, casts = share.hidden_bytes, int(share.wide)
    backward = Moved(3 * width, 1).and_casts(casts)
    return kernels_of(share.norm_tokens, share.model.hidden, Moved(_HALF + 2 * width, 1), backward)


def rotary(share: Share, heads: Number, head_dim: int) -> tuple[Kernel, ...]:
    """Return the turn of queries and keys, which are two tensors.

    Both products with the tables, halves negated and put together, and their sum; in the backward pass the same, each
    half in a tensor of zeros. Products with tables in fp32 are fp32, and cast to 16 bits for attention.
    """
    width, wide = share.hidden_bytes, int(share.wide)
    forward = Moved(2 * (_HALF + width) + 2 + 2 * _HALF + 3 * width, 5).and_casts(wide)
    backward = Moved(4 * width + 2 + 2 * (_HALF + 2) + 2 * 3 * _HALF, 11).and_casts(3 * wide)
    both = (Moved(each.bytes_each, 2 * each.kernels) for each in (forward, backward))
    return kernels_of(share.tokens * heads, head_dim, *both)


def loss(share: Share) -> tuple[Kernel, ...]:
    """Return the loss over logits in fp32: cast, log-softmax; its gradient, from a tensor of zeros, cast back."""
    return kernels_of(share.tokens, share.table_rows, Moved(6 + 8, 6), Moved(4 + 12 + 6, 6))


def activation(share: Share, tokens: Number, width: Number) -> tuple[Kernel, ...]:
    """Return the activation function and its product with the gate, and the gradients of both."""
    if not share.model.gated:
        return kernels_of(tokens, width, Moved(2 * _HALF, 1), Moved(3 * _HALF, 1))
    return kernels_of(tokens, width, Moved(5 * _HALF, 2), Moved(9 * _HALF, 3))


def weight_casts(share: Share, gemm: Gemm) -> tuple[Kernel, ...]:
    """Return the cast of a trained weight to 16 bits in each pass of a microbatch, and that of its gradient to fp32.

    None where autocast does not cast it, or ranks gather it in 16 bits.
    """
    if not share.execution.autocast or gemm.dtype not in AUTOCAST:
        return ()
    return kernels_of(gemm.groups * gemm.n, gemm.k, Moved(_FULL + _HALF, 1), Moved(_HALF + _FULL, 1))


def gradient_sums(elements: Number) -> tuple[Kernel, ...]:
    """Return the sum of a microbatch's fp32 gradients of a weight and those before it.

    Those of the first microbatch are not added to any; what that would move is what clipping moves, which reads the
    gradients of the step for their norm and scales them. Sources: pytorch/pytorch,
    torch/csrc/autograd/functions/accumulate_grad.h, torch/nn/utils/clip_grad.py.
    """
    return kernels_of(1, elements, Moved(3 * _FULL, 1), Moved(0, 0))


def adapter(gemm: Gemm, layers: int) -> tuple[Kernel, ...]:
    """Return what PEFT runs around the GEMMs of the adapters of a GEMM, which is so many linear layers with adapters.

    An adapter's input is cast to its fp32, and by autocast back to 16 bits; its output is scaled and added to that of
    the layer; gradients go the same way. Source: huggingface/peft, tuners/lora/layer.py (Linear.forward,
    _cast_input_dtype).
    """
    added = Moved(3 * _HALF, 1)
    read, added_read = Moved(0, 0).and_casts(2 * layers), Moved(layers * added.bytes_each, layers)
    scaled = Moved(2 * _HALF, layers)
    return (
        *kernels_of(gemm.m, gemm.k, read, read.plus(added_read)),
        *kernels_of(gemm.m, gemm.n, scaled.plus(added), scaled),
    )


def linear_layers(share: Share, name: str) -> int:
    """Return how many linear layers a library has where others have a fused one; of adapters how many have one.

    Those on attention alone are on queries and values where nothing else is said. Source: huggingface/peft,
    utils/constants.py (TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING).
    """
    if not share.execution.eager_layers:
        return 1
    layer = name.removesuffix(ADAPTER).rpartition(".")[2]
    if layer == "linear_qkv" and name.endswith(ADAPTER) and share.execution.adapters.targets == (layer,):
        return 2
    return {"linear_qkv": 3, "linear_fc1": 2 if share.model.gated else 1}.get(layer, 1)
