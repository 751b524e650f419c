"""Match what ranks did together, separate transfer from waiting, and say what the run measured.

A synchronous span is transfer and waiting for the slowest member, so the shortest span of a
group is the transfer. An asynchronous span runs from launch to wait and holds the GEMM that
hides it; where a rank launched earlier than the last member, what exceeds its usual GEMM is
waiting, not work. Of the two ends of a message the one that came last did not wait.

Letters: D directions (0 forward, 1 backward), Q stages, M microbatches.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from traincast.formats.echo.files import Run
from traincast.formats.echo.layout import Layouts
from traincast.formats.echo.lines import COLLECTIVES, MESSAGES, Call, TraceOp, fused_pairs
from traincast.workload.groups import GroupTable
from traincast.workload.ops import FloatArray
from traincast.workload.words import Group
from traincast.workload.workload import MeasuredStep

OPTIMIZER = "optimizer_step"
"""Operation that begins with the norm over tp x pp."""

_LAUNCHED_LAST = 0.05
"""Share of an asynchronous span by which a launch may precede the last one and still count as the last."""

_CLOCKS_AGREE_S = 0.001
"""Time within which ranks on aligned clocks may seem to miss each other and still have met."""

_Key = tuple[object, ...]


class _Spans(Struct):
    """What one rendezvous took on each of its members, by rank."""

    spans: dict[int, "Span"] = field(default_factory=dict)
    _extremes_s: tuple[float, float, float] | None = None

    @property
    def extremes_s(self) -> tuple[float, float, float]:
        """Its shortest span, last start and first end in seconds; 0 without members."""
        if self._extremes_s is None:
            spans = self.spans.values()
            self._extremes_s = (
                min((span.duration_s for span in spans), default=0.0),
                max((span.start_s for span in spans), default=0.0),
                min((span.end_s for span in spans), default=0.0),
            )
        return self._extremes_s


class Span(NamedTuple):
    """Start and end on the run's common clock, in seconds."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


