"""Attention and a mixer of Mamba-2 side by side on one normed input, whose outputs are summed up (Falcon-H1).

Source: Zuo et al. 2025, arXiv 2507.22448, section 2; huggingface/transformers,
src/transformers/models/falcon_h1/modular_falcon_h1.py (FalconH1DecoderLayer).
"""

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.model.blocks.attention import AttentionBlock
from traincast.model.blocks.mamba import MAMBA_NAMES, Mamba
from traincast.model.blocks.part import Kernel, Part, block
from traincast.model.blocks.share import Share
from traincast.model.model import Model


class ParallelMamba(Struct, frozen=True):
    """Both mixers of a layer; each is split over tp, and exchanged, as it is where it stands alone."""

    attention: AttentionBlock
    mamba: Mamba

    def parts(self, share: Share) -> tuple[Part, ...]:
        """Return the norm, attention, the mixer without its norm and copy of the input, both sums."""
        added = Kernel(
            family="elementwise",
            shape=(share.norm_tokens, share.model.hidden),
            dtype=share.execution.core_dtype,
            backward_alike=True,
        )
        return (
            *(part for part in self.attention.parts(share) if part.name != "self_attn_bda"),
            *(_without_input(part) for part in self.mamba.parts(share) if part.name != "input_layernorm"),
            Part(name="mixer_sum", counts_as="norms", kernels=(added,)),
        )


def _without_input(part: Part) -> Part:
    """Return a part that reads what attention has kept."""
    return replace(part, saved={name: size for name, size in part.saved.items() if name != "mixer inputs"})


@block("parallel_mamba", settings=(*(f"mamba_{name}" for name in MAMBA_NAMES), "mamba_norm"))
def _parallel_mamba(model: Model, layer: int) -> ParallelMamba:
    norms = model.setting("mamba_norm")
    if norms not in (0, 1):
        raise ConfigError(f"is {norms:g}; it must be 1 where gated outputs are normed, else 0", "settings.mamba_norm")
    sizes = model.sizes("mamba", MAMBA_NAMES)
    return ParallelMamba(AttentionBlock(model.window_of(layer)), Mamba(**sizes, norms=int(norms)))
