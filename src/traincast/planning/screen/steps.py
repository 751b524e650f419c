"""The step of the layouts of a block: the passes of its pipeline, and what state its ranks exchange and update.

Letters: K shares, R recomputations, Z ways to shard, J pairs of a share and a way, U pairs of degrees and a way,
O choices of overlaps, S kinds of stages, C kinds of virtual stages, L pairs with longer passes.
"""

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import NamedTuple

import numpy as np

from traincast.model.numbers import Number
from traincast.planning.screen.ends import StepEnds
from traincast.planning.screen.passes import Passes
from traincast.planning.screen.shape import StageKind
from traincast.planning.screen.states import StateTimes
from traincast.planning.screen.tables import BlockTables
from traincast.planning.screen.ways import Rows, Ways
from traincast.schedules.length import Pipeline
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.words import Stream

CELLS = 2**15
"""Layouts whose sums are worked out together: a few arrays of so many stay in a core's cache."""


class Overlaps(NamedTuple):
    """What is exchanged while the rank computes, by the names of a job's fields."""

    overlap_grad_reduce: bool
    overlap_param_gather: bool


class Steps:
    """The steps of a block with one stage of ZeRO."""

    def __init__(self, block: BlockTables, passes: Passes, states: StateTimes, ways: Ways, *, reshard: bool) -> None:
        self.block, self.ways, self.passes, self.reshard = block, ways, passes, reshard
        self.state_C, self.at_J = states.seconds_of(ways)
        self._longer_J = self.passes.lengthened(ways, self.state_C, self.at_J, reshard=reshard)
        self.longer_L = np.flatnonzero(self._longer_J)
        self._found: dict[Overlaps, list[FloatArray]] = {}
        self.ends = StepEnds(block, passes, states, ways, reshard=reshard)

    def step_s(self, rows: Rows, overlaps: tuple[Overlaps, ...]) -> FloatArray:
        """Return the steps of some shares, [O, K, Z, R]."""
        whole_s, early_s = self._lengths(rows)
        ends_S = [
            np.stack([rows.of_pairs(each) for each in of_overlaps])
            for of_overlaps in zip(*map(self._ends, overlaps), strict=True)
        ]
        first_s = latest_s = ends_S[0]
        for kind, ends_s in zip(self.block.shape.stages[1:], ends_S[1:], strict=True):
            # The first stage ends its passes last: others count only where more is left for them to do.
            if (ends_s <= first_s).all():
                continue
            latest_s = np.maximum(latest_s, ends_s - early_s(kind))
        # What is exchanged outside the job may be longer than the step that it is overlapped with.
        found: FloatArray = np.maximum(latest_s + whole_s, rows.of_pairs(self.ends.outside_J))
        drained_s = self._drained(rows)
        if drained_s is not None:
            rest_s = np.stack([rows.of_pairs(self.ends.rest_s(gathered=gathered)) for _, gathered in overlaps])
            np.maximum(found, rest_s + drained_s, out=found)
        return found

    def _ends(self, overlaps: Overlaps) -> list[FloatArray]:
        """Return what begins and ends the step, of each kind of stage, [S] of [J]."""
        if overlaps not in self._found:
            reduced, gathered = overlaps
            found = self.ends.seconds(reduced=reduced, gathered=gathered)
            if self.ways.zero == 2:
                # Pipelines that are worked out with what each microbatch exchanges have it already.
                slowed = (np.where(self._longer_J, 0.0, self.ends.slowed_s(kind)) for kind in self.block.shape.stages)
                found = [each + more for each, more in zip(found, slowed, strict=True)]
            self._found[overlaps] = found
        return self._found[overlaps]

    def _lengths(self, rows: Rows) -> tuple[FloatArray, Callable[[StageKind], Number]]:
        """Return the seconds of the pipelines of some shares, and by how much each kind of stage ends before them."""
        usual_s = self.passes.pipeline_s[rows.shares]
        first, last = np.searchsorted(self.longer_L, (rows.pairs.start, rows.pairs.stop)).tolist()
        if first == last:
            return usual_s, lambda kind: self.passes.early_s(kind)[rows.shares]
        replaced = partial(self._replaced, rows)
        line = cache(lambda: self._sharded(self.longer_L[first:last])[0])

        def early_s(kind: StageKind) -> FloatArray:
            if not self.passes.ends_early(kind):
                return np.zeros(1)
            longer_s = self.passes.before(line(), kind)
            shape = (last - first, usual_s.shape[-1])
            return replaced(
                self.passes.early_s(kind)[rows.shares], np.broadcast_to(longer_s, (*shape[:1], 1, shape[1]))[:, 0]
            )

        return replaced(usual_s, self._longer_s[0][first:last]), early_s

    def _drained(self, rows: Rows) -> FloatArray | None:
        """Return when what no pass waits for is exchanged, of some shares; None where passes last longer."""
        first, last = np.searchsorted(self.longer_L, (rows.pairs.start, rows.pairs.stop)).tolist()
        if first == last or not self._longer_s[1].any():
            return None
        none_s = np.zeros((rows.shares.stop - rows.shares.start, 1, self.passes.pipeline_s.shape[-1]))
        return self._replaced(rows, none_s, self._longer_s[1][first:last])

    def _replaced(self, rows: Rows, usual_s: FloatArray, longer_s: FloatArray) -> FloatArray:
        """Return seconds of some shares with others where exchanges make passes longer."""
        first, last = np.searchsorted(self.longer_L, (rows.pairs.start, rows.pairs.stop)).tolist()
        ways, places = len(rows.ways_Z), self.longer_L[first:last] - rows.pairs.start
        if len(places) == ways * len(usual_s):
            return longer_s.reshape(-1, ways, longer_s.shape[-1])
        found = np.repeat(usual_s, ways, axis=1)
        found.reshape(-1, found.shape[-1])[places] = longer_s
        return found

    @cached_property
    def _longer_s(self) -> FloatArray:
        """The pipelines that exchanges make longer, [L, R]: many at a time, whatever shares they are of.

        And when all is exchanged that no pass waits for.
        """
        found = np.zeros((2, len(self.longer_L), self.passes.pipeline_s.shape[-1]))
        most = max(1, CELLS // found.shape[2])
        for begin in range(0, len(self.longer_L), most):
            pairs_L = self.longer_L[begin : begin + most]
            line, left_C = self._sharded(pairs_L)
            found[0, begin : begin + most] = self.passes.seconds(line)[:, 0]
            drained_s = self.passes.drained_s(line, left_C)
            if drained_s is not None:
                found[1, begin : begin + most] = drained_s[:, 0]
        return found

    def _sharded(self, pairs_L: IntArray) -> tuple[Pipeline, list[dict[Stream, Number]]]:
        """Return the pipeline of some pairs with what each microbatch exchanges, of [L, 1, R]."""
        at_K, at_U = self.ways.share_J[pairs_L], self.at_J[pairs_L, None]
        return self.passes.sharded(self.ways.zero, at_K, self.state_C, at_U, reshard=self.reshard)
