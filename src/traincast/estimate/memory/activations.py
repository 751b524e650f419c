"""Activations of one microbatch on one rank: sums over what the parts of the model's blocks keep.

Per layer: what autograd keeps from the forward to the backward pass. With plain attention and dropout the sum is
the s b h (34 + 5 a s / h) of Korthikanti et al. 2022, arXiv 2205.05198, equation 1, and its division by tensor and
sequence parallelism (equations 2 to 4) follows from where each tensor is split.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from traincast.job.frameworks import MemoryPolicy
from traincast.job.job import Job, rank_share
from traincast.model.blocks.share import Share
from traincast.model.structure import MTP_ENDS, Blocks, RankParts, last_blocks, layer_blocks


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """What one layer keeps of one microbatch, and what passes while it runs.

    Parameters
    ----------
    tensors : mapping
        Bytes saved with nothing recomputed, by part.
    dropped : mapping
        The part of them that the recomputation of modules drops.
    recomputed : float
        Most of the dropped bytes that are there again at a time while the layer's backward pass runs: those of one
        block.
    input_bytes : float
        The layer's input, all that full recomputation keeps.
    forward, backward : float
        Gathered inputs, and gradients of the widest part, while the layer runs.
    """

    tensors: Mapping[str, float]
    dropped: Mapping[str, float]
    recomputed: float
    input_bytes: float
    forward: float
    backward: float

    @property
    def all_bytes(self) -> float:
        """Everything that is saved with nothing recomputed."""
        return sum(self.tensors.values())

    @property
    def saved(self) -> dict[str, float]:
        """What is saved by part, without what the recomputation of modules drops."""
        kept = {name: size - self.dropped.get(name, 0.0) for name, size in self.tensors.items()}
        return {name: size for name, size in kept.items() if size}


class LayerModel:
    """Sizes of the activations of a job's layers; layers with equal blocks are alike."""

    def __init__(self, job: Job, policy: MemoryPolicy) -> None:
        self.job, self.share = job, kept_share(job, policy)
        self.parts = RankParts(self.share)
        self.of_blocks = cache(self._of_blocks)

    def layer(self, index: int) -> LayerBytes:
        """Return the activations of the layer at that index."""
        return self.of_blocks(layer_blocks(self.job.model, index))

    def head(self) -> dict[str, float]:
        """Return what the LM head keeps, and that of each layer for further tokens."""
        model = self.job.model
        found = self._saved(last_blocks(model, with_embedding=False))
        for name, size in self._saved(MTP_ENDS).items() if model.mtp_layers else ():
            found[name] = found.get(name, 0.0) + model.mtp_layers * size
        return {name: size for name, size in found.items() if size}

    def _saved(self, blocks: Blocks) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in self.parts.of(blocks):
            for name, size in part.saved.items():
                found[name] = found.get(name, 0.0) + size
        return found

    def _of_blocks(self, blocks: Blocks) -> LayerBytes:
        share, modules = self.share, set(self.job.recomputed_modules)
        tensors: dict[str, float] = {}
        dropped: dict[str, float] = {}
        recomputed = forward = backward = 0.0
        for block in blocks:
            parts, again = self.parts.of((block,)), 0.0
            for part in parts:
                for name, size in part.saved.items():
                    tensors[name] = tensors.get(name, 0.0) + size
                    if modules & set(part.drops.get(name, ())):
                        dropped[name] = dropped.get(name, 0.0) + size
                        again += size
            recomputed = max(recomputed, again)
            forward += sum(part.passing_forward for part in parts)
            backward = max(backward, sum(part.passing_backward for part in parts))
        gathered = share.activation_bytes * (2 if share.splits_sequence else 1)
        return LayerBytes(
            tensors=tensors,
            dropped=dropped,
            recomputed=recomputed,
            input_bytes=share.norm_bytes,
            forward=gathered + forward,
            backward=gathered + backward,
        )


def kept_share(job: Job, policy: MemoryPolicy) -> Share:
    """Return a rank's share of a job, with what its framework keeps."""
    share = rank_share(job)
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
