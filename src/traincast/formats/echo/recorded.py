"""Take a traced run as it was: every operation of its ranks with its measured times, as a recorded program.

Lines and the collectives in them run one after the other, as the tracer waits for each; what lies between collectives
is computation. Messages, asynchronous collectives and gradient buckets have queues of their own: each is launched when
what stands before it in the file has ended, and the first operation after it that began once it had ended waits for it.

What the file says of each line and collective is kept separately (`Recorded.said`), so that it can be written again.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.files import InputFile
from traincast.formats.echo.files import RankTrace, Run
from traincast.formats.echo.lines import COLLECTIVES, MESSAGES, PHASES, UID, Call, SubOp, TraceOp
from traincast.formats.echo.work import BUCKET, HOST, OVERLAP_CLASSES
from traincast.job.parallel import Parallel
from traincast.workload.builder import collective_op, compute_op
from traincast.workload.groups import GroupTable, rank_groups
from traincast.workload.ops import Op
from traincast.workload.program import Said
from traincast.workload.recorder import RankRecord, Recorder
from traincast.workload.words import STREAM_OF_GROUP, Group, Kind, Operation, OverlapClass, Phase, Stream
from traincast.workload.workload import Workload

LINE = "line"
"""Name under which what a line says begins, with its operation as written; what a collective inside says does not."""

_ROUNDING_S, _ROUNDING_OF_FORECAST_S = 20e-6, 2e-9
"""How much times of the tracer, which it rounds to 0.01 ms, may contradict each other, and those of a forecast."""

_MAIN = 0


def recorded_workload(
    run: Run,
    parallel: Parallel,
    offset_s: Mapping[int, float],
    inputs: tuple[InputFile, ...],
    notes: Notebook,
    *,
    measured: bool = True,
) -> Workload:
    """Return a traced run as a recorded program.

    `offset_s` brings each rank's clock to the one of the run; with `measured` off communications are estimated. One
    GPU that plays the ranks meets nobody.
    """
    recorder = Recorder(run.first.path.name, parallel, inputs, notes)
    groups = _Groups(recorder, rank_groups(parallel, list(Group)), run.is_profile)
    rows: dict[object, int] = {}
    rounding_s = _ROUNDING_OF_FORECAST_S if run.is_forecast else _ROUNDING_S
    for file, (rank, trace) in enumerate(run.traces.items()):
        recorder.add(_Rank(trace, recorder, groups, parallel, rows, offset_s[rank], rounding_s).record(file))
    return recorder.workload(measured_communication=measured)


class _Groups(Struct):
    """Whom a rank communicates with."""

    recorder: Recorder
    tables: Mapping[Group, GroupTable]
    alone: bool
    _known: dict[tuple[Group, int], int] = field(default_factory=dict)

    def group(self, kind: Group | None, rank: int) -> int:
        """Return the group of a rank, -1 where it has none with others."""
        table = None if kind is None else self.tables.get(kind)
        number = -1 if table is None else int(table.group_of_rank_W[rank])
        if table is None or kind is None or number < 0:
            return -1
        if (kind, number) not in self._known:
            members = [member for member in table.members_GK[number].tolist() if member >= 0]
            self._known[kind, number] = self.recorder.group(kind, members) if len(members) > 1 else -1
        found = self._known[kind, number]
        return self.recorder.group(kind, [rank]) if self.alone and found >= 0 else found


class _Span(NamedTuple):
    """Begin and end on the clock of the run, in seconds, and what the file says of it."""

    start_s: float
    end_s: float
    said: dict[str, float]


class _Rank(Struct):
    """A walk over the trace of one rank."""

    trace: RankTrace
    recorder: Recorder
    groups: _Groups
    parallel: Parallel
    rows: dict[object, int]
    """Rows by what makes them."""
    offset_s: float
    rounding_s: float
    found: list[dict[str, float]] = field(default_factory=list)
    """Operations, by the columns of `RankRecord`."""
    edges: list[tuple[int, int]] = field(default_factory=list)
    last: int = field(default=-1)
    """Last operation of the main queue."""
    free_s: dict[int, float] = field(default_factory=dict)
    """When each queue is free."""
    overlapped: list[tuple[int, float]] = field(default_factory=list)
    """Operations of other queues that nothing waits for yet, and when they end."""

    def record(self, file: int) -> RankRecord:
        """Return what the rank ran; its file is the one of that index."""
        for op in self.trace.ops:
            self._line(op)
        names = self.found[0].keys() if self.found else ("row_L",)
        columns: dict[str, Any] = {name: [each[name] for each in self.found] for name in names}
        source_E, target_E = zip(*self.edges, strict=True) if self.edges else ((), ())
        return RankRecord(rank=self.trace.rank, file=file, edge_src_E=source_E, edge_dst_E=target_E, **columns)

    def _line(self, op: TraceOp) -> None:
        """Add a line: a message, a collective, or a computation with collectives inside."""
        span = self._span(op, ((LINE, op.raw_op), *_words(op)), op.timestamp_s)
        if op.op in MESSAGES:
            peer = self._peer(op)
            if peer != op.rank and not self.groups.alone:
                send = op.op.startswith("send")
                group = self.recorder.pair(*((op.rank, peer) if send else (peer, op.rank)))
                row = self._row((op.op, op.size_bytes), lambda: _message(op))
                self._add(op, row, 1 + Stream[op.op.upper()], span, group, key=int(op.op.endswith("forward")))
                return
        elif op.op in COLLECTIVES and not op.sub_ops:
            kind, operation = COLLECTIVES[op.op]
            kind = kind if op.op != BUCKET or op.group_kind is None else op.group_kind
            group = self.groups.group(kind, op.rank)
            if group >= 0:
                what = (op.op, Phase.STEP, kind, operation, op.moved_bytes)
                row = self._row(what, lambda: collective_op(*what, part=op.op))
                self._add(op, row, 1 + STREAM_OF_GROUP[kind] if op.op == BUCKET else _MAIN, span, group)
                return
        self._computation(op, span)

    def _peer(self, op: TraceOp) -> int:
        """Return the rank at the other end of a message: of the next stage, or the one before."""
        stage, place = divmod(op.rank, self.parallel.ranks_per_stage)
        onward = op.op.startswith("send") == op.op.endswith("forward")
        stages = self.parallel.pp
        return (stage + (1 if onward else -1)) % stages * self.parallel.ranks_per_stage + place

    def _computation(self, op: TraceOp, line: _Span) -> None:
        row, now_s = self._row(op.op, lambda: _compute(op.op)), line.start_s
        for sub in op.sub_ops:
            span = self._span(sub, sub.call.fields, sub.end_s)
            start_s = max(now_s, min(span.start_s, line.end_s))
            if start_s > now_s:
                self._add(op, row, _MAIN, _Span(now_s, start_s, {}))
            self._collective(op, sub.call, span._replace(start_s=start_s))
            now_s = start_s if sub.call.is_async else max(start_s, span.end_s)
        self._add(op, row, _MAIN, line._replace(start_s=now_s))

    def _collective(self, op: TraceOp, call: Call, span: _Span) -> None:
        """Add a collective inside a line; what it does not know, or does alone, is computation."""
        group = self.groups.group(call.group, op.rank)
        name, phase, queue = call.func_name or call.source, PHASES.get(op.op, Phase.STEP), _MAIN
        if group < 0 or call.group is None or call.comm is Operation.NONE:
            group, row = -1, self._row((op.op, name), lambda: replace(_compute(op.op), name=name))
        else:
            what = (name, phase, call.group, call.comm, self._size_bytes(call, call.group))
            unequal = call.is_v_form
            row = self._row((op.op, unequal, *what), lambda: collective_op(*what, part=op.op, unequal=unequal))
            queue = 1 + STREAM_OF_GROUP[call.group] if call.is_async else _MAIN
        self._add(op, row, queue, span, group)

    def _size_bytes(self, call: Call, group: Group) -> int | None:
        if call.size_bytes is None or call.comm not in (Operation.ALL_GATHER, Operation.GATHER):
            return call.size_bytes
        return call.size_bytes * int(self.groups.tables[group].members_GK.shape[1])

    def _span(self, op: TraceOp | SubOp, said: Said, clock_s: float | None) -> _Span:
        """Return when something ran; what has no time ran when what stands before it had ended, and took none."""
        duration_s, end_s = op.duration_s, op.end_s
        known = {
            "said_L": self.recorder.said(said),
            "span_s_L": math.nan if duration_s is None else duration_s,
            "clock_s_L": math.nan if clock_s is None else clock_s,
        }
        if end_s is None or duration_s is None:
            first_s = self.trace.first_start_s
            now_s = self.free_s.get(_MAIN, 0.0 if first_s is None else first_s - self.offset_s)
            return _Span(now_s, now_s, known)
        return _Span(end_s - self.offset_s - duration_s, end_s - self.offset_s, known)

    def _row(self, key: object, make: Callable[[], Op]) -> int:
        if key not in self.rows:
            self.rows[key] = self.recorder.row(make())
        return self.rows[key]

    def _add(self, op: TraceOp, row: int, queue: int, span: _Span, group: int = -1, key: int = -1) -> None:
        """Add an operation, after what it must follow."""
        index, start_s = len(self.found), max(span.start_s, self.free_s.get(queue, 0.0))
        if queue == _MAIN:
            for other, end_s in [each for each in self.overlapped if each[1] <= start_s + self.rounding_s]:
                self.edges.append((other, index))
                self.overlapped.remove((other, end_s))
                start_s = max(start_s, end_s)
            self.last = index
        elif self.last >= 0 and self.free_s.get(_MAIN, 0.0) <= start_s + self.rounding_s:
            self.edges.append((self.last, index))
            start_s = max(start_s, self.free_s[_MAIN])
        end_s = max(start_s, span.end_s)
        self.free_s[queue] = end_s
        if queue != _MAIN:
            self.overlapped.append((index, end_s))
        none = {"said_L": -1, "span_s_L": math.nan, "clock_s_L": math.nan}
        self.found.append(
            {
                **none,
                "microbatch_L": -1 if op.batch_id is None else op.batch_id,
                **span.said,
                "row_L": row,
                "group_L": group,
                "queue_L": queue,
                "key_L": key,
                "line_L": op.line,
                "start_s_L": start_s,
                "end_s_L": end_s,
            }
        )


def _words(op: TraceOp) -> Said:
    return op.fields if op.uid is None else tuple((key, op.uid if key == UID else text) for key, text in op.fields)


def _compute(name: str) -> Op:
    op = compute_op(
        name, PHASES.get(name, Phase.STEP), overlap_class=OVERLAP_CLASSES.get(name, OverlapClass.UNKNOWN), part=name
    )
    return replace(op, kind=Kind.GAP) if name == HOST else op


def _message(op: TraceOp) -> Op:
    return Op(
        name=op.op,
        part=op.op,
        kind=Kind.SEND if op.op.startswith("send") else Kind.RECV,
        phase=Phase.FORWARD if op.op.endswith("forward") else Phase.BACKWARD,
        stream=Stream[op.op.upper()],
        group=Group.PP,
        operation=Operation.SEND_RECV,
        size_bytes=op.size_bytes,
    )
