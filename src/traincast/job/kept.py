"""What a framework keeps of a layer from its forward to its backward pass."""

from msgspec.structs import replace

from traincast.job.frameworks import MemoryPolicy
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number
from traincast.model.structure import Blocks, RankParts


def kept_share(share: Share, policy: MemoryPolicy) -> Share:
    """Return a rank's share, with what its framework keeps."""
    return replace(
        share,
        execution=replace(
            share.execution,
            dropout=policy.dropout,
            activation_copy=policy.activation_copy,
            core_output_copy=policy.core_output_copy,
            expert_output_copy=policy.expert_output_copy,
            eight_bit_inputs=policy.weight_copies,
            saved_logit_bytes=policy.saved_logit_bytes,
        ),
    )


def saved_bytes(parts: RankParts, blocks: Blocks, recomputed_modules: tuple[str, ...]) -> Number:
    """Return what some blocks save of a microbatch, without what the recomputation of modules drops."""
    modules, total = set(recomputed_modules), 0.0 * parts.share.residual_bytes
    for part in parts.of(blocks):
        for name, size in part.saved.items():
            if not modules & set(part.drops.get(name, ())):
                total = total + size
    return total
