"""The mixer of a linear-attention layer with the gated delta rule: a state per head that is corrected, not added to.

Source: Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464, section 3; Megatron-LM,
megatron/core/ssm/gated_delta_net.py.
"""

from msgspec import Struct

from traincast.model.blocks.common import adapters, entry_projection, exit_projection, norm, residual
from traincast.model.blocks.mamba import pointwise, swapped
from traincast.model.blocks.part import Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import ceil_div

_PER_HEAD = 2
"""Parameters of a value head that no GEMM reads: its decay, and the bias of its step (A, dt)."""


_MODULES = ("gdn_norm_out",)
"""Its gated norm can be recomputed by itself from the scan's outputs, which are kept anyway: megatron/core/ssm/
gated_delta_net/common.py (recompute_norm_out)."""


class GatedDelta(Struct, frozen=True):
    """The mixer block of a layer.

    One projection gives queries, keys, values, an output gate, and two numbers for each value head (decay and rate of
    correction); a short convolution mixes the first three. Heads are split over tp, and exchanged for tokens over cp,
    as those of Mamba-2.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """Tokens that the convolution sees."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, both projections, convolution, scan, gated norm and residual sum."""
        execution, tokens = share.execution, share.tokens
        heads, key_heads = ceil_div(self.value_heads, share.tp), ceil_div(self.key_heads, share.tp)
        inner, mixed = heads * self.value_dim, heads * self.value_dim + 2 * key_heads * self.key_dim
        width, element = inner + mixed + 2 * heads, execution.element_bytes
        entry = entry_projection(share, "self_attention.in_proj", "linear_attention", width)
        conv = Part(
            name="self_attention.conv1d",
            counts_as="linear_attention",
            vectors=mixed * self.kernel,
            kernels=(pointwise(share, mixed, "silu"),),
            saved={"mixer projections": tokens * mixed * element},
            forward=swapped(share, tokens * width * element),
            backward=swapped(share, tokens * width * element),
        )
        shape = (tokens, heads, self.key_dim, self.value_dim)
        scan = Part(
            name="self_attention.gated_delta_rule",
            counts_as="scan",
            vectors=_PER_HEAD * heads,
            kernels=(Kernel(family="delta_rule", shape=shape, dtype=execution.core_dtype),),
            saved={"scan outputs": tokens * inner * element},
            forward=swapped(share, tokens * inner * element),
            backward=swapped(share, tokens * inner * element),
        )
        gate = Part(
            name="self_attention.out_norm",
            counts_as="linear_attention",
            vectors=self.value_dim,
            kernels=(pointwise(share, inner, "swiglu"),),
            modules=_MODULES,
        )
        leave = exit_projection(share, "self_attention.out_proj", "linear_attention", inner, _MODULES)
        adapted = adapters(share, (entry, leave), "mixer outputs")
        return norm(share, "input_layernorm"), entry, conv, scan, gate, leave, residual(share, "attn_bda"), *adapted


_NAMES = ("key_heads", "value_heads", "key_dim", "value_dim", "kernel")


@block("gated_delta", settings=tuple(f"linear_{name}" for name in _NAMES), modules=_MODULES)
def _gated_delta(model: Model, _layer: int) -> GatedDelta:
    return GatedDelta(**model.sizes("linear", _NAMES))
