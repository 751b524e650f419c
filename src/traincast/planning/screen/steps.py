"""The step of the layouts of a block: the passes of its pipeline, and what state its ranks exchange and update.

Letters: K shares, R recomputations, Z ways to shard, J pairs of a share and a way, U pairs of degrees and a way,
O choices of overlaps, S kinds of stages, C kinds of virtual stages, L pairs with longer passes.
"""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from traincast.model.blocks.part import Elements
from traincast.model.numbers import Number, added
from traincast.planning.screen.chunks import Chunk
from traincast.planning.screen.passes import Passes
from traincast.planning.screen.shape import StageKind
from traincast.planning.screen.state_times import StateSeconds, sharded
from traincast.planning.screen.tables import BlockTables
from traincast.planning.screen.ways import Rows, Ways
from traincast.schedules.length import Pipeline
from traincast.workload.ops import FloatArray, IntArray

CELLS = 2**15
"""Layouts whose sums are worked out together: a few arrays of so many stay in a core's cache."""


class Overlaps(NamedTuple):
    """What is exchanged while the rank computes, by the names of a job's fields."""

    overlap_grad_reduce: bool
    overlap_param_gather: bool


class StateTimes:
    """What the state of a block's virtual stages takes, by degrees that share parameters alike: cp counts as dp."""

    def __init__(self, block: BlockTables) -> None:
        self.block = block

    def seconds_of(self, ways: Ways) -> tuple[list[StateSeconds], IntArray]:
        """Return the seconds of each kind of virtual stage, [C] of [U], and the place of each pair in them, [J]."""
        ways_A, at_J = self._places(ways)
        return [self._seconds(chunk, ways.zero, ways_A) for chunk in self.block.shape.chunks], at_J

    def _places(self, ways: Ways) -> tuple[tuple[tuple[int, ...], ...], IntArray]:
        """Return the ways to shard of each of these degrees, [A], and the place of each pair in all of them, [J]."""
        members = self.block.members

        def places() -> tuple[tuple[tuple[int, ...], ...], IntArray]:
            ways_K = {place: rows.ways_Z for rows in ways.rows for place in range(rows.shares.start, rows.shares.stop)}
            ways_A = tuple(ways_K.get(place, ()) for place in members.places_A)
            begin_A = np.cumsum([0, *map(len, ways_A)])[:-1]
            return ways_A, begin_A[members.alike_K[ways.share_J]] + ways.way_J

        return members.once(("state", ways.zero), places)

    def update_s(self, ways: Ways, kind: StageKind, updated_U: FloatArray) -> FloatArray:
        """Return the seconds in which a rank of a stage updates so many parameters, [U]."""
        filled, chunks, members = self.block.filled, self.block.shape.chunks, self.block.members
        layers, ways_A = sum(chunks[each].stage.layers for each in kind.held), self._places(ways)[0]
        held_A = zip(*(self.weights(chunks[each]) for each in kind.held), strict=True)
        found: list[float] = []
        for place, held, own in zip(members.places_A, held_A, ways_A, strict=True):
            for way in own:
                job = sharded(self.block.job, filled.alike(members.degrees[place]), (ways.zero, way))
                found.append(filled.update_s(job, held, updated_U[len(found)], layers))
        return np.array(found)

    def _seconds(self, chunk: Chunk, zero: int, ways_A: tuple[tuple[int, ...], ...]) -> StateSeconds:
        filled, members = self.block.filled, self.block.members
        known = filled.states.whole
        key = (filled.number_of(chunk), zero, members.alike, ways_A, self.block.job.sharding.param_gather_bytes)
        if key not in known:
            found = [
                filled.state_of(self.block.job, members.degrees[place], own, tuple((zero, way) for way in ways))
                for place, own, ways in zip(members.places_A, self.weights(chunk), ways_A, strict=True)
                if ways
            ]
            known[key] = StateSeconds(
                # Of a block in which no way is left there are none.
                *(
                    np.concatenate([np.zeros(0), *(getattr(one, name) for one in found)])
                    for name in StateSeconds.__struct_fields__
                )
            )
        return known[key]

    def casts_s(self, kind: StageKind) -> FloatArray:
        """Return the seconds of what brings the weights of a stage to the type of 8-bit GEMMs, by degrees."""
        filled, chunks = self.block.filled, self.block.shape.chunks

        def found() -> FloatArray:
            held = zip(*(self.weights(chunks[each]) for each in kind.held), strict=True)
            return np.array([filled.states.casts_s(self.block.job, filled.costs.share, own) for own in held])

        return self.block.kept("casts", kind.held, found)

    def weights(self, chunk: Chunk) -> list[Elements]:
        """Return the parameters of a kind of virtual stage by these degrees."""
        members, filled = self.block.members, self.block.filled

        def found() -> list[Elements]:
            rows, weights = members.share_K, chunk.stage.weights()
            return [_at(weights, int(rows[place]), filled.costs.shares) for place in members.places_A]

        return members.once(("weights", filled.number_of(chunk)), found)


