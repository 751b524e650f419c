"""Pipelines of a space: a job that stands for all layouts of one pipeline, and what its stages hold.

Letters: P stages, Q virtual stages in model order.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.job.job import Job
from traincast.planning.screen.array_stage import Chunk
from traincast.schedules.length import BACKWARD, FORWARD, WEIGHT, Pass
from traincast.schedules.plan import SchedulePlan
from traincast.schedules.slots import SlotKind


class StageKind(Struct, frozen=True):
    """Stages that hold the same."""

    stage: int
    """The first of them."""
    held: tuple[int, ...]
    """Kinds of the virtual stages that they hold, of all copies of the model."""


class StageTurn(NamedTuple):
    """The first or the last pass of a virtual stage in the order of its stage."""

    kind: int
    """Kind of the virtual stage."""
    whole: bool
    """Whether it has all gradients, not those of the weights alone."""
    before: tuple[tuple[Pass, int], ...]
    """How many passes of each kind the stage runs between the turn before it and this one."""


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
    _known: dict[tuple[str, int], tuple[StageTurn, ...]] = field(default_factory=dict)
    """Turns of stages."""

    @property
    def placement_Q(self) -> tuple[int, ...]:
        """Stage of each virtual stage of the first copy."""
        return self.plan.placement[0]

    def first_forwards(self, stage: int) -> tuple[StageTurn, ...]:
        """Return the first forward pass of each virtual stage of a stage."""
        if ("first", stage) not in self._known:
            first: dict[tuple[int, int], int] = {}
            for at, slot in enumerate(self.plan.slots[stage]):
                if slot.kind is SlotKind.F:
                    first.setdefault((slot.copy, slot.virtual_stage), at)
            self._known["first", stage] = tuple(self._turns(stage, first.values()))
        return self._known["first", stage]

    def last_gradients(self, stage: int) -> tuple[StageTurn, ...]:
        """Return the pass that is the last one to add to the gradients of each virtual stage of a stage."""
        if ("last", stage) not in self._known:
            slots = enumerate(self.plan.slots[stage])
            last = {(slot.copy, slot.virtual_stage): at for at, slot in slots if slot.kind in _GRADIENTS}
            self._known["last", stage] = tuple(self._turns(stage, last.values()))
        return self._known["last", stage]

    def _turns(self, stage: int, places: Iterable[int]) -> Iterator[StageTurn]:
        slots = self.plan.slots[stage]
        before: int | None = None
        for at in sorted(places):
            between: Counter[Pass] = Counter()
            for slot in slots[at if before is None else before + 1 : at]:
                between.update((each, self.kind_Q[slot.virtual_stage]) for each in _PASSES[slot.kind])
            yield StageTurn(
                self.kind_Q[slots[at].virtual_stage], slots[at].kind is not SlotKind.W, tuple(between.items())
            )
            before = at


_GRADIENTS = (SlotKind.W, SlotKind.BW)
_PASSES = {
    SlotKind.F: (FORWARD,),
    SlotKind.B: (BACKWARD,),
    SlotKind.W: (WEIGHT,),
    SlotKind.BW: (BACKWARD, WEIGHT),
}


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
