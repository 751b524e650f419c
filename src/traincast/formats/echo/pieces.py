"""Turn one traced operation into computations and communications.

A synchronous sub-operation becomes its transfer; an asynchronous one a launch, the GEMM that hides
it, and a wait. What lies between them is computation, or the host's work where the operation is
the host's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from traincast.errors import FormatError
from traincast.formats.echo.experts import ExpertScaling, Section, is_exchange, traced_sections
from traincast.formats.echo.fields import resolved_s
from traincast.formats.echo.lines import SubOp, TraceOp
from traincast.formats.echo.meetings import OPTIMIZER, Meetings
from traincast.formats.echo.totals import size_bytes_of
from traincast.formats.echo.vocabulary import COLLECTIVES, OVERLAP_CLASSES
from traincast.workload.builder import Place, collective_op, compute_op, host_op, wait_op
from traincast.workload.ops import Op
from traincast.workload.words import Group, Operation, OverlapClass, Phase

_PHASES = {
    "get_batch": Phase.FORWARD,
    "forward_step": Phase.FORWARD,
    "loss_func": Phase.FORWARD,
    "backward_step": Phase.BACKWARD,
}
_HOST = {"get_batch"}
"""Operations that are the host's work but for the communication inside them."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How to take operations apart: with what the other ranks did, and whether communication times mean anything."""

    meetings: Meetings
    group_size: Callable[[Group], int]
    """Ranks of a group in the traced run."""
    target_size: Callable[[Group], int]
    """Ranks of a group in the run to simulate; where it differs, traced times do not hold."""
    measured: bool
    """Take communication times from the trace; otherwise leave them to be priced."""
    experts: ExpertScaling | None
    """Rescaling of expert work: of a profile, or to loads that were asked for; None where it is as traced."""
    profile: bool
    """One GPU played the rank: what it did at which time says nothing of a run."""

    def of(self, op: TraceOp, rank: int, file: int, launches: Sequence[TraceOp] = ()) -> list[Op]:
        """Take an operation apart.

        Parameters
        ----------
        op : TraceOp
            The operation.
        rank, file : int
            Its rank, and the index of its input file.
        launches : sequence of TraceOp
            Gradient buckets that were launched while it ran.

        Returns
        -------
        list of Op
            In program order.
        """
        if op.op in COLLECTIVES:
            return self._collective(op, rank, file)
        if op.op == OPTIMIZER:
            return self._optimizer(op, rank, file)
        return self._inside(op, rank, file, launches)

    def _believes(self, group: Group) -> bool:
        """Tell whether the traced times of a group's communication hold for the run to simulate."""
        return self.measured and self.group_size(group) == self.target_size(group)

    def _collective(self, op: TraceOp, rank: int, file: int) -> list[Op]:
        """Return an operation that is one collective; in a group of one it was local work, and stays so."""
        group, operation = COLLECTIVES[op.op]
        local: list[Op] = []
        if self.group_size(group) == 1 and _has_times(op):
            local = [_compute(op, Phase.STEP, file, op.duration_s or 0.0)]
        if self.target_size(group) == 1:
            return local
        believed = self._believes(group) and _has_times(op) and self._separable(op, group, rank)
        duration_s = self.meetings.transfer_s(op, None, rank) if believed else None
        return [*local, _communication(op.op, op, file, Phase.STEP, group, operation, size_bytes_of(op), duration_s)]

    def _separable(self, op: TraceOp, group: Group, rank: int) -> bool:
        """Tell whether transfer can be told from waiting.

        Of the first and last stage, which reduce tied embeddings, the first comes last; the other one alone
        does not know how long it waited.
        """
        return group is not Group.EMB or not op.stage_id or self.meetings.complete(op, rank)

    def _bucket(self, op: TraceOp, file: int) -> list[Op]:
        """Return the launch of a gradient bucket, which runs beside what follows."""
        group, operation = op.group_kind or COLLECTIVES[op.op][0], COLLECTIVES[op.op][1]
        if self.target_size(group) == 1:
            return []
        duration_s = op.duration_s if self._believes(group) and op.duration_s else None
        phase, size_bytes = Phase.WEIGHT_GRADIENT, size_bytes_of(op)
        return [_communication(op.op, op, file, phase, group, operation, size_bytes, duration_s, blocking=False)]

    def _optimizer(self, op: TraceOp, rank: int, file: int) -> list[Op]:
        """Return the optimizer: a meeting of tp x pp for the norm, and what is left when all have come.

        Where ranks did not wait for each other gradients are not clipped, and all of it is their own.
        """
        own_s = _time_of(op)
        if self.target_size(Group.MP) == 1 or not self.meetings.norm_is_met:
            return [_compute(op, Phase.STEP, file, own_s)]
        if not self.profile and _has_times(op):
            own_s = min(own_s, resolved_s(self.meetings.after_last_start_s(op, rank), op.timestamp_s))
        transfer_s = 0.0 if self.measured else None
        norm = _communication("grad_norm", op, file, Phase.STEP, Group.MP, Operation.ALL_REDUCE, 4, transfer_s)
        return [norm, _compute(op, Phase.STEP, file, own_s)]

    def _inside(self, op: TraceOp, rank: int, file: int, launches: Sequence[TraceOp]) -> list[Op]:
        """Return a forward, backward or other operation: what lies between its collectives, and they."""
        phase = _PHASES.get(op.op, Phase.STEP)
        if op.op in _HOST and not _has_times(op):
            return []
        _time_of(op)
        if op.start_s is None or op.end_s is None:
            return [_compute(op, phase, file, op.duration_s or 0.0)]
        ops: list[Op] = []
        now_s, waiting = op.start_s, sorted(launches, key=launch_s)
        sections = traced_sections(op) if self.experts is None else self.experts.sections(op)
        for index, sub in enumerate(op.sub_ops):
            start_s = now_s if sub.start_s is None else max(now_s, sub.start_s)
            while waiting and launch_s(waiting[0]) <= start_s:
                ops += _between(op, phase, file, launch_s(waiting[0]) - now_s) + self._bucket(waiting[0], file)
                now_s = max(now_s, launch_s(waiting.pop(0)))
            section = sections.get(index, Section(0.0, sub.size_bytes))
            ops += _between(op, phase, file, start_s - now_s + section.extra_s)
            ops += self._sub_operation(op, sub, rank, file, phase, section)
            now_s = max(now_s, start_s + (sub.duration_s or 0.0))
        for launch in waiting:
            ops += _between(op, phase, file, launch_s(launch) - now_s) + self._bucket(launch, file)
            now_s = max(now_s, min(launch_s(launch), op.end_s))
        return ops + _between(op, phase, file, op.end_s - now_s)

    def _sub_operation(self, op: TraceOp, sub: SubOp, rank: int, file: int, phase: Phase, section: Section) -> list[Op]:
        size_bytes = section.size_bytes
        group, known = sub.group, sub.start_s is not None and sub.end_s is not None
        if group is None or sub.comm is Operation.NONE:
            return _between(op, phase, file, sub.duration_s or 0.0)
        local: list[Op] = []
        if self.group_size(group) == 1 and self.measured:
            local = _between(op, phase, file, sub.duration_s or 0.0)
        if self.target_size(group) == 1:
            return local
        if size_bytes is not None and sub.comm in (Operation.ALL_GATHER, Operation.GATHER):
            size_bytes *= self.target_size(group)
        name = sub.func_name or sub.source
        if not sub.is_async:
            transfer_s = self.meetings.transfer_s(op, sub, rank) if self._believes(group) and known else None
            made = _communication(name, op, file, phase, group, sub.comm, size_bytes, transfer_s)
            loads = self.experts.loads if self.experts is not None and is_exchange(sub) else None
            received_bytes = section.received_bytes
            return [*local, replace(made, loads=loads, received_bytes=received_bytes, unequal=sub.is_v_form)]
        own_s = self.meetings.own_s(op, sub, rank) if known else sub.duration_s or 0.0
        transfer_s = self.meetings.hidden_transfer_s(sub.call) if self._believes(group) else None
        launch = _communication(name, op, file, phase, group, sub.comm, size_bytes, transfer_s, blocking=False)
        launch = replace(launch, received_bytes=section.received_bytes, unequal=sub.is_v_form)
        wait = wait_op(launch.stream, name=f"wait_{name}", phase=phase, place=Place(file, op.line), part=op.op)
        return [launch, *_between(op, phase, file, own_s), wait]


