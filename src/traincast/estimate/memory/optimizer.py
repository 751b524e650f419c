"""Bytes of parameters, gradients and optimizer states on one rank."""

from typing import NamedTuple

from traincast.estimate.memory.parameters import RankParameters
from traincast.job.frameworks import MemoryPolicy
from traincast.job.job import Job

MASTER_BYTES = 4
"""Sharded parameters are kept in fp32, which is their own master copy (PyTorch FSDP2, MixedPrecisionPolicy)."""

LAYERS_GATHERED = 2
"""Layers whose sharded parameters are whole at a time: one in use and the next one (PyTorch FSDP2 prefetch)."""

_COPIES_BYTES = {"fp8": 2.0, "fp8_block": 2.0, "mxfp8": 2.0, "nvfp4": 1.125, "mxfp4": 1.0625}
"""Per matrix element: one copy for each of the two products that use it, scales included (Transformer Engine)."""


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


def parameter_bytes(precision: str) -> int:
    """Return the bytes of a parameter in the types that products read."""
    return 4 if precision in ("fp32", "tf32") else 2


def shards(job: Job) -> tuple[int, int]:
    """Return the ranks that share one copy of the dense state, and of the experts' state."""
    parallel = job.parallel
    if job.zero == 0:
        return 1, 1
    replicas = parallel.dp * parallel.cp
    return job.shard, max(1, parallel.edp * job.shard // replicas)


def states(job: Job, policy: MemoryPolicy, held: RankParameters, train: RankParameters) -> States:
    """Return the bytes of all states.

    Parameters
    ----------
    job : Job
        The job.
    policy : MemoryPolicy
        Of its framework.
    held, train : RankParameters
        Elements on the rank, and those that are trained.

    Returns
    -------
    States

    Notes
    -----
    Source: Rajbhandari et al. 2019, arXiv 1910.02054: Adam in mixed precision has an fp32 copy and two fp32 moments
    (3.1; other types: `traincast.job.dtypes`), stage 1 divides optimizer states, 2 also gradients, 3 also
    parameters; parameters of stage 3 are kept in fp32 and are their own master copy (PyTorch FSDP2,
    MixedPrecisionPolicy). Under PyTorch's pipeline schedules they and their gradients, in the type that is reduced
    (FSDPParam.to_accumulated_grad_if_needed), are whole from the first to the last pass of a step.
    """
    dense, expert = shards(job)
    width = parameter_bytes(job.precision)
    shared, shared_train = _over(held, dense, expert), _over(train, dense, expert)
    types = job.optimizer_types
    copied = policy.main_gradient_bytes * shared_train if types.copies_gradients(job.precision) else 0.0
    master = types.main_parameter_bytes(job.precision, job.param_gather_bytes)
    optimizer = (master + types.moment_bytes) * shared_train
    gradients = policy.gradient_bytes * (shared_train if job.zero >= 2 and not job.reduces_once else train.total)
    gradients += policy.passing_gradient_bytes * train.total
    copies = _COPIES_BYTES.get(job.precision, 0.0) * (held.total - held.ends) if policy.weight_copies else 0.0
    eight_bits = job.param_gather_bytes == 1
    if job.zero < 3 or dense == expert == 1:
        # 8-bit parameters are the copy that one of the two GEMMs reads.
        spared = held.total - held.ends if eight_bits else 0.0
        whole = width * held.total - (width - 1) * spared
        return States(whole, gradients, optimizer, 0.0, max(0.0, copies - spared), copied)
    parameters = MASTER_BYTES * shared_train + width * (shared - shared_train)
    # The embedding and the head belong to the root, which stays whole between the passes.
    whole = width * (held.ends + held.largest_layer * LAYERS_GATHERED)
    if job.keeps_parameters_whole:
        whole = width * held.total - ((width - 1) * (held.dense - held.ends) if eight_bits else 0.0)
    passing = 0.0 if job.reduces_once else policy.gradient_bytes * max(train.largest_layer, train.ends)
    return States(parameters, gradients, optimizer - master * shared_train, whole + passing, copies, copied)


def _over(elements: RankParameters, dense: int, expert: int) -> float:
    return elements.dense / dense + elements.experts / expert
