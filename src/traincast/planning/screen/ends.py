"""What begins and ends the step of a block's layouts: the rows that lowering writes for it, on arrays.

Before the first pass and after the last one ranks exchange and update their state, which differs among few layouts,
[U, 1]; what of that is overlapped with the first and last passes differs among more, [J, 1].

Letters: K shares, J pairs of a share and a way to shard, U pairs of degrees and a way, S kinds of stages,
C kinds of virtual stages.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import TypeVar

import numpy as np

from traincast.job.job import Job
from traincast.lowering.emit import Rows
from traincast.lowering.step import (
    Ending,
    OfStage,
    backward_pass,
    end_rows,
    first_forward_pass,
    forward_pass,
    gathers_updated,
    start_rows,
)
from traincast.model.numbers import Number, added
from traincast.planning.screen.array_stage import Stateless
from traincast.planning.screen.moments import MomentEmitter
from traincast.planning.screen.passes import Passes
from traincast.planning.screen.shape import StageKind, StageTurn
from traincast.planning.screen.state_times import StateArrays
from traincast.planning.screen.states import StateTimes
from traincast.planning.screen.tables import BlockTables
from traincast.planning.screen.timed import Busy, Moment, Wait, at_rows
from traincast.planning.screen.ways import Ways
from traincast.schedules.length import BACKWARD, FORWARD, WEIGHT
from traincast.workload.builder import OUTSIDE
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.words import Phase, Stream

T = TypeVar("T")


class StepEnds:
    """The begin and the end of the steps of a block with one stage of ZeRO.

    Other pipelines of the same shares whose stages hold the same have them alike, and take what was found before.
    """

    def __init__(self, block: BlockTables, passes: Passes, states: StateTimes, ways: Ways, *, reshard: bool) -> None:
        self.block, self.passes, self.states, self.ways = block, passes, states, ways
        self.gathers_again = ways.zero == 3 and reshard
        self.state_C, self.at_J = states.seconds_of(ways)
        self.emit = states.on_ranks(ways)
        gathering = passes.table is not block.filled.chunks
        self.order = (passes.splits, self.gathers_again, gathering)
        """What else than its turns decides how long a rank's passes are."""

    def seconds(self, *, reduced: bool, gathered: bool) -> list[FloatArray]:
        """Return the seconds of a step without its passes, if all end these when a kind of stage does, [S] of [J].

        `reduced` and `gathered` say whether gradients and parameters are exchanged while passes run. All ranks go on
        together when the norm of the gradients is there, and the slowest update ends the step.
        """
        block = self.block
        stages = (*block.stage_keys.values(), *block.last_keys.values())
        key = (*stages, block.first_key, reduced, gathered, *self.order)
        return self.block.members.once(("ends", self.ways.zero, *key), partial(self._seconds, reduced, gathered))

    def rest_s(self, *, gathered: bool) -> FloatArray:
        """Return the seconds of what begins a step and of what follows the norm of its gradients, [J]."""
        updated_s: Number = 0.0
        for kind in self.block.shape.stages:
            after = self._written(kind, overlapped=gathered)[1]
            updated_s = np.maximum(updated_s, self._updated_s(kind, gathered, after, Moment()))
        found: FloatArray = (self._begun_s(gathered) + updated_s)[:, 0]
        return found

    def slowed_s(self, kind: StageKind) -> FloatArray:
        """Return the seconds by which reductions of each microbatch slow the passes of a stage that hide them, [J]."""
        count_J = self.block.microbatches_K[self.ways.share_J] / len(self.block.shape.plan.placement)
        once_s: FloatArray = self._once("slowed", kind, lambda: added(map(self._slowed_s, kind.held)), *self.order)
        return once_s[:, 0] * count_J

    def _slowed_s(self, kind: int) -> Number:
        """Return the same of one pass of a kind of virtual stage."""
        return self._once_of(kind, "slowed by", lambda: self._slowed_pass_s(kind), *self.order)

    def _slowed_pass_s(self, kind: int) -> Number:
        job, of = self.block.job.with_values(zero=self.ways.zero), self._on_passes(kind)
        phases = (Phase.WEIGHT_GRADIENT,) if self.passes.splits else Phase
        emit = self.passes.table.emit.on(job, self._rows_J, phases)
        alone = emit.seconds(backward_pass(emit.on(job.with_values(zero=0), self._rows_J, phases), of))
        return emit.seconds(backward_pass(emit, of)) - alone

    @cached_property
    def outside_J(self) -> FloatArray:
        """Seconds of exchanges outside the job that are overlapped with the step, with what waits for them."""
        longest_s: Number = 0.0
        for kind in self.block.shape.stages:
            begun = self._started(kind, gathered=False)
            if OUTSIDE in begun.free_s:
                rows = self._written(kind, overlapped=False)[1]
                waits = next(place for place, each in enumerate(rows) if each == Wait(OUTSIDE))
                longest_s = np.maximum(longest_s, begun.free_s[OUTSIDE] + self.emit.seconds(rows[waits + 1 :]))
        found: FloatArray = self._of_pairs(longest_s)[:, 0]
        return found

    def _seconds(self, reduced: bool, gathered: bool) -> list[FloatArray]:
        joined: list[Number] = []
        updated_s: Number = 0.0
        for kind in self.block.shape.stages:
            key = (self.block.last_keys[kind.stage], reduced, *self.order)
            moment = self._once("joined", kind, partial(self._joined, kind, reduced), *key)
            # What nothing gathers for after its update is the same whether gradients are overlapped or not.
            overlapped = gathered if gathers_updated(self.emit.job) else reduced
            after = self._written(kind, overlapped=overlapped)[1]
            joined.append(moment.now_s)
            updated_s = np.maximum(updated_s, self._updated_s(kind, gathered, after, moment))
        return [(each + self._begun_s(gathered) + updated_s)[:, 0] for each in joined]

    def _joined(self, kind: StageKind, reduced: bool) -> Moment:
        """Return when a rank has the norm of all gradients, if all others have theirs."""
        before = self._written(kind, overlapped=reduced)[0]
        return self.emit.run([at_rows(each, self.at_J) for each in before], self._last_passes(kind, reduced))

    def _begun_s(self, gathered: bool) -> FloatArray:
        """Return the seconds by which what begins a step delays its passes, [J, 1]."""
        first = self.block.shape.stages[0]
        key = (self.block.first_key, gathered, *self.order)
        return self._once("begin", first, lambda: added(self._begins(first, gathered)), *key)

    def _written(self, kind: StageKind, *, overlapped: bool) -> tuple[Rows, Rows]:
        """Return what a rank runs after its passes, until the norm of all gradients is there, and after that."""

        def written() -> tuple[Rows, Rows]:
            job = self.emit.job.with_values(overlap_grad_reduce=overlapped, overlap_param_gather=overlapped)
            own = self.states.own(self.ways, kind)
            late = (self.ways.zero < 2 and not overlapped) or job.reduces_once
            states = [of.state for of in own] if late else []
            ending = Ending(states, self.block.has_copies, has_table=kind.stage in self.block.tables)
            rows = end_rows(self.emit.on(job, None), own, ending)
            norm = (place for place, each in enumerate(rows) if each.stream is Stream.WORLD)
            place = next(norm, len(rows))
            return rows[:place], rows[place:]

        return self._once("end rows", kind, written, overlapped)

    def _updated_s(self, kind: StageKind, gathered: bool, rows: Rows, moment: Moment) -> Number:
        """Return the seconds of what follows the norm, which may wait for what left streams busy before it."""
        if any(isinstance(each, Wait) and each.stream in moment.free_s for each in rows):
            return self.emit.seconds([at_rows(each, self.at_J) for each in rows], moment)
        return self._once("update", kind, lambda: self._of_pairs(self.emit.seconds(rows)), gathered)

    def _last_passes(self, kind: StageKind, reduced: bool) -> Moment:
        """Return by how much its exchanges make a rank's last passes longer, and what of them is left then."""
        zero = self.ways.zero
        job = self.block.job.with_values(zero=zero, overlap_grad_reduce=reduced)
        late = (zero < 2 and not reduced) or job.reduces_once
        sums = zero < 3 or any(self.state_C[each].summed_s.any() for each in kind.held)
        if not job.offloads_gradients and (late or not sums):
            return Moment()
        longer: Rows = []
        passes_s: Number = 0.0
        for turn, count in _together(self.block.shape.last_gradients(kind.stage)):
            made = partial(self._last_pass, job, turn)
            last, usual_s = self._once_of(turn.kind, "last pass", made, turn.whole, reduced, *self.order)
            between = self._between(turn)
            # Of turns that are alike each hides what it launches behind the passes that precede the next one.
            others = [each.often(count - 1) for each in (*last, *between)] if count > 1 else []
            longer += [*between, *others, *last]
            passes_s = passes_s + count * (usual_s + added(each.time_s for each in between))
        emit = self.passes.table.emit.on(job, self._rows_J)
        moment = emit.run(longer)
        extra_s = moment.now_s - passes_s
        return Moment(extra_s, {stream: extra_s + left_s for stream, left_s in moment.left_s.items()})

    def _last_pass(self, job: Job, turn: StageTurn) -> tuple[Rows, Number]:
        """Return the last backward pass of a virtual stage, and how long it is where it is not the last one."""
        of = self._on_passes(turn.kind)
        emit = self.passes.table.emit.on(job, self._rows_J, Phase if turn.whole else (Phase.WEIGHT_GRADIENT,))
        last = backward_pass(emit, of, gathers=self.gathers_again, last=True)
        if job.sharding.zero < 2 and not job.offloads_gradients:
            return last, self._alone_s(turn)[self.ways.share_J]
        return last, emit.seconds(backward_pass(emit, of, gathers=self.gathers_again))

    def _alone_s(self, turn: StageTurn) -> FloatArray:
        """Return how long a backward pass is that exchanges nothing of its state, [K, 1]."""
        block, table = self.block, self.passes.table

        def made() -> FloatArray:
            phases = Phase if turn.whole else (Phase.WEIGHT_GRADIENT,)
            of = OfStage(table.stage(block.shape.chunks[turn.kind], ()).on(block.rows_K), Stateless())
            emit = table.emit.on(block.job.with_values(zero=0), block.rows_K, phases)
            return np.broadcast_to(emit.seconds(backward_pass(emit, of)), (len(block.members), 1))

        return block.members.once(("alone", block.numbers_C[turn.kind], turn.whole, *self.order), made)

    def _started(self, kind: StageKind, *, gathered: bool) -> Moment:
        """Return when a rank has begun its step, of degrees and ways."""

        def started() -> Moment:
            job = self.emit.job.with_values(overlap_param_gather=gathered)
            return self.emit.run(start_rows(self.emit.on(job, None), self.states.own(self.ways, kind)))

        return self._once("start", kind, started, gathered)

    def _begins(self, first: StageKind, gathered: bool) -> Iterator[Number]:
        """Yield what is before the first pass, and by how much each first pass of a virtual stage is longer."""
        begun = self._started(first, gathered=gathered)
        yield self._of_pairs(begun.now_s)
        left_s = {stream: left_s[self.at_J] for stream, left_s in begun.left_s.items() if stream is not OUTSIDE}
        if not left_s:
            return
        moment, emit = Moment(0.0, left_s), self.passes.table.emit.on(self.block.job, self._rows_J)
        turns = self.block.shape.first_forwards(first.stage)
        passing = [self._on_passes(each.kind) for each in turns]
        for turn, of, following in zip(turns, passing, [*passing[1:], None], strict=True):
            moment = emit.run(self._between(turn), moment)
            made = partial(self._usual_forward_s, emit, of)
            usual_s = self._once_of(turn.kind, "usual forward", made, *self.order)
            moment = emit.run(first_forward_pass(emit, of, following, begins=of is passing[0]), moment)
            yield moment.now_s - usual_s

    def _usual_forward_s(self, emit: MomentEmitter, of: OfStage) -> Number:
        return emit.seconds(forward_pass(emit, of))

    def _on_passes(self, kind: int) -> OfStage:
        """Return a kind of virtual stage with its state, as passes have them, [J, 1]."""
        stage = self.passes.table.stage(self.block.shape.chunks[kind], ()).on(self._rows_J)
        return OfStage(stage, StateArrays(self.state_C[kind], self.at_J[:, None]))

    @cached_property
    def _rows_J(self) -> IntArray:
        return self.block.rows_K[self.ways.share_J]

    def _between(self, turn: StageTurn) -> Rows:
        """Return the passes that a rank runs before a turn, recomputing as little as may be."""
        times = {FORWARD: "forward_s", BACKWARD: "backward_s", WEIGHT: "weight_s"}
        found = [
            getattr(self.passes.chunks_C[kind], times[which]).min(axis=1)[self.ways.share_J, None] * count
            for (which, kind), count in turn.before
        ]
        return [Busy(Stream.COMPUTE, added(found), True, 1.0)] if found else []

    def _of_pairs(self, value: Number) -> FloatArray:
        """Return something of degrees and ways, or a number, of every pair of a share and a way, [J, 1]."""
        rows = np.asarray(value)
        found: FloatArray = rows[self.at_J] if rows.size > 1 else np.broadcast_to(rows, (len(self.at_J), 1))
        return found

    def _once_of(self, kind: int, what: str, made: Callable[[], T], *more: object) -> T:
        """Return something of a kind of virtual stage that was perhaps made for another pipeline."""
        return self.block.members.once((what, self.ways.zero, self.block.numbers_C[kind], *more), made)

    def _once(self, what: str, kind: StageKind, made: Callable[[], T], *more: object) -> T:
        """Return something of a kind of stage that was perhaps made for another pipeline."""
        return self.block.members.once((what, self.ways.zero, self.block.stage_keys[kind.stage], *more), made)


def _together(turns: Sequence[StageTurn]) -> Iterator[tuple[StageTurn, int]]:
    """Yield turns and how often each comes, but for the last one those that are alike and follow each other as one."""
    for turn, alike in groupby(turns[:-1]):
        yield turn, sum(1 for _ in alike)
    yield turns[-1], 1
