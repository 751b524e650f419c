"""Pipelines of a space: a job that stands for all layouts of one pipeline, and what its stages hold.

Letters: P stages, Q virtual stages in model order.
"""

from msgspec import Struct
from msgspec.structs import replace

from traincast.job.job import Job
from traincast.planning.screen.chunks import Chunk
from traincast.schedules.plan import SchedulePlan


class StageKind(Struct, frozen=True):
    """Stages that hold the same."""

    stage: int
    """The first of them."""
    held: tuple[int, ...]
    """Kinds of the virtual stages that they hold, of all copies of the model."""


class Shape(Struct, frozen=True):
    """A pipeline of some schedule."""

    job: Job
    """One with this pipeline."""
    plan: SchedulePlan
    """With few microbatches: for what stages hold."""
    chunks: tuple[Chunk, ...]
    """The kinds of virtual stages."""
    kind_Q: tuple[int, ...]
    stages: tuple[StageKind, ...]
    """The kinds of stages."""
    kind_P: tuple[int, ...]

    @property
    def placement_Q(self) -> tuple[int, ...]:
        """Stage of each virtual stage of the first copy."""
        return self.plan.placement[0]


def few_microbatches(job: Job) -> Job:
    """Return the job with as few microbatches as every schedule runs, for what stages hold does not depend on them."""
    return replace(job, parallel=replace(job.parallel, microbatches=2 * job.parallel.pp))


def shape_of(job: Job, plan: SchedulePlan, chunk_Q: tuple[Chunk, ...]) -> Shape:
    """Return the pipeline of a job with few microbatches, from its plan and the kind of each virtual stage."""
    numbers: dict[Chunk, int] = {}
    kind_Q = tuple(numbers.setdefault(chunk, len(numbers)) for chunk in chunk_Q)
    held: list[tuple[int, ...]] = [()] * job.parallel.pp
    for placement_Q in plan.placement:
        for index, stage in enumerate(placement_Q):
            held[stage] += (kind_Q[index],)
    kinds: dict[tuple[int, ...], int] = {}
    kind_P = tuple(kinds.setdefault(each, len(kinds)) for each in held)
    stages = tuple(StageKind(held.index(each), each) for each in kinds)
    return Shape(job, plan, tuple(numbers), kind_Q, stages, kind_P)
