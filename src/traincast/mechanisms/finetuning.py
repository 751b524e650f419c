"""Fine-tuning: weights that are frozen, and what a rank saves by that.

Adapters are parts of the model's blocks (`traincast.model.blocks.part.Part.adapter`), so that their bytes and their
work are counted with those; gradients and the optimizer's state are of trained parameters alone
(`traincast.model.blocks.part.Elements.trained`). What is left to say is what frozen weights spare.
"""

from collections.abc import Iterator

from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.job.job import Job
from traincast.mechanisms.mechanism import PARAMETERS, Lasting, Mechanism
from traincast.mechanisms.rank import RankState


def freezes_in_eight_bits(job: Job) -> bool:
    """Return whether frozen weights of the layers are kept in the type that 8-bit GEMMs read, without a copy of it."""
    return job.finetuning.trains_adapters and job.memory_policy.frozen_eight_bits and job.precision.in_eight_bits


class FrozenWeights(Mechanism):
    """Weights that are not trained: where they are in 8 bits alone they need less than those that are updated."""

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return what frozen weights in 8 bits spare."""
        if not freezes_in_eight_bits(rank.job):
            return
        spared = rank.frozen * (rank.weight_bytes - ELEMENT_TYPES[rank.job.precision.dtype].bytes)
        shards = rank.dense_shards if rank.shards_parameters else 1
        yield Lasting(PARAMETERS, -spared / shards, rank.home)
