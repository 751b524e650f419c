"""Gradients from the backward pass to the update: how frameworks keep them.

Sources: Rajbhandari et al. 2019, arXiv 1910.02054 (from stage 2 on each rank keeps its share of them alone); under
PyTorch's pipeline schedules gradients, in the type that is reduced (FSDPParam.to_accumulated_grad_if_needed), are whole
from the first to the last pass of a step; types and buffers by framework: `traincast.job.frameworks.MemoryPolicy`.
"""

from collections.abc import Iterator

from traincast.mechanisms.mechanism import GRADIENTS, Lasting, Mechanism
from traincast.mechanisms.rank import RankState, Where
from traincast.model.numbers import Number


class KeptGradients(Mechanism):
    """Gradients that wait for the update, fp32 ones that it makes of them, and tensors that are kept in vain."""

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return them."""
        job, policy = rank.job, rank.job.memory_policy
        yield Lasting(GRADIENTS, self._waiting(rank) + policy.passing_gradient_bytes * rank.held.total.trained)
        if job.optimizer.copies_gradients(job.precision.dtype):
            made = policy.main_gradient_bytes * rank.trained_share * rank.updated_here
            yield Lasting("fp32 gradients of the step", made, Where.UPDATE)
        if policy.gradient_placeholders and not job.finetuning.trains_adapters:
            yield Lasting("unused weight gradients", rank.weight_bytes * rank.held.distinct)

    def _waiting(self, rank: RankState) -> Number:
        job = rank.job
        shared = job.sharding.zero >= 2 and not job.reduces_once
        kept = job.memory_policy.gradient_bytes * (rank.trained_share if shared else rank.held.total.trained)
        return kept * rank.updated_here if job.offloads_gradients else kept
