"""Activations on one rank: sums over what the parts of the model's blocks keep, and what a schedule has in flight.

Per layer: what autograd keeps from the forward to the backward pass. With plain attention and dropout the sum is
the s b h (34 + 5 a s / h) of Korthikanti et al. 2022, arXiv 2205.05198, equation 1, and its division by tensor and
sequence parallelism (equations 2 to 4) follows from where each tensor is split.
"""

from collections.abc import Iterable
from functools import cache, cached_property
from itertools import accumulate

import numpy as np
from msgspec import Struct

from traincast.job.job import Job
from traincast.job.share import blocks_of_layer, kept_share, rank_share
from traincast.mechanisms.all import spared
from traincast.mechanisms.layers import LayerBytes
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, choose, larger
from traincast.model.structure import MTP_HEAD, MTP_PROJECTION, Blocks, RankParts, last_blocks, mtp_blocks
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.slots import SlotKind


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
        """Return the same of a job whose single layers keep as much, and that does other things to so many of them."""
        found = LayerModel(job, self.share)
        found.parts, found.blocks_at, found.of_blocks = self.parts, self.blocks_at, self.of_blocks
        return found

    @cached_property
    def layers_Q(self) -> tuple[range, ...]:
        """The layers of each virtual stage, by index in the model."""
        ends = accumulate(self.job.pipeline.layers_Q)
        return tuple(range(end - count, end) for count, end in zip(self.job.pipeline.layers_Q, ends, strict=True))

    def layer(self, index: int) -> LayerBytes:
        """Return the activations of the layer at that index."""
        return self.of_blocks(self.blocks_at(index))

    def _blocks_at(self, index: int) -> Blocks:
        return blocks_of_layer(self.job, index)

    def mtp_layer(self) -> LayerBytes:
        """Return the activations of one MTP layer, without its projection and its head."""
        return self.of_blocks(mtp_blocks(self.job.model))

    def mtp_projection(self) -> dict[str, Number]:
        """Return what joining one MTP layer to the model keeps."""
        return self._saved(MTP_PROJECTION)

    def head(self) -> dict[str, Number]:
        """Return what the LM head keeps, and that of each MTP layer."""
        model = self.job.model
        found = self._saved(last_blocks(model, with_embedding=False))
        for name, size in self._saved(MTP_HEAD).items() if model.mtp_layers else ():
            found[name] = found.get(name, 0.0) + model.mtp_layers * size
        return {name: size for name, size in found.items() if isinstance(size, np.ndarray) or size}

    def _saved(self, blocks: Blocks) -> dict[str, Number]:
        found: dict[str, Number] = {}
        for part in self.parts.of(blocks):
            _add(found, part.saved.items())
        return found

    def _of_blocks(self, blocks: Blocks) -> LayerBytes:
        tensors: dict[str, Number] = {}
        dropped: dict[str, Number] = {}
        away: dict[str, Number] = {}
        recomputed: Number = 0.0
        forward: Number = 0.0
        backward: Number = 0.0
        for block in blocks:
            parts, again = self.parts.of((block,)), 0.0
            for part in parts:
                _add(tensors, part.saved.items())
            for name, size, to_host in spared(self.job, parts):
                _add(away if to_host else dropped, ((name, size),))
                again = again if to_host else again + size
            recomputed = larger(recomputed, again)
            forward = forward + sum(part.passing_forward for part in parts)
            backward = larger(backward, sum(part.passing_backward for part in parts))
        gathered = self.share.activation_bytes * choose(self.share.splits_sequence, 2, 1)
        return LayerBytes(
            tensors=tensors,
            dropped=dropped,
            away=away,
            recomputed=recomputed,
            input_bytes=self.share.residual_bytes,
            forward=gathered + forward,
            backward=gathered + backward,
        )


def _add(total: dict[str, Number], sizes: Iterable[tuple[str, Number]]) -> None:
    for name, size in sizes:
        total[name] = total.get(name, 0.0) + size


class ChunkBytes(Struct, frozen=True, kw_only=True):
    """What one microbatch takes on a rank of a virtual stage."""

    saved: float
    """From its forward to its backward pass."""
    for_weights: float
    """The part of `saved` that the weight gradients need, where these run later."""
    forward: float
    """Beside it while its forward pass runs."""
    backward: float
    host: float = 0.0
    """What of it the memory of the host keeps from the forward to the backward pass: in none of the others."""


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
