"""Match what ranks did together, separate transfer from waiting, and say what the run measured.

A synchronous span is transfer and waiting for the slowest member, so the shortest span of a
group is the transfer. An asynchronous span runs from launch to wait and holds the GEMM that
hides it; where a rank launched earlier than the last member, what exceeds its usual GEMM is
waiting, not work. Of the two ends of a message the one that came last did not wait.

Letters: D directions (0 forward, 1 backward), Q stages, M microbatches.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np

from traincast.formats.echo.clocks import Alignment, fused_pairs
from traincast.formats.echo.files import RankTrace
from traincast.formats.echo.layout import Layouts, Traced
from traincast.formats.echo.lines import Call, SubOp, TraceOp
from traincast.formats.echo.vocabulary import COLLECTIVES, MESSAGES
from traincast.workload.groups import GroupTable
from traincast.workload.ops import FloatArray
from traincast.workload.words import Group
from traincast.workload.workload import MeasuredRun

OPTIMIZER = "optimizer_step"
"""Operation that begins with the norm over tp x pp."""

_LAUNCHED_LAST = 0.05
"""Share of an asynchronous span by which a launch may precede the last one and still count as the last."""


_CLOCKS_AGREE_S = 0.001
"""Time within which ranks on aligned clocks may seem to miss each other and still have met."""


class Span(NamedTuple):
    """Start and end on the run's common clock, in seconds."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


Key = tuple[object, ...]


