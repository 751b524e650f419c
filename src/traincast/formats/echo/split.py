"""Split one rank's traced operations into computations, communications and host gaps.

The result is ordered by the slots of a pipeline: what a rank does before its first microbatch,
in the forward and backward of each, and at the end of the step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from traincast.formats.echo.experts import ExpertScaling, Section
from traincast.formats.echo.lines import SubOp, TraceOp
from traincast.formats.echo.meetings import OPTIMIZER, Meetings
from traincast.formats.echo.vocabulary import COLLECTIVES, MESSAGES
from traincast.schedules.plan import SlotKind
from traincast.workload.ops import Op
from traincast.workload.words import STREAM_OF_GROUP, Group, Kind, Operation, Phase, Provenance

_PHASES = {
    "get_batch": Phase.FORWARD,
    "forward_step": Phase.FORWARD,
    "loss_func": Phase.FORWARD,
    "backward_step": Phase.BACKWARD,
}
_HOST = {"get_batch"}
"""Operations that are the host's work but for the communication inside them."""

SlotKey = tuple[SlotKind, int]


@dataclass(slots=True)
class RankWork:
    """A rank's step as template operations, by the part of the pipeline they belong to."""

    start: list[Op] = field(default_factory=list)
    slots: dict[SlotKey, list[Op]] = field(default_factory=dict)
    """Forward and backward of each microbatch, in the order of the trace."""
    end: list[Op] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Splitter:
    """How to split: with what the other ranks did, and whether communication times mean anything."""

    meetings: Meetings
    group_size: Callable[[Group], int]
    measured: bool
    """Take communication times from the trace; otherwise leave them to be priced."""
    experts: ExpertScaling | None
    """Rescaling of a single-GPU profile's expert work; None in a real run."""

    def split(self, ops: tuple[TraceOp, ...], rank: int, file: int, offset_s: float) -> RankWork:
        """Split a rank's trace.

        Parameters
        ----------
        ops : tuple of TraceOp
            The rank's operations in program order.
        rank : int
            The rank.
        file : int
            Index of its input file.
        offset_s : float
            What to subtract from the rank's clock to be on the run's.

        Returns
        -------
        RankWork
        """
        work = RankWork()
        target, waiting = work.start, list[Op]()
        now_s: float | None = 0.0 if self.experts is None else None
        for op in ops:
            gap = self._gap(op, now_s, offset_s, file)
            if op.end_s is not None:
                now_s = op.end_s - offset_s
            if op.op in MESSAGES:
                # The gap before a message delays it, so it belongs to what stands before the message.
                (waiting or target).extend(gap)
                continue
            mine = gap + self._operation(op, rank, file)
            if op.op in ("forward_step", "backward_step"):
                kind = SlotKind.F if op.op == "forward_step" else SlotKind.BW
                target = work.slots.setdefault((kind, op.batch_id or 0), [])
                target.extend(waiting + mine)
                waiting = []
            elif op.op == "get_batch":
                waiting += mine
            elif op.op == "loss_func":
                target.extend(mine)
            else:
                target = work.end
                target.extend(mine)
        work.end.extend(waiting)
        return work

    def _gap(self, op: TraceOp, now_s: float | None, offset_s: float, file: int) -> list[Op]:
        """Return the host gap before an operation, if there is one."""
        if now_s is None or op.start_s is None:
            return []
        gap_s = op.start_s - offset_s - now_s
        if gap_s <= 0:
            return []
        return [replace(_op("host_gap", Kind.GAP, Phase.STEP, op, file, duration_s=gap_s), part=None)]

    def _operation(self, op: TraceOp, rank: int, file: int) -> list[Op]:
        if op.op in COLLECTIVES:
            return self._collective(op, rank, file)
        if op.op == OPTIMIZER:
            return self._optimizer(op, rank, file)
        return self._inside(op, rank, file)

    def _collective(self, op: TraceOp, rank: int, file: int) -> list[Op]:
        """Return an operation that is one collective; in a group of one it is local work."""
        group, operation = COLLECTIVES[op.op]
        if self.group_size(group) == 1:
            return [] if op.is_placeholder else [_compute(op, Phase.STEP, file, op.duration_s or 0.0)]
        duration_s = self.meetings.transfer_s(op, None, rank) if self.measured and not op.is_placeholder else None
        return [_communication(op.op, op, file, Phase.STEP, group, operation, op.size_bytes, duration_s)]

    def _optimizer(self, op: TraceOp, rank: int, file: int) -> list[Op]:
        """Return the optimizer: a meeting of tp x pp for the norm, and what is left when all have come."""
        own_s = op.duration_s or 0.0
        if self.group_size(Group.MP) == 1:
            return [_compute(op, Phase.STEP, file, own_s)]
        if self.measured and not op.is_placeholder:
            own_s = min(own_s, self.meetings.after_last_start_s(op, rank))
        transfer_s = 0.0 if self.measured else None
        norm = _communication("grad_norm", op, file, Phase.STEP, Group.MP, Operation.ALL_REDUCE, 4, transfer_s)
        return [norm, _compute(op, Phase.STEP, file, own_s)]

    def _inside(self, op: TraceOp, rank: int, file: int) -> list[Op]:
        """Return a forward, backward or other operation: what lies between its collectives, and they."""
        phase = _PHASES.get(op.op, Phase.STEP)
        if op.start_s is None or op.end_s is None:
            return []
        ops: list[Op] = []
        now_s = op.start_s
        sections = self.experts.sections(op) if self.experts is not None else {}
        for index, sub in enumerate(op.sub_ops):
            start_s = now_s if sub.start_s is None else max(now_s, sub.start_s)
            section = sections.get(index, Section(0.0, sub.size_bytes))
            ops += _between(op, phase, file, start_s - now_s + section.extra_s)
            ops += self._sub_operation(op, sub, rank, file, phase, section.size_bytes)
            now_s = max(now_s, start_s + (sub.duration_s or 0.0))
        return ops + _between(op, phase, file, op.end_s - now_s)

    def _sub_operation(
        self, op: TraceOp, sub: SubOp, rank: int, file: int, phase: Phase, size_bytes: int | None
    ) -> list[Op]:
        group, known = sub.group, sub.start_s is not None and sub.end_s is not None
        if group is None or sub.comm is Operation.NONE:
            return _between(op, phase, file, sub.duration_s or 0.0)
        if self.group_size(group) == 1:
            return [] if not self.measured else _between(op, phase, file, sub.duration_s or 0.0)
        if size_bytes is not None and sub.comm is Operation.ALL_GATHER:
            size_bytes *= self.group_size(group)
        name = sub.func_name or sub.source
        if not sub.is_async:
            transfer_s = self.meetings.transfer_s(op, sub, rank) if self.measured and known else None
            return [_communication(name, op, file, phase, group, sub.comm, size_bytes, transfer_s)]
        own_s = self.meetings.own_s(op, sub, rank) if known else sub.duration_s or 0.0
        transfer_s = self.meetings.hidden_transfer_s(sub.call) if self.measured else None
        stream = STREAM_OF_GROUP[group]
        launch = _communication(name, op, file, phase, group, sub.comm, size_bytes, transfer_s, blocking=False)
        wait = replace(_op(f"wait_{name}", Kind.WAIT, phase, op, file, duration_s=0.0), waits_for=stream)
        return [launch, *_between(op, phase, file, own_s), wait]


def _between(op: TraceOp, phase: Phase, file: int, duration_s: float) -> list[Op]:
    if duration_s <= 0:
        return []
    if op.op in _HOST:
        return [_op(op.op, Kind.GAP, phase, op, file, duration_s=duration_s)]
    return [_compute(op, phase, file, duration_s)]


def _compute(op: TraceOp, phase: Phase, file: int, duration_s: float) -> Op:
    return _op(op.op, Kind.COMPUTE, phase, op, file, duration_s=duration_s)


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
    made = _op(name, Kind.COLLECTIVE, phase, op, file, duration_s=duration_s)
    return replace(
        made,
        blocking=blocking,
        stream=STREAM_OF_GROUP[group],
        group=group,
        operation=operation,
        size_bytes=size_bytes,
    )


def _op(name: str, kind: Kind, phase: Phase, op: TraceOp, file: int, *, duration_s: float | None) -> Op:
    return Op(
        name=name,
        kind=kind,
        phase=phase,
        duration_s=duration_s,
        provenance=Provenance.UNKNOWN if duration_s is None else Provenance.FILE,
        file=file,
        line=op.line,
        part=op.op,
    )
