"""What passes take on arrays of layouts: the operations that lowering writes, run in max-plus arithmetic.

A rank's streams are each free from some moment on, an array over layouts. An operation begins when its stream and, if
others follow it, the rank's own program have come to it; a wait lets the program go on when a stream is free. That is
what the engine does with one rank whose peers never keep it waiting (`traincast.engine`).

Arrays over the shares of a table have one axis, [K], and are taken at the emitter's rows; all others have an axis of
layouts and one of recomputations, [L, 1] or [L, R].
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from traincast.estimate.contention import OVERLAP_SLOWDOWN
from traincast.job.job import Job
from traincast.lowering.emit import Emitter, Rows
from traincast.lowering.work import Exchange, Pass
from traincast.model.blocks.part import Gemm, Kernel
from traincast.model.blocks.share import Share
from traincast.model.numbers import Number, added, anywhere, choose, larger
from traincast.planning.screen.costs import PassCosts
from traincast.planning.screen.rates import Each, ShareRates, repeated
from traincast.planning.screen.timed import Busy, Cycle, Moment, TimedExchange, Wait
from traincast.workload.builder import OUTSIDE
from traincast.workload.ops import IntArray
from traincast.workload.words import STREAM_OF_GROUP, CostClass, Phase, Stream

_NETWORK = frozenset(STREAM_OF_GROUP.values())
"""Streams whose transfers and computations slow each other down."""


_LITTLE_S = 1e-9


class MomentEmitter(Emitter):
    """Makes seconds of what lowering says, and remembers those of pieces that are written again."""

    def __init__(
        self,
        job: Job,
        share: Share,
        rates: ShareRates,
        overlap_tp: Number,
        known: dict[tuple[object, ...], Rows] | None = None,
    ) -> None:
        self.job, self.share, self.rates = job, share, rates
        self._overlap_tp, self._known = overlap_tp, known
        self._rows: IntArray | None = None
        self._phases = frozenset(Phase)

    def on(self, job: Job, rows: IntArray | None, phases: Iterable[Phase] = Phase) -> "MomentEmitter":
        """Return one of a job on some rows of the tables, which writes some of the phases alone."""
        found = MomentEmitter(job, self.share, self.rates, self._overlap_tp, self._known)
        found._rows, found._phases = rows, frozenset(phases)
        return found

    def of_kinds(self, kinds: int) -> "MomentEmitter":
        """Return one for several kinds of virtual stages on these shares, one kind after the other."""
        share, overlap_tp = repeated(self.share, kinds), repeated(self._overlap_tp, kinds)
        return MomentEmitter(self.job, share, self.rates.of_kinds(kinds), overlap_tp, {})

    def learn(self, several: "MomentEmitter", shares: int) -> None:
        """Remember what one has written for several kinds of virtual stages, of each by itself."""
        if self._known is None or several._known is None:
            return
        for key, rows in several._known.items():
            for place in range(next(len(each) for each in key if isinstance(each, Each))):
                own = tuple(each[place] if isinstance(each, Each) else each for each in key)
                self._known[own] = [each.between(place * shares, (place + 1) * shares) for each in rows]

    def writes(self, phase: Phase) -> bool:
        """Return whether it writes a phase."""
        return phase in self._phases

    @property
    def overlap_tp(self) -> Number:
        """Whether tensor parallel exchanges are to be overlapped with GEMMs, [K]."""
        return self._overlap_tp

    def compute(self, name: str, phase: Phase, work: Pass) -> Rows:  # noqa: ARG002
        """Return the seconds of a pass."""
        if not (isinstance(work, PassCosts) and work.runs and phase in self._phases):
            return []
        time_s = self._at(work.compute_s_K)
        return [Busy(Stream.COMPUTE, time_s, True, 1.0, _share(self._at(work.slowed_s_K), time_s))]

    def runs(self, name: str, phase: Phase, runs: Iterable[tuple[Gemm | Kernel, Number]]) -> Rows:  # noqa: ARG002
        """Return the seconds of GEMMs and kernels, whose sizes are numbers or arrays of layouts."""
        if phase not in self._phases:
            return []
        found = [self.rates.operators.on_layouts(what) * count for what, count in runs]
        return [Busy(Stream.COMPUTE, time_s, True, 1.0) for time_s in found]

    def gap(self, name: str, duration_s: Number, cost_class: CostClass, phase: Phase = Phase.STEP) -> Rows:  # noqa: ARG002
        """Return the seconds for which the GPU waits."""
        if phase not in self._phases or not anywhere(duration_s):
            return []
        return [Busy(Stream.COMPUTE, self._at(duration_s * self.rates.host(cost_class, phase)))]

    def launched(self, duration_s: Number, phase: Phase) -> Rows:
        """Return the seconds of the host's launches."""
        if phase not in self._phases:
            return []
        factor = self.rates.host(CostClass.HOST_LAYERS, phase)
        return [Busy(Stream.HOST, self._at(duration_s * factor), blocking=False)]

    def copy(self, name: str, phase: Phase, stream: Stream, size_bytes: Number, *, blocking: bool = False) -> Rows:  # noqa: ARG002
        """Return the seconds of a copy."""
        if phase not in self._phases or not anywhere(size_bytes):
            return []
        return [Busy(stream, size_bytes / self.rates.bytes_per_s[stream], blocking)]

    def outside(self, name: str, duration_s: Number, *, blocking: bool = True) -> Rows:  # noqa: ARG002
        """Return an exchange outside the job."""
        return [Busy(OUTSIDE, duration_s, blocking)] if anywhere(duration_s) else []

    def exchange(
        self,
        each: Exchange,
        phase: Phase = Phase.STEP,
        count: Number = 1.0,
        *,
        blocking: bool = True,
        cost_class: CostClass = CostClass.NONE,  # noqa: ARG002
    ) -> Rows:
        """Return the seconds of an exchange."""
        if phase not in self._phases or not anywhere(count):
            return []
        of_state = isinstance(each, TimedExchange)
        time_s = each.size_bytes if of_state else self._at(self.rates.transfer_s(each))
        time_s = time_s * self._at(count)
        return [Busy(STREAM_OF_GROUP[each.group], time_s, blocking)] if anywhere(time_s) else []

    def wait(self, *streams: Stream, where: Number = True) -> Rows:
        """Return waits."""
        return [Wait(stream, where) for stream in streams] if anywhere(where) else []

    def overlapped(self, launched: Rows, hiding: Rows) -> Rows:
        """Return both with waits for what is launched."""
        running: dict[Stream, None] = {}
        for each in launched:
            if isinstance(each, Wait):
                running.pop(each.stream, None)
            elif not each.blocking:
                running[each.stream] = None
        if running.keys() & _NETWORK and all(isinstance(each, Busy) and each.blocking for each in hiding):
            # What it slows down it meets in all layers alike: their gradients of inputs and of weights.
            hiding = self._whole(hiding)
        return [*launched, *hiding, *map(Wait, running)]

    def again(self, key: tuple[object, ...], write: Callable[[], Rows]) -> Rows:
        """Return the whole of what may have been written before, on the emitter's rows."""
        if self._known is None:
            return write()
        key = (*key, self._phases)
        if key not in self._known:
            rows, self._rows = self._rows, None
            self._known[key] = self._whole(write())
            self._rows = rows
        return [each.at(self._rows) for each in self._known[key]]

    def side_by_side(self, columns: Sequence[tuple[Rows, float]]) -> Rows:
        """Return a share of each of some pieces, one for each recomputation, as one piece."""
        zero = np.zeros((len(self.rates.which_K), 1))
        whole = [rows[0] if rows else Busy(Stream.COMPUTE, 0.0) for rows, _ in columns]
        time_s = np.concatenate([zero + one.time_s * share for one, (_, share) in zip(whole, columns, strict=True)], 1)
        computes, slowdown = (
            np.concatenate([zero + getattr(one, name) for one in whole], axis=1) for name in ("computes", "slowdown")
        )
        return [Busy(Stream.COMPUTE, time_s, True, computes, slowdown)]

    def run(self, rows: Rows, after: Moment | None = None) -> Moment:
        """Return when a rank and its streams have done something, perhaps after what left streams busy."""
        moment = Moment(0.0, after.left_s if after else {})
        free_s = moment.free_s
        for each in rows:
            if isinstance(each, Wait):
                if each.stream in free_s:
                    waited_s = larger(moment.now_s, free_s[each.stream])
                    moment.now_s = choose(each.where, waited_s, moment.now_s)
                    if each.where is True:
                        del free_s[each.stream]
            elif each.stream is Stream.COMPUTE:
                self._compute(each, moment)
            else:
                begin_s = larger(moment.now_s, free_s[each.stream]) if each.stream in free_s else moment.now_s
                end_s = begin_s + each.time_s
                if each.blocking:
                    moment.now_s = end_s
                    free_s.pop(each.stream, None)
                else:
                    free_s[each.stream] = end_s
        return moment

    def seconds(self, rows: Rows, after: Moment | None = None) -> Number:
        """Return the seconds until a rank has come through some rows."""
        return self.run(rows, after).now_s

    def cycle(self, *passes: Rows) -> Cycle:
        """Return the seconds of passes that a rank runs in turns, again and again.

        What a stream still has to do when one ends it does while the next ones run. Where they wait for it, together
        they are as long as what it does in all of them: the last one is longer then.
        """
        moment, left_s = Moment(0.0, {}), dict[Stream, Number]()
        for _ in range(2):
            found, before_s = list[Number](), moment.left_s
            for rows in passes:
                moment = self.run(rows, moment)
                found.append(moment.now_s)
            if not moment.free_s:
                return Cycle(found, {})
        waits = [each for rows in passes for each in rows if isinstance(each, Wait)]
        for stream, after_s in moment.left_s.items():
            of_stream = (row for rows in passes for row in rows if isinstance(row, Busy) and row.stream is stream)
            busy_s, more_s = added(each.time_s for each in of_stream), after_s - before_s[stream]
            # What always has something to do is slowed down by all that is computed.
            awaited = added(each.where for each in waits if each.stream is stream) > 0
            left_s[stream] = choose(awaited, 0.0, choose(more_s > _LITTLE_S, added(found) + more_s, busy_s))
            found[-1] = choose(awaited, larger(found[-1], busy_s - added(found[:-1])), found[-1])
        return Cycle(found, left_s)

    def by_turns(self, forward: Rows, backward: Rows) -> Rows:
        """Return a forward and a backward pass that run as one, each computing while the other exchanges tokens.

        In the order of `traincast.workload.sequence`.
        """
        one, two = _phrases(backward), _phrases(forward)
        rows: Rows = []
        for place in range(max(len(one), len(two))):
            before, launch, wait = one[place] if place < len(one) else ([], [], [])
            other_before, other_launch, other_wait = two[place] if place < len(two) else ([], [], [])
            rows += [*(before if place == 0 else []), *launch, *other_before, *wait, *other_launch]
            rows += [*(one[place + 1][0] if place + 1 < len(one) else []), *other_wait]
        return rows

    def _at(self, value: Number) -> Number:
        """Return something of the table's shares on the emitter's rows."""
        if not isinstance(value, np.ndarray) or value.ndim != 1:
            return value
        return (value if self._rows is None else value[self._rows])[:, None]

    def _whole(self, rows: Rows) -> Rows:
        """Return some rows as one, as long as they take with all streams free."""
        if not rows:
            return []
        busy, time_s = [each for each in rows if isinstance(each, Busy)], self.seconds(rows)
        computes, slowdown = (
            _share(added(getattr(each, name) * each.time_s for each in busy), time_s)
            for name in ("computes", "slowdown")
        )
        return [Busy(Stream.COMPUTE, time_s, True, computes, slowdown)]

    def _compute(self, each: Busy, moment: Moment) -> None:
        """Let a rank compute; what it exchanges meanwhile slows it down, and the other way round."""
        begin_s, moment.now_s = moment.now_s, moment.now_s + each.time_s
        longer_s: Number | None = None
        for stream, free_s in moment.free_s.items():
            if stream not in _NETWORK:
                continue
            together_s = np.maximum(np.minimum(each.time_s, free_s - begin_s), 0.0)
            slowdown = each.slowdown
            if stream is Stream.EP:
                slowdown = slowdown + self.rates.held_share * each.computes
            slowed_s = together_s * slowdown
            longer_s = slowed_s if longer_s is None else larger(longer_s, slowed_s)
            moment.free_s[stream] = free_s + together_s * (OVERLAP_SLOWDOWN["communication"] * each.computes)
        if longer_s is not None:
            moment.now_s = moment.now_s + longer_s


def _share(part_s: Number, whole_s: Number) -> Number:
    """Return a part of some seconds as a share of them; nothing of nothing."""
    return part_s / larger(whole_s, 1e-30)


def _phrases(rows: Rows) -> list[tuple[Rows, Rows, Rows]]:
    """Return a pass cut at its exchanges with experts: work, launch and wait; the last one has no exchange."""
    found: list[tuple[Rows, Rows, Rows]] = []
    before: Rows = []
    launch: Rows = []
    for row in rows:
        if isinstance(row, Wait) and row.stream is Stream.EP:
            found.append((before, launch, [row]))
            before, launch = [], []
        elif launch or (isinstance(row, Busy) and row.stream is Stream.EP and not row.blocking):
            launch.append(row)
        else:
            before.append(row)
    return [*found, (before, launch, [])]