class Steps:
    """The steps of a block with one stage of ZeRO."""

    def __init__(self, block: BlockTables, passes: Passes, states: StateTimes, ways: Ways, *, reshard: bool) -> None:
        self.block, self.ways, self.passes, self.states, self.reshard = block, ways, passes, states, reshard
        self.state_C, self.at_J = states.seconds_of(ways)
        self.longer_L = np.flatnonzero(self.passes.lengthened(ways, self.state_C, self.at_J, reshard=reshard))
        self.fixed_J = block.fixed_s[ways.share_J]
        self._ends: dict[Overlaps, list[FloatArray]] = {}

    def step_s(self, rows: Rows, overlaps: tuple[Overlaps, ...]) -> FloatArray:
        """Return the steps of some shares, [O, K, Z, R]."""
        whole_s, early_s = self._lengths(rows)
        ends_S = [
            np.stack([rows.of_pairs(each) for each in of_overlaps])
            for of_overlaps in zip(*(self._ends_of(each) for each in overlaps), strict=True)
        ]
        first_s = latest_s = ends_S[0]
        for kind, ends_s in zip(self.block.shape.stages[1:], ends_S[1:], strict=True):
            # The first stage ends its passes last: others count only where more is left for them to do.
            if (ends_s <= first_s).all():
                continue
            latest_s = np.maximum(latest_s, ends_s - early_s(kind))
        # What is exchanged outside the job may be longer than the step that it is overlapped with.
        found: FloatArray = np.maximum(latest_s + whole_s, rows.of_pairs(self._outside_J))
        return found

    def _lengths(self, rows: Rows) -> tuple[FloatArray, Callable[[StageKind], Number]]:
        """Return the seconds of the pipelines of some shares, and by how much each kind of stage ends before them."""
        usual_s = self.passes.pipeline_s[rows.shares]
        first, last = np.searchsorted(self.longer_L, (rows.pairs.start, rows.pairs.stop)).tolist()
        if first == last:
            return usual_s, lambda kind: self.passes.early_s(kind)[rows.shares]
        ways, places = len(rows.ways_Z), self.longer_L[first:last] - rows.pairs.start

        def replaced(usual_s: FloatArray, longer_s: FloatArray) -> FloatArray:
            """Return seconds with others where exchanges make passes longer."""
            if len(places) == ways * len(usual_s):
                return longer_s.reshape(-1, ways, longer_s.shape[-1])
            found = np.repeat(usual_s, ways, axis=1)
            found.reshape(-1, found.shape[-1])[places] = longer_s
            return found

        line = cache(lambda: self._sharded(self.longer_L[first:last]))

        def early_s(kind: StageKind) -> FloatArray:
            if not self.passes.ends_early(kind):
                return np.zeros(1)
            longer_s = self.passes.before(line(), kind)
            shape = (last - first, usual_s.shape[-1])
            return replaced(
                self.passes.early_s(kind)[rows.shares], np.broadcast_to(longer_s, (*shape[:1], 1, shape[1]))[:, 0]
            )

        return replaced(usual_s, self._longer_s[first:last]), early_s

    @cached_property
    def _longer_s(self) -> FloatArray:
        """The pipelines that exchanges make longer, [L, R]: many at a time, whatever shares they are of."""
        found = np.empty((len(self.longer_L), self.passes.pipeline_s.shape[-1]))
        most = max(1, CELLS // found.shape[1])
        for begin in range(0, len(found), most):
            line = self._sharded(self.longer_L[begin : begin + most])
            found[begin : begin + most] = self.passes.seconds(line)[:, 0]
        return found

    def _sharded(self, pairs_L: IntArray) -> Pipeline:
        """Return the pipeline of some pairs with what each microbatch exchanges, of [L, 1, R]."""
        at_K, at_U = self.ways.share_J[pairs_L], self.at_J[pairs_L, None]
        return self.passes.sharded(self.ways.zero, at_K, self.state_C, at_U, reshard=self.reshard)

    def _ends_of(self, overlaps: Overlaps) -> list[FloatArray]:
        """Return what each kind of stage does between its last pass and the end of the step, [S] of [J]."""
        if overlaps not in self._ends:
            reduced, gathered = overlaps
            ends_s = self._update_J + self.fixed_J
            if self.ways.zero in (1, 2):
                ends_s = ends_s + (self._begins() if gathered else self._gather_J)
            self._ends[overlaps] = [
                self._left(kind, overlap=reduced) + self._copied(kind) + ends_s for kind in self.block.shape.stages
            ]
        return self._ends[overlaps]

    def _left(self, kind: StageKind, *, overlap: bool) -> FloatArray:
        """Return the seconds of the reduction that are left when a stage's passes have ended, [J]."""
        zero, at_J = self.ways.zero, self.at_J
        leaves = zero >= 2 and self.block.job.offload.optimizer > 0 and not (zero == 3 and self.passes.reduces_once)
        out_s = self._late_out(kind) if leaves else np.zeros(len(at_J))
        if zero == 3 and not self.passes.reduces_once:
            return out_s
        reduced_C = [each.reduced_s + each.summed_s for each in self.state_C]
        all_s = added(reduced_C[each] for each in kind.held)[at_J]
        if (zero < 2 and not overlap) or zero == 3:
            return np.asarray(all_s)
        left_s = self._late(kind, reduced_C)
        return np.maximum(left_s, out_s) if leaves else left_s

    def _late_out(self, kind: StageKind) -> FloatArray:
        """Return the seconds that gradients need to the host when a stage's passes have ended, [J].

        Where they take longer than a microbatch its passes wait for them already, but for the last layer's.
        """
        chunk, last = self.passes.chunks_C[kind.held[0]], self.block.shape.chunks[kind.held[0]].stage
        passes_s = (chunk.forward_s + chunk.backward_s + chunk.weight_s)[self.ways.share_J, 0]
        own_s = self.block.out_s(self.state_C[kind.held[0]])[self.at_J]
        left_s = self._late(kind, [self.block.out_s(each) for each in self.state_C])
        found: FloatArray = np.where(own_s > passes_s, own_s / max(1, last.layers), left_s)
        return found

    def _late(self, kind: StageKind, seconds_C: Sequence[FloatArray]) -> FloatArray:
        """Return the seconds that are left of what goes on behind the last passes of a stage, layer by layer, [J]."""
        at_J, share_J = self.at_J, self.ways.share_J
        last, chunks = kind.held[0], self.passes.chunks_C
        own_s, all_s = seconds_C[last][at_J], added(seconds_C[each] for each in kind.held)[at_J]
        window_s = chunks[last].layers_s[share_J, 0]
        late_s = own_s / max(1, self.block.shape.chunks[last].stage.layers)
        windows_s = added(chunks[each].layers_s for each in kind.held)[share_J, 0]
        found: FloatArray = np.maximum(late_s, np.maximum(own_s - window_s, all_s - windows_s))
        return found

    def _copied(self, kind: StageKind) -> Number:
        if len(self.block.shape.plan.placement) == 1:
            return 0.0
        return added(self.state_C[each].copied_s for each in kind.held)[self.at_J]

    @cached_property
    def _update_J(self) -> FloatArray:
        """Seconds of the update of the slowest stage."""
        update: Number = 0.0
        for kind in self.block.shape.stages:
            count = added(self.state_C[each].updated for each in kind.held)
            seconds = self.states.update_s(self.ways, kind, count)
            seconds = seconds + self.block.filled.outside_s(self.block.job, count, hidden=False)
            update = np.maximum(update, seconds[self.at_J] + self._casts_s(kind))
        return np.asarray(update)

    @cached_property
    def _outside_J(self) -> FloatArray:
        """Seconds of exchanges outside the job that are overlapped with the step, of the slowest stage."""
        longest: Number = 0.0
        for kind in self.block.shape.stages:
            count = added(self.state_C[each].updated for each in kind.held)
            longest = np.maximum(longest, self.block.filled.outside_s(self.block.job, count, hidden=True))
        return np.asarray(longest)[self.at_J]

    def _casts_s(self, kind: StageKind) -> Number:
        """Return the seconds of the casts of a stage's weights that follow its update, [J]."""
        filled, states = self.block.filled, self.states
        if self.ways.zero == 3 or filled.costs.share.execution.scaling is None:
            return 0.0
        return states.casts_s(kind)[self.block.members.alike_K[self.ways.share_J]]

    @cached_property
    def _gather_J(self) -> FloatArray:
        """Seconds of the gather of parameters of the slowest stage."""
        gather: Number = 0.0
        for kind in self.block.shape.stages:
            gather = np.maximum(gather, added(self.state_C[each].gathered_s for each in kind.held))
        return np.asarray(gather)[self.at_J]

    def _begins(self) -> FloatArray:
        """Return the seconds by which the gather of parameters delays the first pass of a step, [J]."""
        held = self.block.shape.stages[0].held
        layers = max(1, self.block.shape.chunks[held[0]].stage.layers)
        gathered = [each.gathered_s[self.at_J] for each in self.state_C]
        forward = [each.forward_s[self.ways.share_J, 0] for each in self.passes.chunks_C]
        first = gathered[held[0]]
        found: FloatArray = first / layers + np.maximum(0.0, first * (1 - 1 / layers) - forward[held[0]])
        if self.passes.schedule.groups_of_stages:
            # The next virtual stage's parameters come while so many microbatches pass this one.
            passing = np.minimum(self.block.job.parallel.pp, self.block.microbatches_K)[self.ways.share_J]
            for own, following in pairwise(held):
                found += np.maximum(0.0, gathered[following] - passing * forward[own])
        return found


def _at(weights: Elements, row: int, shares: int) -> Elements:
    """Return the parameters of one share."""
    return weights.changed(lambda value: np.broadcast_to(np.asarray(value), shares)[row].item())