def _time_of(op: TraceOp) -> float:
    """Return an operation's duration in seconds, or refuse one that has none: nothing estimates it."""
    if op.duration_s is None or op.is_placeholder:
        raise FormatError(
            f"{op.op} has no time, and traincast does not estimate computations of a trace; give a trace in which it "
            "was measured",
            op.path,
            op.line,
        )
    return op.duration_s


def _has_times(op: TraceOp) -> bool:
    return op.start_s is not None and op.end_s is not None


def launch_s(op: TraceOp) -> float:
    """Return when a gradient bucket was launched, on the host's clock in seconds."""
    text = op.raw("launch_timestamp_ms")
    try:
        return float(text or "") / 1e3
    except ValueError:
        return op.timestamp_s or 0.0


def _between(op: TraceOp, phase: Phase, file: int, duration_s: float) -> list[Op]:
    duration_s = resolved_s(duration_s, op.timestamp_s)
    if duration_s <= 0:
        return []
    if op.op in _HOST:
        return [host_op(op.op, phase, duration_s, place=Place(file, op.line), part=op.op)]
    return [_compute(op, phase, file, duration_s)]


def _compute(op: TraceOp, phase: Phase, file: int, duration_s: float) -> Op:
    overlap_class = OVERLAP_CLASSES.get(op.op, OverlapClass.UNKNOWN)
    return compute_op(op.op, phase, duration_s, overlap_class=overlap_class, place=Place(file, op.line), part=op.op)


def _communication(
    name: str,
    op: TraceOp,
    file: int,
    phase: Phase,
    group: Group,
    operation: Operation,
    size_bytes: int | None,
    duration_s: float | None,
    blocking: bool = True,
) -> Op:
    if size_bytes is None and duration_s is None:
        raise FormatError(
            f"the communication {name!r} of {op.op!r} has no time to use, and its shape or type gives no size to price",
            op.path,
            op.line,
        )
    known_s = None if duration_s is None else resolved_s(duration_s, op.timestamp_s)
    place = Place(file, op.line)
    return collective_op(name, phase, group, operation, size_bytes, known_s, blocking=blocking, place=place, part=op.op)
