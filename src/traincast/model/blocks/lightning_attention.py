"""Lightning attention: linear attention whose heads decay at rates that are fixed (MiniMax-01 and M1).

Source: Qin et al. 2024, arXiv 2401.04658; MiniMax 2025, arXiv 2501.08313, section 2.2; huggingface/transformers,
src/transformers/models/minimax/modular_minimax.py (MiniMaxLightningAttention).
"""

from msgspec import Struct

from traincast.model.blocks.common import adapters, entry_projection, exit_projection, norm, residual
from traincast.model.blocks.mamba import pointwise, swapped
from traincast.model.blocks.part import Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import ceil_div

_PROJECTED = 3
"""Vectors of a head that the first projection makes, with an activation function: query, key and value."""


class LightningAttention(Struct, frozen=True):
    """The mixer block of a layer.

    It scans as Mamba-2 does, with a query and a key of its own for each head in place of C and B. Heads are split over
    tp, and exchanged for tokens over cp.
    """

    heads: int
    head_dim: int

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, projections, activation, scan, gated norm and residual sum."""
        execution, tokens = share.execution, share.tokens
        heads, element = ceil_div(self.heads, share.tp), execution.element_bytes
        inner = heads * self.head_dim
        width = (_PROJECTED + 1) * inner
        entry = entry_projection(share, "self_attention.in_proj", "linear_attention", width)
        turned = swapped(share, tokens * width * element)
        activated = Part(
            name="self_attention.activation_func",
            counts_as="linear_attention",
            kernels=(pointwise(share, _PROJECTED * inner, "silu"),),
            saved={"mixer projections": tokens * _PROJECTED * inner * element},
            forward=turned,
            backward=turned,
        )
        back = swapped(share, tokens * inner * element)
        shape = (tokens, heads, self.head_dim, self.head_dim, heads)
        scan = Part(
            name="self_attention.lightning",
            counts_as="scan",
            kernels=(Kernel(family="state_space", shape=shape, dtype=execution.core_dtype),),
            saved={"scan outputs": tokens * inner * element},
            forward=back,
            backward=back,
        )
        gate = Part(
            name="self_attention.out_norm",
            counts_as="linear_attention",
            vectors=inner,
            kernels=(pointwise(share, inner, "swiglu"),),
        )
        leave = exit_projection(share, "self_attention.out_proj", "linear_attention", inner)
        adapted = adapters(share, (entry, leave), "mixer outputs")
        first, last = norm(share, "input_layernorm"), residual(share, "attn_bda")
        return (first, entry, activated, scan, gate, leave, last, *adapted)


_NAMES = ("heads", "head_dim")


@block("lightning_attention", settings=tuple(f"lightning_{name}" for name in _NAMES))
def _lightning_attention(model: Model, _layer: int) -> LightningAttention:
    return LightningAttention(**model.sizes("lightning", _NAMES))
