"""Turn what one rank was traced with into operations, by the part of the pipeline they belong to.

A synchronous sub-operation becomes its transfer; an asynchronous one a launch, the GEMM that hides
it, and a wait. What lies between them is computation, or the host's work where the operation is
the host's. The host's gaps between traced operations are kept as gaps.
"""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from msgspec import Struct, field

from traincast.errors import FormatError
from traincast.formats.echo.experts import Exchange, ExpertScaling, exchanges, is_exchange
from traincast.formats.echo.files import RankTrace
from traincast.formats.echo.layout import Layouts
from traincast.formats.echo.lines import COLLECTIVES, MESSAGES, PHASES, TraceOp, resolved_s
from traincast.formats.echo.rendezvous import OPTIMIZER, Rendezvous
from traincast.job.parallel import Parallel
from traincast.schedules.slots import SlotKind
from traincast.workload.builder import Place, collective_op, compute_op, host_op, wait_op
from traincast.workload.groups import rank_groups
from traincast.workload.ops import Op
from traincast.workload.words import Group, Operation, OverlapClass, Phase, Stream

BUCKET = "ddp_grad_comm"
"""Operation that is one gradient bucket, launched while a backward runs (traces of 2026)."""

OVERLAP_CLASSES = {
    "forward_step": OverlapClass.COMPUTE_BOUND,
    "backward_step": OverlapClass.COMPUTE_BOUND,
    "optimizer_step": OverlapClass.MEMORY_BOUND,
}
"""How computations slow down while they overlap: steps of a model are large GEMMs for the most part."""

HOST = "get_batch"
"""Operation that is the host's work but for the communication inside it."""

_What = tuple[Group, Operation]


class _Carried(TypedDict, total=False):
    """Further fields of a communication, as in `Op`."""

    blocking: bool
    loads: tuple[float, ...] | None
    received_bytes: int | None
    unequal: bool


_SLOTS = {"forward_step": SlotKind.F, "backward_step": SlotKind.BW}
_RECEIVES = {"forward_step": "recv_forward", "backward_step": "recv_backward"}


class RankWork(Struct):
    """A rank's step as template operations, by the part of the pipeline they belong to."""

    start: list[Op] = field(default_factory=list)
    slots: dict[tuple[SlotKind, int], list[Op]] = field(default_factory=dict)
    """Forward and backward of each microbatch, in the order of the trace."""
    end: list[Op] = field(default_factory=list)
    before_recv: dict[tuple[bool, int], list[Op]] = field(default_factory=dict)
    """Host gaps before the receives of activations (True) and gradients (False), by microbatch."""
    untraced_waits: list[TraceOp] = field(default_factory=list)
    """Operations before which the rank waited for a message that was not traced."""


class Conversion(Struct):
    """How traced operations become those of the run to simulate."""

    rendezvous: Rendezvous
    layouts: Layouts
    is_profile: bool
    """What was done at which time says nothing of a run."""
    measured: bool
    """Take communication times from the trace; otherwise leave them to be estimated."""
    scaling: ExpertScaling | None = None
    """Rescaling of expert work; None where it is as traced."""
    traced_size: dict[Group, int] = field(default_factory=dict)
    target_size: dict[Group, int] = field(default_factory=dict)
    """Ranks of a group in the run that was traced, and in the one to simulate."""

    def __post_init__(self) -> None:
        self.traced_size, self.target_size = _group_sizes(self.layouts.traced), _group_sizes(self.layouts.target)

    def believes(self, group: Group) -> bool:
        """Tell whether the traced times of a group's communication hold for the run to simulate."""
        return self.measured and self.traced_size[group] == self.target_size[group]


def _group_sizes(parallel: Parallel) -> dict[Group, int]:
    tables = rank_groups(parallel, list(Group))
    sizes = {kind: table.members_GK.shape[1] for kind, table in tables.items()}
    return sizes if parallel.pp > 1 else {**sizes, Group.EMB: 1}


