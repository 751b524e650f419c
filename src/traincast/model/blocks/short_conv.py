"""Gated short convolution: two gates of every channel around a convolution of few tokens (LFM2).

Source: Liquid AI 2025, arXiv 2511.23404, section 2.1; huggingface/transformers,
src/transformers/models/lfm2/modular_lfm2.py (Lfm2ShortConv).
"""

from msgspec import Struct

from traincast.model.blocks.common import adapters, entry_projection, exit_projection, norm, residual
from traincast.model.blocks.mamba import pointwise
from traincast.model.blocks.part import Exchange, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import ceil_div

_PROJECTED = 3
"""Vectors of a token that the first projection makes: both gates, and what is convolved."""


class ShortConv(Struct, frozen=True):
    """The mixer block of a layer, as wide as the hidden state; channels are split over tp.

    Context parallel ranks hand the last tokens of their piece of the sequence to the next one.
    """

    kernel: int
    """Tokens that the convolution sees."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, both projections, gates, convolution and residual sum."""
        hidden, execution, tokens = share.model.hidden, share.execution, share.tokens
        width, element = ceil_div(hidden, share.tp), execution.element_bytes
        inner = tokens * width * element
        entry = entry_projection(share, "conv.in_proj", "convolution", _PROJECTED * width)
        gate = pointwise(share, width, "swiglu")
        last = share.sequences.count * (self.kernel - 1) * width * element * (share.cp > 1)
        shifted = (Exchange(group="cp", operation="all_gather", size_bytes=last * share.cp),)
        conv = Part(
            name="conv.conv",
            counts_as="convolution",
            vectors=width * self.kernel,
            kernels=(gate, pointwise(share, width, "silu"), gate),
            # What is convolved, and what comes of it.
            saved={"mixer projections": 2 * inner},
            forward=shifted,
            backward=shifted,
        )
        leave = exit_projection(share, "conv.out_proj", "convolution", width)
        adapted = adapters(share, (entry, leave), "mixer outputs")
        return norm(share, "operator_norm"), entry, conv, leave, residual(share, "conv_bda"), *adapted


_NAMES = ("kernel",)


@block("short_conv", settings=tuple(f"conv_{name}" for name in _NAMES))
def _short_conv(model: Model, _layer: int) -> ShortConv:
    return ShortConv(**model.sizes("conv", _NAMES))
