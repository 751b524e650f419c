"""One block of a space as arrays: the step and the peak of memory of each of its layouts.

A block has all layouts of one pipeline and one way of execution. What a step takes and what a GPU keeps are sums of
tables over few of its axes (`traincast.planning.screen.steps`, `traincast.planning.screen.peaks`); only the last sum
is worked out for every layout.

Letters: K shares, R recomputations, Z ways to shard, O choices of overlaps.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.job.job import Job
from traincast.mechanisms.offload import GRADIENT_BYTES
from traincast.planning.layout import Layout
from traincast.planning.options import Recompute
from traincast.planning.screen.chunks import ChunkSizes
from traincast.planning.screen.members import Members
from traincast.planning.screen.passes import Passes
from traincast.planning.screen.peaks import Held, Peaks
from traincast.planning.screen.shape import Shape
from traincast.planning.screen.state_times import StateSeconds
from traincast.planning.screen.steps import CELLS, States, Steps
from traincast.planning.screen.ways import Rows, Ways
from traincast.workload.ops import FloatArray, IntArray

if TYPE_CHECKING:
    from traincast.planning.screen.screen import Filled

T = TypeVar("T")

Overlaps = tuple[bool, bool]
"""Whether gradients are reduced, and parameters gathered, while the rank computes."""


class Part(Struct, frozen=True):
    """The layouts of some shares of a block with one stage of ZeRO."""

    zero: int
    reshard_after_forward: bool
    """Whether parameters that are sharded are gathered again for the backward pass."""
    rows: Rows
    overlaps: tuple[Overlaps, ...]
    step_s: FloatArray
    """[O, K, Z, R]"""
    peak_bytes: FloatArray
    """[K, Z, R]"""
    shape: tuple[int, ...]
    """That of the steps."""

    def light(self) -> "Part":
        """Return it without its arrays."""
        return replace(self, step_s=np.empty(0), peak_bytes=np.empty(0))


class Block(Struct, dict=True):
    """Layouts of one pipeline."""

    filled: "Filled"
    shape: Shape
    members: Members
    recomputes: tuple[Recompute, ...]

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

    def of_degrees(self, name: str) -> IntArray:
        """Return a degree of every share, [K]."""
        return self.members.columns[name]

    def kept(self, what: str, held: tuple[int, ...], made: Callable[[], T], *more: object) -> T:
        """Return something of a kind of stage that hangs on the virtual stages that it holds, whatever the schedule."""
        numbers = tuple(self.filled.number_of(self.shape.chunks[each]) for each in held)
        return self.members.once((what, numbers, *more), made)

    @cached_property
    def sizes_C(self) -> list[ChunkSizes]:
        """What these keep."""
        table = self.filled.chunks
        return [table.sizes(each, self.recomputes).rows(self.rows_K) for each in self.shape.chunks]

    def passes(self, zero: int) -> Passes:
        """Return its pipeline: weights in 8 bits that ranks gather for each pass are cast in each."""
        return self._gathering if zero == 3 and self.filled.casts_gathered else self._usual

    @cached_property
    def _usual(self) -> Passes:
        return Passes(self, self.filled.chunks)

    @cached_property
    def _gathering(self) -> Passes:
        return Passes(self, self.filled.gathering)

    @cached_property
    def states(self) -> States:
        """What the state of its virtual stages takes."""
        return States(self)

    @cached_property
    def held(self) -> Held:
        """What its stages keep."""
        return Held(self)

    def out_s(self, state: StateSeconds) -> FloatArray:
        """Return the seconds in which the gradients of a virtual stage go to the host."""
        share = GRADIENT_BYTES * self.job.offload.optimizer / self.filled.host.link_bytes_per_s
        found: FloatArray = share * state.updated
        return found

    @cached_property
    def fixed_s(self) -> FloatArray:
        """Seconds of what every step has once, [K]."""
        return self.filled.fixed_s(self.members, self.shape)

    @cached_property
    def message_s(self) -> FloatArray:
        """Seconds of a message between stages, [K]."""
        pp = self.job.parallel.pp
        return self.filled.messages_s(pp)[self.rows_K] if pp > 1 else np.zeros(len(self.members))

    def parts(self) -> Iterator[Part]:
        """Work the block out, one stage of ZeRO after the other."""
        most = max(1, CELLS // len(self.recomputes))
        for zero in sorted({zero for found in self.members.shardings.values() for zero, _ in found}):
            ways = self.members.ways(zero, most)
            for reshard in self.filled.space.reshards(zero, self.job.parallel.pp):
                yield from self._parts(ways, reshard=reshard)

    def _parts(self, ways: Ways, *, reshard: bool) -> Iterator[Part]:
        steps, peaks = Steps(self, ways, reshard=reshard), Peaks(self, ways, reshard=reshard)
        for rows in ways.rows:
            overlaps = self._overlaps(ways.zero, replicated=bool(self.members.replicas_K[rows.shares.start] > 1))
            step_s = steps.of(rows, overlaps)
            yield Part(ways.zero, reshard, rows, overlaps, step_s, peaks.of(rows), step_s.shape)

    def _overlaps(self, zero: int, *, replicated: bool) -> tuple[Overlaps, ...]:
        """Return what may be overlapped; without replicas nothing is reduced."""
        space = self.filled.space
        reduced: tuple[bool, ...] = (self.job.framework.overlap_grad_reduce,)
        if zero < 2:
            reduced = space.switches("overlap_grad_reduce", able=replicated)
        gathered = space.switches("overlap_param_gather", able=zero in (1, 2))
        return tuple((one, other) for one in reduced for other in gathered)

    def layout(self, part: Part, place: int) -> Layout:
        """Return the layout at a place of the flat array of steps of a part."""
        overlap, k, z, r = (int(each) for each in np.unravel_index(place, part.shape))
        member, recompute = self.members.members[part.rows.shares.start + k], self.recomputes[r]
        share, job, variant = self.members.shares[member.share], self.job, self.filled.family.variant
        reduced, gathered = part.overlaps[overlap]
        degrees, full = member.degrees, recompute.kind == "full"
        return Layout(
            gpus=self.filled.space.request.gpus,
            tp=degrees.tp,
            pp=degrees.pp,
            vpp=job.parallel.vpp,
            cp=degrees.cp,
            dp=degrees.dp,
            ep=degrees.ep,
            etp=degrees.etp,
            micro_batch=share.micro_batch,
            microbatches=int(self.microbatches_K[part.rows.shares.start + k]),
            schedule=job.pipeline.schedule,
            sequence_parallel=share.sequence_parallel,
            zero=part.zero,
            shard=part.rows.ways_Z[z],
            reshard_after_forward=part.reshard_after_forward,
            recompute=recompute.kind,
            recompute_layers=recompute.layers if full else None,
            recompute_method="uniform" if recompute.uniform else None,
            recompute_modules=recompute.modules,
            overlap_grad_reduce=reduced and degrees.replicas > 1,
            overlap_param_gather=gathered,
            overlap_tp=share.overlap_tp,
            precision=variant.precision,
            cp_kind=variant.cp_kind,
            moe_dispatcher=variant.moe_dispatcher,
            offload_optimizer=variant.offload_optimizer,
            offload_activations=recompute.offloaded,
            **dict(variant.ways),
        )