class Rendezvous(Struct):
    """Spans of every collective, by the members that met.

    Collectives are asked for by their operation and rank, and by their index among its sub-operations; without an
    index it is the operation as a whole. One GPU that plays all ranks meets nobody.
    """

    run: Run
    tables: Mapping[Group, GroupTable]
    """Groups of the traced layout."""
    offset_s: Mapping[int, float]
    """What to subtract from the clock of each rank."""
    norm_is_met: bool = field(default=True)
    """Whether the optimizer begins with a norm over tp x pp; False once a rank ended it before another began."""
    _keys: dict[tuple[int, int], list[_Key]] = field(default_factory=dict)
    """By rank and line: the rendezvous of the operation as a whole, and of each sub-operation."""
    _rendezvous: dict[_Key, _Spans] = field(default_factory=lambda: defaultdict(_Spans))
    _usual: dict[_Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    _transfers: dict[_Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    _medians: dict[_Key, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        traces = [] if self.run.is_profile else self.run.traces.values()
        ops = [(op, trace.rank) for trace in traces for op in trace.ops]
        for op, rank in ops:
            keys = self._keys[rank, op.line] = self._keys_of(op, rank)
            own = [op] if op.op in COLLECTIVES or op.op == OPTIMIZER else [None]
            for key, each in zip(keys, (*own, *op.sub_ops), strict=True):
                if each is not None and each.start_s is not None and each.end_s is not None:
                    offset_s = self.offset_s[rank]
                    self._rendezvous[key].spans[rank] = Span(each.start_s - offset_s, each.end_s - offset_s)
        for op, rank in ops:
            for index in range(len(op.sub_ops)):
                self._learn(op, rank, index)
            if op.op == OPTIMIZER and self._ended_before_a_start(op, rank):
                self.norm_is_met = False

    def _keys_of(self, op: TraceOp, rank: int) -> list[_Key]:
        """Return what names each rendezvous: the group, and the place in the program of its members."""
        own = Group.MP if op.op == OPTIMIZER else COLLECTIVES[op.op][0] if op.op in COLLECTIVES else None
        keys: list[_Key] = [(own, self._group(own, rank), op.op, op.batch_id, op.raw("bucket_id"), -1)]
        before: Counter[Group | None] = Counter()
        for sub in op.sub_ops:
            kind = sub.call.group
            keys.append((kind, self._group(kind, rank), op.op, op.batch_id, None, before[kind]))
            before[kind] += 1
        return keys

    def _group(self, kind: Group | None, rank: int) -> int:
        table = None if kind is None else self.tables.get(kind)
        return rank if table is None else int(table.group_of_rank_W[rank])

    def _spans_of(self, op: TraceOp, rank: int, index: int = -1) -> _Spans:
        keys = self._keys.get((rank, op.line))
        return _Spans() if keys is None else self._rendezvous.get(keys[index + 1], _Spans())

    def _learn(self, op: TraceOp, rank: int, index: int) -> None:
        """Learn usual transfers and GEMMs."""
        span, call = self._spans_of(op, rank, index).spans.get(rank), op.sub_ops[index].call
        if span is None:
            return
        if not call.is_async:
            self._transfers[call.comm, call.group, call.size_bytes].append(self.transfer_s(op, rank, index))
        elif self._launched_last(op, rank, index):
            for key in _alike(call, rank):
                self._usual[key].append(span.duration_s)

    def _launched_last(self, op: TraceOp, rank: int, index: int) -> bool:
        spans = self._spans_of(op, rank, index)
        skew_s = spans.extremes_s[1] - spans.spans[rank].start_s
        return skew_s <= _LAUNCHED_LAST * spans.spans[rank].duration_s

    def _ended_before_a_start(self, op: TraceOp, rank: int) -> bool:
        """Tell whether a member of a rank's group ended an operation before another one began it."""
        _, last_start_s, first_end_s = self._spans_of(op, rank).extremes_s
        return last_start_s > first_end_s + _CLOCKS_AGREE_S

    def transfer_s(self, op: TraceOp, rank: int, index: int = -1) -> float:
        """Return the transfer of a synchronous collective in seconds: its shortest span."""
        return max(0.0, self._spans_of(op, rank, index).extremes_s[0])

    def hidden_transfer_s(self, call: Call) -> float | None:
        """Return the usual transfer of synchronous collectives alike an asynchronous one, if the run has any."""
        key = call.comm, call.group, call.size_bytes
        return self._median_s(key, self._transfers[key]) if key in self._transfers else None

    def _median_s(self, key: _Key, alike_s: list[float]) -> float:
        if key not in self._medians:
            self._medians[key] = median(alike_s)
        return self._medians[key]

    def own_s(self, op: TraceOp, rank: int, index: int) -> float:
        """Return a rank's own part of an asynchronous span in seconds."""
        span, call = self._spans_of(op, rank, index).spans.get(rank), op.sub_ops[index].call
        if span is None:
            return op.sub_ops[index].duration_s or 0.0
        if not self._launched_last(op, rank, index):
            for key in _alike(call, rank):
                if key in self._usual:
                    return min(span.duration_s, self._median_s(key, self._usual[key]))
        return span.duration_s

    def is_complete(self, op: TraceOp, rank: int) -> bool:
        """Tell whether every member of an operation's group was traced."""
        table = self.tables[COLLECTIVES[op.op][0]]
        members = table.members_GK[table.group_of_rank_W[rank]]
        return len(self._spans_of(op, rank).spans) == int((members >= 0).sum())

    def after_last_start_s(self, op: TraceOp, rank: int) -> float:
        """Return what an operation of a group took once its last member had started it, in seconds."""
        spans = self._spans_of(op, rank)
        return max(0.0, spans.spans[rank].end_s - spans.extremes_s[1])

    def wait_s(self, op: TraceOp, rank: int) -> float:
        """Return what a rank waited for others in an operation that is not a message, in seconds."""
        wait_s, span = 0.0, self._spans_of(op, rank).spans.get(rank)
        if span is not None and op.op != OPTIMIZER:
            wait_s = max(0.0, span.duration_s - self.transfer_s(op, rank))
        elif span is not None:
            own_s = self.after_last_start_s(op, rank) if self.norm_is_met else op.duration_s or 0.0
            wait_s = max(0.0, span.duration_s - own_s)
        for index, sub in enumerate(op.sub_ops):
            if sub.start_s is not None and sub.end_s is not None:
                is_async = sub.call.is_async
                own_s = self.own_s(op, rank, index) if is_async else self.transfer_s(op, rank, index)
                wait_s += max(0.0, sub.end_s - sub.start_s - own_s)
        return min(wait_s, op.duration_s or 0.0)  # a damaged file may say that a collective took longer


def _alike(call: Call, rank: int) -> tuple[_Key, _Key]:
    """Return what names the asynchronous collectives alike one: of the same rank, and of any."""
    return (rank, call.func_name, call.shape), (None, call.func_name, call.shape)


class Messages(Struct):
    """Both ends of every traced message."""

    run: Run
    layouts: Layouts
    _spans: dict[_Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Durations by pipeline, whether it is forward, boundary and microbatch: what both ends of a message share."""
    _usual_s: float = float("nan")
    """A send that was posted alone, which is nearly all transfer, for the other end waits; NaN where there is none."""

    def __post_init__(self) -> None:
        sends: list[float] = []
        for rank, trace in self.run.traces.items():
            fused = {index for pair in fused_pairs(trace.ops) for index in pair}
            for index, op in enumerate(trace.ops):
                if op.op in MESSAGES and not op.is_placeholder and op.duration_s is not None:
                    self._spans[self._key(op, rank)].append(op.duration_s)
                    if op.op.startswith("send") and index not in fused:
                        sends.append(op.duration_s)
        self._usual_s = median(sends) if sends else float("nan")

    def _key(self, op: TraceOp, rank: int) -> _Key:
        stage, pipeline = divmod(rank, self.layouts.traced.ranks_per_stage)
        forward = op.op.endswith("forward")
        boundary = stage - 1 if op.op.startswith("recv") == forward else stage
        return pipeline, forward, boundary, op.batch_id or 0

    def _transfer_s(self, key: _Key) -> float:
        """Return the shorter span of a message: the end that came last did not wait. One end alone does not tell."""
        ends = self._spans.get(key, [])
        return min(ends) if len(ends) == 2 else self._usual_s

    def transfer_s_DQM(self, rank: int) -> FloatArray:
        """Return the transfers of a rank's pipeline, in seconds; NaN where the trace does not tell."""
        original, target = self.layouts.traced, self.layouts.target
        transfer_s, traced = np.empty((2, target.pp, target.microbatches)), self.run.microbatches
        for direction, boundary, microbatch in np.ndindex(transfer_s.shape):
            # Boundaries of a longer pipeline are like the last one that was traced.
            like = min(boundary, max(0, original.pp - 2)), min(microbatch, traced - 1)
            key = rank % original.ranks_per_stage, direction == 0, *like
            transfer_s[direction, boundary, microbatch] = self._transfer_s(key)
        return transfer_s

    def wait_s(self, ops: Sequence[TraceOp], rank: int) -> float:
        """Return what a rank waited in a message, or in two that were one exchange, in seconds.

        Unknown, and 0, where no send tells what a transfer takes.
        """
        waits_s = [(op.duration_s or 0.0) - self._transfer_s(self._key(op, rank)) for op in ops]
        return max(0.0, min(waits_s)) if not np.isnan(waits_s).any() else 0.0


def measured_run(run: Run, rendezvous: Rendezvous, messages: Messages) -> MeasuredStep | None:
    """Return the measured step, ends and parts of a run; None where no operation has a time.

    Times are seconds from the first start of any rank; of a fused exchange the second line says
    the same again and is left out. What a rank waited is known as far as the others were traced.
    """
    end_s: dict[int, float] = {}
    part_s: dict[int, dict[str, float]] = {}
    wait_s: dict[int, dict[str, float]] = {}
    starts = []
    for rank, trace in run.traces.items():
        second_of = dict(fused_pairs(trace.ops))
        repeated = set(second_of.values())
        parts, waits = defaultdict[str, float](float), defaultdict[str, float](float)
        now_s = offset_s = rendezvous.offset_s[rank]
        for index, op in enumerate(trace.ops):
            if op.start_s is None or op.end_s is None:
                continue
            starts.append(op.start_s - offset_s)
            end_s[rank] = max(end_s.get(rank, 0.0), op.end_s - offset_s)
            if index not in repeated:
                parts[op.op] += op.duration_s or 0.0
                parts["host_gap"] += max(0.0, op.start_s - now_s)
                together = [op, trace.ops[second_of[index]]] if index in second_of else [op]
                waits[op.op] += messages.wait_s(together, rank) if op.op in MESSAGES else rendezvous.wait_s(op, rank)
            now_s = op.end_s
        part_s[rank], wait_s[rank] = dict(parts), dict(waits)
    if not starts:
        return None
    first_s = min(starts)
    ends_s = {rank: end - first_s for rank, end in end_s.items()}
    return MeasuredStep(max(end_s.values()) - first_s, ends_s, part_s, wait_s)
