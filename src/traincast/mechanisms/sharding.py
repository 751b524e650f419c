"""ZeRO and FSDP: what of the state ranks share, and the layers that they gather whole for a pass.

Sources: Rajbhandari et al. 2019, arXiv 1910.02054 (stage 1 divides optimizer states, 2 also gradients, 3 also
parameters); PyTorch FSDP2, MixedPrecisionPolicy (parameters of stage 3 are kept in fp32 and are their own main copy).
In how many shares says `RankState`, and whoever keeps something that is shared asks it.
"""

from collections.abc import Iterator

from traincast.job.job import Job
from traincast.mechanisms.mechanism import PARAMETERS, Lasting, Mechanism
from traincast.mechanisms.rank import RankState
from traincast.model.numbers import Number, larger

MAIN_BYTES = 4
"""Sharded parameters are kept in fp32, which is their own main copy (PyTorch FSDP2, MixedPrecisionPolicy)."""

LAYERS_GATHERED = 2
"""Layers whose sharded parameters are whole at a time: one in use and the next one (PyTorch FSDP2 prefetch)."""


class ShardedParameters(Mechanism):
    """Parameters of which each rank has a share, and those of the layers that are whole while they run."""

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return the rank's share, and gathered layers with their gradients on the way."""
        if not rank.shards_parameters:
            return
        # What the host updates leaves 16-bit parameters behind.
        here, width = rank.updated_here, rank.weight_bytes
        trained = (MAIN_BYTES * here + width * (1 - here)) * rank.trained_share
        yield Lasting(PARAMETERS, trained + width * (rank.share - rank.trained_share), rank.home)
        if rank.job.memory_policy.casts_shards and width < MAIN_BYTES:
            yield Lasting("copies of shards", width * rank.trained_share)
        yield Lasting("gathered layers", self._gathered(rank) + self._passing(rank))

    def remedies(self, job: Job) -> Iterator[tuple[str, Job]]:
        """Return further stages of ZeRO; what they share beyond the optimizer's state a pipeline needs whole."""
        for zero in range(job.sharding.zero + 1, 4):
            if job.parallel.replicas > 1 and (zero < 2 or job.parallel.pp == 1):
                yield f"zero {zero}", job.with_values(zero=zero)

    def _gathered(self, rank: RankState) -> Number:
        """Return parameters that are whole: a few layers of them, or under a pipeline those of the stage."""
        job, held, width = rank.job, rank.held, rank.weight_bytes
        if job.memory_policy.gathers_matrices:
            return width * larger(held.largest_end, held.largest_pair)
        if not job.keeps_parameters_whole:
            # The embedding and the head belong to the root, which stays whole between the passes.
            return width * (held.ends.total + held.largest_layer * LAYERS_GATHERED)
        eight_bits = held.total.dense - held.ends.total if job.sharding.param_gather_bytes == 1 else 0.0
        return width * held.total.total - (width - 1) * eight_bits

    def _passing(self, rank: RankState) -> Number:
        """Return gradients that are whole until they are reduced, where that is in every microbatch."""
        job, held = rank.job, rank.held
        if job.reduces_once:
            return 0.0
        if job.memory_policy.gathers_matrices:
            # As GEMMs write them; what is kept is the rank's share of the sum.
            trained = 0 if job.finetuning.trains_adapters else 1
            return trained * rank.weight_bytes * larger(held.largest_matrix, held.largest_end)
        return job.memory_policy.gradient_bytes * larger(held.largest_trained, held.ends.trained)