@dataclass(slots=True)
class Meetings:
    """Spans of every collective, by the members that met."""

    tables: Mapping[Group, GroupTable]
    spans: dict[Key, dict[int, Span]] = field(default_factory=lambda: defaultdict(dict))
    _usual: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    _transfers: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    norm_is_met: bool = True
    """Whether the optimizer begins with a norm over tp x pp; False once a rank ended it before another began."""

    def add(self, op: TraceOp, rank: int, offset_s: float) -> None:
        """Record the collectives of one traced operation."""
        if (op.op in COLLECTIVES or op.op == OPTIMIZER) and op.start_s is not None and op.end_s is not None:
            self.spans[self.key(op, None, rank)][rank] = Span(op.start_s - offset_s, op.end_s - offset_s)
        for sub in op.sub_ops:
            if sub.start_s is not None and sub.end_s is not None:
                self.spans[self.key(op, sub, rank)][rank] = Span(sub.start_s - offset_s, sub.end_s - offset_s)

    def key(self, op: TraceOp, sub: SubOp | None, rank: int) -> Key:
        """Return what names a meeting: the group, and the place in the program of its members."""
        kind = sub.group if sub is not None else Group.MP if op.op == OPTIMIZER else COLLECTIVES[op.op][0]
        table = self.tables.get(kind) if kind is not None else None
        group = int(table.group_of_rank_W[rank]) if table is not None else rank
        if sub is None:
            return kind, group, op.op, op.batch_id, op.raw("bucket_id"), -1
        before = sum(1 for other in op.sub_ops[: _index(op, sub)] if other.group is kind)
        return kind, group, op.op, op.batch_id, None, before

    def settle(self, traces: Mapping[int, tuple[TraceOp, ...]]) -> None:
        """Learn usual transfers and GEMMs once every rank has been added."""
        for rank, ops in traces.items():
            for op in ops:
                for sub in op.sub_ops:
                    self._learn(op, sub, rank)
                if op.op == OPTIMIZER and self._ended_before_a_start(op, rank):
                    self.norm_is_met = False

    def _ended_before_a_start(self, op: TraceOp, rank: int) -> bool:
        """Tell whether a member of a rank's group ended an operation before another one began it."""
        met = self.spans.get(self.key(op, None, rank), {}).values()
        first_end_s = min((span.end_s for span in met), default=0.0)
        return max((span.start_s for span in met), default=0.0) > first_end_s + _CLOCKS_AGREE_S

    def transfer_s(self, op: TraceOp, sub: SubOp | None, rank: int) -> float:
        """Return the transfer of a synchronous collective in seconds: its shortest span."""
        met = self.spans[self.key(op, sub, rank)]
        return max(0.0, min(span.duration_s for span in met.values()))

    def hidden_transfer_s(self, call: Call) -> float | None:
        """Return the usual transfer of synchronous collectives alike an asynchronous one, if the run has any."""
        alike = self._transfers.get((call.comm, call.group, call.size_bytes))
        return median(alike) if alike else None

    def complete(self, op: TraceOp, rank: int) -> bool:
        """Tell whether every member of an operation's group was traced."""
        group = COLLECTIVES[op.op][0]
        members = self.tables[group].members_GK[self.tables[group].group_of_rank_W[rank]]
        return len(self.spans[self.key(op, None, rank)]) == int((members >= 0).sum())

    def after_last_start_s(self, op: TraceOp, rank: int) -> float:
        """Return what an operation of a group took once its last member had started it, in seconds."""
        met = self.spans[self.key(op, None, rank)]
        return max(0.0, met[rank].end_s - max(span.start_s for span in met.values()))

    def wait_s(self, op: TraceOp, rank: int) -> float:
        """Return what a rank waited for others in an operation that is no message, in seconds."""
        wait_s = 0.0
        if (op.op in COLLECTIVES or op.op == OPTIMIZER) and op.start_s is not None and op.end_s is not None:
            span_s = self.spans[self.key(op, None, rank)][rank].duration_s
            own_s = self._optimizer_s(op, rank) if op.op == OPTIMIZER else self.transfer_s(op, None, rank)
            wait_s = max(0.0, span_s - own_s)
        for sub in op.sub_ops:
            if sub.start_s is not None and sub.end_s is not None:
                own_s = self.own_s(op, sub, rank) if sub.is_async else self.transfer_s(op, sub, rank)
                wait_s += max(0.0, sub.end_s - sub.start_s - own_s)
        return min(wait_s, op.duration_s or 0.0)  # a damaged file may say that a collective took longer

    def _optimizer_s(self, op: TraceOp, rank: int) -> float:
        return self.after_last_start_s(op, rank) if self.norm_is_met else op.duration_s or 0.0

    def own_s(self, op: TraceOp, sub: SubOp, rank: int) -> float:
        """Return a rank's own part of an asynchronous span in seconds."""
        span = self.spans[self.key(op, sub, rank)][rank]
        if self._launched_last(op, sub, rank):
            return span.duration_s
        for key in ((rank, sub.func_name, sub.shape), (None, sub.func_name, sub.shape)):
            if self._usual.get(key):
                return min(span.duration_s, median(self._usual[key]))
        return span.duration_s

    def _learn(self, op: TraceOp, sub: SubOp, rank: int) -> None:
        span = self.spans.get(self.key(op, sub, rank), {}).get(rank)
        if span is None:
            return
        if not sub.is_async:
            self._transfers[sub.comm, sub.group, sub.size_bytes].append(self.transfer_s(op, sub, rank))
        elif self._launched_last(op, sub, rank):
            for key in ((rank, sub.func_name, sub.shape), (None, sub.func_name, sub.shape)):
                self._usual[key].append(span.duration_s)

    def _launched_last(self, op: TraceOp, sub: SubOp, rank: int) -> bool:
        met = self.spans[self.key(op, sub, rank)]
        skew_s = max(span.start_s for span in met.values()) - met[rank].start_s
        return skew_s <= _LAUNCHED_LAST * met[rank].duration_s


def _index(op: TraceOp, sub: SubOp) -> int:
    return next(index for index, other in enumerate(op.sub_ops) if other is sub)


_End = tuple[int, bool, int, int]
"""Pipeline, forward, boundary, microbatch: what both ends of a message share."""


