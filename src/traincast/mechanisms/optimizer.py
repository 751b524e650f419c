"""Adam: its two moments, the main parameters that it updates, and the kernel that does it.

Source: Rajbhandari et al. 2019, arXiv 1910.02054, section 3.1 (in mixed precision an fp32 copy of the parameters and
two fp32 moments); other types: `traincast.job.optimizer`.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from traincast.job.job import Job
from traincast.mechanisms.mechanism import OPTIMIZER, Lasting, Mechanism, Run, Update
from traincast.mechanisms.precision import keeps_eight_bits
from traincast.mechanisms.rank import RankState
from traincast.model.blocks.part import Kernel


class Adam(Mechanism):
    """The optimizer, as far as it is on the GPU."""

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return main parameters and moments of what the rank updates; sharded parameters are their own main copy."""
        job = rank.job
        # Next to weights in 8 bits there is no 16-bit half of a main parameter.
        kept = 1 if keeps_eight_bits(job) else job.sharding.param_gather_bytes
        main = job.optimizer.main_parameter_bytes(job.precision.dtype, kept)
        each = job.optimizer.moment_bytes + (0 if rank.shards_parameters else main)
        yield Lasting(OPTIMIZER, each * rank.trained_share * rank.updated_here)

    def update(self, job: Job, update: Update) -> Update:
        """Return the update with the kernel over all that is left; other types than fp32 move other bytes."""
        dtype, types = "fp32" if job.autocasts else "bf16", job.optimizer
        kernel = Kernel(family="optimizer", shape=(update.parameters,), dtype=dtype)
        if types.precision_aware:
            reduced, gathered = job.framework.grad_reduce_bytes, job.sharding.param_gather_bytes
            moved = types.step_bytes(job.precision.dtype, reduced, gathered)
            kernel = replace(kernel, options=(("bytes_per_parameter", str(moved)),))
        return replace(update, parameters=0, runs=(*update.runs, Run(kernel)))