class Splitter(Struct):
    """A walk over the trace of one rank, whose file is the one of that index among the inputs."""

    trace: RankTrace
    file: int
    how: Conversion
    work: RankWork = field(default_factory=RankWork)
    _before: list[Op] = field(default_factory=list)
    """What belongs to the slot that comes next."""
    _buckets: list[TraceOp] = field(default_factory=list)

    def split(self) -> RankWork:
        """Return the rank's work.

        Raises
        ------
        FormatError
            If work has no time, or a communication neither time nor size; with the line.
        """
        target, offset_s = self.work.start, self.how.rendezvous.offset_s[self.trace.rank]
        # A profile's host has nothing to do with a run's: no gaps there.
        now_s: float | None = None if self.how.is_profile else 0.0
        unknown = self._unknown_gaps()
        for index, op in enumerate(self.trace.ops):
            gap: list[Op] = []
            if now_s is not None and op.start_s is not None and index not in unknown:
                gap_s = resolved_s(op.start_s - offset_s - now_s, op.start_s)
                gap = [host_op("host_gap", Phase.STEP, gap_s, place=Place(self.file, op.line))] if gap_s > 0 else gap
            if op.op == BUCKET:
                self._buckets.append(op)
                continue
            if op.end_s is not None:
                now_s = op.end_s - offset_s
            if op.op in _RECEIVES.values():
                self.work.before_recv.setdefault((op.op == "recv_forward", op.batch_id or 0), []).extend(gap)
            elif op.op in MESSAGES:
                target.extend(gap)
            elif op.op == HOST:
                self._before += gap + self._inside(op, [])
            else:
                target = self._place(op, gap, target)
        self.work.end.extend(self._before)
        return self.work

    def _place(self, op: TraceOp, gap: list[Op], target: list[Op]) -> list[Op]:
        """Put an operation where it belongs; return that place."""
        if op.op in _SLOTS:
            target = self.work.slots.setdefault((_SLOTS[op.op], op.batch_id or 0), [])
            target.extend(self._before)
            self._before = []
        elif op.op != "loss_func":
            target = self.work.end
        launches: list[TraceOp] = []
        if op.op == "backward_step":
            launches, self._buckets = self._buckets, launches
        if op.op == OPTIMIZER and any(each.part == BUCKET for slot in self.work.slots.values() for each in slot):
            target.append(wait_op(Stream.DP, place=Place(self.file, op.line), part=op.op))
        target.extend(gap + self._pieces(op, launches))
        return target

    def _unknown_gaps(self) -> set[int]:
        """Return the operations before which a message was awaited that the trace leaves out: that gap is waiting."""
        layouts, ops = self.how.layouts, self.trace.ops
        stage, last = layouts.stage_of(self.trace), layouts.traced.pp - 1
        unknown: set[int] = set()
        since: list[int] = []
        received: set[str] = set()
        for index, op in enumerate(ops):
            since.append(index)
            if op.op in _RECEIVES.values() and not op.is_placeholder:
                received.add(op.op)
            if op.op not in _SLOTS:
                continue
            if stage != (0 if op.op == "forward_step" else last) and _RECEIVES[op.op] not in received:
                unknown.update(each for each in since if ops[each].op not in ("send_forward", "send_backward"))
                self.work.untraced_waits.append(op)
            since, received = [], set()
        return unknown

    def _pieces(self, op: TraceOp, launches: Sequence[TraceOp]) -> list[Op]:
        """Take an operation apart, in program order, with the gradient buckets that were launched while it ran."""
        if op.op in COLLECTIVES:
            return self._collective(op)
        return self._optimizer(op) if op.op == OPTIMIZER else self._inside(op, launches)

    def _collective(self, op: TraceOp) -> list[Op]:
        """Return an operation that is one collective; in a group of one it was local work, and stays so."""
        what = group, _ = COLLECTIVES[op.op]
        rank, rendezvous, timed = self.trace.rank, self.how.rendezvous, op.start_s is not None
        alone = timed and self.how.traced_size[group] == 1
        local = [self._compute(op, Phase.STEP, op.duration_s or 0.0)] if alone else []
        if self.how.target_size[group] == 1:
            return local
        known = self.how.believes(group) and timed
        if known and group is Group.EMB and op.stage_id:
            # Of the first and last stage, which reduce tied embeddings, the first comes last; the other one alone
            # does not know how long it waited.
            known = rendezvous.is_complete(op, rank)
        duration_s = rendezvous.transfer_s(op, rank) if known else None
        return [*local, self._communication(op, op.op, Phase.STEP, what, op.moved_bytes, duration_s)]

    def _bucket(self, op: TraceOp) -> list[Op]:
        """Return the launch of a gradient bucket, which overlaps with what follows."""
        group, operation = COLLECTIVES[op.op]
        group = op.group_kind or group
        if self.how.target_size[group] == 1:
            return []
        time_s = op.duration_s if self.how.believes(group) and op.duration_s else None
        what, phase = (group, operation), Phase.WEIGHT_GRADIENT
        return [self._communication(op, op.op, phase, what, op.moved_bytes, time_s, blocking=False)]

    def _optimizer(self, op: TraceOp) -> list[Op]:
        """Return the optimizer: a rendezvous of tp x pp for the norm, and what is left when all have come.

        Where ranks did not wait for each other gradients are not clipped, and all of it is their own.
        """
        own_s = _time_of(op)
        if self.how.target_size[Group.MP] == 1 or not self.how.rendezvous.norm_is_met:
            return [self._compute(op, Phase.STEP, own_s)]
        if not self.how.is_profile and op.start_s is not None:
            after_s = self.how.rendezvous.after_last_start_s(op, self.trace.rank)
            own_s = min(own_s, resolved_s(after_s, op.timestamp_s))
        what, transfer_s = (Group.MP, Operation.ALL_REDUCE), 0.0 if self.how.measured else None
        norm = self._communication(op, "grad_norm", Phase.STEP, what, 4, transfer_s)
        return [norm, self._compute(op, Phase.STEP, own_s)]

    def _inside(self, op: TraceOp, launches: Sequence[TraceOp]) -> list[Op]:
        """Return a forward, backward or other operation: what lies between its collectives, and they."""
        phase = PHASES.get(op.op, Phase.STEP)
        if op.op == HOST and op.start_s is None:
            return []
        duration_s = _time_of(op)
        if op.start_s is None or op.end_s is None:
            return [self._compute(op, phase, duration_s)]
        ops: list[Op] = []
        now_s, waiting = op.start_s, sorted(launches, key=_launch_s)
        exchanged = exchanges(op, self.how.scaling)
        for index, sub in enumerate(op.sub_ops):
            start_s = now_s if sub.start_s is None else max(now_s, sub.start_s)
            while waiting and _launch_s(waiting[0]) <= start_s:
                ops += self._between(op, phase, _launch_s(waiting[0]) - now_s) + self._bucket(waiting[0])
                now_s = max(now_s, _launch_s(waiting.pop(0)))
            exchange = exchanged.get(index, Exchange(0.0, sub.call.size_bytes))
            ops += self._between(op, phase, start_s - now_s + exchange.extra_s)
            ops += self._sub_operation(op, phase, index, exchange)
            now_s = max(now_s, start_s + (sub.duration_s or 0.0))
        for launch in waiting:
            ops += self._between(op, phase, _launch_s(launch) - now_s) + self._bucket(launch)
            now_s = max(now_s, min(_launch_s(launch), op.end_s))
        return ops + self._between(op, phase, op.end_s - now_s)

    def _sub_operation(self, op: TraceOp, phase: Phase, index: int, exchange: Exchange) -> list[Op]:
        how, rank, sub = self.how, self.trace.rank, op.sub_ops[index]
        call, group, span_s = sub.call, sub.call.group, sub.duration_s or 0.0
        if group is None or call.comm is Operation.NONE:
            return self._between(op, phase, span_s)
        local = self._between(op, phase, span_s) if how.traced_size[group] == 1 and how.measured else []
        if how.target_size[group] == 1:
            return local
        size_bytes, name = exchange.size_bytes, call.func_name or call.source
        if size_bytes is not None and call.comm in (Operation.ALL_GATHER, Operation.GATHER):
            size_bytes *= how.target_size[group]
        timed, believed, loads = sub.start_s is not None, how.believes(group), None
        if call.is_async:
            transfer_s = how.rendezvous.hidden_transfer_s(call) if believed else None
        else:
            transfer_s = how.rendezvous.transfer_s(op, rank, index) if believed and timed else None
            loads = how.scaling.loads if how.scaling is not None and is_exchange(call) else None
        back = exchange.received_bytes
        carried = _Carried(blocking=not call.is_async, loads=loads, received_bytes=back, unequal=call.is_v_form)
        made = self._communication(op, name, phase, (group, call.comm), size_bytes, transfer_s, **carried)
        if not call.is_async:
            return [*local, made]
        own_s = how.rendezvous.own_s(op, rank, index) if timed else span_s
        wait = wait_op(made.stream, name=f"wait_{name}", phase=phase, place=Place(self.file, op.line), part=op.op)
        return [made, *self._between(op, phase, own_s), wait]

    def _between(self, op: TraceOp, phase: Phase, duration_s: float) -> list[Op]:
        duration_s = resolved_s(duration_s, op.timestamp_s)
        if duration_s <= 0:
            return []
        if op.op == HOST:
            return [host_op(op.op, phase, duration_s, place=Place(self.file, op.line), part=op.op)]
        return [self._compute(op, phase, duration_s)]

    def _compute(self, op: TraceOp, phase: Phase, duration_s: float) -> Op:
        bound, place = OVERLAP_CLASSES.get(op.op, OverlapClass.UNKNOWN), Place(self.file, op.line)
        return compute_op(op.op, phase, duration_s, overlap_class=bound, place=place, part=op.op)

    def _communication(
        self,
        op: TraceOp,
        name: str,
        phase: Phase,
        what: _What,
        size_bytes: int | None,
        time_s: float | None,
        **carried: Unpack[_Carried],
    ) -> Op:
        if size_bytes is None and time_s is None:
            message = f"the communication {name!r} of {op.op!r} has no time to use, and its shape or type gives no size"
            raise FormatError(f"{message} to estimate it from", op.path, op.line)
        time_s, place = None if time_s is None else resolved_s(time_s, op.timestamp_s), Place(self.file, op.line)
        return collective_op(name, phase, *what, size_bytes, time_s, place=place, part=op.op, **carried)


def _time_of(op: TraceOp) -> float:
    """Return an operation's duration in seconds, or refuse one that has none: nothing estimates it."""
    if op.duration_s is None or op.is_placeholder:
        text = f"{op.op} has no time, and traincast does not estimate computations of a trace"
        raise FormatError(f"{text}; give a trace in which it was measured", op.path, op.line)
    return op.duration_s


def _launch_s(op: TraceOp) -> float:
    """Return when a gradient bucket was launched, on the host's clock in seconds."""
    try:
        return float(op.raw("launch_timestamp_ms") or "") / 1e3
    except ValueError:
        return op.timestamp_s or 0.0
