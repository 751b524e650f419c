"""All mechanisms of training: who sums memory, makes an update or looks for what would free memory asks each of them.

A further one is a file in this room and its place here. The order matters where one leaves something to the next:
layers that are recomputed do not wait in the memory of the host, and Adam updates what nothing else does.
"""

from collections.abc import Iterator, Sequence

from traincast.job.job import Job
from traincast.mechanisms.finetuning import FrozenWeights
from traincast.mechanisms.gradients import KeptGradients
from traincast.mechanisms.layers import Spared, StageLayers
from traincast.mechanisms.local_steps import LocalTraining
from traincast.mechanisms.mechanism import Lasting, Mechanism, Outside, Update
from traincast.mechanisms.muon import NewtonSchulz
from traincast.mechanisms.offload import HostMemory
from traincast.mechanisms.optimizer import Adam
from traincast.mechanisms.precision import WeightTypes
from traincast.mechanisms.rank import RankState
from traincast.mechanisms.recompute import Recomputing
from traincast.mechanisms.sharding import ShardedParameters
from traincast.mechanisms.step_checks import StepChecks
from traincast.model.blocks.part import Elements, Part
from traincast.model.numbers import Number

MECHANISMS: tuple[Mechanism, ...] = (
    WeightTypes(),
    FrozenWeights(),
    KeptGradients(),
    Recomputing(),
    ShardedParameters(),
    LocalTraining(),
    HostMemory(),
    StepChecks(),
    NewtonSchulz(),
    Adam(),
)
"""In the order in which they are asked."""


def lasting(rank: RankState) -> Iterator[Lasting]:
    """Yield all that a rank keeps whichever microbatch it works on."""
    for each in MECHANISMS:
        yield from each.lasting(rank)


def spared(job: Job, parts: Sequence[Part]) -> Iterator[Spared]:
    """Yield what of the tensors that the parts of a block save does not stay on the GPU."""
    for each in MECHANISMS:
        yield from each.spared(job, parts)


def kept(job: Job, stage: StageLayers) -> StageLayers:
    """Return what the layers of a virtual stage keep of a microbatch, of what they would keep with no mechanism."""
    for each in MECHANISMS:
        stage = each.kept(job, stage)
    return stage


def updated(job: Job, weights: Elements, parameters: Number) -> Update:
    """Return what the GPU of a rank runs and exchanges to update so many parameters, its share of some weights."""
    update = Update(weights=weights, parameters=parameters)
    for each in MECHANISMS:
        update = each.update(job, update)
    return update


def outside(job: Job, parameters: Number) -> tuple[Outside, ...]:
    """Return what a rank that updates so many parameters exchanges with ranks outside the job."""
    return tuple(each for mechanism in MECHANISMS for each in mechanism.outside(job, parameters))


def remedies(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield changes to single mechanisms that may free memory, by what people call them."""
    for each in MECHANISMS:
        yield from each.remedies(job)


def host_remedies(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield such that need the memory of the host."""
    for each in MECHANISMS:
        yield from each.host_remedies(job)
