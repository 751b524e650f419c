"""What all layouts of a block have in common, as arrays: shares, microbatches, what virtual stages keep, messages.

Letters: K shares, C kinds of virtual stages.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TypeVar

import numpy as np
from msgspec import Struct

from traincast.job.job import Job
from traincast.lowering.held import table_stages
from traincast.mechanisms.offload import GRADIENT_BYTES
from traincast.planning.recomputation import Recompute
from traincast.planning.screen.array_stage import Chunk
from traincast.planning.screen.chunks import ChunkSizes, TimedChunk
from traincast.planning.screen.family import FamilyTables
from traincast.planning.screen.members import Members
from traincast.planning.screen.shape import Shape, StageKind, StageTurn
from traincast.planning.screen.state_times import StateSeconds
from traincast.workload.ops import FloatArray, IntArray

T = TypeVar("T")


class BlockTables(Struct, dict=True):
    """Layouts of one pipeline and one way of execution."""

    filled: FamilyTables
    shape: Shape
    members: Members
    recomputes: tuple[Recompute, ...]
    peers: tuple[Chunk, ...]
    """Kinds of virtual stages of all pipelines of so many stages, its own among them."""

    @property
    def job(self) -> Job:
        """A job with this pipeline."""
        return self.shape.job

    @property
    def rows_K(self) -> IntArray:
        """Each share in the tables of its family."""
        return self.members.share_K

    @property
    def microbatches_K(self) -> IntArray:
        """Microbatches of a step."""
        return self.members.microbatches_K

    @property
    def in_pipeline_K(self) -> IntArray:
        """Microbatches that go through the pipeline before it runs empty."""
        local = self.job.batch.local_batch
        return self.microbatches_K if local is None else self.members.in_pipeline_K(local)

    def of_degrees(self, name: str) -> IntArray:
        """Return a degree of every share, [K]."""
        return self.members.columns[name]

    @property
    def timed(self) -> Iterator[TimedChunk]:
        """The kinds of virtual stages as the passes of its pipeline have them."""
        for each in self.shape.chunks:
            yield TimedChunk(each, self.recomputes, self.shape.plan.splits_backward)

    def kept(self, what: str, held: tuple[int, ...], made: Callable[[], T], *more: object) -> T:
        """Return something of a kind of stage that depends on what virtual stages it holds, whatever the schedule."""
        numbers = tuple(self.numbers_C[each] for each in held)
        return self.members.once((what, numbers, *more), made)

    @cached_property
    def numbers_C(self) -> tuple[int, ...]:
        """What tells these from those of other pipelines."""
        return tuple(map(self.filled.number_of, self.shape.chunks))

    @cached_property
    def tables(self) -> tuple[int, ...]:
        """The stages that have a copy of the embedding's table whose gradients are summed."""
        return table_stages(self.job, self.shape.plan)

    @property
    def has_copies(self) -> bool:
        """Whether several stages hold the same layers."""
        return len(self.shape.plan.placement) > 1

    @cached_property
    def stage_keys(self) -> dict[int, int]:
        """What tells kinds of stages of all pipelines apart, a number, by the first stage of each."""
        return {each.stage: self._stage_key(each) for each in self.shape.stages}

    def _stage_key(self, kind: StageKind) -> int:
        held = tuple(self.numbers_C[each] for each in kind.held)
        return self.filled.number_of((held, kind.stage in self.tables, self.has_copies))

    @cached_property
    def last_keys(self) -> dict[int, int]:
        """What tells their last gradients apart, likewise."""
        return {each.stage: self._turns_key(self.shape.last_gradients(each.stage)) for each in self.shape.stages}

    @cached_property
    def first_key(self) -> int:
        """What tells first forward passes of the first stages of all pipelines apart."""
        return self._turns_key(self.shape.first_forwards(self.shape.stages[0].stage))

    def _turns_key(self, turns: Iterable[StageTurn]) -> int:
        numbers_C = self.numbers_C
        told = (
            (numbers_C[each.kind], each.whole, *((which, numbers_C[kind], n) for (which, kind), n in each.before))
            for each in turns
        )
        return self.filled.number_of(tuple(told))

    @cached_property
    def sizes_C(self) -> list[ChunkSizes]:
        """What these keep."""
        table = self.filled.chunks
        return [table.sizes(each, self.recomputes).rows(self.rows_K) for each in self.shape.chunks]

    def out_s(self, state: StateSeconds) -> FloatArray:
        """Return the seconds in which the gradients of a virtual stage go to the host."""
        share = GRADIENT_BYTES * self.job.offload.optimizer / self.filled.host.link_bytes_per_s
        found: FloatArray = share * state.updated
        return found

    @cached_property
    def message_s(self) -> FloatArray:
        """Seconds of a send and its receive between stages, [K]."""
        pp = self.job.parallel.pp
        return self.filled.messages_s(pp)[self.rows_K] if pp > 1 else np.zeros(len(self.members))
