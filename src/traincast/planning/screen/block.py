"""One block of a space as arrays: the step and the peak of memory of each of its layouts.

A block has all layouts of one pipeline and one way of execution. What a step takes and what a GPU keeps are sums of
tables over few of its axes (`traincast.planning.screen.steps`, `traincast.planning.screen.peaks`); only the last sum
is worked out for every layout.

Letters: K shares, R recomputations, Z ways to shard, O choices of overlaps.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from traincast.planning.layout import Estimate, Layout
from traincast.planning.screen.members import ShareKey
from traincast.planning.screen.passes import Passes
from traincast.planning.screen.peaks import Peaks, StageBytes
from traincast.planning.screen.states import StateTimes
from traincast.planning.screen.steps import CELLS, Overlaps, Steps
from traincast.planning.screen.tables import BlockTables
from traincast.planning.screen.ways import Rows, Ways
from traincast.planning.sharding import reshards_of
from traincast.workload.ops import FloatArray


class BlockPart(Struct, frozen=True):
    """The layouts of some shares of a block with one stage of ZeRO."""

    zero: int
    reshard_after_forward: bool
    """Whether parameters that are sharded are gathered again for the backward pass."""
    rows: Rows
    overlaps: tuple[Overlaps, ...]
    step_s: FloatArray
    """[O, K, Z, R]; nothing where none was worked out."""
    peak_bytes: FloatArray
    """[K, Z, R]"""
    shape: tuple[int, ...]
    """That of the steps, worked out or not."""

    def light(self) -> "BlockPart":
        """Return it without its arrays."""
        return replace(self, step_s=np.empty(0), peak_bytes=np.empty(0))


class LayoutBlock(BlockTables, dict=True):
    """Layouts of one pipeline and one way of execution, with their steps and peaks."""

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
    def states(self) -> StateTimes:
        """What the state of its virtual stages takes."""
        return StateTimes(self)

    @cached_property
    def held(self) -> StageBytes:
        """What its stages keep."""
        return StageBytes(self)

    def parts(self, limit_bytes: float = math.inf) -> Iterator[BlockPart]:
        """Work the block out, one stage of ZeRO after the other.

        Of neighbouring shares of which no layout is below a limit the steps are not: such a part has none.
        """
        for ways, reshard in self._ways():
            peaks, steps = Peaks(self.held, ways, reshard=reshard), None
            for rows in ways.rows:
                peak_bytes, overlaps, step_s = peaks.peak_bytes(rows), self._overlaps_of(ways, rows), np.empty(0)
                if peak_bytes.min() < limit_bytes:
                    steps = steps or Steps(self, self.passes(ways.zero), self.states, ways, reshard=reshard)
                    step_s = steps.step_s(rows, overlaps)
                shape = (len(overlaps), *peak_bytes.shape)
                yield BlockPart(ways.zero, reshard, rows, overlaps, step_s, peak_bytes, shape)

    def untimed(self) -> Iterator[BlockPart]:
        """Return the memory of the block alone, which takes a fraction of the time: its parts have no steps."""
        for ways, reshard in self._ways():
            peaks = Peaks(self.held, ways, reshard=reshard)
            for rows in ways.rows:
                overlaps, peak_bytes = self._overlaps_of(ways, rows)[:1], peaks.peak_bytes(rows)
                yield BlockPart(ways.zero, reshard, rows, overlaps, np.empty(0), peak_bytes, (1, *peak_bytes.shape))

    def steps(self) -> Iterator[tuple[Rows, FloatArray]]:
        """Return the steps of the block alone, [O, K, Z, R] of each run of shares."""
        for ways, reshard in self._ways():
            steps = Steps(self, self.passes(ways.zero), self.states, ways, reshard=reshard)
            yield from ((rows, steps.step_s(rows, self._overlaps_of(ways, rows))) for rows in ways.rows)

    def _ways(self) -> Iterator[tuple[Ways, bool]]:
        """Yield the ways to shard with each stage of ZeRO, and whether parameters are gathered again."""
        most = max(1, CELLS // len(self.recomputes))
        for zero in sorted({zero for found in self.members.shardings.values() for zero, _ in found}):
            ways = self.members.ways(zero, most)
            for reshard in reshards_of(self.filled.space, zero, self.job.parallel.pp):
                yield ways, reshard

    def _overlaps_of(self, ways: Ways, rows: Rows) -> tuple[Overlaps, ...]:
        return self._overlaps(ways.zero, replicated=bool(self.members.replicas_K[rows.shares.start] > 1))

    def _overlaps(self, zero: int, *, replicated: bool) -> tuple[Overlaps, ...]:
        """Return what may be overlapped; without replicas nothing is reduced."""
        switches = self.filled.space.execution.switches
        reduced: tuple[bool, ...] = (self.job.framework.overlap_grad_reduce,)
        if zero < 2:
            reduced = switches("overlap_grad_reduce", able=replicated)
        gathered = switches("overlap_param_gather", able=zero in (1, 2))
        return tuple(Overlaps(one, other) for one in reduced for other in gathered)

    def estimates(self, part: BlockPart, limit_bytes: float) -> Iterator[Estimate]:
        """Yield the layouts of a part that fit, with their steps and peaks."""
        peaks = np.broadcast_to(part.peak_bytes, part.shape).reshape(-1)
        places = np.flatnonzero(peaks < limit_bytes)
        steps = part.step_s.reshape(-1)[places]
        for place, step_s, peak_bytes in zip(places.tolist(), steps.tolist(), peaks[places].tolist(), strict=True):
            yield Estimate(layout=self.layout(part, place), step_s=step_s, peak_bytes=peak_bytes)

    def layout(self, part: BlockPart, place: int) -> Layout:
        """Return the layout at a place of the flat array of steps of a part."""
        overlap, k, z, r = (each.item() for each in np.unravel_index(place, part.shape))
        number = part.rows.shares.start + k
        member, overlaps = self.members.members[number], part.overlaps[overlap]
        if member.degrees.replicas == 1:
            overlaps = overlaps._replace(overlap_grad_reduce=False)
        share = self.members.shares[member.share]
        found = {name: getattr(share, name) for name in _OF_SHARE}
        found |= self._shared | asdict(member.degrees) | asdict(self.recomputes[r]) | overlaps._asdict()
        return Layout(
            microbatches=int(self.microbatches_K[number]),
            zero=part.zero,
            shard=part.rows.ways_Z[z],
            reshard_after_forward=part.reshard_after_forward,
            **found,
        )

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """What all its layouts have in common."""
        of_block = self.filled.family.variant.fields()
        found = {name: value for name, value in of_block.items() if name in Layout.__struct_fields__}
        gpus, job = self.filled.space.request.gpus, self.job
        return {**found, "gpus": gpus, "vpp": job.parallel.vpp, "schedule": job.pipeline.schedule}


_OF_SHARE = tuple(name for name in ShareKey._fields if name in Layout.__struct_fields__)
