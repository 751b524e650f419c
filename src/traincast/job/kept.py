"""What a framework keeps of a layer from its forward to its backward pass."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from traincast.job.frameworks import MemoryPolicy
from traincast.model.blocks.part import Part
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


OFFLOAD_MODULES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "attn_norm": ("attention", "layernorm inputs"),
        "qkv_linear": ("attention", "attention inputs"),
        "core_attn": ("attention", "queries, keys, values"),
        "attn_proj": ("attention", "attention outputs"),
        "mlp_norm": ("mlp", "layernorm inputs"),
        "expert_fc1": ("mlp", "expert inputs"),
        "moe_act": ("mlp", "expert FC1 outputs"),
        "fused_group_mlp": ("mlp", "expert inputs"),
    }
)
"""Modules whose inputs can be offloaded by themselves: the kind of block that has them, and the tensor that they read.
Source: Megatron-LM, megatron/core/transformer/transformer_config.py (offload_modules)."""


def offloaded_tensors(
    parts: Sequence[Part], modules: Sequence[str], recomputed_modules: Sequence[str]
) -> Iterator[tuple[str, Number]]:
    """Yield what the parts of one block save that modules' inputs are, by name; what is recomputed is not there."""
    kinds = {part.counts_as for part in parts}
    kind = "attention" if "attention" in kinds else "mlp" if kinds & {"mlp", "experts"} else ""
    names = {name for of, name in map(OFFLOAD_MODULES.__getitem__, modules) if of == kind}
    for part in parts:
        for name, size in part.saved.items():
            if name in names and not set(recomputed_modules) & set(part.drops.get(name, ())):
                yield name, size
