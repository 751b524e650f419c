"""The mixer of a Mamba-2 layer: a state-space model whose scan runs in chunks, as GEMMs.

Source: Dao and Gu 2024, arXiv 2405.21060, sections 6 and 7; Megatron-LM, megatron/core/ssm/mamba_mixer.py.
"""

from msgspec import Struct

from traincast.model.blocks.common import adapters, entry_projection, exit_projection, norm, residual
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
            kernels=(pointwise(share, mixed, "silu"),),
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
            kernels=(pointwise(share, inner, "swiglu"),),
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


def swapped(share: Share, size_bytes: Number) -> tuple[Exchange, ...]:
    """Return the exchange of tokens for heads over context parallel ranks."""
    return (Exchange(group="cp", operation="all_to_all", size_bytes=size_bytes * (share.cp > 1)),)
