"""The mixer of a Mamba-2 layer: a state-space model whose scan runs in chunks, as GEMMs.

Source: Dao and Gu 2024, arXiv 2405.21060, sections 6 and 7; Megatron-LM, megatron/core/ssm/mamba_mixer.py.
"""

from msgspec import Struct
from msgspec.structs import replace

from traincast.model.blocks.common import (
    adapters,
    entry_projection,
    exit_projection,
    moved,
    norm,
    norm_kernel,
    residual,
)
from traincast.model.blocks.part import Exchange, Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import Number, ceil_div

_PER_HEAD = 3
"""Parameters of a head that no GEMM reads: its decay, its skip, and the bias of its step (A, D, dt)."""


class Mamba(Struct, frozen=True):
    """The mixer block of a layer.

    One projection gives each head its input and its gate, each group of heads the two vectors of its state's input and
    output (B, C), and each head its step (dt). Heads and groups are split over tp as those of attention are; context
    parallel ranks exchange tokens for heads before the convolution and back after the scan (Megatron-LM,
    megatron/core/ssm/mamba_context_parallel.py).
    """

    heads: int
    head_dim: int
    state: int
    """Width of the state that a channel keeps."""
    groups: int
    """Groups of heads that share B and C."""
    kernel: int
    """Tokens that the convolution sees."""
    norms: int = 1
    """Norms of what the gate leaves: 1, or none."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, both projections, convolution, scan, gate and residual sum."""
        execution, tokens = share.execution, share.tokens
        heads, groups = ceil_div(self.heads, share.tp), ceil_div(self.groups, share.tp)
        inner, mixed = heads * self.head_dim, heads * self.head_dim + 2 * groups * self.state
        width, element = inner + mixed + heads, execution.element_bytes
        entry = entry_projection(share, "mixer.in_proj", "mamba", width)
        conv = Part(
            name="mixer.conv1d",
            counts_as="mamba",
            vectors=mixed * (self.kernel + 1),
            kernels=(*transposed(share, width), pointwise(share, mixed, "silu"), *again(share, mixed)),
            forward=swapped(share, tokens * width * element),
            backward=swapped(share, tokens * width * element),
        )
        shape = (tokens, heads, self.head_dim, self.state, groups)
        scan = Part(
            name="mixer.scan",
            counts_as="scan",
            vectors=_PER_HEAD * heads,
            kernels=(Kernel(family="state_space", shape=shape, dtype=execution.core_dtype),),
            saved={"scan outputs": tokens * inner * element},
            forward=swapped(share, tokens * inner * element),
            backward=swapped(share, tokens * inner * element),
        )
        gate = Part(
            name="mixer.norm",
            counts_as="mamba",
            vectors=self.norms * inner,
            kernels=(
                *gated(share, inner),
                *transposed(share, inner),
                *(norm_kernel(share, tokens, inner),) * self.norms,
            ),
        )
        leave = exit_projection(share, "mixer.out_proj", "mamba", inner)
        adapted = adapters(share, (entry, leave), "mixer outputs")
        return norm(share, "input_layernorm"), entry, conv, scan, gate, leave, residual(share, "mamba_bda"), *adapted


MAMBA_NAMES = ("heads", "head_dim", "state", "groups", "kernel")
"""Numbers of a mixer, behind ``mamba_`` in a model's settings."""


@block("mamba2", settings=tuple(f"mamba_{name}" for name in MAMBA_NAMES))
def _mamba2(model: Model, _layer: int) -> Mamba:
    return Mamba(**model.sizes("mamba", MAMBA_NAMES))


def pointwise(share: Share, width: Number, kind: str) -> Kernel:
    """Return a kernel over every token: the convolution with its activation, or the gated norm."""
    return Kernel(
        family="activation",
        shape=(share.tokens, width),
        dtype=share.execution.core_dtype,
        options=(("kind", kind),),
    )


def again(share: Share, width: Number) -> tuple[Kernel, ...]:
    """Return the convolution of the backward pass, which keeps none of its outputs.

    Source: state-spaces/mamba, mamba_ssm/ops/triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn).
    """
    return (replace(_moved(share, width, 1, 1), has_forward=False, backward_alike=True),)


def gated(share: Share, width: Number) -> tuple[Kernel, ...]:
    """Return what the gate adds: the scan reads it and writes its outputs with it, too; a kernel has its gradient.

    That one reads the outputs, the gate and their gradient, and writes the gradients of both. Source: as `again`,
    ssd_chunk_scan.py (_chunk_scan_fwd_kernel, _chunk_scan_bwd_dz_kernel).
    """
    forward, backward = _moved(share, width, 1, 1), _moved(share, width, 3, 2)
    return replace(forward, has_backward=False), replace(backward, has_forward=False, backward_alike=True)


def transposed(share: Share, width: Number) -> tuple[Kernel, ...]:
    """Return the copy of what has the sequences of a microbatch within each of its tokens, in each pass.

    Source: Megatron-LM, megatron/core/ssm/mamba_mixer.py (_ssm_training: l b d -> b l d and back, contiguous).
    """
    if not share.execution.sequence_first:
        return ()
    return (replace(_moved(share, width, 1, 1), count=1 * (share.sequences.count > 1), backward_alike=True),)


def _moved(share: Share, width: Number, inputs: int, outputs: int) -> Kernel:
    return replace(moved(share, share.tokens, width, inputs, outputs), backward_alike=False)


def swapped(share: Share, size_bytes: Number) -> tuple[Exchange, ...]:
    """Return the exchange of tokens for heads over context parallel ranks."""
    return (Exchange(group="cp", operation="all_to_all", size_bytes=size_bytes * (share.cp > 1)),)
