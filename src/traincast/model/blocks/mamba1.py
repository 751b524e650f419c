"""The mixer of a Mamba-1 layer, whose channels decay each by itself (Jamba).

Source: Gu and Dao 2023, arXiv 2312.00752, section 3; Lieber et al. 2024, arXiv 2403.19887, section 6.2 (norms of what
the scan reads of a token); huggingface/transformers, src/transformers/models/jamba/modeling_jamba.py (JambaMambaMixer).
"""

from msgspec import Struct

from traincast.model.blocks.common import (
    adapters,
    entry_projection,
    exit_projection,
    norm,
    norm_kernel,
    residual,
)
from traincast.model.blocks.mamba import pointwise, swapped
from traincast.model.blocks.part import Exchange, Gemm, Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import Number, ceil_div


class Mamba1(Struct, frozen=True):
    """The mixer block of a layer.

    One projection gives every channel its input and gate; from what is left of the inputs behind a convolution a narrow
    one gives a token its step and the two vectors of the state's input and output (B, C), all normed, and a third
    gives each channel its step. Channels are split over tp, so that ranks sum up the narrow vectors; context parallel
    ranks exchange tokens for channels before the convolution and back after the scan, and sum up, too.
    """

    width: int
    """Channels that are scanned."""
    state: int
    """Width of the state that a channel keeps."""
    rank: int
    """Width of the vector that steps are made of."""
    kernel: int
    """Tokens that the convolution sees."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, projections, convolution, scan with its gate, and residual sum."""
        width, (narrow, step) = ceil_div(self.width, share.tp), self._narrow(share)
        entry, leave = self._ends(share, width)
        tokens, element, dtype = share.tokens, share.execution.element_bytes, share.execution.core_dtype
        turned, back = (swapped(share, count * tokens * width * element) for count in (2, 1))
        conv = Part(
            name="mixer.conv1d",
            counts_as="mamba",
            vectors=width * (self.kernel + 1),
            kernels=(pointwise(share, width, "silu"),),
            saved={"mixer projections": tokens * width * element},
            forward=turned,
            backward=turned,
        )
        scan = Part(
            name="mixer.scan",
            counts_as="scan",
            # Decays of every element of the state, and a skip for each channel.
            vectors=width * (self.state + 1),
            kernels=(Kernel(family="selective_scan", shape=(tokens, width, self.state), dtype=dtype),),
            saved={"scan outputs": tokens * width * element},
            forward=back,
            backward=back,
        )
        return (
            norm(share, "input_layernorm"),
            entry,
            conv,
            narrow,
            step,
            scan,
            leave,
            residual(share, "mamba_bda"),
            *adapters(share, (entry, leave), "mixer outputs"),
        )

    def _ends(self, share: Share, width: Number) -> tuple[Part, Part]:
        """Return the first projection and the last."""
        entry = entry_projection(share, "mixer.in_proj", "mamba", 2 * width)
        leave = exit_projection(share, "mixer.out_proj", "mamba", width)
        return entry, leave

    def _narrow(self, share: Share) -> tuple[Part, Part]:
        """Return the projection to narrow vectors, which is summed up, with their norms, and that to steps."""
        execution, tokens, width = share.execution, share.tokens, ceil_div(self.width, share.tp)
        thin, element = self.rank + 2 * self.state, execution.element_bytes
        size = tokens * thin * element
        summed = (
            Exchange(group="tp", operation="all_reduce", size_bytes=size * (share.tp > 1)),
            Exchange(group="cp", operation="all_reduce", size_bytes=size * share.cp * (share.cp > 1)),
        )
        narrow = Part(
            name="mixer.x_proj",
            counts_as="mamba",
            gemms=(Gemm(m=tokens, n=thin, k=width, dtype=execution.precision),),
            vectors=thin,
            kernels=(norm_kernel(share, tokens, thin),),
            saved={"mixer projections": 2 * size},
            forward=summed,
            backward=summed,
        )
        step = Part(
            name="mixer.dt_proj",
            counts_as="mamba",
            gemms=(Gemm(m=tokens, n=width, k=self.rank, dtype=execution.precision),),
            vectors=width,
            saved={"mixer projections": tokens * width * element},
        )
        return narrow, step


_NAMES = ("width", "state", "rank", "kernel")


@block("mamba1", settings=tuple(f"mamba1_{name}" for name in _NAMES))
def _mamba1(model: Model, _layer: int) -> Mamba1:
    return Mamba1(**model.sizes("mamba1", _NAMES))
