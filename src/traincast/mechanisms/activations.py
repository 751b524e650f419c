"""What the layers of a job save of one microbatch on one rank: sums over what the parts of the model's blocks keep.

Per layer: what autograd keeps from the forward to the backward pass. With plain attention and dropout the sum is
the s b h (34 + 5 a s / h) of Korthikanti et al. 2022, arXiv 2205.05198, equation 1, and its division by tensor and
sequence parallelism (equations 2 to 4) follows from where each tensor is split.
"""

from collections.abc import Iterable
from copy import copy
from functools import cache, cached_property
from itertools import accumulate

import numpy as np

from traincast.job.job import Job
from traincast.job.share import blocks_of_layer, kept_share, rank_share
from traincast.mechanisms.all import kept, spared
from traincast.mechanisms.layers import LayerBytes, StageLayers
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, choose, larger
from traincast.model.structure import MTP_HEAD, MTP_PROJECTION, Blocks, RankParts, last_blocks, mtp_blocks


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
        found = copy(self)
        found.job, found.policy = job, job.memory_policy
        found.__dict__.pop("layers_Q", None)
        return found

    def of_like(self, job: Job) -> "LayerModel":
        """Return the same of a job whose single layers may keep less of the same tensors."""
        found = self.of_job(job)
        found.of_blocks = cache(found._of_blocks)
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

    def stage(self, layers: range, *, mtp: bool = False) -> StageLayers:
        """Return what some layers of a virtual stage keep, perhaps with an MTP layer, whatever the job does to them."""
        extra = (self.mtp_layer().alone,) if mtp else ()
        return kept(self.job, StageLayers(layers=tuple(self.layer(each).alone for each in layers), extra=extra))

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
        for part in self.parts.of_blocks(blocks):
            _add(found, part.saved.items())
        return found

    def _of_blocks(self, blocks: Blocks) -> LayerBytes:
        tensors: dict[str, Number] = {}
        dropped: dict[str, Number] = {}
        away: dict[str, Number] = {}
        recomputed: Number = 0.0
        forward: Number = 0.0
        backward: Number = 0.0
        core: Number = 0.0
        outputs: Number = 0.0
        written: dict[str, Number] = {}
        for block in blocks:
            parts, again = self.parts.of_block(block), 0.0
            for part in parts:
                _add(tensors, part.saved.items())
                core = core + (sum(part.saved.values()) if part.counts_as == "attention_core" else 0.0)
                of_gemms = sum(self.share.execution.element_bytes * each.m * each.n for each in part.gemms)
                outputs = outputs + of_gemms
                if not part.expert:
                    _add(written, ((part.name.rpartition(".")[2], of_gemms),))
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
            core=core,
            outputs=outputs,
            written=written,
        )


def _add(total: dict[str, Number], sizes: Iterable[tuple[str, Number]]) -> None:
    for name, size in sizes:
        total[name] = total.get(name, 0.0) + size
