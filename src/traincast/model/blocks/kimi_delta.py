"""Kimi delta attention: the gated delta rule with a decay of its own for every channel of a key (Kimi Linear's KDA).

Source: Kimi Team 2025, arXiv 2510.26692, section 3; Megatron-LM, megatron/core/ssm/gated_delta_net/kda.py (queries,
keys and values are one projection, split over tp by heads; what decays and gates are made of is narrow, and whole on
every rank for its own tokens, as is the rate of correction).
"""

from msgspec import Struct

from traincast.model.blocks.common import adapters, around, entry_projection, exit_projection, norm, residual
from traincast.model.blocks.mamba import pointwise, swapped
from traincast.model.blocks.part import Gemm, Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model
from traincast.model.numbers import Number, ceil_div

_PROJECTED = 3
"""Vectors of a head that the wide projection makes and the convolution mixes: query, key and value."""


class KimiDelta(Struct, frozen=True):
    """The mixer block of a layer.

    Queries, keys and values are as wide as each other. Decays and the gates of the output pass through narrow vectors,
    which all heads of all ranks read.
    """

    heads: int
    head_dim: int
    rank: int
    """Width of the vector that decays are made of, and of that of the gates."""
    kernel: int
    """Tokens that the convolution sees."""

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, projections, convolution, scan, gated norm and residual sum."""
        inner = ceil_div(self.heads, share.tp) * self.head_dim
        entry, narrow, wide = self._projections(share, inner)
        leave = exit_projection(share, "self_attention.out_proj", "linear_attention", inner)
        return (
            norm(share, "input_layernorm"),
            entry,
            narrow,
            wide,
            *self._scan(share, inner),
            leave,
            residual(share, "attn_bda"),
            *adapters(share, (entry, narrow, wide, leave), "mixer outputs"),
        )

    def _projections(self, share: Share, inner: Number) -> tuple[Part, Part, Part]:
        """Return the projection to queries, keys and values, the narrow one, and that to decays and gates."""
        hidden, execution, tokens, rows = share.model.hidden, share.execution, share.tokens, share.norm_tokens
        element, thin = execution.element_bytes, 2 * self.rank + self.heads
        read = around(share, thin)
        entry = entry_projection(share, "self_attention.in_proj", "linear_attention", _PROJECTED * inner)
        narrow = Part(
            name="self_attention.narrow_proj",
            counts_as="linear_attention",
            gemms=tuple(
                Gemm(m=rows, n=n, k=hidden, dtype=execution.precision) for n in (self.rank, self.rank, self.heads)
            ),
            saved={"mixer projections": rows * thin * element},
        )
        wide = Part(
            name="self_attention.gate_proj",
            counts_as="linear_attention",
            gemms=(Gemm(m=tokens, n=inner, k=self.rank, dtype=execution.precision, split="outputs"),) * 2,
            saved={"mixer projections": 2 * tokens * inner * element},
            forward=read.enter_forward,
            backward=read.enter_backward,
        )
        return entry, narrow, wide

    def _scan(self, share: Share, inner: Number) -> tuple[Part, Part, Part]:
        """Return the convolution, the scan with its decays, and the gated norm of every head's output."""
        tokens, element, dtype = share.tokens, share.execution.element_bytes, share.execution.core_dtype
        heads = ceil_div(self.heads, share.tp)
        mixed = _PROJECTED * inner
        turned = swapped(share, tokens * (mixed + 2 * inner + heads) * element)
        back = swapped(share, tokens * inner * element)
        conv = Part(
            name="self_attention.conv1d",
            counts_as="linear_attention",
            vectors=mixed * self.kernel,
            kernels=(pointwise(share, mixed, "silu"),),
            saved={"mixer projections": tokens * mixed * element},
            forward=turned,
            backward=turned,
        )
        # Sums of decays along a chunk, one for each channel, are made before the scan reads them.
        decays = Kernel(family="elementwise", shape=(tokens, inner), dtype=dtype, backward_alike=True)
        rule = Kernel(family="delta_rule", shape=(tokens, heads, self.head_dim, self.head_dim), dtype=dtype)
        scan = Part(
            name="self_attention.kimi_delta_rule",
            counts_as="scan",
            # A decay for each head, and the bias of every channel's step.
            vectors=heads + inner,
            kernels=(decays, rule),
            saved={"scan outputs": tokens * inner * element},
            forward=back,
            backward=back,
        )
        gate = Part(
            name="self_attention.out_norm",
            counts_as="linear_attention",
            vectors=self.head_dim,
            kernels=(pointwise(share, inner, "swiglu"),),
        )
        return conv, scan, gate


_NAMES = ("heads", "head_dim", "rank", "kernel")


@block("kimi_delta", settings=tuple(f"kimi_{name}" for name in _NAMES))
def _kimi_delta(model: Model, _layer: int) -> KimiDelta:
    return KimiDelta(**model.sizes("kimi", _NAMES))
