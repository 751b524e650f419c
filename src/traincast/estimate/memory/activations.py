"""Activations on one rank: sums over what the parts of the model's blocks keep, and what a schedule has in flight.

Per layer: what autograd keeps from the forward to the backward pass. With plain attention and dropout the sum is
the s b h (34 + 5 a s / h) of Korthikanti et al. 2022, arXiv 2205.05198, equation 1, and its division by tensor and
sequence parallelism (equations 2 to 4) follows from where each tensor is split.
"""

from collections.abc import Mapping
from functools import cache, cached_property

import numpy as np
from msgspec import Struct

from traincast.job.job import Job, blocks_of_layer, rank_share
from traincast.job.kept import kept_share, offloaded_tensors
from traincast.model.blocks.share import Share
from traincast.model.numbers import choose, larger
from traincast.model.structure import MTP_HEAD, MTP_PROJECTION, Blocks, RankParts, last_blocks, mtp_blocks
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.slots import SlotKind


class LayerBytes(Struct, frozen=True, dict=True):
    """What one layer keeps of one microbatch, and what passes while it runs."""

    tensors: Mapping[str, float]
    """Bytes saved with nothing recomputed, by part."""
    dropped: Mapping[str, float]
    """The part of them that the recomputation of modules drops."""
    away: Mapping[str, float]
    """The part of them that is offloaded to the memory of the host, by modules."""
    recomputed: float
    """Most of the dropped bytes that are there again at a time while its backward pass runs: those of one block."""
    input_bytes: float
    """The layer's input, all that full recomputation keeps."""
    forward: float
    """Gathered inputs while the layer runs."""
    backward: float
    """Gathered inputs and gradients of the widest part."""

    @property
    def all_bytes(self) -> float:
        """Everything that is saved with nothing recomputed."""
        return sum(self.tensors.values())

    @cached_property
    def saved(self) -> Mapping[str, float]:
        """What is saved by part, without what the recomputation of modules drops."""
        kept = {name: size - self.dropped.get(name, 0.0) for name, size in self.tensors.items()}
        kept |= {name: kept[name] - size for name, size in self.away.items()}
        return {name: size for name, size in kept.items() if isinstance(size, np.ndarray) or size}


class LayerModel:
    """Sizes of the activations of a job's layers; layers with equal blocks are alike.

    They are those of one rank's `share`, by default that of the job: numbers, or arrays where its degrees are arrays.
    """

    def __init__(self, job: Job, share: Share | None = None) -> None:
        self.job, self.policy = job, job.memory_policy
        self.share = kept_share(rank_share(job) if share is None else share, self.policy)
        self.parts = RankParts(self.share)
        self.of_blocks = cache(self._of_blocks)
        self.blocks_at = cache(self._blocks_at)

    def of_job(self, job: Job) -> "LayerModel":
        """Return the same of a job that recomputes something else; layers that it does not change are shared."""
        found = LayerModel(job, self.share)
        found.parts, found.blocks_at = self.parts, self.blocks_at
        if job.recomputed_modules == self.job.recomputed_modules:
            found.of_blocks = self.of_blocks
        return found

    def layer(self, index: int) -> LayerBytes:
        """Return the activations of the layer at that index."""
        return self.of_blocks(self.blocks_at(index))

    def _blocks_at(self, index: int) -> Blocks:
        return blocks_of_layer(self.job, index)

    def mtp_layer(self) -> LayerBytes:
        """Return the activations of one MTP layer, without its projection and its head."""
        return self.of_blocks(mtp_blocks(self.job.model))

    def mtp_projection(self) -> dict[str, float]:
        """Return what joining one MTP layer to the model keeps."""
        return self._saved(MTP_PROJECTION)

    def head(self) -> dict[str, float]:
        """Return what the LM head keeps, and that of each MTP layer."""
        model = self.job.model
        found = self._saved(last_blocks(model, with_embedding=False))
        for name, size in self._saved(MTP_HEAD).items() if model.mtp_layers else ():
            found[name] = found.get(name, 0.0) + model.mtp_layers * size
        return {name: size for name, size in found.items() if isinstance(size, np.ndarray) or size}

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
        away: dict[str, float] = {}
        recomputed = forward = backward = 0.0
        for block in blocks:
            parts, again = self.parts.of((block,)), 0.0
            for part in parts:
                for name, size in part.saved.items():
                    tensors[name] = tensors.get(name, 0.0) + size
                    if modules & set(part.drops.get(name, ())):
                        dropped[name] = dropped.get(name, 0.0) + size
                        again += size
            recomputed = larger(recomputed, again)
            if self.job.offload_modules:
                for name, size in offloaded_tensors(parts, self.job.offload_modules, self.job.recomputed_modules):
                    away[name] = away.get(name, 0.0) + size
            forward += sum(part.passing_forward for part in parts)
            backward = larger(backward, sum(part.passing_backward for part in parts))
        gathered = share.activation_bytes * choose(share.splits_sequence, 2, 1)
        return LayerBytes(
            tensors=tensors,
            dropped=dropped,
            away=away,
            recomputed=recomputed,
            input_bytes=share.residual_bytes,
            forward=gathered + forward,
            backward=gathered + backward,
        )


class ChunkBytes(Struct, frozen=True, kw_only=True):
    """What one microbatch takes on a rank of a virtual stage."""

    saved: float
    """From its forward to its backward pass."""
    for_weights: float
    """The part of `saved` that the weight gradients need, where these run later."""
    forward: float
    """Beside it while its forward pass runs."""
    backward: float


class Peak(Struct, frozen=True):
    """The largest sum."""

    saved_bytes: float
    """Saved activations at that moment."""
    passing_bytes: float
    """What runs beside them."""
    in_flight: int
    """Microbatches of virtual stages that are saved at that moment."""


def peak_in_flight(plan: SchedulePlan, stage: int, chunk_of: dict[int, ChunkBytes]) -> Peak:
    """Return the largest sum of activations over the slots of a stage, from the bytes of each virtual stage.

    Notes
    -----
    1F1B keeps min(P - p, M) microbatches on stage p; interleaving keeps 1 + (P - 1) / (P V) times as much on the
    first stage as 1F1B. Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3.
    """
    slots = plan.columns_P[stage]
    kind = slots.kind_S
    width = max(chunk_of) + 1
    column = np.zeros((4, width))
    for virtual_stage, chunk in chunk_of.items():
        column[:, virtual_stage] = chunk.saved, chunk.for_weights, chunk.forward, chunk.backward
    saved, for_weights, forward, backward = column[:, slots.virtual_stage_S]
    is_forward, is_input, is_weight = kind == SlotKind.F, kind == SlotKind.B, kind == SlotKind.W
    freed = np.where(is_input, saved - for_weights, np.where(is_weight, for_weights, saved))
    change = np.where(is_forward, saved, -freed)
    after = np.cumsum(change)
    # A backward pass frees what it reads only at its end, a forward pass holds what it saves from its start.
    during = np.where(is_forward, after, after - change)
    passing = np.where(is_forward, forward, np.where(is_weight, 0.0, backward))
    top = int(np.argmax(during + passing))
    frees = ~(is_forward | is_weight)
    in_flight = int(is_forward[: top + 1].sum() - frees[:top].sum())
    return Peak(float(during[top]), float(passing[top]), in_flight)
