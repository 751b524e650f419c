"""The types of weights: those that GEMMs read in 16 bits or more, and their copies in 8 bits."""

from collections.abc import Iterator

from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.job.job import Job
from traincast.mechanisms.finetuning import freezes_in_eight_bits
from traincast.mechanisms.mechanism import PARAMETERS, Lasting, Mechanism
from traincast.mechanisms.rank import RankState
from traincast.mechanisms.sharding import LAYERS_GATHERED
from traincast.model.numbers import larger


def keeps_eight_bits(job: Job) -> bool:
    """Return whether ranks that keep their weights whole keep them in 8 bits alone.

    In MXFP8 also where they are gathered in 16 bits, if these have no room of their own: Megatron-LM,
    megatron/core/distributed/distributed_data_parallel.py (reuse_grad_buf_for_mxfp8_param_ag: the buffer of gathered
    parameters is not that of the model's, which are cast from it).
    """
    alone = job.memory_policy.mxfp8_alone and job.precision.dtype == "mxfp8" and job.sharding.zero > 0
    return job.sharding.param_gather_bytes == 1 or (alone and not job.finetuning.trains_adapters)


class WeightTypes(Mechanism):
    """Weights as GEMMs read them, where a rank keeps them whole, and copies in 8 bits.

    8-bit GEMMs read copies of 16-bit weights, one for each of the two GEMMs that use them. Parameters that are kept in
    8 bits alone (`keeps_eight_bits`) are one of the two copies; embedding and head stay in 16 bits. Of sharded
    parameters the layers that are gathered have copies, which are freed with them.
    """

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return parameters that are whole, and the copies."""
        job, frozen, eight_bits = rank.job, freezes_in_eight_bits(rank.job), 0.0
        copied = job.memory_policy.weight_copies and not frozen
        gathered = rank.shards_parameters and not job.keeps_parameters_whole
        weights = LAYERS_GATHERED * rank.held.largest_layer if gathered else rank.layers
        copies = ELEMENT_TYPES[job.precision.dtype].copies_bytes * weights if copied else 0.0
        if not rank.shards_parameters:
            if keeps_eight_bits(job) and not frozen:
                eight_bits = rank.layers
            width = rank.weight_bytes
            yield Lasting(PARAMETERS, width * rank.held.total.total - (width - 1) * eight_bits)
            copies = larger(0.0, copies - eight_bits)
        yield Lasting("8-bit copies of weights", copies)
