"""Gradients from the backward pass to the update: how frameworks keep them.

Sources: Rajbhandari et al. 2019, arXiv 1910.02054 (from stage 2 on each rank keeps its share of them alone); under
PyTorch's pipeline schedules gradients, in the type that is reduced (FSDPParam.to_accumulated_grad_if_needed), are whole
from the first to the last pass of a step; types and buffers by framework: `traincast.job.frameworks.MemoryPolicy`.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from traincast.job.job import Job
from traincast.mechanisms.mechanism import GRADIENTS, Lasting, Mechanism
from traincast.mechanisms.rank import RankState, Where
from traincast.model.blocks.part import Matrix
from traincast.model.numbers import Number


class KeptGradients(Mechanism):
    """Gradients that wait for the update, fp32 ones that it makes of them, and tensors that are kept in vain."""

    def lasting(self, rank: RankState) -> Iterator[Lasting]:
        """Return them."""
        job, policy = rank.job, rank.job.memory_policy
        kept = self._waiting(rank) + policy.passing_gradient_bytes * rank.held.total.trained
        yield Lasting(GRADIENTS, kept, Where.UPDATE if made_as_activations_go(job) else Where.GPU)
        if job.optimizer.copies_gradients(job.precision.dtype):
            made = policy.main_gradient_bytes * rank.trained_share * rank.updated_here
            yield Lasting("fp32 gradients of the step", made, Where.UPDATE)
        if policy.gradient_placeholders and not job.finetuning.trains_adapters:
            yield Lasting("unused weight gradients", rank.weight_bytes * rank.held.one_of_each)

    def _waiting(self, rank: RankState) -> Number:
        job = rank.job
        shared = job.sharding.zero >= 2 and not job.reduces_once
        kept = job.memory_policy.gradient_bytes * (rank.trained_share if shared else rank.held.total.trained)
        return kept * rank.updated_here if job.offloads_gradients else kept


def made_as_activations_go(job: Job) -> bool:
    """Say whether the gradients of a step come one by one as the activations of its only microbatch go.

    PyTorch's optimizers free gradients when they are told that there are none, and autograd makes them anew: the first
    microbatch has none but those that it makes. Source: pytorch/pytorch, torch/optim/optimizer.py (zero_grad,
    set_to_none).
    """
    return job.autocasts and job.parallel.world_size == 1 and job.parallel.microbatches == 1


def one_of_each(matrices: Iterable[Matrix]) -> Number:
    """Return the elements of matrices where those of one shape count once.

    Experts are matrices of their own. A router's weights are not fused with what adds up their gradients.
    """
    every = ((each.rows, each.columns) for each in matrices if each.part != "router")
    shapes = list({tuple(map(_told, shape)): shape for shape in every}.values())
    if not any(isinstance(each, np.ndarray) for shape in shapes for each in shape):
        return float(sum(rows * columns for rows, columns in set(shapes)))
    total: Number = 0.0
    for place, (rows, columns) in enumerate(shapes):
        first: Number = True
        for other_rows, other_columns in shapes[:place]:
            first = first & ((rows != other_rows) | (columns != other_columns))
        total = total + rows * columns * first
    return total


def _told(side: Number) -> Number:
    """Return what tells the side of a matrix from others; arrays that are equal may be told apart all the same."""
    return id(side) if isinstance(side, np.ndarray) else side