@dataclass(slots=True)
class Messages:
    """Both ends of every traced message."""

    traced: Traced
    layouts: Layouts
    _spans: dict[_End, list[float]] = field(init=False, default_factory=dict)
    _sends: list[float] = field(init=False, default_factory=list)
    """Durations of sends that were posted alone: nearly all transfer, for the other end waits."""

    def __post_init__(self) -> None:
        for rank, trace in self.traced.traces.items():
            fused = {index for pair in fused_pairs(trace.ops) for index in pair}
            for index, op in enumerate(trace.ops):
                if op.op in MESSAGES and not op.is_placeholder and op.duration_s is not None:
                    self._spans.setdefault(self._end(op, rank), []).append(op.duration_s)
                    if op.op.startswith("send") and index not in fused:
                        self._sends.append(op.duration_s)

    def transfer_s_DQM(self, rank: int) -> FloatArray:
        """Return the transfers of a rank's pipeline, in seconds; NaN where the trace does not tell.

        The end that came last did not wait, so the shorter of both spans is the transfer. Where only
        one end was traced it is the usual send, where none was it is left to be priced.
        """
        original, target = self.layouts.traced, self.layouts.target
        transfer_s = np.full((2, target.pp, target.microbatches), self._usual_s)
        pipeline = rank % original.ranks_per_stage
        for direction, boundary, microbatch in np.ndindex(transfer_s.shape):
            # Boundaries of a longer pipeline are like the last one that was traced.
            like = min(boundary, max(0, original.pp - 2)), min(microbatch, self.traced.microbatches - 1)
            ends = self._spans.get((pipeline, direction == 0, *like), [])
            if len(ends) == 2:
                transfer_s[direction, boundary, microbatch] = min(ends)
        return transfer_s

    def wait_s(self, ops: Sequence[TraceOp], rank: int) -> float:
        """Return what a rank waited in a message, or in two that were one exchange, in seconds.

        Unknown, and 0, where no send tells what a transfer takes.
        """
        known = [self._spans.get(self._end(op, rank), []) for op in ops]
        transfers_s = [min(ends) if len(ends) == 2 else self._usual_s for ends in known]
        waits_s = [(op.duration_s or 0.0) - transfer_s for op, transfer_s in zip(ops, transfers_s, strict=True)]
        return max(0.0, min(waits_s)) if not np.isnan(waits_s).any() else 0.0

    @property
    def _usual_s(self) -> float:
        return median(self._sends) if self._sends else float("nan")

    def _end(self, op: TraceOp, rank: int) -> _End:
        stage = rank // self.layouts.traced.ranks_per_stage
        forward = op.op.endswith("forward")
        comes = op.op.startswith("recv")
        boundary = stage - 1 if comes == forward else stage
        return rank % self.layouts.traced.ranks_per_stage, forward, boundary, op.batch_id or 0


def measured_run(
    traces: Mapping[int, RankTrace], alignment: Alignment, meetings: Meetings, messages: Messages
) -> MeasuredRun | None:
    """Return the measured step, ends and parts of a run; None where no operation has a time.

    Times are seconds from the first start of any rank; of a fused exchange the second line says
    the same again and is left out. What a rank waited is known as far as the others were traced.
    """
    end_s: dict[int, float] = {}
    part_s: dict[int, dict[str, float]] = {}
    wait_s: dict[int, dict[str, float]] = {}
    starts = []
    for rank, trace in traces.items():
        second_of = dict(fused_pairs(trace.ops))
        repeated = set(second_of.values())
        parts, waits = defaultdict[str, float](float), defaultdict[str, float](float)
        now_s = alignment.offset_s[rank]
        for index, op in enumerate(trace.ops):
            if op.start_s is None or op.end_s is None:
                continue
            starts.append(op.start_s - alignment.offset_s[rank])
            end_s[rank] = max(end_s.get(rank, 0.0), op.end_s - alignment.offset_s[rank])
            if index not in repeated:
                parts[op.op] += op.duration_s or 0.0
                parts["host_gap"] += max(0.0, op.start_s - now_s)
                together = [op, trace.ops[second_of[index]]] if index in second_of else [op]
                waits[op.op] += messages.wait_s(together, rank) if op.op in MESSAGES else meetings.wait_s(op, rank)
            now_s = op.end_s
        part_s[rank], wait_s[rank] = dict(parts), dict(waits)
    if not starts:
        return None
    first_s = min(starts)
    ends_s = {rank: end - first_s for rank, end in end_s.items()}
    return MeasuredRun(max(end_s.values()) - first_s, ends_s, part_s, wait_s)
