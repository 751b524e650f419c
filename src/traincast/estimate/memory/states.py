"""What lasts for a whole step on one rank: parameters, gradients and optimizer states, by how they are sharded."""

from collections.abc import Iterable, Iterator
from functools import lru_cache, reduce
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.job.job import Job
from traincast.job.offload import HELD_BYTES
from traincast.lowering.held import held_by_stages
from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number, larger
from traincast.model.structure import Blocks, RankParts
from traincast.schedules.plan import SchedulePlan

_MASTER_BYTES = 4
"""Sharded parameters are kept in fp32, which is their own master copy (PyTorch FSDP2, MixedPrecisionPolicy)."""

_LAYERS_GATHERED = 2
"""Layers whose sharded parameters are whole at a time: one in use and the next one (PyTorch FSDP2 prefetch)."""


class RankParameters(Struct, frozen=True, kw_only=True):
    """Elements on one rank of a stage."""

    total: Elements
    ends: Elements
    """The part of them that is embedding and head."""
    largest_layer: Number
    """Most elements of one layer, dense and experts together."""
    largest_trained: Number
    """Most elements of one layer that are trained."""


class States(NamedTuple):
    """Bytes on one rank that last for the whole step."""

    parameters: float
    gradients: float
    optimizer: float
    gathered: float
    """Whole layers of sharded parameters, and their gradients on the way."""
    copies: float
    """8-bit copies of weights."""
    step_gradients: float
    """Gradients in fp32 that are there in the optimizer's step alone, when activations are not."""
    host: float = 0.0
    """What of it the memory of the host keeps: in none of the others."""


def parameter_bytes(precision: str) -> int:
    """Return the bytes of a parameter in the types that GEMMs read."""
    return 4 if precision in ("fp32", "tf32") else 2


def layers_of(job: Job) -> tuple[range, ...]:
    """Return the layers of each virtual stage, by index in the model."""
    return _ranges(job.pipeline.layers_Q)


@lru_cache(maxsize=8)
def _ranges(layers_Q: tuple[int, ...]) -> tuple[range, ...]:
    """Return consecutive ranges of these lengths; kept, as each of thousands of virtual stages asks for its own."""
    ends = tuple(accumulate(layers_Q))
    return tuple(range(end - count, end) for count, end in zip(layers_Q, ends, strict=True))


def held_by(plan: SchedulePlan, stage: int) -> Iterator[tuple[int, int]]:
    """Yield (copy, virtual stage) of all that a stage holds."""
    for copy, placement in enumerate(plan.placement):
        for virtual_stage, holder in enumerate(placement):
            if holder == stage:
                yield copy, virtual_stage


def rank_parameters(job: Job, plan: SchedulePlan, stage: int, parts: RankParts) -> RankParameters:
    """Return the elements on one rank of a stage: sums over the parts of its blocks, each split as its block says.

    A tied head on another stage than the embedding is a copy of it. Source: Shoeybi et al. 2019, arXiv 1909.08053,
    section 3.
    """
    return parameters_of(blocks_of_stage(job, plan, stage), parts)


def parameters_of(held: Iterable[tuple[Blocks, int, bool]], parts: RankParts) -> RankParameters:
    """Return the elements on a rank that holds some blocks, each so often, perhaps as an end of the model."""
    total = ends = Elements()
    layers = []
    for blocks, count, is_end in held:
        found = parts.elements(blocks)
        total += found * count
        if is_end:
            ends += found * count
        else:
            layers.append(found)
    return RankParameters(
        total=total,
        ends=ends,
        largest_layer=_largest(layer.total for layer in layers),
        largest_trained=_largest(layer.trained for layer in layers),
    )


def one_of_each_matrix(job: Job, plan: SchedulePlan, stage: int, parts: RankParts) -> Number:
    """Return the elements on one rank of a stage's matrices, where those of one shape count once.

    Experts are matrices of their own. The embedding is a table, and a router's weights are not fused.
    """
    return one_of_each(dict.fromkeys(blocks for blocks, _, _ in blocks_of_stage(job, plan, stage)), parts)


def one_of_each(kinds: Iterable[Blocks], parts: RankParts) -> Number:
    """Return the elements of the matrices of some blocks, those of one shape once (`one_of_each_matrix`)."""
    fused = [part for blocks in kinds for part in parts.of(blocks) if part.counts_as != "router"]
    shapes = [(gemm.n, gemm.k) for part in fused for gemm in part.gemms]
    if not any(isinstance(each, np.ndarray) for shape in shapes for each in shape):
        return float(sum(n * k for n, k in set(shapes)))
    total: Number = 0.0
    for place, (n, k) in enumerate(shapes):
        first: Number = True
        for n_before, k_before in shapes[:place]:
            first = first & ((n != n_before) | (k != k_before))
        total = total + n * k * first
    return total


def _largest(values: Iterable[Number]) -> Number:
    return reduce(larger, values, 0.0)


def blocks_of_stage(job: Job, plan: SchedulePlan, stage: int) -> Iterator[tuple[Blocks, int, bool]]:
    """Yield the blocks that a stage holds, how often, and whether they are ends of the model, not layers."""
    stages = held_by_stages(job, plan)
    for _, virtual_stage in held_by(plan, stage):
        held = stages[virtual_stage]
        yield from ((blocks, count, False) for blocks, count in held.kinds(job.model))
        yield from ((blocks, count, True) for blocks, count in held.ends(job.model).items())


def states(job: Job, held: RankParameters, shards: tuple[Number, Number] | None = None) -> States:
    """Return the bytes of all states of a rank that holds some parameters.

    `shards` are the ranks that share one copy of the dense state and of the experts' state, by default as the job says:
    numbers, or arrays, for which what is held is of arrays too.

    Notes
    -----
    Source: Rajbhandari et al. 2019, arXiv 1910.02054: Adam in mixed precision has an fp32 copy and two fp32 moments
    (3.1; other types: `traincast.job.optimizer`), stage 1 divides optimizer states, 2 also gradients, 3 also
    parameters; parameters of stage 3 are kept in fp32 and are their own master copy (PyTorch FSDP2,
    MixedPrecisionPolicy). What the host updates leaves 16-bit parameters behind, and its gradients where they are kept
    whole (`traincast.job.offload`). Under PyTorch's pipeline schedules they and their gradients, in the type that is
    reduced (FSDPParam.to_accumulated_grad_if_needed), are whole from the first to the last pass of a step.
    """
    policy, (dense, expert) = job.memory_policy, shards or _shards(job)
    zero, dtype = job.sharding.zero, job.precision.dtype
    total, ends, width = held.total, held.ends, parameter_bytes(dtype)
    shared = total.dense / dense + total.experts / expert
    shared_train = total.trained_dense / dense + total.trained_experts / expert
    types, here = job.optimizer, 1 - job.offload.optimizer
    gone = job.offload.optimizer * HELD_BYTES * shared_train
    copied = policy.main_gradient_bytes * shared_train * here if types.copies_gradients(dtype) else 0.0
    master = types.main_parameter_bytes(dtype, job.sharding.param_gather_bytes)
    optimizer = (master + types.moment_bytes) * shared_train * here
    gradients = policy.gradient_bytes * (shared_train if zero >= 2 and not job.reduces_once else total.trained)
    if job.offloads_gradients:
        gradients *= here
    gradients += policy.passing_gradient_bytes * total.trained
    copies = ELEMENT_TYPES[dtype].copies_bytes * (total.total - ends.total) if policy.weight_copies else 0.0
    if job.finetuning.trains_adapters and policy.frozen_eight_bits and job.precision.in_eight_bits:
        # Those of the layers are in the type that GEMMs read, without a copy of it.
        frozen = total.total - ends.total - total.trained
        spared = frozen * (width - ELEMENT_TYPES[dtype].bytes)
        if zero < 3 or dense == expert == 1:
            return States(width * total.total - spared, gradients, optimizer, 0.0, 0.0, copied, gone)
        shared -= spared / width / dense
        copies = 0.0
    eight_bits = job.sharding.param_gather_bytes == 1
    if zero < 3 or (np.all(dense == 1) and np.all(expert == 1)):
        # 8-bit parameters are the copy that one of the two GEMMs reads.
        spared = total.total - ends.total if eight_bits else 0.0
        whole = width * total.total - (width - 1) * spared
        return States(whole, gradients, optimizer, 0.0, larger(0.0, copies - spared), copied, gone)
    parameters = (_MASTER_BYTES * here + width * (1 - here)) * shared_train + width * (shared - shared_train)
    if job.offload.parameters:
        gone, parameters = gone + parameters, 0.0 * shared_train
    # The embedding and the head belong to the root, which stays whole between the passes.
    whole = width * (ends.total + held.largest_layer * _LAYERS_GATHERED)
    if job.keeps_parameters_whole:
        whole = width * total.total - ((width - 1) * (total.dense - ends.total) if eight_bits else 0.0)
    passing = 0.0 if job.reduces_once else policy.gradient_bytes * larger(held.largest_trained, ends.trained)
    optimizer = optimizer - master * shared_train * here
    return States(parameters, gradients, optimizer, whole + passing, copies, copied, gone)


def _shards(job: Job) -> tuple[int, int]:
    """Return the ranks that share one copy of the dense state, and of the experts' state."""
    parallel = job.parallel
    if job.sharding.zero == 0:
        return 1, 1
    return job.sharing, max(1, parallel.edp * job.sharing // parallel.replicas)
